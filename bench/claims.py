"""Cost of a claim, whatever has been acknowledged in front of it. About a minute.

    make bench-claims                       a queue of 1 000 000 jobs, 999 000 of them acknowledged in random order
    python bench/claims.py --jobs 100000    a smaller one
    python bench/claims.py --profile        what the shard does in a claim and an ack, 10 000 jobs waiting

One shard without sockets, on a real disk: requests and answers pass by function call. A figure is the median time of
the shard's work on one claim of 8 jobs, from the call until it is answered, in µs, and of the ack that follows it.
Beside it are those of a queue that has as many jobs as are left in the first, and never had more.
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
        """Stop in order and start again, as a new process would: jobs that were given back are known."""
        self.shard.close()
        self.open()

    def crash(self) -> None:
        """Start again without a stop. No lease of a queue without `leases_durable` is known: all jobs are fresh."""
        self.shard.commits.sync_now()
        self.shard.log.close()
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
    """Medians of claims and acks of a quarter of the jobs that are left."""
    claims, acks = [], []
    for _ in range(LEFT // BATCH // 4):
        took, told = timed(lambda: queue.ask("claim", b'{"node":"w","max":%d}' % BATCH))
        claims.append(took)
        seqs = [job["$seq"] for job in msgspec.json.decode(told)["claimed"]]
        assert len(seqs) == BATCH
        acks.append(timed(lambda seqs=seqs: queue.end("ack", seqs))[0])
    return median(claims), median(acks)


def table(base: Path, jobs: int, seed: int) -> Table:
    rng = random.Random(seed)
    found = Table(
        "", "claim", "of a few", "×", "ack", "of a few", "×", title=f"a claim of {BATCH} jobs, µs (seed {seed})"
    )
    found.caption = f"{jobs - LEFT:,} of {jobs:,} jobs acknowledged, beside a queue that had {LEFT:,} only"
    many, few = worn(base / "many" / "shard-00", jobs, rng), worn(base / "few" / "shard-00", LEFT, rng)

    def row(what: str) -> None:
        pairs = zip(measured(many), measured(few), strict=True)
        found.add_row(what, *(cell for a, b in pairs for cell in (f"{a:.0f}", f"{b:.0f}", f"{a / b:.2f}")))

    row("jobs that were given back")
    for queue in (many, few):
        queue.restart()
    row("after a stop and a start")
    for queue in (many, few):
        queue.crash()
    row("after a crash")
    return found


def profile(base: Path, waiting: int) -> None:
    queue = worn(base / "profile" / "shard-00", LEFT, random.Random(1))
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
