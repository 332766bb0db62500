"""Cost of operations and records as a topic, or the number of topics, grows. Some minutes, five tables.

    make bench-growth                     the tables
    python bench/growth.py --json         the same as JSON
    python bench/growth.py --dir DIR      with data below DIR instead of the system's temporary directory
    python bench/growth.py --sizes        the table of many topics only; --topics without numbers: all others only

The benchmark runs one shard without sockets, on a real disk with the real clock. Requests and answers pass by function
call, while syncs and checkpoints run as in production. Every size and every recovery runs in a process of its own, so
that memory figures are separate.

The time of an operation is the shard's work on it, from the call until it is written and answered; of its request only
the decoding counts. "Others wait" is the longest time in which the loop could not take requests meanwhile.
Single-record writes come in groups of 16, as from a busy socket. The table shows the median; JSON also has the 99th
percentile and the maximum. "Growth" is the slowest size over the fastest.

Many topics: each has one record of 200 bytes. "All changed" and "1 % changed" are checkpoints while the loop is
otherwise idle; a checkpoint of a changed topic syncs two files. The longest stall is the largest delay of a task that
wakes up every millisecond, so on a busy machine it includes time of other programs. The longest slice is processor
time and does not include it. The start follows an orderly stop, in a new process; the memory is that process's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich import box
from rich.console import Console
from rich.table import Table

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import BY_NAME, Append
from proto.model.limits import Limits
from proto.process.allocator import trim_heap
from proto.process.garbage_collector import calm
from shardd.checkpoint.slices import exhaust
from shardd.clock import SystemClock
from shardd.shard import Shard, opened_shard
from shardd.storage.disk import RealDisk

SIZES = (10_000, 100_000, 1_000_000, 5_000_000)
TOPICS = (1_000, 20_000, 100_000)
TOPICS_TIME_LIMIT = 900.0
"""Time limit for the table of many topics, seconds."""
TIME_LIMIT = 350.0
"""Time limit for all stages, seconds."""
CHECK_INTERVAL = 0.5
PER_TAG = 10
TOPIC = "growing"


def payload(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


def write(first: int, count: int, data: bytes, *, tags: bool = True) -> bytes:
    """The body of a write. Records `first` and on are tagged in groups of `PER_TAG`."""
    if tags:
        records = [b'{"data":%b,"tag":"job-%d"}' % (data, n // PER_TAG) for n in range(first, first + count)]
    else:
        records = [b'{"data":%b}' % data] * count
    return b'{"records":[' + b",".join(records) + b"]}"


def resident() -> dict[str, float]:
    """Resident memory of this process in MB: total, and anonymous (not of files)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) / 1000 * 1.024 for name in ("VmRSS", "RssAnon")}


def disk_bytes(path: Path) -> dict[str, int]:
    """Bytes below `path` by kind: the log, segments and the rest."""
    found: dict[str, int] = {"wal": 0, "topics": 0, "other": 0}
    for file in path.rglob("*"):
        if file.is_file():
            top = file.relative_to(path).parts[0]
            found[top if top in found else "other"] += file.stat().st_size
    return found


