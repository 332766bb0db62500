"""Cost of a claim, whatever has been acknowledged in front of it. About a minute.

    make bench-claims                       a queue of 1 000 000 jobs, 999 000 of them acknowledged in random order
    python bench/claims.py --jobs 100000    a smaller one
    python bench/claims.py --profile        what the shard does in a claim and an ack, 10 000 jobs waiting

One shard without sockets, on a real disk: requests and answers pass by function call. A figure is the median time of
the shard's work on one claim of 8 jobs, from the call until it is answered, in µs, and of the ack that follows it. The
queue "empty but for these" has as many jobs as are left in the other, and never had more.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import BY_NAME
from proto.model.limits import Limits
from proto.process.garbage_collector import calm
from shardd.clock import SystemClock
from shardd.shard import Shard, opened_shard
from shardd.storage.disk import RealDisk

BATCH = 8
LEFT = 1000
AT_ONCE = 1000
JOB = b'{"data":{"type":"resize","url":"s3://bucket/image.png","width":640}}'
TOPIC = "q"


class Queue:
    """A shard with one queue."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.shard: Shard = opened_shard(RealDisk(), SystemClock(), self.path, Limits())

    def restart(self) -> None:
        """Stop in order and start again, as a new process would."""
        self.shard.close()
        self.open()

    def ask(self, op: str, body: bytes) -> bytes:
        found: list[Message] = []
        self.shard.handle(Request(1, BY_NAME[op].request(), TOPIC, body), "bench", found.append)
        self.shard.flush()
        if not found:
            self.shard.commits.sync_now()
        (reply,) = found
        assert isinstance(reply, Reply)
        if reply.error is not None:
            raise reply.error
        return reply.body

    def produce(self, count: int) -> None:
        for at in range(0, count, 10_000):
            self.ask("append", b'{"records":[' + b",".join([JOB] * min(10_000, count - at)) + b"]}")

    def claim(self, count: int) -> list[int]:
        told = msgspec.json.decode(self.ask("claim", b'{"node":"w","max":%d}' % count))
        return [job["$seq"] for job in told["claimed"]]

    def end(self, op: str, seqs: list[int]) -> None:
        self.ask(op, msgspec.json.encode({"node": "w", "seqs": seqs}))


def few(path: Path) -> Queue:
    queue = Queue(path)
    queue.ask("configure", b'{"type":"queue","lease_ms":86400000}')
    queue.produce(LEFT)
    return queue


def worn(path: Path, jobs: int, rng: random.Random) -> Queue:
    """A queue of so many jobs, all but `LEFT` of which were acknowledged in random order; those were given back."""
    queue = Queue(path)
    queue.ask("configure", b'{"type":"queue","lease_ms":86400000}')
    queue.produce(jobs)
    held = [seq for _ in range(jobs // AT_ONCE) for seq in queue.claim(AT_ONCE)]
    rng.shuffle(held)
    for at in range(LEFT, jobs, AT_ONCE):
        queue.end("ack", held[at : at + AT_ONCE])
    queue.end("nack", held[:LEFT])
    return queue


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return (time.perf_counter() - start) * 1e6, found


def measured(queue: Queue) -> tuple[float, float]:
    """Medians of claims and acks, half of what is left."""
    claims, acks = [], []
    for _ in range(LEFT // BATCH // 2):
        took, seqs = timed(lambda: queue.ask("claim", b'{"node":"w","max":%d}' % BATCH))
        claims.append(took)
        seqs = [job["$seq"] for job in msgspec.json.decode(seqs)["claimed"]]
        assert len(seqs) == BATCH
        acks.append(timed(lambda seqs=seqs: queue.end("ack", seqs))[0])
    return median(claims), median(acks)


def table(base: Path, jobs: int, seed: int) -> Table:
    rng = random.Random(seed)
    found = Table("queue", "claim", "×", "ack", "×", title=f"a claim of {BATCH} jobs and its ack, µs (seed {seed})")
    reference: list[tuple[float, float]] = []

    def row(what: str, queue: Queue, against: int | None = None) -> None:
        figures = measured(queue)
        reference.append(figures)
        cells = [f"{value:.0f}" for value in figures]
        ratios = [
            "" if against is None else f"{a / b:.2f}" for a, b in zip(figures, reference[against or 0], strict=True)
        ]
        found.add_row(what, cells[0], ratios[0], cells[1], ratios[1])

    small = few(base / "few" / "shard-00")
    row("empty but for these", small)
    small = few(base / "again" / "shard-00")
    small.end("nack", [seq for _ in range(LEFT // AT_ONCE) for seq in small.claim(AT_ONCE)])
    row("the same, jobs given back", small)
    small = few(base / "restarted" / "shard-00")
    small.restart()
    row("the same, restarted", small)
    large = worn(base / "worn" / "shard-00", jobs, rng)
    row(f"{jobs - LEFT:,} of {jobs:,} acknowledged, the others given back", large, 1)
    large = worn(base / "worn-again" / "shard-00", jobs, rng)
    large.restart()
    row("the same, restarted", large, 2)
    large.shard.close()
    return found


def profile(base: Path, waiting: int) -> None:
    queue = few(base / "profile" / "shard-00")
    queue.produce(waiting)
    seqs = queue.claim(BATCH)
    profiler = cProfile.Profile()
    start = time.perf_counter()
    for _ in range(500):
        queue.end("ack", seqs)
        seqs = queue.claim(BATCH)
    print(f"{(time.perf_counter() - start) / 500 * 1e6:.0f} µs for a claim and an ack")
    profiler.enable()
    for _ in range(500):
        queue.end("ack", seqs)
        seqs = queue.claim(BATCH)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--waiting", type=int, default=10_000, help="for --profile")
    asked = parser.parse_args()
    calm()
    gc.collect()
    with tempfile.TemporaryDirectory() as directory:
        if asked.profile:
            profile(Path(directory), asked.waiting)
        else:
            Console(width=120).print(table(Path(directory), asked.jobs, asked.seed))


if __name__ == "__main__":
    main()
