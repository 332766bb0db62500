"""Reference of the command line: what the parser knows, as Markdown. The end of `docs/cli.md` is generated from it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from supervisor.cli.main import SECTIONS, load

BEGIN = "<!-- Made by `make reference` from the parser; a test keeps it in step. -->\n"
SHARED = ("url", "token", "context", "patience", "as_json")
"""Options of every command that asks a service: listed once."""


def page(text: str) -> str:
    """A page with the reference behind its mark."""
    return text.partition(BEGIN)[0] + BEGIN + markdown()


def markdown() -> str:
    parts = ["\n### Options of a service\n\n", *_rows(load("ls"), only=True)]
    for section, names in SECTIONS.items():
        parts.append(f"\n### {section}\n")
        for name in names:
            parts += _command(f"topics {name}", load(name))
    return "".join(parts)


def _command(name: str, command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"\n#### {name}\n\n"
    if not getattr(command, "commands", None):
        yield f"`{usage}`\n\n"
    yield _text(command.help or "") + "\n"
    rows = list(_rows(command))
    if rows:
        yield "\n"
        yield from rows
    if set(SHARED) <= {each.name for each in command.params}:
        yield "\nAnd the [options of a service](#options-of-a-service).\n"
    for each in getattr(command, "commands", {}).values():
        yield from _command(f"{name} {each.name}", each)


def _rows(command: Any, *, only: bool = False) -> Iterator[str]:
    """A table of arguments and options; those of `SHARED`, or the others."""
    context = typer.Context(command)
    asks = set(SHARED) <= {each.name for each in command.params}
    records = [
        (each.get_help_record(context) or (each.metavar or each.name, ""))
        for each in command.params
        if (asks and each.name in SHARED) is only
    ]
    if records:
        yield "| | |\n| --- | --- |\n"
    for left, right in records:
        text = re.sub(r"\s+", " ", str(right)).replace("|", "\\|")
        name = re.sub(r"^([A-Z_|]+) <.*>$", r"\1", left).replace("|", "\\|")
        yield f"| `{name}` | {text} |\n"


def _text(help: str) -> str:
    """The help as paragraphs; what looks like HTML stays text."""
    return "\n\n".join(" ".join(each.split()) for each in help.strip().split("\n\n")).replace("<", "&lt;")


def main() -> None:
    """`python -m supervisor.cli.reference PAGE`: bring the page up to date."""
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
