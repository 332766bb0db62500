"""What it costs to ask a machine that does not hold the shard, compared with one that does.

    make bench-forward                                 a table, in about two minutes
    python bench/forward.py --seconds 0.5 --rounds 3   a quick look
    python bench/forward.py --json                     the same as JSON

Two machines with one bucket, a directory, hear each other. They, the load and the bucket share this machine and its
cores, so the link between them is loopback. Figures are medians of the rounds, and a difference or a ratio is the
median of those of the rounds. A round asks both machines in turn, request by request, so that what slows this machine
down for a moment slows both sides: that is the latency, of one connection. Then it sends each load to the one and to
the other, in slices of `SLICE_S`, with `CONNECTIONS` connections: that is the processor time, of all gateways and
shards of both machines. The round trip of the link is that of as many bytes as the request and its answer have,
between two processes over TCP, each on a core of its own as two machines are, measured in each round too. So is what
encryption alone costs for these bytes: an exchange by ZeroMQ with CURVE less one without. It is part of what is added.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import zmq
from load import Line, drive, get, post
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

CONNECTIONS = 16
SLICE_S = 0.25
"""Of processor time: short, so that both machines see the same moments."""
TOPIC = "forwarded"
RECORDS = 10_000
BATCH = 1000
PATIENCE_S = 60.0
MOST_US = 60
"""The aim of the latency that is added to the link's round trip."""
MOST_CPU = 1.15
EXCHANGES = 300
"""Of one measurement of encryption."""
ECHO_BYTES = 1 << 20
"""The largest request and answer of an exchange."""
SIZES = struct.Struct("!II")
ECHO = f"""
import os, socket, struct, sys
os.sched_setaffinity(0, {{int(sys.argv[1])}})
buffer, answer = memoryview(bytearray({ECHO_BYTES})), memoryview(bytes({ECHO_BYTES}))
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while size := connection.recv_into(buffer):
        asked, answered = struct.unpack_from({SIZES.format!r}, buffer)
        while size < asked:
            size += connection.recv_into(buffer)
        connection.sendall(answer[:answered])
"""


@dataclass(frozen=True, slots=True)
class Measure:
    p50_us: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Row:
    load: str
    held_us: float
    """Median latency at the machine that holds the shard."""
    other_us: float
    """The same at the other one."""
    added_us: float
    rtt_us: float
    """Of the link, with as many bytes."""
    held_cpu_us: float
    """Processor time of a request, of both machines together."""
    other_cpu_us: float
    cpu_ratio: float
    encryption_us: float
    """What CURVE alone adds to the latency of an exchange of as many bytes."""
    encryption_cpu_us: float
    """The same of processor time, both ends together."""


def machine(folder: Path, name: str) -> Server:
    return Server(
        folder / name,
        1,
        TOPICS_BUCKET=(folder / "bucket").as_uri(),
        TOPICS_REPLICATION="sync",
        TOPICS_CLUSTER_LISTEN="127.0.0.1:0",
    )


