"""`topics backup` and `topics restore`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from supervisor import backup as backups
from supervisor import settings as settings_module

DataDirOption = Annotated[
    Path | None, typer.Option(help="The data directory [TOPICS_DATA_DIR; ./topics-data].", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]


def backup(
    directory: Annotated[Path, typer.Argument(help="Directory of backups; each gets a folder named by its time.")],
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Back up the data directory, while the service runs or not. What has not changed since the last one is linked.

    Exit status: 0 done, 1 not possible, 2 wrong settings.
    """
    settings = _settings(data_dir)
    try:
        for found in backups.backup(settings.data_dir, _cold(settings), directory):
            if as_json:
                typer.echo(json.dumps(found))
            elif found["kind"] == "done":
                typer.echo(f"{found['path']}: {found['copied_bytes']} bytes copied, {found['linked_bytes']} linked")
            elif found["again"]:
                typer.echo(f"{found['shard']}: a checkpoint came in between, going through it again")
            else:
                typer.echo(f"{found['shard']}: {found['copied_bytes']} bytes copied so far")
    except (backups.BackupError, OSError) as error:
        _fail(str(error), 1)


def restore(
    source: Annotated[Path, typer.Argument(help="A backup, or a directory of them, whose newest is taken.")],
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data directory of a backup. It must not exist yet, or be empty. `topics verify` checks it afterwards.

    Exit status: 0 done, 1 not possible, 2 wrong settings.
    """
    settings = _settings(data_dir)
    try:
        chosen = backups.restore(source, settings.data_dir, _cold(settings))
    except (backups.BackupError, OSError) as error:
        _fail(str(error), 1)
    found = {"kind": "done", "backup": str(chosen), "data_dir": str(settings.data_dir)}
    typer.echo(json.dumps(found) if as_json else f"{chosen} is restored to {settings.data_dir}")


def _cold(settings: settings_module.Settings) -> Path | None:
    return Path(settings.cold_dir) if settings.cold_dir else None


def _settings(data_dir: Path | None) -> settings_module.Settings:
    try:
        return settings_module.load({"data_dir": data_dir})
    except settings_module.SettingsError as error:
        _fail(str(error), 2)


def _fail(text: str, status: int) -> NoReturn:
    for line in text.splitlines():
        typer.echo(f"topics: {line}", err=True)
    raise typer.Exit(status) from None
