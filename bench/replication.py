"""What a bucket costs writers, and how long a takeover and a restore take. About five minutes with 1 GB, one table.

    make bench-replication                                     a table
    python bench/replication.py --megabytes 20 --seconds 1     a quick look
    python bench/replication.py --json                         the same as JSON

The bucket is a directory; with "3 ms", each creation of an object takes 3 ms longer. Everything runs on this machine
and shares its cores, the standby too. Writers are 16 connections with 100 records a write, each to a topic of its own.
The services that are compared run side by side and are measured in turns; a ratio is the median of those of the rounds.
A takeover lasts from the kill, or from SIGTERM, until the other machine's /v0/ready is 200.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from load import drive, post
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

WRITERS = 16
RECORDS = 100
PAUSE_S = 0.003
SLOW_STORE = f"""
import time, obstore
put = obstore.put
def slow(*arguments, **options):
    time.sleep({PAUSE_S})
    return put(*arguments, **options)
obstore.put = slow
"""
SHARDS = 2
TTL_MS = 10_000
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    figure: float
    unit: str
    aim: str


class Machine(Server):
    """A service with a bucket. It may be a standby at its start."""

    def _is_ready(self) -> bool:
        return self.holds() or self.stands_by()

    def holds(self) -> bool:
        return super()._is_ready()

    def stands_by(self) -> bool:
        try:
            status, answer = self.request("GET", "/v0/ready")
        except OSError:
            return False
        return status == 503 and bool(answer["error"].get("detail", {}).get("standby"))


def until(condition: Callable[[], object], what: str, every_s: float = 0.005) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(every_s)


def writes(topic: str, durability: str, size: int = 100) -> Iterator[bytes]:
    records = [{"data": "x" * size}] * RECORDS
    body = json.dumps({"records": records, "config": {"durability": durability}}).encode()
    return repeat(post(f"/v0/topics/{topic}", body))


def rate(server: Server, durability: str, seconds: float) -> float:
    """Records per second."""
    streams = [writes(f"{durability}{number}", durability) for number in range(WRITERS)]
    return drive(server.port, streams, seconds).per_second * RECORDS


def bucket(folder: Path, name: str, mode: str, **more: str) -> dict[str, str]:
    (folder / name).mkdir()
    return {"TOPICS_BUCKET": (folder / name).as_uri(), "TOPICS_REPLICATION": mode, **more}


def throughput(folder: Path, seconds: float, rounds: int) -> Iterator[Row]:
    patched = folder / "slow"
    patched.mkdir()
    (patched / "sitecustomize.py").write_text(SLOW_STORE)
    path = os.pathsep.join([str(patched), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ExitStack() as stack:
        plain = stack.enter_context(Machine(folder / "plain", SHARDS))
        copied = stack.enter_context(Machine(folder / "copied", SHARDS, **bucket(folder, "async", "async")))
        settings = bucket(folder, "sync", "sync", PYTHONPATH=path, TOPICS_TERM_TTL_MS=str(TTL_MS))
        synced = stack.enter_context(Machine(folder / "synced", SHARDS, **settings))
        until(synced.holds, "the term")
        local, sync, disk, costs = [], [], [], []
        for _ in range(rounds):
            local.append(rate(plain, "fsync", seconds))
            sync.append(rate(synced, "fsync", seconds))
            disk.append(rate(plain, "disk", seconds))
            costs.append(rate(copied, "disk", seconds))
    yield Row("fsync without a bucket", statistics.median(local), "records/s", "")
    yield Row("fsync, sync, 3 ms", statistics.median(sync), "records/s", "")
    ratios = [bucketed / alone for bucketed, alone in zip(sync, local, strict=True)]
    yield Row("their ratio", statistics.median(ratios), "", "at least 0.7")
    yield Row("disk without a bucket", statistics.median(disk), "records/s", "")
    yield Row("disk, async", statistics.median(costs), "records/s", "")
    overheads = [100 * (1 - bucketed / alone) for bucketed, alone in zip(costs, disk, strict=True)]
    yield Row("cost of async", statistics.median(overheads), "%", "below 5")


def filled(server: Server, megabytes: int) -> None:
    """Write so much, in records of 1000 bytes."""
    sent, each = 0, 1000 * RECORDS
    while sent < megabytes * 1_000_000:
        streams = [_few(f"data{number}", 20) for number in range(8)]
        sent += drive(server.port, streams, PATIENCE_S).requests * each


def _few(topic: str, count: int) -> Iterator[bytes]:
    """A stream of so many writes."""
    whole = writes(topic, "fsync", 1000)
    return (next(whole) for _ in range(count))


def takeovers(folder: Path, megabytes: int) -> Iterator[Row]:
    settings = bucket(folder, "pair", "sync", TOPICS_TERM_TTL_MS=str(TTL_MS))
    machines = [Machine(folder / name, SHARDS, **settings) for name in ("one", "two")]
    try:
        machines[0].__enter__()
        until(machines[0].holds, "the holder")
        machines[1].__enter__()
        filled(machines[0], megabytes)
        time.sleep(5)  # the standby has applied it by then: it is warm
        began = time.monotonic()
        machines[0].stop(kill=True)
        until(machines[1].holds, "the takeover")
        yield Row(
            f"takeover after SIGKILL, {megabytes} MB", time.monotonic() - began, "s", f"at most {TTL_MS // 1000 + 2}"
        )
        machines[0].__enter__()
        until(machines[0].stands_by, "the standby")
        time.sleep(5)
        began = time.monotonic()
        os.kill(machines[1].pid, 15)
        until(machines[0].holds, "the takeover")
        yield Row(f"takeover from a drained holder, {megabytes} MB", time.monotonic() - began, "s", "below 1")
    finally:
        for each in machines:
            each.stop(kill=True)
    yield restored(folder, "pair", megabytes)


def restored(folder: Path, name: str, megabytes: int) -> Row:
    """A restore of the bucket, with the bytes of its objects."""
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "supervisor.cli",
        "restore",
        "--from",
        (folder / name).as_uri(),
        str(folder / "back"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    size = sum(each.stat().st_size for each in (folder / "back").rglob("*") if each.is_file())
    return Row(f"restore of {size / 1e6:.0f} MB", size / 1e6 / took, "MB/s", "at least 200")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="data of the takeovers and the restore")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement of throughput")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-"))
    try:
        rows = [*throughput(folder, asked.seconds, asked.rounds), *takeovers(folder, asked.megabytes)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    table = Table("measured", "figure", "aim", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row.what, f"{row.figure:,.2f} {row.unit}" if row.figure < 100 else f"{row.figure:,.0f} {row.unit}", row.aim
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
