"""How much several gateways bring on a machine with more cores than this one: a model, fed with what is measured here.

    make bench-scale                                           three gateways on 8 cores, compared with one
    python bench/scale.py --cores 16 --gateways 5 --shards 8   other numbers
    python bench/scale.py --json                               the same as JSON

**Measured**: the processor time of a request in the gateways and in the shards of a real service on this machine, once
with one gateway and once with several, with `--connections` each time. Each connection has a topic of its own.

**The model** is a closed queueing network. Each connection has one request under way. It goes to the connection's
gateway, to the shard of its topic, and to the gateway again, and costs the gateway half of its time each time. A
process does one thing at a time, in order of arrival, and needs a core meanwhile; cores go to processes in the order in
which they asked. Times are exponential around the measured means. What clients cost is not part of it, so they are
thought of as on other machines, and neither is what cores share: memory, caches, a disk.

**How far it is to be believed**: the model is asked for this machine, too, with the load's own process in it, and what
it says is shown beside what was measured.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, repeat
from pathlib import Path

from load import drive, get, post
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

AIM = 1.7
REQUESTS = 40_000
"""Of each run of the model; the first tenth is not counted."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of a request in µs, and what was reached."""

    gateway: float
    shard: float
    load: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Row:
    load: str
    gateways: int
    cost: Cost
    here_modelled_per_s: float
    modelled_per_s: float
    gain: float
    """Over one gateway."""


class Process:
    """A server of the model: steps wait in `queue`, one is being done if `busy`."""

    def __init__(self) -> None:
        self.queue: deque[tuple[int, int]] = deque()
        self.busy = False


def modelled_per_s(
    cores: int, gateways: int, shards: int, connections: int, cost: Cost, *, load_process: bool = False
) -> float:
    """Requests per second. With `load_process` the clients are one process that needs a core, too."""
    dice = random.Random(1)
    there, holders, clients = ([Process() for _ in range(n)] for n in (gateways, shards, int(load_process)))
    topics = [dice.randrange(shards) for _ in range(connections)]
    routes: list[list[tuple[Process, float]]] = []
    for connection in range(connections):
        gateway, shard = there[connection % gateways], holders[topics[connection]]
        route = [(gateway, cost.gateway / 2), (shard, cost.shard), (gateway, cost.gateway / 2)]
        routes.append([(client, cost.load) for client in clients] + route)
    asking: deque[Process] = deque()
    ends: list[tuple[float, int, Process]] = []
    order = count()
    now, free, done, counted_from = 0.0, cores, 0, 0.0

    def arrive(connection: int, step: int) -> None:
        process = routes[connection][step][0]
        process.queue.append((connection, step))
        if not process.busy:
            process.busy = True
            asking.append(process)

    for connection in range(connections):
        arrive(connection, 0)
    while done < REQUESTS:
        while free and asking:
            process = asking.popleft()
            connection, step = process.queue[0]
            took = dice.expovariate(1 / routes[connection][step][1])
            heapq.heappush(ends, (now + took, next(order), process))
            free -= 1
        now, _, process = heapq.heappop(ends)
        free += 1
        connection, step = process.queue.popleft()
        if process.queue:
            asking.append(process)
        else:
            process.busy = False
        last = step + 1 == len(routes[connection])
        arrive(connection, 0 if last else step + 1)
        done += last
        if last and done == REQUESTS // 10:
            counted_from = now
    return (REQUESTS - REQUESTS // 10) / (now - counted_from) * 1e6


def appends(connections: int) -> list[Iterator[bytes]]:
    body = json.dumps({"records": [{"data": "x" * 100}], "config": {"durability": "memory"}}).encode()
    return [repeat(post(f"/v0/topics/scale:{n}?return_seqs=false", body)) for n in range(connections)]


def states(connections: int) -> list[Iterator[bytes]]:
    return [repeat(get(f"/v0/topics/scale:{n}")) for n in range(connections)]


LOADS = {"append of 100 B": appends, "state": states}


def measured(folder: Path, gateways: int, shards: int, connections: int, seconds: float) -> dict[str, Cost]:
    """The costs of each load with so many gateways."""
    found = {}
    with Server(folder / f"with-{gateways}", shards, TOPICS_GATEWAYS=str(gateways)) as server:
        drive(server.port, appends(connections), min(seconds, 1.0))  # makes the topics
        for name, make in LOADS.items():
            before = server.cpu_seconds()
            outcome = drive(server.port, make(connections), seconds)
            used = {part: value - before[part] for part, value in server.cpu_seconds().items()}
            each = 1e6 / outcome.requests
            found[name] = Cost(
                used["gateway"] * each, used["shards"] * each, outcome.cpu_seconds * each, outcome.per_second
            )
    return found


def run(cores: int, shards: int, gateways: int, connections: int, seconds: float) -> Iterator[Row]:
    here = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="topics-scale-") as directory:
        costs = {n: measured(Path(directory), n, shards, connections, seconds) for n in (1, gateways)}
    for name in LOADS:
        one = modelled_per_s(cores, 1, shards, connections, costs[1][name])
        for number in (1, gateways):
            cost = costs[number][name]
            here_too = modelled_per_s(here, number, shards, connections, cost, load_process=True)
            there = modelled_per_s(cores, number, shards, connections, cost)
            yield Row(name, number, cost, here_too, there, there / one)


def show(rows: Sequence[Row], cores: int, shards: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"requests per second on {cores} cores with {shards} shards, by the model")
    for column in ("load", "gateways", "CPU gateway", "CPU shard", "here", "model of here", "model", "gain"):
        table.add_column(column, justify="left" if column == "load" else "right")
    for row in rows:
        cpu = (f"{row.cost.gateway:.0f} µs", f"{row.cost.shard:.0f} µs")
        rates = (f"{each:,.0f}" for each in (row.cost.per_s, row.here_modelled_per_s, row.modelled_per_s))
        table.add_row(row.load, str(row.gateways), *cpu, *rates, f"{row.gain:.2f}")
    console = Console()
    console.width = max(console.width, 110)
    console.print(table)
    console.print(f"aim: {AIM} × with 3 gateways on 8 cores. A model, to be confirmed on such a machine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--connections", type=int, default=192)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = list(run(asked.cores, asked.shards, asked.gateways, asked.connections, asked.seconds))
    if asked.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        show(rows, asked.cores, asked.shards)


if __name__ == "__main__":
    main()
