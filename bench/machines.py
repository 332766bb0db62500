"""How long writers of a shard wait when its machine is killed, and when the shard is moved. A table, in ten minutes.

    make bench-machines
    python bench/machines.py --rounds 2     a quick look
    python bench/machines.py --json         the same as JSON

Three machines have one bucket, a directory, and hold a shard each. First clients write records for `--fill` seconds,
so that each shard has a log to be replayed: as many as one machine takes, each in a request of its own. In each round
a machine with an empty directory joins and is killed; another one joins and leaves. A writer for each shard begins a
write every 20 ms, through a machine that stays, and gives it up after a second. A shard is away for the longest time
between two of its writes that succeed, from before the event until the shards have settled. All processes share this
machine and its cores.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count, cycle, pairwise
from pathlib import Path
from statistics import median

from load import drive, post
from replication import bucket, until
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

from proto.model.names import shard_of

SHARDS = 3
TTL_MS = 3000
PERIOD_S = 0.02
PATIENCE_S = 1.0
"""Of a writer."""
AFTER = 10
"""Writes of each shard that succeed before an event counts as over."""
WRITERS = 32
"""Connections that fill the shards."""
LOOK_S = 0.2
"""Between two questions to all machines, which cost them time."""
TAKEOVER_S = 2.0
"""The aim of a takeover, beyond the time to live."""
MOVE_S = 1.0
"""The aim of a move."""


@dataclass(frozen=True, slots=True)
class Event:
    what: str
    away_s: float
    """Of the shards that got another holder."""
    failed: int
    """Writes to those shards that were refused, broken or given up."""
    others_away_s: float
    others_failed: int
    reasons: tuple[str, ...] = ()
    """Of the writes that failed, in any shard."""

    def aim_s(self, ttl_ms: int) -> float:
        """Of `away_s`."""
        return ttl_ms / 1000 + TAKEOVER_S if self.what == "is killed" else MOVE_S


class Writer(threading.Thread):
    """Writes to a topic of one shard until `over`."""

    def __init__(self, port: int, index: int, patience_s: float) -> None:
        super().__init__(daemon=True)
        self.succeeded: list[float] = []
        self.failed: list[tuple[float, str]] = []
        """When each write failed, and why."""
        self.over = threading.Event()
        self._path = f"/v0/topics/{topic_of(index)}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)

    def run(self) -> None:
        due = time.monotonic()
        while not self.over.is_set():
            problem = self._write()
            now = time.monotonic()
            if problem:
                self.failed.append((now, problem))
            else:
                self.succeeded.append(now)
            due = max(due + PERIOD_S, now)
            self.over.wait(due - now)
        self._connection.close()

    def _write(self) -> str:
        """What went wrong, or ""."""
        body = b'{"records":[{"data":"x"}],"config":{"durability":"fsync"}}'
        try:
            self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return f"{type(error).__name__}: {error}"
        return "" if answer.status in (200, 201) else f"{answer.status} {text}"


def topic_of(index: int) -> str:
    """A topic of a shard."""
    return next(name for n in count() if shard_of(name := f"t{n}", SHARDS) == index)


def longest(times: Sequence[float], began: float, ended: float) -> float:
    """The longest time between two of `times`, which are in order, from the last one before `began` to the last one
    before `ended`. Either end counts itself if there is none before it."""
    before = [each for each in times if each <= began][-1:] or [began]
    between = [each for each in times if began < each < ended]
    return max(later - earlier for earlier, later in pairwise([*before, *between, ended]))


class Machines:
    """The machines that run, the first of which stays, and a writer for each shard. A context manager."""

    def __init__(self, folder: Path, ttl_ms: int, patience_s: float, fill_s: float) -> None:
        self._folder = folder
        self._fill_s = fill_s
        self._settings = bucket(
            folder, "bucket", "sync", TOPICS_TERM_TTL_MS=str(ttl_ms), TOPICS_CLUSTER_LISTEN="127.0.0.1:0"
        )
        self._patience_s = patience_s
        self._numbers = count(1)
        self.running: list[Server] = []
        self.writers: list[Writer] = []

    def __enter__(self) -> Machines:
        with ExitStack() as stack:
            stack.push(self)
            for _ in range(SHARDS - 1):
                self._start()
            until(self._spread, "an even spread", LOOK_S)
            self._fill()
            self.writers = [Writer(self.running[0].port, index, self._patience_s) for index in range(SHARDS)]
            for each in self.writers:
                each.start()
            self._continue()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.over.set()
        for server in self.running:
            server.stop(kill=True)

    def _fill(self) -> None:
        body = json.dumps({"records": [{"data": "x" * 100}], "config": {"durability": "memory"}}).encode()
        requests = [post(f"/v0/topics/{topic_of(index)}?return_seqs=false", body) for index in range(SHARDS)]
        drive(self.running[0].port, [cycle(requests) for _ in range(WRITERS)], self._fill_s)

    def _start(self) -> Server:
        made = Server(self._folder / f"machine-{next(self._numbers)}", SHARDS, **self._settings)
        self.running.append(made.__enter__())
        return made

    def _continue(self) -> None:
        """Return when each shard has taken some more writes."""
        before = [len(writer.succeeded) for writer in self.writers]
        until(
            lambda: all(len(w.succeeded) >= was + AFTER for w, was in zip(self.writers, before, strict=True)),
            "writes to each shard",
        )

    def _spread(self) -> bool:
        """Whether each shard has one holder, and none has more than its part."""
        parts = [held(each) for each in self.running]
        loads = sorted(map(len, parts))
        return set().union(*parts) == set(range(SHARDS)) and sum(loads) == SHARDS and loads[-1] - loads[0] <= 1

    def _event(self, what: str, cause: Callable[[], set[int]]) -> Event:
        """`cause` returns the shards that are to get another holder; the event is over when they have it."""
        began = time.monotonic()
        moved = cause()
        until(self._spread, "an even spread", LOOK_S)
        self._continue()
        ended = time.monotonic()

        reasons: list[str] = []

        def of(shards: set[int]) -> tuple[float, int]:
            writers = [self.writers[index] for index in shards]
            away_s = max((longest(writer.succeeded[:], began, ended) for writer in writers), default=0.0)
            found = [why for writer in writers for at, why in writer.failed[:] if began < at <= ended]
            reasons.extend(found)
            return away_s, len(found)

        return Event(what, *of(moved), *of(set(range(SHARDS)) - moved), tuple(reasons))

    def joins(self) -> Event:
        def cause() -> set[int]:
            joined = self._start()
            until(lambda: held(joined), "a part for the machine that joined", LOOK_S)
            return held(joined)

        return self._event("joins", cause)

    def is_killed(self) -> Event:
        """The last machine that joined."""

        def cause() -> set[int]:
            shards = held(self.running[-1])
            self.running.pop().stop(kill=True)
            return shards

        return self._event("is killed", cause)

    def leaves(self) -> Event:
        """The last machine that joined."""

        def cause() -> set[int]:
            leaving = self.running[-1]
            shards = held(leaving)
            command = [sys.executable, "-m", "supervisor.cli", "leave", "--data-dir", str(leaving.data_dir)]
            subprocess.run(command, env=os.environ | self._settings, check=True, stdout=subprocess.DEVNULL)
            self.running.remove(leaving)
            leaving.stop()
            return shards

        return self._event("leaves", cause)


def held(server: Server) -> set[int]:
    """The shards that a machine holds."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
        phases = json.loads(connection.getresponse().read())["topics_shard_phase"]
    finally:
        connection.close()
    return {int(each["labels"]["shard"]) for each in phases if each["value"] and each["labels"]["phase"] == "ready"}