class Figures:
    """Seconds per operation."""

    def __init__(self, samples: list[float]) -> None:
        self._sorted = sorted(samples)

    def as_us(self) -> dict[str, float]:
        last = len(self._sorted) - 1
        picks = {"p50": last // 2, "p99": round(last * 0.99), "max": last}
        return {name: round(self._sorted[at] * 1e6, 1) for name, at in picks.items()}


class Driver:
    """A shard, with the syncs and checkpoints that a shard process runs."""

    def __init__(self, path: Path, **limits: Any) -> None:
        self.path = path
        start = time.perf_counter()
        self.shard = opened_shard(RealDisk(), SystemClock(), path, Limits(**limits))
        self.recovery_s = time.perf_counter() - start
        self._one_at_a_time = trio.Lock()
        self.pauses: list[float] = []
        """Seconds for which a checkpoint blocked requests."""
        self._count = 0
        self._failure: Exception | None = None
        self._answered = 0
        self._all_answered = trio.Event()
        self._more = trio.Event()
        self.slices: list[float] = []
        """Seconds of each piece of scheduled work, during which requests wait."""
        self.shard.scheduler.more = self._look_again

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` while syncs and checkpoints run."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.shard.commits.run)
            nursery.start_soon(self._checkpoints)
            nursery.start_soon(self._deliver)
            await work()
            nursery.cancel_scope.cancel()

    def _look_again(self) -> None:
        self._more.set()

    async def _deliver(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            start = time.perf_counter()
            self.shard.deliver()
            self.slices.append(time.perf_counter() - start)
            await trio.lowlevel.checkpoint()

    async def _checkpoints(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL)
            if self.shard.control.due:
                await self.checkpoint()

    async def checkpoint(self) -> None:
        async with self._one_at_a_time:
            start = time.perf_counter()
            plan = self.shard.control.begin()
            planned = time.perf_counter()
            await trio.to_thread.run_sync(self.shard.checkpoints.writer.write, plan)
            written = time.perf_counter()
            exhaust(self.shard.checkpoints.adopter.adopting(plan))
            adopted = time.perf_counter()
            await trio.to_thread.run_sync(trim_heap)
            self.pauses += [planned - start, adopted - written]

    def hand_in(self, op: str, body: bytes, **options: Any) -> None:
        self._count += 1
        self.shard.handle(Request(self._count, BY_NAME[op].request(**options), TOPIC, body), "bench", self._respond)

    def _respond(self, message: Message) -> None:
        self._answered += 1
        if self._answered == self._count:
            self._all_answered.set()
        if isinstance(message, Reply) and message.error is not None:
            self._failure = message.error

    async def each(self, op: str, bodies: Iterable[bytes], group: int = 1, **options: Any) -> Figures:
        """Seconds per operation, with `group` of them submitted at a time. Raises the error of a refused operation."""
        samples: list[float] = []
        bodies = list(bodies)
        for at in range(0, len(bodies), group):
            chosen = bodies[at : at + group]
            start = time.perf_counter()
            for body in chosen:
                self.hand_in(op, body, **options)
            self.shard.flush()
            samples.append((time.perf_counter() - start) / len(chosen))
            await self.answers()
            if self._failure is not None:
                raise self._failure
            await trio.lowlevel.checkpoint()
        return Figures(samples)

    async def configure(self, **config: Any) -> None:
        await self.each("configure", [msgspec.json.encode(config)])

    @property
    def head(self) -> int:
        return self.shard.directory.find(TOPIC).records.head_seq

    async def fill(self, count: int, per_write: int, data: bytes, *, tags: bool = True) -> None:
        for first in range(1, count + 1, per_write):
            self.hand_in("append", write(first, min(per_write, count + 1 - first), data, tags=tags), return_seqs=False)
            self.shard.flush()
            if first // per_write % 4 == 0:
                await trio.lowlevel.checkpoint()
        await self.answers()

    async def answers(self) -> None:
        """Wait until all submitted requests are answered."""
        while self._answered < self._count:
            self._all_answered = trio.Event()
            await self._all_answered.wait()


def from_seq(seq: int) -> bytes:
    return b'{"from_seq":%d,"limit":1000}' % seq


async def measure(driver: Driver, size: int) -> dict[str, Any]:
    """Measure every operation on a topic of `size` records."""
    chance = random.Random(size)
    data = payload(200)
    start = time.perf_counter()
    await driver.fill(size, 1000, data)
    loading = time.perf_counter() - start
    await driver.checkpoint()
    memory = resident()
    rows: dict[str, Figures] = {}

    async def diffs(low: int, high: int) -> Figures:
        return await driver.each("diff", [from_seq(chance.randrange(low, high)) for _ in range(200)])

    def singles(count: int) -> list[bytes]:
        return [write(driver.head + n, 1, data) for n in range(count)]

    def thousands(count: int) -> list[bytes]:
        return [write(driver.head + 1000 * n, 1000, data) for n in range(count)]

    rows["diff of 1000, newest"] = await diffs(size - 1500, size - 1000)
    rows["diff of 1000, middle"] = await diffs(size * 4 // 10, size * 6 // 10)
    rows["diff of 1000, oldest"] = await diffs(0, size // 10)
    rows["append of 1"] = await driver.each("append", singles(4800), 16)
    rows["append of 1000"] = await driver.each("append", thousands(60), return_seqs=False)
    await driver.configure(cap_records=driver.head)
    rows["append of 1 at the cap"] = await driver.each("append", singles(4800), 16)
    rows["append of 1000 at the cap"] = await driver.each("append", thousands(60), return_seqs=False)
    await driver.configure(cap_records=0)
    floor = driver.shard.directory.find(TOPIC).records.floor
    befores = [b'{"before_seq":%d}' % (floor + 37 * n) for n in range(1, 101)]
    rows["delete by before_seq"] = await driver.each("delete_records", befores)
    floor += 3700

    def tags(count: int) -> list[bytes]:
        chosen = chance.sample(range(floor // PER_TAG + 1, driver.head // PER_TAG - 1), count)
        return [b'{"match":"job-%d"}' % n for n in chosen]

    async def first(body: bytes) -> dict[str, float]:
        """Measure a deletion that must build an index: ms until its answer, and ms for which others wait at a time."""
        driver.slices.clear()
        start = time.perf_counter()
        handed_in = await driver.each("delete_records", [body])
        answered = time.perf_counter() - start
        longest = max([handed_in.as_us()["max"] / 1e6, *driver.slices])
        return {"answered_ms": round(answered * 1000, 1), "others_wait_ms": round(longest * 1000, 1)}

    by_tag = await first(tags(1)[0])
    rows["delete by tag"] = await driver.each("delete_records", tags(200))
    by_prefix = await first(b'{"match":["tag","Glob","job-%d*"]}' % (floor // PER_TAG + 2))
    prefixes = [b'{"match":["tag","Glob",%b*"]}' % body[9:-2] for body in tags(100)]
    rows["delete by tag prefix"] = await driver.each("delete_records", prefixes)
    await driver.checkpoint()
    return {
        "records": size,
        "loading_s": round(loading, 2),
        "resident_mb": memory,
        "resident_mb_with_tag_index": resident(),
        "first_delete_by_tag": by_tag,
        "first_delete_by_prefix": by_prefix,
        "checkpoint_pause_us": Figures(driver.pauses[-2:]).as_us()["max"],
        "checkpoint_pauses_us": Figures(driver.pauses).as_us(),
        "us": {name: figures.as_us() for name, figures in rows.items()},
    }


def stage_size(path: Path, size: int) -> dict[str, Any]:
    driver = Driver(path)
    result: dict[str, Any] = {}

    async def work() -> None:
        result.update(await measure(driver, size))

    trio.run(driver.run, work)
    driver.shard.close()
    return result


def stage_serve(path: Path) -> dict[str, Any]:
    """Start on existing data and read all of it once."""
    before = resident()
    driver = Driver(path)
    started = resident()
    records = driver.shard.directory.find(TOPIC).records.count

    async def read() -> None:
        at, scanned = 0, 0
        start = time.perf_counter()
        while at < driver.head:
            await driver.each("diff", [from_seq(at)])
            at += 1000
            scanned += 1000
        result["read_records_per_s"] = round(scanned / (time.perf_counter() - start))

    result: dict[str, Any] = {"records": records, "recovery_s": round(driver.recovery_s, 3)}
    result["disk_bytes"] = disk_bytes(path)
    result["resident_bytes_per_record"] = round((started["RssAnon"] - before["RssAnon"]) * 1e6 / records, 1)
    trio.run(read)
    return result | {"resident_mb_started": started, "resident_mb_all_read": resident()}


def stage_write(path: Path, checkpoint: bool) -> dict[str, Any]:
    """Write a million records of 100 bytes in writes of 100, then end the process without a stop."""
    driver = Driver(path)

    async def work() -> None:
        await driver.fill(1_000_000, 100, payload(100), tags=False)
        if checkpoint:
            await driver.checkpoint()
            await driver.checkpoint()  # the log is removed once two catalogs are past it

    async def without_checkpoints() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.shard.commits.run)
            await work()
            nursery.cancel_scope.cancel()

    trio.run(without_checkpoints)
    return {"records": driver.head}


async def exhausted(slices: Generator[None, None, Any], work: list[float]) -> Any:
    """Run all slices of a step, with other tasks between them. Adds the processor time of each to `work`."""
    while True:
        start = time.thread_time()
        try:
            next(slices)
        except StopIteration as end:
            return end.value
        finally:
            work.append(time.thread_time() - start)
        await trio.lowlevel.checkpoint()


async def checkpoint_in_slices(shard: Shard) -> dict[str, float]:
    """Make a checkpoint as the server does. Returns its duration and the largest delay of the loop."""
    late: list[float] = []
    work: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + 0.001
            await trio.sleep(0.001)
            late.append(time.perf_counter() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        await trio.sleep(0.02)
        start = time.perf_counter()
        plan = await exhausted(shard.control.planning(), work)
        await trio.to_thread.run_sync(shard.checkpoints.writer.write, plan)
        await exhausted(shard.control.ending(plan), work)
        took = time.perf_counter() - start
        await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    return {"s": round(took, 2), "stall_ms": round(max(late) * 1000, 1), "slice_ms": round(max(work) * 1000, 1)}


def stage_topics(path: Path, count: int) -> dict[str, Any]:
    """Measure topics with a record each: checkpoints after all, and after one in a hundred, got another record."""
    shard = opened_shard(RealDisk(), SystemClock(), path, Limits(max_topics=0))
    calm()
    body = b'{"records":[{"data":%b}]}' % payload(200)

    def respond(message: Message) -> None:
        if isinstance(message, Reply) and message.error is not None:
            raise message.error

    def change(chosen: range) -> None:
        for n in chosen:
            shard.handle(Request(n, Append(), f"topic:{n}", body), "bench", respond)
            if n % 64 == 63:
                shard.flush()
            if n % 4096 == 4095:
                shard.commits.sync_now()  # keeps the number of waiting writes below its limit
        shard.flush()
        shard.commits.sync_now()

    change(range(count))
    result = {"topics": count, "all": trio.run(checkpoint_in_slices, shard)}
    change(range(0, count, 100))
    result["one_percent"] = trio.run(checkpoint_in_slices, shard)
    shard.close()
    return result


def stage_start(path: Path) -> dict[str, Any]:
    gc.disable()  # as the server does
    start = time.perf_counter()
    opened_shard(RealDisk(), SystemClock(), path, Limits())
    return {"start_s": round(time.perf_counter() - start, 2), "resident_mb": resident()}


def many(folder: Path, counts: list[int], say: Callable[[str], None]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + TOPICS_TIME_LIMIT
    rows = []
    for count in counts:
        say(f"{count:,} topics")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = str(Path(place) / "shard")
            row = in_process(deadline, "topics", path, str(count))
            rows.append(row | in_process(deadline, "start", path, ""))
    return rows


def in_process(deadline: float, *arguments: str) -> dict[str, Any]:
    """The JSON that a stage prints in a process of its own."""
    command = [sys.executable, "-P", __file__, "--stage", *arguments]
    left = max(deadline - time.monotonic(), 1.0)
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=left, check=True)
    result: dict[str, Any] = msgspec.json.decode(done.stdout)
    return result


def run_stage(name: str, path: Path, argument: str) -> dict[str, Any]:
    if name == "size":
        return stage_size(path, int(argument))
    if name == "write":
        return stage_write(path, argument == "checkpoint")
    if name == "topics":
        return stage_topics(path, int(argument))
    if name == "start":
        return stage_start(path)
    return stage_serve(path)


def run(folder: Path, sizes: list[int], counts: list[int], say: Callable[[str], None]) -> dict[str, Any]:
    """All stages. Raises `subprocess.TimeoutExpired` when they take too long."""
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    }
    result["sizes"] = []
    result["topics"] = many(folder, counts, say)
    if not sizes:
        return result
    deadline = time.monotonic() + TIME_LIMIT
    for size in sizes:
        say(f"{size:,} records")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = str(Path(place) / "shard")
            result["sizes"].append(in_process(deadline, "size", path, str(size)))
            if size == sizes[-1]:
                say(f"{size:,} records, started again")
                result["largest"] = in_process(deadline, "serve", path, "")
    for name in ("log", "checkpoint"):
        say(f"recovery from the {name}")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = str(Path(place) / "shard")
            in_process(deadline, "write", path, name)
            result[f"recovery_from_{name}"] = in_process(deadline, "serve", path, "")
    return result


def table_of_topics(rows: list[dict[str, Any]]) -> Table:
    table = Table("", box=box.SIMPLE_HEAD, title="One shard, by number of topics")
    for row in rows:
        table.add_column(f"{row['topics']:,}", justify="right")
    table.add_row("start, s", *(f"{row['start_s']:.2f}" for row in rows))
    for name, label in (("all", "all changed"), ("one_percent", "1 % changed")):
        table.add_row(f"checkpoint, {label}: s", *(f"{row[name]['s']:.2f}" for row in rows))
        table.add_row(f"checkpoint, {label}: longest stall, ms", *(f"{row[name]['stall_ms']:.0f}" for row in rows))
        table.add_row(f"checkpoint, {label}: longest slice, ms", *(f"{row[name]['slice_ms']:.1f}" for row in rows))
    table.add_row("resident after the start, MB", *(_mb(row["resident_mb"]) for row in rows))
    return table


def tables(result: dict[str, Any]) -> list[Table]:
    return [
        *([table_of_topics(result["topics"])] if result["topics"] else []),
        *(tables_of_sizes(result) if result["sizes"] else []),
    ]


def tables_of_sizes(result: dict[str, Any]) -> list[Table]:
    sizes = result["sizes"]
    times = Table(
        "median, µs", box=box.SIMPLE_HEAD, title="Time per operation, by records in the topic (200-byte data)"
    )
    for entry in sizes:
        times.add_column(f"{entry['records']:,}", justify="right")
    times.add_column("growth", justify="right")
    for name in sizes[0]["us"]:
        values = [entry["us"][name]["p50"] for entry in sizes]
        times.add_row(name, *(f"{value:,.0f}" for value in values), f"{max(values) / min(values):.2f}")
    once = Table("ms", box=box.SIMPLE_HEAD, title="What happens now and then")
    for entry in sizes:
        once.add_column(f"{entry['records']:,}", justify="right")
    once.add_row("checkpoint: others wait", *(f"{entry['checkpoint_pause_us'] / 1000:.1f}" for entry in sizes))
    for name, label in (("first_delete_by_tag", "first delete by tag"), ("first_delete_by_prefix", "and by prefix")):
        once.add_row(f"{label}: answered", *(f"{entry[name]['answered_ms']:.1f}" for entry in sizes))
        once.add_row(f"{label}: others wait", *(f"{entry[name]['others_wait_ms']:.1f}" for entry in sizes))

    memory = Table("MB", box=box.SIMPLE_HEAD, title="Resident memory of one shard (own memory in brackets)")
    for entry in sizes:
        memory.add_column(f"{entry['records']:,}", justify="right")
    for name, label in (("resident_mb", "loaded"), ("resident_mb_with_tag_index", "after all operations")):
        memory.add_row(label, *(_mb(entry[name]) for entry in sizes))
    blank = [""] * (len(sizes) - 1)
    memory.add_row("started again", *blank, _mb(result["largest"]["resident_mb_started"]))
    memory.add_row("started again, all of it read", *blank, _mb(result["largest"]["resident_mb_all_read"]))

    title = "1,000,000 records of 100 bytes in writes of 100"
    recovery = Table("", "from the log alone", "after a checkpoint", box=box.SIMPLE_HEAD, title=title)
    two = (result["recovery_from_log"], result["recovery_from_checkpoint"])
    recovery.add_row("recovery, s", *(f"{entry['recovery_s']:.2f}" for entry in two))
    recovery.add_row("bytes on disk per record", *(f"{sum(e['disk_bytes'].values()) / e['records']:.1f}" for e in two))
    for name, label in (("topics", "in segments"), ("wal", "in the log, two checkpoints of which stay")):
        recovery.add_row(f"- {label}", *(f"{entry['disk_bytes'][name] / entry['records']:.1f}" for entry in two))
    recovery.add_row("resident bytes per record", *(f"{entry['resident_bytes_per_record']:.1f}" for entry in two))
    return [times, once, memory, recovery]


def _mb(memory: dict[str, float]) -> str:
    return f"{memory['VmRSS']:.0f} ({memory['RssAnon']:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="How one shard does as a topic grows.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where the data goes")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="records per topic")
    parser.add_argument("--topics", type=int, nargs="*", default=list(TOPICS), help="numbers of topics")
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        name, path, argument = options.stage
        print(json.dumps(run_stage(name, Path(path), argument)))
        return
    console = Console(stderr=True)
    start = time.monotonic()
    try:
        with console.status("starting") as status:
            result = run(options.dir, sorted(options.sizes), sorted(options.topics), status.update)
    except subprocess.TimeoutExpired:
        sys.exit("not done in time: the machine is busy or slow. Try fewer --topics or --sizes")
    result["seconds"] = round(time.monotonic() - start)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for table in tables(result):
        Console().print(table)
    Console().print(f"{result['machine']}; {result['seconds']} s")


if __name__ == "__main__":
    main()
