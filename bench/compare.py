"""Topics beside Redis Streams, NATS JetStream and beanstalkd: the same work, through the clients that their users use.

    make bench                       all of it: tables into docs/benchmarks.md, plots into docs/img; a quarter hour
    make bench ARGS=--quick          a few minutes, printed only
    make bench ARGS='--only fan'     the sections whose names contain one of these words (comma), printed only
    make bench ARGS=--render         tables and plots again, from what was measured last (bench/compare.json)
    make bench ARGS='--out DIR'      tables, plots and compare.json into DIR

Every system starts fresh, in its documented setting for the durability (`systems`), and all stay up. One client process
does the same work with each in turn, for a slice of time, and starts over in several rounds; the tables have medians.
All share the cores. A system that is not installed is left out. The readers of fan-out are plain sockets everywhere,
because a thousand clients in Python would measure Python.

No step takes longer than its limit: what is not done by then is reported with how far it came, the system is started
again, and the step is left out from then on. No round begins after the time for its durability is over.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import plots
from rows import Row
from server import HERE
from systems import WRITERS, Log, Maker, System, available, versions

SIZES = (100, 1024)
COUNTS = (1, 100, 1000)
TOGETHER = (1, 100)
READERS = (1, 10, 100, 1000)
STORED = Path(__file__).with_name("compare.json")
NEEDED_BYTES = 3 * 10**9
STEP_S = 30.0
"""Limit of a step: many times what any should take."""
BEGIN, END = "<!-- compare -->\n", "<!-- /compare -->\n"
CAUSES = {
    "append": "a request passes two processes and HTTP here, one process and a smaller protocol there; large requests "
    "pay that once",
    "append, durable": "a request passes two processes before its sync begins",
    "append, 16 writers": "the writers' interpreter is busy most of the time with HTTP and JSON",
    "append, 16 writers, durable": "the writers' interpreter is busy most of the time with HTTP and JSON",
    "read": "an answer is JSON, which the client parses; Redis sends bare strings",
    "latency": "a record passes the shard, the gateway and HTTP chunks before it is on the wire",
    "fan-out": "a record passes the shard and the gateway, whose loop in Python writes one socket after another",
    "queue": "three HTTP requests through two processes each, against three short commands to one process",
    "a million": "a shard keeps in memory what its log holds since the last checkpoint, where JetStream leaves all to "
    "the system; a start is that of three or more Python processes",
    "idle": "two or more Python processes with their libraries, and timers that look after connections and files",
}
"""Section → why Topics loses where it does."""


class Results:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def add(self, section: str, label: str, unit: str, system: str, value: float) -> None:
        row = self.rows.setdefault((section, label), Row(section, label, unit))
        row.values.setdefault(system, []).append(value)

    def miss(self, section: str, label: str, unit: str, system: str, reason: str) -> None:
        row = self.rows.setdefault((section, label), Row(section, label, unit))
        row.values.pop(system, None)
        row.missing[system] = reason

    def misses(self, section: str, label: str, system: str) -> bool:
        row = self.rows.get((section, label))
        return row is not None and system in row.missing

    def sections(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows.values():
            found.setdefault(row.section, []).append(row)
        return found


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int
    seconds: float
    records: int
    """Records of the recovery and of memory."""
    read: int
    readers: Sequence[int]
    load_s: float
    """Limit of loading the records."""
    rounds_s: float
    """Time after which no round begins, for each durability."""


FULL = Extent(5, 0.6, 1_000_000, 20_000, READERS, 150, 420)
QUICK = Extent(1, 0.3, 50_000, 5_000, READERS[:3], 30, 60)


class Unfinished(Exception):
    """A step reached its limit. The message says how far it came."""


def sections(durable: bool) -> tuple[str, ...]:
    """What is measured while all systems are up."""
    if durable:
        return "append, durable", f"append, {WRITERS} writers, durable", "latency", "queue"
    return "idle", "append", f"append, {WRITERS} writers", "latency", "queue", "read", "fan-out"


@contextmanager
def limited(seconds: float, reached: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Raise `Unfinished` in whatever runs when the time is over, also in a client that waits."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Unfinished(f"{reached()}> {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def rate(work: Iterator[int], seconds: float) -> float:
    """Units per second: each step of `work` does some and yields how many. At least one step is measured."""
    done, began = 0, time.perf_counter()
    for count in work:
        done += count
        if time.perf_counter() - began >= seconds:
            break
    return done / (time.perf_counter() - began)


def append_rate(append: Callable[[str, int], None], payload: str, count: int, seconds: float) -> float:
    def appends() -> Iterator[int]:
        while True:
            append(payload, count)
            yield count

    append(payload, count)  # the first one connects and imports
    return rate(appends(), seconds)


def cycles(system: System, payload: str) -> Iterator[int]:
    while True:
        system.cycle(payload)
        yield 1


def read(system: Log, payload: str, records: int) -> float:
    """Records per second of a reader of the whole log."""
    system.clear()
    for _ in range(records // 1000):
        system.append(payload, 1000)
    began = time.perf_counter()
    total = system.read_all()
    took = time.perf_counter() - began
    if total != records:
        raise RuntimeError(f"{total} records of {records}")
    return total / took


def latency(system: Log) -> float:
    return median(system.latencies(60))


def fan_out(system: Log, readers: int, writes: int) -> float:
    """Median of the milliseconds from a write until the last of the readers has its record."""
    followers = [system.follow() for _ in range(readers)]
    by_descriptor = {each.fileno(): each for each in followers}
    poll = select.epoll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    took = []
    for number in range(writes):
        system.again(followers)
        marker = f"fan-{number}-".encode()
        began = time.perf_counter()
        system.append(marker.decode(), 1)
        rest = dict.fromkeys(by_descriptor, b"")
        while rest:
            for descriptor, _ in poll.poll(30):
                if descriptor in rest:
                    rest[descriptor] += by_descriptor[descriptor].recv(65536)
                    if marker in rest[descriptor]:
                        del rest[descriptor]
                else:
                    by_descriptor[descriptor].recv(65536)
        took.append((time.perf_counter() - began) * 1000)
    poll.close()
    for each in followers:
        each.close()
    return median(took)


class Comparison:
    def __init__(self, extent: Extent, directory: Path, only: Sequence[str] = ()) -> None:
        self.extent = extent
        self.results = Results()
        self._directory = directory
        self._only = only
        self._number = 0

    def wanted(self, section: str) -> bool:
        return not self._only or any(word in section for word in self._only)

    def take(
        self, section: str, label: str, unit: str, system: System, work: Callable[[], float], name: str = ""
    ) -> None:
        """One step with one system: its value, or why it has none."""
        name = name or system.name
        if self.results.misses(section, label, name):
            return
        try:
            with limited(STEP_S):
                value = work()
        except Exception as error:
            reason = str(error) if isinstance(error, Unfinished) else "failed"
            print(f"{name}: {section}, {label}: {type(error).__name__}: {error}", file=sys.stderr)
            self.results.miss(section, label, unit, name, reason)
            system.stop(kill=True)
            system.start()
        else:
            self.results.add(section, label, unit, name, value)

    def made(self, maker: Maker, durable: bool) -> System:
        self._number += 1
        return maker(self._directory / str(self._number), durable)

    @contextmanager
    def started(self, durable: bool) -> Iterator[list[System]]:
        with ExitStack() as stack:
            found = []
            for maker in available(durable).values():
                system = self.made(maker, durable)
                system.start()
                stack.callback(system.stop)
                found.append(system)
            yield found

    def run(self) -> Results:
        for durable in (False, True):
            if self._only and not any(map(self.wanted, sections(durable))):
                continue
            with self.started(durable) as systems:
                if not durable and self.wanted("idle"):
                    self.idle(systems)
                self.rounds(systems, durable)
        if self.wanted("a million"):
            self.million()
        return self.results

    def rounds(self, systems: Sequence[System], durable: bool) -> None:
        began = time.monotonic()
        logs = [each for each in systems if isinstance(each, Log)]
        suffix = ", durable" if durable else ""
        for number in range(self.extent.rounds):
            if time.monotonic() - began > self.extent.rounds_s:
                print(f"no time for round {number + 1}", file=sys.stderr)
                return
            print(f"{'durable' if durable else 'not durable'}: round {number + 1}", file=sys.stderr)
            turn = logs[number % len(logs) :] + logs[: number % len(logs)]
            if self.wanted(section := "append" + suffix):
                self.appends(section, turn)
            if self.wanted(section := f"append, {WRITERS} writers" + suffix):
                self.together(section, turn)
            if self.wanted("latency"):
                self.latencies(turn, durable)
            if self.wanted("queue"):
                self.queues(systems, suffix)
            if self.wanted("read") and not durable:
                self.reads(turn)
            if self.wanted("fan-out") and not durable:
                self.fans(turn)

    def appends(self, section: str, systems: Sequence[Log]) -> None:
        for size in SIZES:
            payload = "x" * size
            for count in COUNTS:
                label = f"{count:,} a request, {size:,} B"
                for system in systems:
                    for name, append in system.appenders().items():
                        work = partial(append_rate, append, payload, count, self.extent.seconds)
                        self.take(section, label, "records/s", system, work, name)
            for system in systems:
                system.clear()

    def together(self, section: str, systems: Sequence[Log]) -> None:
        for count in TOGETHER:
            for system in systems:
                work = partial(system.together, "x" * 100, count, self.extent.seconds)
                self.take(section, f"{count:,} a request, 100 B", "records/s", system, work)
        for system in systems:
            system.clear()

    def latencies(self, systems: Sequence[Log], durable: bool) -> None:
        label = "durable" if durable else "not durable"
        for system in systems:
            self.take("latency", label, "ms", system, partial(latency, system))

    def queues(self, systems: Sequence[System], suffix: str) -> None:
        for system in systems:
            work = partial(rate, cycles(system, "x" * 100), self.extent.seconds)
            self.take("queue", "put, take, delete" + suffix, "jobs/s", system, work)

    def reads(self, systems: Sequence[Log]) -> None:
        for size in SIZES:
            for system in systems:
                work = partial(read, system, "x" * size, self.extent.read)
                self.take("read", f"all, {size:,} B", "records/s", system, work)
                system.clear()

    def fans(self, systems: Sequence[Log]) -> None:
        for readers in self.extent.readers:
            label = f"{readers:,} reader{'s' * (readers > 1)}"
            for system in systems:
                work = partial(fan_out, system, readers, 30 if readers < 1000 else 10)
                self.take("fan-out", label, "ms", system, work)
                system.clear()

    def idle(self, systems: Sequence[System]) -> None:
        time.sleep(2)
        before = [each.cpu_s() for each in systems]
        seconds = 20 * self.extent.seconds
        time.sleep(seconds)
        for system, used in zip(systems, before, strict=True):
            share = (system.cpu_s() - used) / seconds * 1000
            self.results.add("idle", "processor, of one core", "‰", system.name, share)
            self.results.add("idle", "memory", "MB", system.name, system.memory_mb())

    def million(self) -> None:
        """Memory of many records, and the start after a kill. One system at a time."""
        for name, maker in available(False).items():
            system = self.made(maker, False)
            if not isinstance(system, Log):
                continue
            print(f"{self.extent.records:,} records: {name}", file=sys.stderr)
            system.start()
            try:
                self._load_and_kill(system)
            finally:
                system.stop()

    def _load_and_kill(self, system: Log) -> None:
        records, done = self.extent.records, 0
        section, start = "a million", "start after a kill, until it answers"
        memory = f"memory of {records:,} records, 100 B"
        before = system.memory_mb()
        try:
            with limited(self.extent.load_s, lambda: f"{done:,} records loaded, "):
                while done < records:
                    system.append("x" * 100, 1000)
                    done += 1000
        except Unfinished as reached:
            self.results.miss(section, memory, "MB", system.name, str(reached))
            self.results.miss(section, start, "s", system.name, str(reached))
            return
        self.results.add(section, memory, "MB", system.name, system.memory_mb() - before)
        time.sleep(1.5)  # Redis syncs every second
        system.stop(kill=True)
        began = time.perf_counter()
        system.start()
        took = time.perf_counter() - began
        if system.count() != records:
            raise RuntimeError(f"{system.name}: {system.count()} records of {records}")
        self.results.add(section, start, "s", system.name, took)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def tables(results: Results) -> str:
    lines = []
    for section, rows in results.sections().items():
        names = list(dict.fromkeys(name for row in rows for name in (*row.values, *row.missing)))
        lines += ["", f"| {section} | | {' | '.join(names)} | ratio |", f"| --- | --- |{' ---: |' * (len(names) + 1)}"]
        for row in rows:
            medians, ratio = row.medians(), row.ratio()
            cells = [shown(medians[name]) if name in medians else row.missing.get(name, "–") for name in names]
            lines.append(
                f"| {row.label} | {row.unit} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f}'} |"
            )
    lost = {row.section for row in results.rows.values() if (ratio := row.ratio()) is not None and ratio < 1}
    lines += ["", "Where the ratio is below 1, Topics is slower or larger than the best of the others:", ""]
    lines += [f"- {section}: {CAUSES[section]}." for section in results.sections() if section in lost]
    return "\n".join(lines) + "\n"


def setting(extent: Extent, seconds: float) -> str:
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    rounds = f"{extent.rounds} round{'s' * (extent.rounds > 1)}"
    return (
        f"{time.strftime('%Y-%m-%d')}: {found}; {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}; medians of {rounds}; {seconds:.0f} s in all. "
        "The ratio is the best form of Topics against the best of the others, above 1 where Topics is better.\n"
    )


def stored(about: str, results: Results) -> str:
    return json.dumps({"about": about, "rows": [asdict(row) for row in results.rows.values()]}, indent=1) + "\n"


def loaded(text: str) -> tuple[str, Results]:
    found: dict[str, Any] = json.loads(text)
    results = Results()
    for each in found["rows"]:
        results.rows[each["section"], each["label"]] = Row(**each)
    return found["about"], results


def inserted(page: str, text: str) -> str:
    """The page with `text` between its two marks; all else stays. Raises `ValueError` if it has no marks."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + text + page[end:]


