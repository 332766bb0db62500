"""`topics roll` under load: whether a client is refused while all gateways are replaced.

    python bench/roll.py                          one gateway, 200 connections a second
    python bench/roll.py --gateways 3 --rolls 3   three of them, replaced three times
    python bench/roll.py --rate 1000              1000 connections a second

Each connection has one request. They begin on time, however long others take; a millisecond is counted from then.
Exit status: 0 if each request got 200, else 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

REQUEST = b"GET /v0/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PATIENCE_S = 30.0
ALL = 1 << 16


@dataclass
class Seen:
    """What the clients got during one roll."""

    outcomes: Counter[str] = field(default_factory=Counter)
    ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    status: int = 0
    """That of the command."""


async def call(port: int, due: float, seen: Seen) -> None:
    outcome = "no answer in time"
    with trio.move_on_after(PATIENCE_S):
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(REQUEST)
                answer = b""
                while data := await stream.receive_some(ALL):
                    answer += data
            outcome = answer.partition(b"\r\n")[0].decode() or "ended without an answer"
        except OSError as error:
            outcome = str(error)
        except trio.BrokenResourceError as error:
            outcome = f"reset: {error.__cause__}"
    seen.outcomes[outcome] += 1
    seen.ms.append(1000 * (trio.current_time() - due))


async def clients(port: int, rate: float, seen: Seen, over: trio.Event) -> None:
    """Begin connections until it is over; wait for those that have begun."""
    due = trio.current_time()
    async with trio.open_nursery() as begun:
        while not over.is_set():
            begun.start_soon(call, port, due, seen)
            due += 1 / rate
            await trio.sleep_until(due)


async def rolled(server: Server, rate: float) -> Seen:
    seen, over = Seen(), trio.Event()
    command = [sys.executable, "-m", "supervisor.cli", "roll", "--data-dir", str(server.data_dir)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clients, server.port, rate, seen, over)
        began = time.monotonic()
        done = await trio.run_process(command, env=environment | server.settings, check=False)
        seen.seconds, seen.status = time.monotonic() - began, done.returncode
        over.set()
    return seen


def share(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--rolls", type=int, default=1)
    parser.add_argument("--rate", type=float, default=200.0, help="connections a second (default 200)")
    parser.add_argument("--shards", type=int, default=2)
    asked = parser.parse_args()
    settings = {"TOPICS_GATEWAYS": str(asked.gateways)}
    with (
        tempfile.TemporaryDirectory(prefix="topics-roll-") as directory,
        Server(Path(directory) / "data", asked.shards, **settings) as server,
    ):
        found = [trio.run(rolled, server, asked.rate) for _ in range(asked.rolls)]
    table = Table("roll, s", "connections", "200", "others", "p50 ms", "p99 ms", "longest ms", box=box.SIMPLE)
    good = True
    for seen in found:
        answered = seen.outcomes.pop("HTTP/1.1 200 OK", 0)
        good = good and not seen.outcomes and not seen.status
        others = ", ".join(f"{number} {outcome}" for outcome, number in seen.outcomes.items()) or "0"
        figures = [f"{each:.1f}" for each in (share(seen.ms, 0.5), share(seen.ms, 0.99), max(seen.ms))]
        table.add_row(f"{seen.seconds:.1f}", str(len(seen.ms)), str(answered), others, *figures)
    Console(width=max(Console().width, 100)).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
