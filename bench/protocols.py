"""Commands per second over Walrus and Rog: `make bench-protocols [ARGS="--seconds 5 --durability disk --json"]`.

One process, one epoll, one command in flight per connection. The load shares the machine with the service. At the end,
acknowledged records are compared with those of the service, and delivered records with those available.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

PAYLOAD = b"x" * 100
GROUP = b"bench"
MANY = 16
MOST_PER_SECOND = 6000
"""Upper bound of the commands per second on one connection, which determines how many records `fill` writes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. `gateway` and `shards` are CPU seconds per second of wall time."""

    name: str
    connections: int
    per_second: float
    p50_ms: float
    p99_ms: float
    gateway: float
    shards: float


class LoadError(Exception):
    """An unexpected answer, or no answer."""


def walrus_frame(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def walrus_done(answer: bytes) -> bool:
    return len(answer) >= 4 and len(answer) == 4 + struct.unpack_from("<I", answer)[0]


def rog_status_done(answer: bytes) -> bool:
    return answer == b"\0" or (len(answer) >= 9 and len(answer) == 9 + struct.unpack_from(">Q", answer, 1)[0])


def rog_fetch_done(answer: bytes) -> bool:
    return len(answer) >= 9 and len(answer) == 9 + struct.unpack_from(">Q", answer, 1)[0]


def rog_command(code: int, number: int, log: bytes, rest: bytes = b"") -> bytes:
    return bytes((code, number, len(log))) + log + rest


def publish(log: bytes) -> bytes:
    return rog_command(1, 0, log, struct.pack(">Q", len(PAYLOAD)) + PAYLOAD)


def of_group(code: int, log: bytes) -> bytes:
    return rog_command(code, 0, log, bytes((len(GROUP),)) + GROUP)


def drive(
    port: int,
    streams: list[Iterator[bytes]],
    done: Callable[[bytes], bool],
    good: Callable[[bytes], bool],
    seconds: float,
) -> tuple[int, float, list[float]]:
    """Returns commands, seconds and latencies (ms). Raises `LoadError` for an unexpected answer."""
    poll = select.epoll()
    connections: dict[int, list[object]] = {}
    latencies: list[float] = []
    started = time.perf_counter()
    until = started + seconds
    try:
        for stream in streams:
            raw = socket.create_connection(("127.0.0.1", port), 30)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(raw.fileno(), select.EPOLLIN)
            raw.sendall(next(stream))
            connections[raw.fileno()] = [raw, stream, b"", time.perf_counter()]
        waiting = len(connections)
        while waiting:
            events = poll.poll(30)
            if not events:
                raise LoadError("no answer for 30 s")
            for descriptor, _ in events:
                entry = connections[descriptor]
                raw, stream, answer, sent_at = entry
                assert isinstance(raw, socket.socket)
                assert isinstance(answer, bytes)
                assert isinstance(sent_at, float)
                data = raw.recv(1 << 16)
                answer += data
                if not data:
                    raise LoadError(f"the connection ended after {answer!r}")
                if not done(answer):
                    entry[2] = answer
                    continue
                if not good(answer):
                    raise LoadError(f"answer {answer[:200]!r}")
                now = time.perf_counter()
                latencies.append((now - sent_at) * 1000)
                if now >= until:
                    waiting -= 1
                    continue
                raw.sendall(next(stream))  # type: ignore[call-overload] - an entry has a socket, texts and numbers
                entry[2], entry[3] = b"", now
        return len(latencies), time.perf_counter() - started, latencies
    finally:
        for entry in connections.values():
            entry[0].close()  # type: ignore[attr-defined] - as above
        poll.close()


class Bench:
    def __init__(self, server: Server, seconds: float) -> None:
        status = json.loads((Path(server.settings["TOPICS_RUNTIME_DIR"]) / "children.json").read_text())
        self.walrus = int(status["walrus"][0].rpartition(":")[2])
        self.rog = int(status["rog"][0].rpartition(":")[2])
        self.server = server
        self.seconds = seconds

    def measured(
        self,
        name: str,
        port: int,
        streams: list[Iterator[bytes]],
        done: Callable[[bytes], bool],
        good: Callable[[bytes], bool],
    ) -> tuple[Row, int]:
        before = self.server.cpu_seconds()
        commands, seconds, latencies = drive(port, streams, done, good, self.seconds)
        after = self.server.cpu_seconds()
        latencies.sort()
        row = Row(
            name,
            len(streams),
            round(commands / seconds, 1),
            round(latencies[len(latencies) // 2], 3),
            round(latencies[len(latencies) * 99 // 100], 3),
            round((after["gateway"] - before["gateway"]) / seconds, 3),
            round((after["shards"] - before["shards"]) / seconds, 3),
        )
        return row, commands

    def fill(self, topics: list[str]) -> None:
        """Write more records than can be read in time, so that no reader gets an empty answer."""
        for topic in topics:
            missing = int(self.seconds * MOST_PER_SECOND / len(topics) ** 0.5)
            while missing > 0:
                records = [{"data": PAYLOAD.decode()}] * min(missing, 5000)
                self.server.request("POST", f"/v0/topics/{topic}?return_seqs=false", {"records": records})
                missing -= 5000

    def head(self, topic: str) -> int:
        return int(self.server.request("GET", f"/v0/topics/{topic}")[1]["head_seq"])

    def cursor(self, topic: str, name: str) -> int:
        return int(self.server.request("GET", f"/v0/topics/{topic}/cursors/{name}")[1]["seq"])

    def run(self, connections: int) -> list[Row]:
        topics = [b"bench-%d-%d" % (connections, n) for n in range(connections)]

        def each(make: Callable[[bytes], bytes]) -> list[Iterator[bytes]]:
            return [repeat(make(topic)) for topic in topics]

        def ok(answer: bytes) -> bool:
            return answer[4:6] == b"OK"

        drive_once(self.walrus, [walrus_frame(b"REGISTER " + topic) for topic in topics], walrus_done, ok)
        put, puts = self.measured(
            "Walrus PUT", self.walrus, each(lambda t: walrus_frame(b"PUT %b %b" % (t, PAYLOAD))), walrus_done, ok
        )
        heads = [self.head(topic.decode()) for topic in topics]
        if sum(heads) != puts:
            raise LoadError(f"{puts} entries were acknowledged, {sum(heads)} are there")
        # Entries are added before the reads, because an answer of EMPTY would count as an error.
        self.fill([topic.decode() for topic in topics])
        got, gets = self.measured("Walrus GET", self.walrus, each(lambda t: walrus_frame(b"GET " + t)), walrus_done, ok)
        if (moved := sum(self.cursor(topic.decode(), "walrus") for topic in topics)) != gets:
            raise LoadError(f"{gets} entries were handed out, the cursors moved by {moved}")
        logs = [topic + b".rog" for topic in topics]
        drive_once(self.rog, [rog_command(0, 1, log) for log in logs], rog_status_done, b"\0".__eq__)
        published, number = self.measured(
            "Rog publish", self.rog, [repeat(publish(log)) for log in logs], rog_status_done, b"\0".__eq__
        )
        heads = [self.head(f"{log.decode()}:0") for log in logs]
        if sum(heads) != number:
            raise LoadError(f"{number} messages were acknowledged, {sum(heads)} are there")
        self.fill([f"{log.decode()}:0" for log in logs])
        fetched, _ = self.measured(
            "Rog fetch", self.rog, [repeat(of_group(2, log)) for log in logs], rog_fetch_done, lambda a: a[:1] == b"\0"
        )
        acked, acks = self.measured(
            "Rog ack", self.rog, [repeat(of_group(3, log)) for log in logs], rog_status_done, b"\0".__eq__
        )
        positions = [self.cursor(f"{log.decode()}:0", GROUP.decode()) for log in logs]
        if sum(positions) != acks:
            raise LoadError(f"{acks} acks moved the groups to {positions}")
        return [put, got, published, fetched, acked]


def drive_once(port: int, commands: list[bytes], done: Callable[[bytes], bool], good: Callable[[bytes], bool]) -> None:
    drive(port, [repeat(command) for command in commands], done, good, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (default 3)")
    parser.add_argument("--shards", type=int, default=2, help="shard processes (default 2)")
    parser.add_argument("--durability", default="fsync", help="class of the topics (default fsync)")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        settings = {
            "TOPICS_WALRUS_LISTEN": "127.0.0.1:0",
            "TOPICS_ROG_LISTEN": "127.0.0.1:0",
            "TOPICS_WALRUS_DURABILITY": options.durability,
            "TOPICS_ROG_DURABILITY": options.durability,
            "TOPICS_RUNTIME_DIR": f"{directory}/run",
        }
        with Server(Path(directory) / "data", options.shards, **settings) as server:
            bench = Bench(server, options.seconds)
            for connections in (1, MANY):
                rows += bench.run(connections)
    if options.json:
        about = {"python": platform.python_version(), "cores": os.cpu_count(), "durability": options.durability}
        print(json.dumps({**about, "shards": options.shards, "results": [asdict(row) for row in rows]}, indent=2))
        return 0
    table = Table("what", "connections", "per second", "p50 ms", "p99 ms", "gateway", "shards", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row.name,
            str(row.connections),
            f"{row.per_second:,.0f}",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{row.gateway:.0%}",
            f"{row.shards:.0%}",
        )
    Console().print(table)
    print(
        f"durability {options.durability}, {options.shards} shards, {len(PAYLOAD)} bytes of payload, "
        f"{os.cpu_count()} cores, load generator included, Python {platform.python_version()}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
