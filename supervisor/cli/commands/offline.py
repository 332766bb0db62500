"""`topics verify` and `topics reshard`: work on the data directory of a stopped service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor.backup import offline
from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.quantities import counted
from supervisor.cli.terminal import DataDirOption, JsonOption, Status, bar, complain, fail, say, tell
from supervisor.config.settings import MAX_SHARDS
from supervisor.process.datadir import DataDirError


def verify(data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Check every frame, checksum and index of a stopped service. Changes nothing.

    Exit status: 0 sound, 1 problems found or the directory cannot be used, 2 wrong settings.
    """
    with bar("verifying shards", shown=not as_json) as advance:
        for found in _offline("verify", data_dir):
            if as_json and found["kind"] != "exit":
                say(found)
            elif found["kind"] == "report":
                advance(found["done"], found["total"])
                tell(
                    f"{found['shard']}: {counted(found['topics'], 'topic')}, {counted(found['records'], 'record')}, "
                    f"{counted(found['log_frames'], 'log frame')}, {counted(found['segment_frames'], 'frame')} in "
                    f"{counted(found['segments'], 'segment')}: " + ("PROBLEMS" if found["problems"] else "sound")
                )
                for problem in found["problems"]:
                    complain(problem)
                for note in found["notes"]:
                    tell(f"  {note}")


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
        for found in _offline("reshard", data_dir, shards):
            if as_json and found["kind"] != "exit":
                say(found)
            elif found["kind"] == "progress":
                advance(found["done"], found["total"])
            elif found["kind"] == "done":
                tell(f"done: {found['shards']} shards")
            elif found["kind"] == "error":
                complain(found["message"])


def _offline(command: str, data_dir: Path | None, shards: int | None = None) -> Iterator[dict[str, Any]]:
    """The results of an offline command. Ends the process with status 1 if the command fails."""
    settings = own_settings(data_dir=data_dir)
    try:
        for found in offline.results(command, settings.data_dir, settings.limits(), shards=shards):
            yield found
            if found["kind"] == "exit" and found["status"]:
                raise typer.Exit(Status.FAILED)
    except DataDirError as error:
        fail(str(error), Status.FAILED)