def run(
    folder: Path, rounds: int, ttl_ms: int = TTL_MS, patience_s: float = PATIENCE_S, fill_s: float = 0.0
) -> Iterator[Event]:
    with Machines(folder, ttl_ms, patience_s, fill_s) as machines:
        for _ in range(rounds):
            yield machines.joins()
            yield machines.is_killed()
            yield machines.joins()
            yield machines.leaves()


def show(events: Sequence[Event], ttl_ms: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="how long a shard takes no write")
    names = ("a machine", "times", "p50", "max", "aim", "failed", "max of other shards", "failed there")
    for column in names:
        table.add_column(column, justify="left" if column == "a machine" else "right")
    for what in dict.fromkeys(each.what for each in events):
        kind = [each for each in events if each.what == what]
        away_s, others_s = [each.away_s for each in kind], [each.others_away_s for each in kind]
        figures = (f"{each:.2f} s" for each in (median(away_s), max(away_s), kind[0].aim_s(ttl_ms)))
        failed, elsewhere = sum(each.failed for each in kind), sum(each.others_failed for each in kind)
        table.add_row(what, str(len(kind)), *figures, str(failed), f"{max(others_s):.2f} s", str(elsewhere))
    console = Console()
    console.width = max(console.width, 110)
    console.print(table)
    for each in events:
        if each.what != "is killed":
            for reason in each.reasons:
                console.print(f"a machine {each.what}: {reason}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ttl-ms", type=int, default=TTL_MS, help="TOPICS_TERM_TTL_MS of the machines")
    parser.add_argument("--fill", type=float, default=10.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-machines-") as folder:
        events = list(run(Path(folder), options.rounds, options.ttl_ms, fill_s=options.fill))
    if options.json:
        print(json.dumps([asdict(each) for each in events], indent=1))
    else:
        show(events, options.ttl_ms)


if __name__ == "__main__":
    main()
