"""`python -m shardd.offline COMMAND DATA`: commands for the files of a stopped service, or for its bucket.

The `topics` command starts it and holds the data directory's lock. Standard input has one JSON object: `shards`,
`limits`, and the arguments of the command. Standard output has one JSON object per line: progress, then the result.
Exit status: 0 done, 1 problems found or not possible.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import structlog

from proto.model.limits import Limits
from proto.model.names import shard_of
from shardd.clock import SystemClock
from shardd.offline import replica
from shardd.offline.fetch import fetch
from shardd.offline.reshard import Reshard, shard_name
from shardd.offline.rewind import Cuts, cut
from shardd.offline.salvage import salvage
from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from shardd.replication.attach import FORMAT, Mismatch, Service, join_service
from shardd.replication.browse import Damaged, patiently
from shardd.replication.seal import open_bucket
from shardd.replication.store import Store, StoreError
from shardd.storage.disk import RealDisk
from shardd.storage.errors import SegmentError

PROGRESS_INTERVAL = 0.2


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _verify(data: Path, job: dict[str, Any], limits: Limits) -> int:
    sound = True
    shards: int = job["shards"]
    for index in range(shards):
        report = verify(RealDisk(), data / shard_name(index), SystemClock(), limits)
        sound = sound and not report.problems
        _say(kind="report", done=index + 1, total=shards, **asdict(report))
    return 0 if sound else 1


def _told(find: Callable[[], Iterator[dict[str, Any]]]) -> int:
    """Say what `find` yields, or the error that ends it. Returns the exit status."""
    sound = True
    try:
        for found in find():
            sound = sound and not (found["kind"] == "report" and found["problems"])
            _say(**found)
    except (Damaged, Mismatch, RecoveryError, SegmentError, StoreError, OSError) as error:
        _say(kind="error", message=str(error))
        return 1
    return 0 if sound else 1


def _reshard(data: Path, job: dict[str, Any], limits: Limits) -> int:
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_INTERVAL:
            last = time.monotonic()
            _say(kind="progress", done=done, total=total)

    def resharded() -> Iterator[dict[str, Any]]:
        try:
            result = Reshard(RealDisk(), data, SystemClock(), limits).run(job["shards"], progress)
        except SegmentError as error:
            raise SegmentError(f"{error}: if `topics verify` names a damaged topic, salvage it first") from error
        yield {"kind": "done", "shards": result}

    return _told(resharded)


def _cut(data: Path, job: dict[str, Any], limits: Limits) -> int:
    paths = [data / shard_name(index) for index in range(job["shards"])]
    found = cut(RealDisk(), paths, SystemClock(), limits, Cuts(**job["cuts"]))
    return _told(lambda: ({"kind": "problem" if "problem" in each else "cut", **each} for each in found))


def _salvage(data: Path, job: dict[str, Any], limits: Limits) -> int:
    name, backup = job["topic"], job["backup"]
    path = data / shard_name(shard_of(name, job["shards"]))
    source = None if backup is None else (Path(backup[0]), Path(backup[1]))
    return _told(lambda: salvage(RealDisk(), path, SystemClock(), limits, name, source))


def _bucket(job: dict[str, Any], limits: Limits) -> Store:
    return open_bucket(job["url"], limits.bucket_key_file, limits.bucket_encrypt)


def _fetch(data: Path, job: dict[str, Any], limits: Limits) -> int:
    cold = Path(limits.cold_dir) if limits.cold_dir else None
    return _told(lambda: fetch(RealDisk(), _bucket(job, limits), data, cold, limits, job["until_ms"]))


def _replica_verify(data: Path, job: dict[str, Any], limits: Limits) -> int:
    return _told(lambda: replica.verify(_bucket(job, limits)))


def _replica_status(data: Path, job: dict[str, Any], limits: Limits) -> int:
    return _told(lambda: replica.status(_bucket(job, limits)))


def _join(data: Path, job: dict[str, Any], limits: Limits) -> int:
    settings = (limits.replication, limits.term_ttl_ms, limits.bucket_encrypt)
    wanted = Service(FORMAT, job["created_ms"], job["shards"], *settings)

    def joined() -> Iterator[dict[str, Any]]:
        store = _bucket(job, limits)
        found = patiently(lambda: join_service(store, wanted))
        yield {"kind": "service", "shards": found.shards, "created_ms": found.service}

    return _told(joined)


_COMMANDS = {
    "verify": _verify,
    "reshard": _reshard,
    "cut": _cut,
    "salvage": _salvage,
    "fetch": _fetch,
    "join": _join,
    "replica-verify": _replica_verify,
    "replica-status": _replica_status,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="shardd.offline")
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    job = json.load(sys.stdin)
    # No log lines: problems are part of the result, and standard output has results only.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return _COMMANDS[options.command](options.data, job, msgspec.convert(job["limits"], Limits))


if __name__ == "__main__":
    sys.exit(main())
