"""Terminal output of the commands: exit statuses, errors, lines of JSON, progress bars; and options they share.

`tell` prints what others wrote, and nothing else prints: a tag, a name or an answer neither moves a terminal's cursor
nor makes a line of its own (`proto.model.visible`). Only this module has colors.

Results go to standard output, everything else to standard error, so that a pipe gets results only. A progress bar is
shown only if standard error is a terminal.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from proto.model.visible import visible
from supervisor.config import units

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
Advance = Callable[[int, int | None], None]
"""Called with the amount done and the total; the total is None if unknown."""


def group(help: str) -> typer.Typer:
    """A command that has commands of its own."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=HELP_OPTIONS,
    )


class Status(IntEnum):
    """Exit statuses of all commands but `serve`, whose status 3 has another meaning."""

    DONE = 0
    FAILED = 1
    """Not possible, refused, or problems were found. A retry will not help."""
    USAGE = 2
    """Wrong options or settings; nothing was started."""
    UNAVAILABLE = 3
    """The service was not reachable or not ready. A retry may help."""
    GAPS = 4
    """Done, but some records were lost before they could be read; the output names them."""


DataDirOption = Annotated[Path | None, typer.Option(help="The data directory [TOPICS_DATA_DIR; ./topics-data].")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]


def read_size(given: str | int) -> int:
    """Parse an option's size: bytes, at least 1. Raises `typer.BadParameter`."""
    found = _read(str(given), units.size)
    if found < 1 or found != int(found):
        raise typer.BadParameter(f"{given}: must be 1 byte or more, such as 4194304 or 4MiB")
    return int(found)


def read_seconds(given: str | float) -> float:
    """Parse an option's duration: seconds, at least 0. Raises `typer.BadParameter`."""

    def read(text: str) -> float | None:
        found = units.duration_ms(text)
        return None if found is None else found / 1000

    found = _read(str(given), read)
    if not 0 <= found < math.inf:
        raise typer.BadParameter(f"{given}: must be 0 or more, such as 2 (seconds) or 500ms")
    return found


def read_duration_ms(given: str | int) -> int:
    """Parse an option's duration in whole milliseconds, at least 0; a plain number is seconds. Raises as above."""
    return round(1000 * read_seconds(given))


def duration_option(help: str) -> object:
    """An option that is a duration, read as whole milliseconds."""
    return typer.Option(parser=read_duration_ms, metavar="DURATION", help=help)


def size_option(help: str) -> object:
    """An option that is a size, read as bytes."""
    return typer.Option(parser=read_size, metavar="SIZE", help=help)


def _read(text: str, read: Callable[[str], float | None]) -> float:
    try:
        found = read(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text}: {error}") from None
    try:
        return float(text) if found is None else found
    except ValueError:
        raise typer.BadParameter(f"{text} is not a number, with or without a unit") from None


class Painted(str):
    """A line with colors of ours, in which everything else was made visible."""


def tell(*lines: str, err: bool = False) -> None:
    """Print lines, each of which stays one."""
    for line in lines:
        typer.echo(line if isinstance(line, Painted) else visible(line), err=err)


def write_line(line: str) -> None:
    """As `tell`, without a flush."""
    sys.stdout.write((line if isinstance(line, Painted) else visible(line)) + "\n")


def complain(*lines: str) -> None:
    for line in lines:
        tell(f"topics: {line}", err=True)


def fail(text: str, status: Status, *more: str) -> NoReturn:
    complain(text, *more)
    raise typer.Exit(status) from None


def say(*found: dict[str, Any]) -> None:
    """Print lines of `--json` output."""
    tell(*map(json.dumps, found))


def without_json(results: Iterator[dict[str, Any]], as_json: bool) -> Iterator[dict[str, Any]]:
    """The results of a command; with --json none, as each is printed here."""
    for found in results:
        if as_json:
            say(found)
        else:
            yield found


def paint(text: str, color: str) -> Painted:
    """The text in a color, if standard output is a terminal and NO_COLOR is not set."""
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Painted(typer.style(visible(text), fg=color) if colored else visible(text))


def joined(*parts: str) -> Painted:
    """One line of parts with two spaces between them; painted ones keep their colors."""
    return Painted("  ".join(part if isinstance(part, Painted) else visible(part) for part in parts))


def clean(value: Any) -> Any:
    """A value made of lists, dicts and texts, with all texts visible: for tables that rich draws."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {clean(name): clean(each) for name, each in value.items()}
    return [clean(each) for each in value] if isinstance(value, list) else value


def table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Painted:
    """The fields of rows with these names, as columns below them; columns of numbers are aligned to the right."""
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(_is_number(row.get(name)) for row in rows) for name in names]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        padded = (t.rjust(w) if n else t.ljust(w) for t, w, n in zip(texts, widths, numeric, strict=True))
        return "  ".join(padded).rstrip()

    return Painted("\n".join([paint(line(names), "bright_black"), *map(line, cells)]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else visible(str(value))


def confirmed(question: str, yes: bool) -> bool:
    """Whether to continue: --yes, or the answer at a terminal. Ends the command if there is none to ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        fail(f"{question} Say so with --yes, as there is no terminal to ask", Status.USAGE)
    return typer.confirm(visible(question), err=True)


@contextmanager
def bar(what: str, *, of_bytes: bool = False, shown: bool = True) -> Iterator[Advance]:
    """Context with a progress bar, if `shown` and standard error is a terminal. The first call sets its total."""
    if not shown or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    figures = DownloadColumn() if of_bytes else MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), figures, TimeRemainingColumn()
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task(what, total=None)

        def advance(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        yield advance