def write(about: str, results: Results, out: Path | None) -> None:
    """Tables and plots: into a directory, or into the project's pages."""
    text = about + tables(results)
    if out is not None:
        (out / "benchmarks.md").write_text(text)
        plots.draw(results.sections(), out)
        return
    page = HERE / "docs/benchmarks.md"
    names = plots.draw(results.sections(), HERE / "docs/img")
    images = "".join(f"![{name}](img/{name}.png)\n" for name in names)
    page.write_text(inserted(page.read_text(), f"{text}\n{images}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few minutes, and less of everything; printed only")
    parser.add_argument("--only", default="", help="words of the wanted sections' names, with commas; printed only")
    parser.add_argument("--render", action="store_true", help="write tables and plots of the last run again")
    parser.add_argument("--out", type=Path, help="directory for tables and plots instead of the project's pages")
    asked = parser.parse_args()
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
    kept = STORED if asked.out is None else asked.out / STORED.name
    if asked.render and not STORED.exists():
        sys.stderr.write("compare: nothing is stored: run it without options first\n")
        return 2
    if asked.render:
        write(*loaded(STORED.read_text()), asked.out)
        return 0
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < NEEDED_BYTES:
        where = f"{tempfile.gettempdir()} (TMPDIR names another directory)"
        sys.stderr.write(f"compare: {free / 1e9:.1f} GB are free in {where}; {NEEDED_BYTES / 1e9:.0f} GB are needed\n")
        return 2
    extent = QUICK if asked.quick else FULL
    only = [word.strip() for word in asked.only.split(",") if word.strip()]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        results = Comparison(extent, Path(directory), only).run()
    about = setting(extent, time.monotonic() - began)
    print(about + tables(results))
    if asked.out is not None or not (asked.quick or only):
        kept.write_text(stored(about, results))
        write(about, results, asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
