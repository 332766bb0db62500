"""Two checkouts side by side: the same small requests to the services of both, interleaved, in rounds.

    python bench/pair.py --other ../main                       every load
    python bench/pair.py --other ../main --keys                and the HTTP loads again, with API keys
    python bench/pair.py --other ../main --what append,state   the loads whose names contain one of these words
    python bench/pair.py --this ../a --other ../b              two others
    python bench/pair.py --other . --set TOPICS_GATEWAYS=2     this one with a setting, and without it
    python bench/pair.py --list                                names of the loads
    python bench/pair.py --other ../main --markdown FILE       the tables in Markdown, too

Each checkout has its own `.venv`. Both services start fresh, with data below the temporary directory, and stay up. A
round measures each load against one service, then against the other, in turn first. Results are medians of the rounds.
"gain" is the median of the rounds' ratios, above 1 where this checkout is better: both sides of a round meet the same
machine. The budget is that of all rounds, per request: processor time in µs, and wake-ups of all threads.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from live import Watchers, paced
from load import Line, LoadError, drive, get, post
from memory import setting
from rich import box
from rich.console import Console
from rich.table import Table
from routers import Hops
from server import HERE, PARTS, Server
from smoke import Repeated, records
from workers import Workers

KEY = "a-key-of-the-benchmark-0123456789"
SIDES = ("this", "other")
READ_TOPICS = 8
READ_RECORDS = 20_000
CYCLES = 60
COPIES = 25
MEMORY_RECORDS = 200_000
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of one slice: values by their unit, the requests sent, CPU seconds by process and mode, and wake-ups by
    process."""

    values: Figures
    requests: int = 0
    cpu: Figures = field(default_factory=dict)
    wakes: Figures = field(default_factory=dict)


class Measured:
    """Counts the CPU time that a service and this process use between its two ends, and the service's wake-ups."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.cpu: Figures = {}
        self.wakes: Figures = {}

    def __enter__(self) -> Measured:
        self._woken = self._server.wakes()
        self._own = time.process_time()
        self._before = self._server.cpu_times()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu["load"] = time.process_time() - self._own
        for part, (user, system) in self._server.cpu_times().items():
            self.cpu[f"{part} user"] = user - self._before[part][0]
            self.cpu[f"{part} system"] = system - self._before[part][1]
        self.wakes = {part: count - self._woken[part] for part, count in self._server.wakes().items()}

    def sample(self, values: Figures, requests: int) -> Sample:
        return Sample(values, requests, self.cpu, self.wakes)


@dataclass(frozen=True, slots=True)
class Load:
    """One HTTP load. `make` returns one stream of requests per connection. With `latency` the result is a latency."""

    name: str
    make: Callable[[Server], Sequence[Iterator[bytes]]]
    latency: bool = False
    share: float = 1.0
    """Part of a slice's time. Less for loads that write much, so that the disk does not fill."""


def append(connections: int, size: int, durability: str = "disk") -> Callable[[Server], Sequence[Iterator[bytes]]]:
    body = b'{"records":[' + b",".join(records(size)) + b"]}"

    def make(server: Server) -> Sequence[Iterator[bytes]]:
        topics = [f"{durability}:{size}:{connections}:{n}" for n in range(connections)]
        for topic in topics:
            server.request("PUT", f"/v0/topics/{topic}", {"durability": durability})
        return [Repeated(post(f"/v0/topics/{topic}?return_seqs=false", body, server.key)) for topic in topics]

    return make


