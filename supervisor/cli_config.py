"""`topics config`: what is in effect, and why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor import keys, reference
from supervisor.settings import PREFIX, SettingsError, load_with_origin


def config(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference of all settings instead.")] = False,
) -> None:
    """Print every setting in effect and where its value is from; never a key.

    Exit status: 0, or 2 for wrong settings.
    """
    if markdown:
        typer.echo(reference.markdown(), nl=False)
        return
    try:
        loaded = load_with_origin()
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"topics: {line}", err=True)
        raise typer.Exit(2) from None
    values: dict[str, Any] = {name: _plain(getattr(loaded.settings, name)) for name in sorted(loaded.origin)}
    if as_json:
        shown = {name: {"value": value, "from": loaded.origin[name]} for name, value in values.items()}
        typer.echo(json.dumps({"settings": shown, "keys": _keys()}, indent=2))
        return
    for name, value in values.items():
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else value
        origin = loaded.origin[name]
        typer.echo(f"{PREFIX}{name.upper()}={text}" + ("" if origin == "default" else f"  # {origin}"))
    typer.echo(f"# keys: {_keys()}")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _keys() -> str:
    """Where keys come from. A secret is not even read."""
    if os.environ.get(keys.VARIABLE):
        return f"from {keys.VARIABLE}"
    path = os.environ.get(keys.FILE_VARIABLE)
    return f"from the file {path}" if path else "none"
