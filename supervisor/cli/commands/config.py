"""`topics config`: the settings in effect and their sources."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from supervisor.cli.terminal import Status, complain, tell
from supervisor.config import keys, reference
from supervisor.config.places import PREFIX
from supervisor.config.settings import inspect


def config(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference of all settings instead.")] = False,
) -> None:
    """Print every setting in effect and the source of its value; never a key.

    Errors go to standard error (with --json, to "errors"); wrong settings are shown with their defaults.
    Exit status: 0, or 2 for wrong settings.
    """
    if markdown:
        typer.echo(reference.markdown(), nl=False)
        return
    loaded = inspect()
    complain(*loaded.problems)
    values: dict[str, Any] = {name: getattr(loaded.settings, name) for name in sorted(loaded.origin)}
    if as_json:
        shown = {name: {"value": value, "from": loaded.origin[name]} for name, value in values.items()}
        errors = {"errors": loaded.problems} if loaded.problems else {}
        tell(*json.dumps({"settings": shown, "keys": _keys(), **errors}, indent=2, default=str).split("\n"))
    else:
        for name, value in values.items():
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else value
            origin = loaded.origin[name]
            tell(f"{PREFIX}{name.upper()}={text}" + ("" if origin == "default" else f"  # {origin}"))
        tell(f"# keys: {_keys()}")
    if loaded.problems:
        raise typer.Exit(Status.USAGE)


def _keys() -> str:
    """The source of the keys, in words. Reads no secret."""
    if os.environ.get(keys.VARIABLE):
        return f"from {keys.VARIABLE}"
    path = os.environ.get(keys.FILE_VARIABLE)
    return f"from the file {path}" if path else "none"
