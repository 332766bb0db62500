"""Topics beside Redis Streams, NATS JetStream and beanstalkd: the same work, through the clients that their users use.

    make bench                       all of it: tables into docs/benchmarks.md, plots into docs/img; a quarter hour
    make bench ARGS=--quick          two minutes, printed only
    make bench ARGS='--out DIR'      tables and plots into DIR

Every system starts fresh, in its documented setting for the durability (`systems`), and all stay up. One client process
does the same work with each in turn, for a slice of time, and starts over in several rounds; the tables have medians.
All share the cores. A system that is not installed is left out. The readers of fan-out are plain sockets everywhere,
because a thousand clients in Python would measure Python.
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import plots
from server import HERE
from systems import Maker, System, available, versions

SIZES = (100, 1024)
COUNTS = (1, 100, 1000)
READERS = (1, 10, 100, 1000)
BEGIN, END = "<!-- compare -->\n", "<!-- /compare -->\n"
HIGHER = ("records/s", "jobs/s")
"""Units of which more is better; of all others less is."""
CAUSES = {
    "append": "a request passes two processes and HTTP here, one process and a smaller protocol there; large requests "
    "pay that once",
    "append, durable": "a request passes two processes before its sync begins",
    "read": "an answer is JSON, which the client parses; Redis sends bare strings",
    "latency": "a record passes the shard, the gateway and HTTP chunks before it is on the wire",
    "fan-out": "a record passes the shard and the gateway, whose loop in Python writes one socket after another",
    "queue": "three HTTP requests through two processes each, against three short commands to one process",
    "a million": "two or more Python processes; what they load is most of it",
    "idle": "two or more Python processes with their libraries, and timers that look after connections and files",
}
"""Section → why Topics loses where it does."""


@dataclass(slots=True)
class Row:
    section: str
    label: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.values.items()}

    def ratio(self) -> float | None:
        """How many times better the best form of Topics is than the best other system; below 1 it is worse."""
        ours = [value for name, value in self.medians().items() if name.startswith("Topics")]
        others = [value for name, value in self.medians().items() if not name.startswith("Topics")]
        if not ours or not others:
            return None
        if self.unit in HIGHER:
            return max(ours) / max(others)
        return min(others) / min(ours) if min(ours) and min(others) else None


class Results:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def add(self, section: str, label: str, unit: str, system: str, value: float) -> None:
        row = self.rows.setdefault((section, label), Row(section, label, unit))
        row.values.setdefault(system, []).append(value)

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


FULL = Extent(5, 0.6, 1_000_000, 20_000, READERS)
QUICK = Extent(1, 0.4, 50_000, 5_000, READERS[:3])


def rate(work: Iterator[int], seconds: float) -> float:
    """Units per second: each step of `work` does some and yields how many. At least one step is measured."""
    done, began = 0, time.perf_counter()
    for count in work:
        done += count
        if time.perf_counter() - began >= seconds:
            break
    return done / (time.perf_counter() - began)


def appends(system: System, payload: str, count: int) -> Iterator[int]:
    while True:
        system.append(payload, count)
        yield count


def cycles(system: System, payload: str) -> Iterator[int]:
    while True:
        system.cycle(payload)
        yield 1


def fan_out(system: System, readers: int, writes: int) -> float:
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
    def __init__(self, extent: Extent, directory: Path) -> None:
        self.extent = extent
        self.results = Results()
        self._directory = directory
        self._number = 0

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
            with self.started(durable) as systems:
                logs = [each for each in systems if each.logs]
                if not durable:
                    self.idle(systems)
                for number in range(self.extent.rounds):
                    print(f"{'durable' if durable else 'not durable'}: round {number + 1}", file=sys.stderr)
                    turn = logs[number % len(logs) :] + logs[: number % len(logs)]
                    self.appends(turn, durable)
                    self.latencies(turn, durable)
                    self.queues(systems, durable)
                    if not durable:
                        self.reads(turn)
                        self.fans(turn)
        self.million()
        return self.results

    def appends(self, systems: Sequence[System], durable: bool) -> None:
        for size in SIZES:
            for count in COUNTS:
                for system in systems:
                    found = rate(appends(system, "x" * size, count), self.extent.seconds)
                    label = f"{count:,} a request, {size:,} B"
                    self.results.add("append, durable" if durable else "append", label, "records/s", system.name, found)
            for system in systems:
                system.clear()

    def latencies(self, systems: Sequence[System], durable: bool) -> None:
        for system in systems:
            found = median(system.latencies(60))
            self.results.add("latency", "durable" if durable else "not durable", "ms", system.name, found)

    def queues(self, systems: Sequence[System], durable: bool) -> None:
        for system in systems:
            found = rate(cycles(system, "x" * 100), self.extent.seconds)
            label = "put, take, delete" + (", durable" if durable else "")
            self.results.add("queue", label, "jobs/s", system.name, found)

    def reads(self, systems: Sequence[System]) -> None:
        for size in SIZES:
            for system in systems:
                system.clear()
                for _ in range(self.extent.read // 1000):
                    system.append("x" * size, 1000)
                began = time.perf_counter()
                total = system.read_all()
                assert total == self.extent.read, (system.name, total)
                found = total / (time.perf_counter() - began)
                self.results.add("read", f"all, {size:,} B", "records/s", system.name, found)
                system.clear()

    def fans(self, systems: Sequence[System]) -> None:
        for readers in self.extent.readers:
            for system in systems:
                found = fan_out(system, readers, 30 if readers < 1000 else 10)
                self.results.add("fan-out", f"{readers:,} reader{'s' * (readers > 1)}", "ms", system.name, found)
                system.clear()

    def idle(self, systems: Sequence[System]) -> None:
        time.sleep(2)
        before = [each.cpu_s() for each in systems]
        seconds = 10 * self.extent.seconds
        time.sleep(seconds)
        for system, used in zip(systems, before, strict=True):
            self.results.add(
                "idle", "processor, of one core", "‰", system.name, (system.cpu_s() - used) / seconds * 1000
            )
            self.results.add("idle", "memory", "MB", system.name, system.memory_mb())

    def million(self) -> None:
        """Memory of many records, and the start after a kill. One system at a time."""
        records = self.extent.records
        for name, maker in available(False).items():
            system = self.made(maker, False)
            if not system.logs:
                continue
            print(f"{records:,} records: {name}", file=sys.stderr)
            system.start()
            try:
                before = system.memory_mb()
                for _ in range(records // 1000):
                    system.append("x" * 100, 1000)
                label = f"memory of {records:,} records, 100 B"
                self.results.add("a million", label, "MB", name, system.memory_mb() - before)
                time.sleep(1.5)  # Redis syncs every second
                system.stop(kill=True)
                began = time.perf_counter()
                system.start()
                took = time.perf_counter() - began
                assert system.count() == records, (name, system.count())
                self.results.add("a million", "start after a kill, until it answers", "s", name, took)
            finally:
                system.stop()


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def tables(results: Results) -> str:
    lines = []
    for section, rows in results.sections().items():
        names = list(dict.fromkeys(name for row in rows for name in row.values))
        lines += ["", f"| {section} | | {' | '.join(names)} | ratio |", f"| --- | --- |{' ---: |' * (len(names) + 1)}"]
        for row in rows:
            medians, ratio = row.medians(), row.ratio()
            cells = [shown(medians[name]) if name in medians else "–" for name in names]
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


def inserted(page: str, text: str) -> str:
    """The page with `text` between its two marks; all else stays. Raises `ValueError` if it has no marks."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + text + page[end:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two minutes, and less of everything; printed only")
    parser.add_argument("--out", type=Path, help="directory for tables and plots instead of the project's pages")
    asked = parser.parse_args()
    extent = QUICK if asked.quick else FULL
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        results = Comparison(extent, Path(directory)).run()
    text = setting(extent, time.monotonic() - began) + tables(results)
    print(text)
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "benchmarks.md").write_text(text)
        plots.draw(results.sections(), asked.out)
    elif not asked.quick:
        page = HERE / "docs/benchmarks.md"
        names = plots.draw(results.sections(), HERE / "docs/img")
        images = "".join(f"![{name}](img/{name}.png)\n" for name in names)
        page.write_text(inserted(page.read_text(), f"{text}\n{images}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