def filled(server: Server) -> list[str]:
    """Paths of the topics that are read. Writes their records the first time."""
    paths = [f"/v0/topics/read:{n}" for n in range(READ_TOPICS)]
    if server.request("GET", paths[0])[0] == 404:
        body = b'{"records":[' + b",".join(records(1000)) + b"]}"
        line = Line(server.port)
        for path in paths:
            for _ in range(READ_RECORDS // 1000):
                line.ask(post(path + "?return_seqs=false", body, server.key))
        line.close()
    return paths


def diff(connections: int, size: int) -> Callable[[Server], Sequence[Iterator[bytes]]]:
    def make(server: Server) -> Sequence[Iterator[bytes]]:
        streams = []
        for path in itertools.islice(itertools.cycle(filled(server)), connections):
            starts = [n * 7919 % (READ_RECORDS - size + 1) for n in range(100)]
            requests = [post(f"{path}/diff", b'{"from_seq":%d,"limit":%d}' % (n, size), server.key) for n in starts]
            streams.append(itertools.cycle(requests))
        return streams

    return make


def state(connections: int) -> Callable[[Server], Sequence[Iterator[bytes]]]:
    def make(server: Server) -> Sequence[Iterator[bytes]]:
        paths = itertools.islice(itertools.cycle(filled(server)), connections)
        return [Repeated(get(path, server.key)) for path in paths]

    return make


def health(connections: int) -> Callable[[Server], Sequence[Iterator[bytes]]]:
    return lambda server: [Repeated(get("/v0/health", server.key)) for _ in range(connections)]


LOADS = (
    Load("append-1 × 16", append(16, 1)),
    Load("append-1 × 64", append(64, 1)),
    Load("append-1 fsync × 16", append(16, 1, "fsync")),
    Load("append-100 × 16", append(16, 100)),
    Load("append-1000 × 16", append(16, 1000), share=0.5),
    Load("diff-1 × 16", diff(16, 1)),
    Load("diff-1000 × 8", diff(8, 1000)),
    Load("state × 16", state(16)),
    Load("health × 16", health(16)),
    Load("append-1 alone", append(1, 1), latency=True),
    Load("diff-1 alone", diff(1, 1), latency=True),
    Load("state alone", state(1), latency=True),
)
JOBS = {"jobs-8 × 50, 10000 wait": 10_000, "jobs-8 × 50, 40000 wait": 40_000}
"""Workers that claim 8 jobs a time and ack them, with so many waiting."""
JOINED = {f"{name}, ack in claim": waiting for name, waiting in JOBS.items()}
"""The same, but a worker acks in its next claim. A service that does not know this gets two requests."""
LOOP = "worker-1"
"""One worker's loop of jobs, one at a time. It acks in its next claim, too."""
QUEUES = ("queue-1", "queue-16", LOOP, *JOBS, *JOINED)
OTHERS = ("copy", *QUEUES, "watchers 100", "watchers 1000", "start", "kill", "memory")


def http(load: Load, server: Server, streams: Sequence[Iterator[bytes]], seconds: float) -> Sample:
    with Measured(server) as measured:
        outcome = drive(server.port, streams, seconds * load.share)
    values = {"p50 ms": outcome.p50_ms} if load.latency else {"/s": outcome.per_second}
    return measured.sample(values | {"p99 ms": outcome.p99_ms}, outcome.requests)


def queue(server: Server, batch: int, cycles: int) -> Sample:
    """Cycles of produce, claim, ack on one connection."""
    path = f"/v0/topics/queue:{batch}"
    server.request("PUT", path, {"type": "queue"})
    produce = post(path, b'{"records":[' + b",".join(records(batch)) + b"]}", server.key)
    claim = post(f"{path}/claim", b'{"node":"w","max":%d}' % batch, server.key)
    line, took = Line(server.port), []
    with Measured(server) as measured:
        for _ in range(cycles):
            began = time.perf_counter()
            line.ask(produce)
            claimed = json.loads(line.ask(claim))["claimed"]
            seqs = ",".join(str(job["$seq"]) for job in claimed)
            line.ask(post(f"{path}/ack", b'{"node":"w","seqs":[%b]}' % seqs.encode(), server.key))
            took.append((time.perf_counter() - began) * 1000)
    line.close()
    return measured.sample({"p50 ms": median(took)}, cycles)


def jobs(server: Server, workers: int, batch: int, waiting: int, seconds: float, *, finishing: bool = False) -> Sample:
    path = f"/v0/topics/jobs:{waiting}"
    server.request("PUT", path, {"type": "queue"})
    finishing = finishing and acks_in_claims(server, path)
    with (
        Workers(server.port, path, workers, batch, waiting, key=server.key, finishing=finishing) as made,
        Measured(server) as measured,
    ):
        rate, requests = made.run(seconds)
    server.request("DELETE", path)
    return measured.sample({"/s": rate}, requests)


def acks_in_claims(server: Server, path: str) -> bool:
    """Whether the service takes an ack in a claim. One that does not ignores the field."""
    with closing(Line(server.port)) as line:
        return b'"acked"' in line.ask(post(f"{path}/claim", b'{"node":"w","ack":{"seqs":[1]}}', server.key))


def watched(server: Server, watchers: Watchers, count: int, seconds: float) -> Sample:
    watchers.latencies.clear()
    with Measured(server) as measured:
        row = paced(server, watchers, ["watched"], count, seconds, "")
    assert row.p50_ms is not None
    assert row.p99_ms is not None
    return measured.sample({"p50 ms": row.p50_ms, "p99 ms": row.p99_ms}, len(watchers.latencies))


def healed(server: Server, part: str) -> float:
    """Milliseconds from SIGKILL of a process of the part until every topic has answered a write again."""
    ask = [post(f"/v0/topics/kill:{n}", b'{"records":[{"data":1}]}', server.key) for n in range(8)]
    pid = next(pid for pid, each in server.processes().items() if each == part)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    for each in ask:
        while True:
            with suppress(OSError, LoadError), closing(Line(server.port)) as line:
                if b'"last_seq"' in line.ask(each):
                    break
            time.sleep(0.002)
    return (time.perf_counter() - began) * 1000


class Pair:
    """The services of two checkouts, and the samples of both."""

    def __init__(
        self,
        checkouts: Sequence[Path],
        rounds: int,
        seconds: float,
        shards: int,
        what: list[str],
        **settings: str,
    ) -> None:
        """`settings` are those of this side."""
        self._checkouts = checkouts
        self._settings = settings
        self._rounds = rounds
        self._seconds = seconds
        self._shards = shards
        self._what = what
        self._numbers = itertools.count()
        self.samples: dict[str, dict[str, list[Sample]]] = {}

    def wanted(self, name: str) -> bool:
        return not self._what or any(word in name for word in self._what)

    def started(self, stack: ExitStack, side: str, key: str = "") -> Server:
        """A fresh service of one side, which ends with `stack`."""
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"topics-pair-{next(self._numbers)}-"))
        checkout = self._checkouts[SIDES.index(side)]
        settings = self._settings if side == "this" else {}
        return stack.enter_context(Server(Path(directory) / "data", self._shards, checkout, key, **settings))

    def rounds(self, names: Sequence[str], take: Callable[[str, str], Sample], count: int = 0) -> None:
        """Take a sample of each name from each side, round after round. The side that is first changes."""
        for number in range(count or self._rounds):
            for name in names:
                for side in SIDES if number % 2 else reversed(SIDES):
                    gc.collect()  # no garbage of one slice is collected in the next
                    sample = take(name, side)
                    self.samples.setdefault(name, {each: [] for each in SIDES})[side].append(sample)

    def requests(self, key: str) -> None:
        """The HTTP loads, and without a key the copies and the queues, against one pair of services."""
        suffix = ", key" if key else ""
        loads = {load.name + suffix: load for load in LOADS if self.wanted(load.name + suffix)}
        others = [] if key else [name for name in ("copy", *QUEUES) if self.wanted(name)]
        if not loads and not others:
            return
        with ExitStack() as stack:
            servers = {side: self.started(stack, side, key) for side in SIDES}
            streams = {(name, side): load.make(servers[side]) for name, load in loads.items() for side in SIDES}
            for (name, side), made in streams.items():  # warm up
                http(loads[name], servers[side], made, min(self._seconds, 0.2))
            chains = {side: Hops(servers[side], 1) for side in SIDES} if "copy" in others else {}

            def take(name: str, side: str) -> Sample:
                if name in loads:
                    return http(loads[name], servers[side], streams[name, side], self._seconds)
                if name in JOBS:
                    return jobs(servers[side], 50, 8, JOBS[name], self._seconds)
                if name in JOINED:
                    return jobs(servers[side], 50, 8, JOINED[name], self._seconds, finishing=True)
                if name == LOOP:
                    return jobs(servers[side], 1, 1, 1000, self._seconds, finishing=True)
                if name == "copy":
                    with Measured(servers[side]) as measured:
                        took = chains[side].latencies(COPIES)
                    return measured.sample({"p50 ms": median(took)}, COPIES)
                return queue(servers[side], int(name.rpartition("-")[2]), CYCLES)

            self.rounds([*loads, *others], take)

    def watchers(self, count: int) -> None:
        if not self.wanted(name := f"watchers {count}"):
            return
        with ExitStack() as stack:
            servers = {side: self.started(stack, side) for side in SIDES}
            watchers = {}
            for side, server in servers.items():
                server.request("PUT", "/v0/topics/watched", {})
                watchers[side] = Watchers(server)
                stack.callback(watchers[side].close)
                watchers[side].open(["watched"], count)
                watched(server, watchers[side], count, 0.2)
            self.rounds([name], lambda _, side: watched(servers[side], watchers[side], count, self._seconds))

    def start(self) -> None:
        """Start to ready on an empty directory, and memory: idle, and with records."""

        def take(name: str, side: str) -> Sample:
            with ExitStack() as stack:
                server = self.started(stack, side)
                if name == "start":
                    used = [value for times in server.cpu_times().values() for value in times]
                    return Sample({"ms": server.ready_s * 1000, "CPU ms of children": sum(used) * 1000})
                time.sleep(1)  # what is done after the start is done
                values = {"PSS MB, idle": server.memory_mb()}
                body = b'{"records":[' + b",".join(records(1000)) + b"]}"
                line = Line(server.port)
                for n in range(MEMORY_RECORDS // 1000):
                    line.ask(post(f"/v0/topics/memory:{n % 8}?return_seqs=false", body))
                line.close()
                return Sample(values | {f"PSS MB, {MEMORY_RECORDS:,} records": server.memory_mb()})

        for side in SIDES if self.wanted("start") else ():
            take("start", side)  # compiles the modules
        if self.wanted("start"):
            self.rounds(["start"], take)
        if self.wanted("kill"):
            self.rounds(["kill"], self._kill, min(self._rounds, 9))
        if self.wanted("memory"):
            self.rounds(["memory"], take, min(self._rounds, 3))

    def _kill(self, _: str, side: str) -> Sample:
        with ExitStack() as stack:
            server = self.started(stack, side)
            healed_ms = {part: healed(server, part) for part in PARTS.values()}
            return Sample({f"{part} ms": took for part, took in healed_ms.items()})

    def run(self, keys: bool) -> None:
        for key in ("", KEY) if keys else ("",):
            self.requests(key)
        for count in (100, 1000):
            self.watchers(count)
        self.start()


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    this: float
    other: float
    gain: float


def compared(samples: dict[str, dict[str, list[Sample]]]) -> list[Row]:
    """Medians of each value, and how much better this side is. Rates are better when higher, all else when lower."""
    rows = []
    for name, sides in samples.items():
        for unit in sides["this"][0].values:
            this, other = ([sample.values[unit] for sample in sides[side]] for side in SIDES)
            better, worse = (this, other) if unit == "/s" else (other, this)
            gain = median(a / b if b else inf for a, b in zip(better, worse, strict=True))
            rows.append(Row(name, unit, median(this), median(other), gain))
    return rows


def processor(samples: list[Sample]) -> Figures:
    """µs of CPU per request by process and mode, over all samples; empty if no requests were counted."""
    requests = sum(sample.requests for sample in samples)
    if not requests:
        return {}
    return {part: sum(sample.cpu[part] for sample in samples) / requests * 1e6 for part in samples[0].cpu}


def woken(samples: list[Sample]) -> Figures:
    """Wake-ups per request by process, over all samples."""
    requests = sum(sample.requests for sample in samples)
    return {part: sum(sample.wakes[part] for sample in samples) / requests for part in samples[0].wakes}


@dataclass(frozen=True, slots=True)
class Lines:
    """A table: a title, the names of its columns, and its cells."""

    title: str
    names: Sequence[str]
    cells: Sequence[Sequence[str]]

    def markdown(self) -> str:
        rows = [self.names, ["---"] * 2 + ["---:"] * (len(self.names) - 2), *self.cells]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"

    def table(self) -> Table:
        found = Table(title=self.title, box=box.SIMPLE, padding=(0, 1, 0, 0), title_justify="left")
        for number, name in enumerate(self.names):
            found.add_column(name, justify="left" if number < 2 else "right")
        for row in self.cells:
            found.add_row(*row)
        return found


def results(samples: dict[str, dict[str, list[Sample]]], shown: Sequence[str]) -> Lines:
    cells = []
    for row in compared(samples):
        form = ",.0f" if max(row.this, row.other) >= 1000 else ",.2f"
        cells.append([row.name, row.unit, format(row.other, form), format(row.this, form), f"{row.gain:.2f}"])
    return Lines("Medians", ["load", "unit", *reversed(shown), "gain"], cells)


def budget(samples: dict[str, dict[str, list[Sample]]], shown: Sequence[str]) -> Lines:
    """Processor time and wake-ups per request, by process."""
    parts = [f"{part} {mode}" for part in ("gateway", "shards") for mode in ("user", "system")]
    cells = []
    for name, sides in samples.items():
        for side, label in zip(reversed(SIDES), reversed(shown), strict=True):
            if cpu := processor(sides[side]):
                figures = [cpu[part] for part in parts]
                row = [*figures, sum(figures), cpu["load"]]
                wakes = [f"{value:.2f}" for value in woken(sides[side]).values()]
                cells.append([name, label, *(f"{value:,.1f}" for value in row), *wakes])
    names = ["load", "", *parts, "service", "load generator", "gateway wakes", "shards wake"]
    return Lines("Per request, cycle, copy or delivery: µs of processor time, and wake-ups", names, cells)


def summary(samples: dict[str, dict[str, list[Sample]]], shown: Sequence[str]) -> Lines:
    """A line for each rate and each median, with what the service spends on it."""
    cells = []
    for row in compared(samples):
        if row.unit.startswith("p99"):
            continue
        form = ",.0f" if max(row.this, row.other) >= 1000 else ",.2f"
        sides = [samples[row.name][side] for side in reversed(SIDES)]
        spent = [processor(side) for side in sides]
        used = [[cpu[f"{part} user"] + cpu[f"{part} system"] for cpu in spent if cpu] for part in PARTS.values()]
        wakes = [sum(woken(side).values()) for side, cpu in zip(sides, spent, strict=True) if cpu]
        changes = [" → ".join(f"{value:,.0f}" for value in each) for each in used]
        changes.append(" → ".join(f"{value:,.1f}" for value in wakes))
        cells.append([row.name, row.unit, format(row.other, form), format(row.this, form), f"{row.gain:.1f}", *changes])
    names = ["load", "unit", *reversed(shown), "gain", *(f"{part}, µs" for part in PARTS.values()), "wake-ups"]
    return Lines("Summary", names, cells)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="the other checkout, with its own .venv")
    parser.add_argument("--this", type=Path, default=HERE, help="the checkout to measure (default: this one)")
    parser.add_argument("--what", default="", help="words of the wanted loads' names, with commas between them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a slice (default 0.5)")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument(
        "--set", type=setting, action="append", default=[], help="a setting of this side: TOPICS_…=value"
    )
    parser.add_argument("--keys", action="store_true", help="measure the HTTP loads with API keys, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--markdown", type=Path, help="write the tables to a file, in Markdown")
    parser.add_argument("--names", default="", help="names of this side and of the other in the tables: now,before")
    parser.add_argument("--list", action="store_true", help="print the names of the loads")
    return parser.parse_args()


