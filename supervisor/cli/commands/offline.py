"""`topics verify`, `reshard` and `salvage`: work on the data directory of a stopped service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from proto.model.names import shard_of
from supervisor.backup import backup as backups
from supervisor.backup import offline
from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.quantities import counted
from supervisor.cli.terminal import DataDirOption, JsonOption, Status, bar, complain, fail, tell, without_json
from supervisor.config.settings import MAX_SHARDS, Settings
from supervisor.process.datadir import MANIFEST, DataDirError, parse_manifest, shard_name


def verify(data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Check every frame, checksum and index of a stopped service. Changes nothing.

    Exit status: 0 sound, 1 problems found or the directory cannot be used, 2 wrong settings.
    """
    with bar("verifying shards", shown=not as_json) as advance:
        for found in without_json(_offline("verify", own_settings(data_dir=data_dir)), as_json):
            if found["kind"] == "report":
                advance(found["done"], found["total"])
                tell(
                    f"{found['shard']}: {counted(found['topics'], 'topic')}, {counted(found['records'], 'record')}, "
                    f"{counted(found['log_frames'], 'log frame')}, {counted(found['segment_frames'], 'frame')} in "
                    f"{counted(found['segments'], 'segment')}: " + ("PROBLEMS" if found["problems"] else "sound")
                )
                complain(*found["problems"])
                tell(*(f"  {note}" for note in found["notes"]))


def reshard(
    shards: Annotated[int, typer.Option(min=1, max=MAX_SHARDS, help="New number of shards.")],
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Distribute the topics of a stopped service over another number of shards.

    Needs as much free space as there is data. May be interrupted at any time: the next run starts over or continues.
    Exit status: 0 done, 1 not possible, 2 wrong settings.
    """
    with bar("copying records", shown=not as_json) as advance:
        for found in without_json(_offline("reshard", own_settings(data_dir=data_dir), shards=shards), as_json):
            if found["kind"] == "progress":
                advance(found["done"], found["total"])
            elif found["kind"] == "done":
                tell(f"done: {found['shards']} shards")
            elif found["kind"] == "error":
                complain(found["message"])


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
        for found in without_json(_offline("salvage", settings, **job), as_json):
            if found["kind"] == "error":
                complain(found["message"])
            else:
                _tell_salvaged(found)
    except (DataDirError, OSError) as error:
        fail(str(error), Status.FAILED)


def _offline(command: str, settings: Settings, **job: Any) -> Iterator[dict[str, Any]]:
    """The results of an offline command. Ends the process with status 1 if the command fails."""
    try:
        for found in offline.results(command, settings.data_dir, settings.limits(), **job):
            if found["kind"] != "exit":
                yield found
            elif found["status"]:
                raise typer.Exit(Status.FAILED)
    except DataDirError as error:
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


def _tell_salvaged(found: dict[str, Any]) -> None:
    name = found["topic"]
    if found["kind"] == "sound":
        tell(f'topic "{name}" is sound, nothing was changed')
        return
    tell(*(f"  {problem}" for problem in found["problems"]))
    lost = ", ".join(f"{first} to {last}" for first, last in found["lost"]) or "none"
    kept = f"{counted(found['kept'], 'record')}, {found['restored']:,} of them from the backup"
    tell(f'topic "{name}": {kept}; seqs that are lost: {lost}')
