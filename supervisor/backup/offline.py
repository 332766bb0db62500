"""Offline commands on the files of a stopped service. A process of `shardd`, which owns the files, does the work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from proto.model.limits import Limits
from supervisor.process.datadir import DataDir
from supervisor.process.forks import python


def results(
    command: str, data_dir: Path, limits: Limits, *, shards: int | None = None, **job: Any
) -> Iterator[dict[str, Any]]:
    """Run `verify`, `reshard`, `cut` or `salvage`. Yields its results; the last is `{"kind": "exit", "status": n}`.

    `shards` None keeps the number of shards; `job` has further parameters of the command. Raises `DataDirError` if the
    directory is in use, is not a data directory, or is for `reshard` alone.
    """
    with closing(DataDir.locked(data_dir, exchanging=command == "reshard")) as data:
        yield from _run(command, data.path, {"shards": shards or data.shards, "limits": limits, **job}, data.lock_fds)


def of_bucket(command: str, limits: Limits, *, path: Path = Path(), **job: Any) -> Iterator[dict[str, Any]]:
    """Run `fetch`, `join`, `replica-verify` or `replica-status` on a bucket, as `results`. `path` is a directory that
    nothing else uses."""
    yield from _run(command, path, {"limits": limits, **job}, ())


def _run(command: str, path: Path, job: dict[str, Any], inherit: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    arguments = [*python("shardd.offline"), command, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=inherit) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
    yield {"kind": "exit", "status": process.returncode}