def main() -> int:
    asked = options()
    if asked.list:
        print("\n".join([load.name for load in LOADS] + list(OTHERS)))
        return 0
    checkouts = [each.resolve() for each in (asked.this, asked.other) if each is not None]
    if len(checkouts) < 2 or not all((each / ".venv/bin/python").exists() for each in checkouts):
        sys.stderr.write("pair: --other names a checkout that has a .venv\n")
        return 2
    what = [word for word in asked.what.split(",") if word]
    pair = Pair(checkouts, asked.rounds, asked.seconds, asked.shards, what, **dict(asked.set))
    pair.run(asked.keys)
    shown = asked.names.split(",") if asked.names else [each.name for each in checkouts]
    tables = [results(pair.samples, shown), budget(pair.samples, shown)]
    if asked.markdown is not None:
        asked.markdown.write_text("\n".join(each.markdown() for each in (summary(pair.samples, shown), *tables)))
    if asked.json:
        result: dict[str, Any] = {"rows": [asdict(row) for row in compared(pair.samples)]}
        result["cpu_us"] = {n: {s: processor(v) for s, v in sides.items()} for n, sides in pair.samples.items()}
        print(json.dumps(result, indent=2))
    else:
        console = Console(width=max(Console().width, 150))
        for each in tables:
            console.print(each.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
