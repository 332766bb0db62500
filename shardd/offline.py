"""`python -m shardd.offline verify|reshard`: work on the files of a stopped service.

Started by the `topics` command, which holds the data directory's lock. Prints one JSON object per line: progress, then
the result. Exit status: 0 done, 1 problems found or not possible.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from proto.limits import Limits
from shardd.clock import SystemClock
from shardd.disk import RealDisk
from shardd.recovery import RecoveryError
from shardd.reshard import Reshard, shard_name
from shardd.verify import verify

PROGRESS_INTERVAL = 0.2


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _verify(data: Path, shards: int, limits: Limits) -> int:
    sound = True
    for index in range(shards):
        report = verify(RealDisk(), data / shard_name(index), SystemClock(), limits)
        sound = sound and not report.problems
        _say(kind="report", **report.as_map())
    return 0 if sound else 1


def _reshard(data: Path, shards: int, limits: Limits) -> int:
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_INTERVAL:
            last = time.monotonic()
            _say(kind="progress", done=done, total=total)

    try:
        result = Reshard(RealDisk(), data, SystemClock(), limits).run(shards, progress)
    except (RecoveryError, OSError) as error:
        _say(kind="error", message=str(error))
        return 1
    _say(kind="done", shards=result)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="shardd.offline")
    parser.add_argument("command", choices=("verify", "reshard"))
    parser.add_argument("data", type=Path)
    parser.add_argument("shards", type=int)
    options = parser.parse_args()
    run = _verify if options.command == "verify" else _reshard
    from_environment: dict[str, Any] = {}
    return run(options.data, options.shards, Limits(**from_environment))


if __name__ == "__main__":
    sys.exit(main())
