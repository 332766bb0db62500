"""`topics salvage`: repairs a topic with damaged files while the service is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from proto.model.names import shard_of
from supervisor.backup import backup as backups
from supervisor.backup import offline
from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.quantities import counted
from supervisor.cli.terminal import DataDirOption, JsonOption, Status, complain, fail, say, tell
from supervisor.process.datadir import MANIFEST, DataDirError, parse_manifest, shard_name


def salvage(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, as `topics verify` names it.")],
    data_dir: DataDirOption = None,
    backup: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="BACKUP",
            help="Take lost records from this backup of the service, or from the newest in this directory of backups.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the intact records of a damaged topic of a stopped service; the rest becomes a gap.

    Needs as much free space as the topic has records. May be interrupted at any time, and repeated. Not for a directory
    that is copied to a bucket: make it again from the bucket.

    Exit status: 0 done, or nothing was damaged, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    try:
        job: dict[str, Any] = {"topic": topic, "backup": None if backup is None else _shard_of(backup, topic)}
        for found in offline.results("salvage", settings.data_dir, settings.limits(), **job):
            if found["kind"] == "exit":
                if found["status"]:
                    raise typer.Exit(Status.FAILED)
            elif as_json:
                say(found)
            elif found["kind"] == "error":
                complain(found["message"])
            else:
                _tell(found)
    except (DataDirError, OSError) as error:
        fail(str(error), Status.FAILED)


def _shard_of(path: Path, topic: str) -> list[str]:
    """Paths in a backup: the shard directory that has the topic, and the cold folder."""
    if not (path / MANIFEST).exists():
        found = backups.backups(path)
        if not found:
            raise DataDirError(f"{path} is no backup, nor a directory that has one")
        path = found[-1]
    shards = parse_manifest(path / MANIFEST, (path / MANIFEST).read_bytes()).shards
    return [str((path / shard_name(shard_of(topic, shards))).absolute()), str((path / backups.COLD).absolute())]


def _tell(found: dict[str, Any]) -> None:
    name = found["topic"]
    if found["kind"] == "sound":
        tell(f'topic "{name}" is sound, nothing was changed')
        return
    for problem in found["problems"]:
        tell(f"  {problem}")
    lost = ", ".join(f"{first} to {last}" for first, last in found["lost"]) or "none"
    kept = f"{counted(found['kept'], 'record')}, {found['restored']:,} of them from the backup"
    tell(f'topic "{name}": {kept}; seqs that are lost: {lost}')