def holds(server: Server) -> bool:
    """Whether the machine holds the only shard."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
    phases = json.loads(connection.getresponse().read())["topics_shard_phase"]
    connection.close()
    return any(each["value"] and each["labels"]["phase"] == "ready" for each in phases)


def settled(one: Server, two: Server) -> tuple[Server, Server]:
    """The machine that holds the shard, and the other one."""
    until = time.monotonic() + PATIENCE_S
    while holds(one) == holds(two):
        if time.monotonic() > until:
            raise RuntimeError("no machine holds the shard")
        time.sleep(0.1)
    return (one, two) if holds(one) else (two, one)


def fill(server: Server) -> None:
    server.request("PUT", f"/v0/topics/{TOPIC}", {"durability": "disk"})
    records = [{"data": "x" * 100} for _ in range(BATCH)]
    for _ in range(RECORDS // BATCH):
        status, answer = server.request("POST", f"/v0/topics/{TOPIC}", {"records": records})
        if status not in (200, 201):
            raise RuntimeError(f"a write was refused: {answer}")


def states() -> Iterator[bytes]:
    return itertools.repeat(get(f"/v0/topics/{TOPIC}"))


def diffs(limit: int) -> Iterator[bytes]:
    starts = (n * 7919 % (RECORDS - limit) for n in itertools.count())
    return (post(f"/v0/topics/{TOPIC}/diff", b'{"from_seq":%d,"limit":%d}' % (start, limit)) for start in starts)


def appends() -> Iterator[bytes]:
    body = json.dumps({"records": [{"data": "x" * 500}], "config": {"durability": "memory"}}).encode()
    return itertools.repeat(post("/v0/topics/written?return_seqs=false", body))


LOADS: dict[str, Callable[[], Iterator[bytes]]] = {
    "state": states,
    "append of 500 B": appends,
    "diff of 5 records": lambda: diffs(5),
    "diff of 455 records, 64 KiB": lambda: diffs(455),
}


class Echo:
    """A process that answers requests of any size with answers of any size, on another core than the one that asks, if
    there are two. A request begins with both sizes."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        command = [sys.executable, "-c", ECHO, str(self._cores[-1])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._raw.close()
        self._process.communicate(timeout=30)

    def rtt_us(self, seconds: float, asked: int, answered: int) -> float:
        """The median, with requests and answers of so many bytes."""
        taken: list[float] = []
        clock = time.perf_counter
        request, buffer = SIZES.pack(asked, answered).ljust(asked), bytearray(ECHO_BYTES)
        until = clock() + seconds
        os.sched_setaffinity(0, self._cores[:1])
        try:
            while not taken or clock() < until:
                began = clock()
                self._raw.sendall(request)
                missing = answered
                while missing:
                    missing -= self._raw.recv_into(buffer)
                taken.append(clock() - began)
        finally:
            os.sched_setaffinity(0, self._cores)
        return median(taken) * 1e6


def exchanged(asked: int, answered: int, *, encrypted: bool) -> Measure:
    """An exchange over TCP between two sockets of ZeroMQ, each with a context of its own."""
    with (
        zmq.Context() as near,
        zmq.Context() as far,
        near.socket(zmq.DEALER) as client,
        far.socket(zmq.DEALER) as holder,
    ):
        if encrypted:
            public, holder.curve_secretkey = zmq.curve_keypair()
            holder.curve_server, client.curve_serverkey = True, public
            client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.connect(f"tcp://127.0.0.1:{holder.bind_to_random_port('tcp://127.0.0.1')}")
        request, answer = bytes(asked), bytes(answered)
        taken: list[float] = []
        began_cpu = time.process_time()
        for _ in range(EXCHANGES):
            began = time.perf_counter()
            client.send(request)
            holder.recv()
            holder.send(answer)
            client.recv()
            taken.append(time.perf_counter() - began)
        return Measure(median(taken) * 1e6, (time.process_time() - began_cpu) / EXCHANGES * 1e6)


def encryption(asked: int, answered: int) -> Measure:
    plain, curve = (exchanged(asked, answered, encrypted=encrypted) for encrypted in (False, True))
    return Measure(curve.p50_us - plain.p50_us, curve.cpu_us - plain.cpu_us)


def cpu_s(servers: Sequence[Server]) -> float:
    return sum(sum(server.cpu_seconds().values()) for server in servers)


def in_turn(pair: Sequence[Server], streams: Sequence[Iterator[bytes]], seconds: float) -> list[float]:
    """The median latency of each machine in µs: each has one connection, and is asked after the other one."""
    taken: list[list[float]] = [[] for _ in pair]
    clock = time.perf_counter
    with ExitStack() as stack:
        lines = [stack.enter_context(closing(Line(server.port))) for server in pair]
        until = clock() + seconds
        while not taken[-1] or clock() < until:
            for line, stream, times in zip(lines, streams, taken, strict=True):
                request = next(stream)
                began = clock()
                line.ask(request)
                times.append(clock() - began)
    return [median(times) * 1e6 for times in taken]


def spent(pair: Sequence[Server], make: Callable[[], Iterator[bytes]], seconds: float) -> list[float]:
    """Processor time of a request to each machine in µs, of both together: they are asked for a slice each in turn."""
    used, requests = [0.0 for _ in pair], [0 for _ in pair]
    for _ in range(max(round(seconds / SLICE_S), 1)):
        for index, server in enumerate(pair):
            before = cpu_s(pair)
            requests[index] += drive(server.port, [make() for _ in range(CONNECTIONS)], min(seconds, SLICE_S)).requests
            used[index] += cpu_s(pair) - before
    return [each / count * 1e6 for each, count in zip(used, requests, strict=True)]


def measured(pair: Sequence[Server], make: Callable[[], Iterator[bytes]], seconds: float) -> list[Measure]:
    """Of each machine."""
    latencies = in_turn(pair, [make() for _ in pair], seconds)
    return list(map(Measure, latencies, spent(pair, make, seconds)))


def sizes(server: Server, request: bytes) -> tuple[int, int]:
    """Bytes of a request, and of the body of its answer."""
    with closing(Line(server.port)) as line:
        return len(request), len(line.ask(request))


def compared(name: str, pair: tuple[Server, Server], echo: Echo, seconds: float, rounds: int) -> Row:
    """`pair`: the machine that holds the shard, and the other one."""
    make = LOADS[name]
    for server in pair:
        drive(server.port, [make()], min(seconds, 0.5))  # what is only slow at first
    held: list[Measure] = []
    other: list[Measure] = []
    rtts: list[float] = []
    curves: list[Measure] = []
    asked, answered = sizes(pair[0], next(make()))
    for number in range(rounds):
        rtts.append(echo.rtt_us(min(seconds, 0.5), asked, answered))
        curves.append(encryption(asked, answered))
        turn = slice(None, None, 1 if number % 2 else -1)
        at_holder, at_other = measured(pair[turn], make, seconds)[turn]
        held.append(at_holder)
        other.append(at_other)
    return Row(
        name,
        median(each.p50_us for each in held),
        median(each.p50_us for each in other),
        median(b.p50_us - a.p50_us for a, b in zip(held, other, strict=True)),
        median(rtts),
        median(each.cpu_us for each in held),
        median(each.cpu_us for each in other),
        median(b.cpu_us / a.cpu_us for a, b in zip(held, other, strict=True)),
        median(each.p50_us for each in curves),
        median(each.cpu_us for each in curves),
    )


def run(seconds: float, rounds: int) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topics-forward-")))
        (folder / "bucket").mkdir()
        one = stack.enter_context(machine(folder, "one"))
        two = stack.enter_context(machine(folder, "two"))
        pair = settled(one, two)
        fill(pair[1])
        echo = Echo()
        stack.callback(echo.close)
        for name in LOADS:
            yield compared(name, pair, echo, seconds, rounds)


def show(rows: Sequence[Row]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="a request at the machine that holds the shard, and at another one")
    table.add_column("load")
    for column in ("p50 held", "p50 other", "added", "RTT of the link", "CURVE"):
        table.add_column(column, justify="right")
    for column in ("CPU held", "CPU other", "CURVE", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        times = (row.held_us, row.other_us, row.added_us, row.rtt_us, row.encryption_us)
        cpu = (row.held_cpu_us, row.other_cpu_us, row.encryption_cpu_us)
        table.add_row(row.load, *(f"{each:,.0f} µs" for each in times + cpu), f"{row.cpu_ratio:.2f}")
    console = Console()
    console.width = max(console.width, 140)
    console.print(table)
    console.print(f"aims: at most the round trip and {MOST_US} µs are added to the latency, {MOST_CPU} × the CPU time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = list(run(options.seconds, options.rounds))
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        show(rows)


if __name__ == "__main__":
    main()
