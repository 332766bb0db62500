"""Latency and throughput of delivery to watchers, and the memory of a watcher. About a minute, one table.

    make bench-live                     a table
    python bench/live.py --json         the same as JSON

Everything runs on this machine and shares its cores: the service (2 shards, class `disk`) and this process, which is
the writer and all the watchers. A latency lasts from just before a write is sent until a watcher has read the bytes of
its record; every watcher counts. "paced" has one write in flight at a time, "flat out" writes without waiting for
watchers. Memory is the gateway's resident set per connection; "plain" connections are idle HTTP ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

STAMP = re.compile(rb'"data":(\d{10,})')
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    watchers: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    deliveries_per_s: float | None = None
    kib_each: float | None = None
    seconds: float | None = None


class Watchers:
    """Many open streams, read by one loop."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.selector = selectors.DefaultSelector()
        self.sockets: list[socket.socket] = []
        self.latencies: list[float] = []
        self.caught_up = 0
        self.deliveries = 0

    def open(self, topics: Sequence[str], count: int) -> None:
        for _ in range(count):
            self.stream({"topics": {t: {"tail": True} for t in topics}})
        expected = count * len(topics)
        self.until(lambda: self.caught_up >= expected, f"{expected} topics caught up")
        self.caught_up = 0

    def stream(self, asked: object) -> None:
        status, made = self.server.request("POST", "/v0/watch", asked)
        assert status == 200, made
        sock = socket.create_connection(("127.0.0.1", self.server.port))
        sock.sendall(f"GET {made['stream_url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ)
        self.sockets.append(sock)
        self.read(0)

    def read(self, wait_s: float) -> None:
        for entry, _ in self.selector.select(wait_s):
            sock = entry.fileobj
            assert isinstance(sock, socket.socket)
            data = sock.recv(1 << 20)
            now = time.perf_counter_ns()
            if not data:
                raise RuntimeError("a stream ended")
            self.caught_up += data.count(b"event: caught-up")
            stamps = STAMP.findall(data)
            self.deliveries += len(stamps)
            self.latencies += [(now - int(stamp)) / 1e6 for stamp in stamps]

    def until(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.read(0.05)
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {PATIENCE_S:g} s for {what}")

    def close(self) -> None:
        for sock in self.sockets:
            self.selector.unregister(sock)
            sock.close()
        self.selector.close()


class Writer:
    """One kept-alive connection that writes stamped records."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))

    def send(self, topic: str) -> None:
        body = b'{"records":[{"data":%d}]}' % time.perf_counter_ns()
        head = (
            f"POST /v0/topics/{topic}?return_seqs=false HTTP/1.1\r\nHost: localhost\r\n"
            "content-type: application/json\r\n"
        )
        self._socket.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)

    def receive(self) -> None:
        answer = self._socket.recv(65536)
        assert answer.startswith(b"HTTP/1.1 20"), answer[:200]

    def close(self) -> None:
        self._socket.close()


def quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return round(ordered[len(ordered) // 2], 2), round(ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)], 2)


def paced(server: Server, watchers: Watchers, topics: Sequence[str], count: int, seconds: float, name: str) -> Row:
    writer = Writer(server.port)
    watchers.latencies.clear()
    watchers.deliveries = sent = 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        writer.send(topics[sent % len(topics)])
        sent += 1
        watchers.until(lambda: watchers.deliveries >= sent * count, "a delivery")  # noqa: B023 - called at once
        writer.receive()
    took = time.monotonic() - began
    writer.close()
    p50, p99 = quantiles(watchers.latencies)
    return Row(name, count, p50, p99, round(watchers.deliveries / took))


def flat_out(server: Server, watchers: Watchers, topic: str, count: int, seconds: float) -> Row:
    stop, sent = threading.Event(), [0]

    def write() -> None:
        writer = Writer(server.port)
        while not stop.is_set():
            writer.send(topic)
            writer.receive()
            sent[0] += 1
        writer.close()

    watchers.latencies.clear()
    watchers.deliveries = 0
    thread = threading.Thread(target=write)
    began = time.monotonic()
    thread.start()
    while time.monotonic() - began < seconds:
        watchers.read(0.05)
    stop.set()
    thread.join()
    watchers.until(lambda: watchers.deliveries >= sent[0] * count, "the rest")
    took = time.monotonic() - began
    p50, p99 = quantiles(watchers.latencies)
    return Row("one topic, flat out", count, p50, p99, round(watchers.deliveries / took))


def beside_prefixes(server: Server, count: int, names: int, seconds: float) -> Row:
    """The latency of another client's writes while `count` streams watch nested prefixes and a topic that begins with
    all of them comes and goes. `names` other topics begin with them too."""
    longest = "a" * count
    for n in range(names):
        server.request("PUT", f"/v0/topics/{longest}{n:03}", {})
    watchers = Watchers(server)
    for size in range(1, count + 1):
        watchers.stream({"prefix": longest[:size], "tail": True})
    stop, rounds = threading.Event(), [0]

    def churn() -> None:
        while not stop.is_set():
            server.request("PUT", f"/v0/topics/{longest}", {})
            server.request("DELETE", f"/v0/topics/{longest}")
            rounds[0] += 1

    def drain() -> None:
        while not stop.is_set():
            watchers.read(0.05)

    threads = [threading.Thread(target=churn), threading.Thread(target=drain)] if count else []
    for thread in threads:
        thread.start()
    writer = Writer(server.port)
    latencies = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        before = time.perf_counter_ns()
        writer.send("one")
        writer.receive()
        latencies.append((time.perf_counter_ns() - before) / 1e6)
        time.sleep(0.005)
    stop.set()
    for thread in threads:
        thread.join()
    writer.close()
    watchers.close()
    p50, p99 = quantiles(latencies)
    return Row(f"writes beside prefixes, {names} topics", count, p50, p99, round(rounds[0] / seconds))


def resident(server: Server) -> int:
    """Resident memory of the gateway in KiB."""
    for pid in server.children():
        if b"gateway" in (Path("/proc") / str(pid) / "cmdline").read_bytes():
            status = (Path("/proc") / str(pid) / "status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index] - every process has it
    raise RuntimeError("there is no gateway")


def memory(server: Server, count: int) -> list[Row]:
    warm = Watchers(server)
    warm.open(["idle"], 50)
    warm.close()
    time.sleep(1)
    before = resident(server)
    plain = []
    for _ in range(count):
        plain.append(socket.create_connection(("127.0.0.1", server.port)))
        plain[-1].sendall(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        plain[-1].recv(65536)
    plain_kib = (resident(server) - before) / count
    for sock in plain:
        sock.close()
    time.sleep(1)
    before = resident(server)
    watchers = Watchers(server)
    watchers.open(["idle"], count)
    time.sleep(1)
    live_kib = (resident(server) - before) / count
    watchers.close()
    return [
        Row("idle, plain", count, kib_each=round(plain_kib, 1)),
        Row("idle, watching", count, kib_each=round(live_kib, 1)),
    ]


def run(seconds: float, shards: int) -> list[Row]:
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="topics-bench-") as directory,
        Server(Path(directory) / "data", shards) as server,
    ):
        names = [f"many:{n}" for n in range(256)]
        for topic in ("one", "idle", *names):
            server.request("PUT", f"/v0/topics/{topic}", {})
        rows += memory(server, 1000)
        for count in (1, 10, 100, 1000):
            watchers = Watchers(server)
            watchers.open(["one"], count)
            paced(server, watchers, ["one"], count, min(seconds, 1.0) / 2, "warm-up")
            rows.append(paced(server, watchers, ["one"], count, seconds, "one topic, paced"))
            rows.append(flat_out(server, watchers, "one", count, seconds))
            watchers.close()
        began = time.monotonic()
        watchers = Watchers(server)
        watchers.open(names, 100)
        rows.append(Row("256 topics each, to catch up", 100, seconds=round(time.monotonic() - began, 2)))
        rows.append(paced(server, watchers, names, 100, seconds, "256 topics each, paced"))
        watchers.close()
        rows += [beside_prefixes(server, count, names, seconds) for count, names in ((0, 0), (250, 0), (250, 255))]
    return rows


def show(rows: list[Row]) -> None:
    table = Table(
        "what",
        "watchers",
        "p50 ms",
        "p99 ms",
        "deliveries/s",
        "KiB each",
        "seconds",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for column in table.columns:
        column.justify = "left" if column.header == "what" else "right"

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    for row in rows:
        table.add_row(
            row.name,
            f"{row.watchers:,}",
            number(row.p50_ms, ".2f"),
            number(row.p99_ms, ".2f"),
            number(row.deliveries_per_s, ",.0f"),
            number(row.kib_each, ".1f"),
            number(row.seconds, ".2f"),
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement (default 2)")
    parser.add_argument("--shards", type=int, default=2, help="shard processes (default 2)")
    options = parser.parse_args()
    rows = run(options.seconds, options.shards)
    if options.json:
        about = {"python": platform.python_version(), "cores": os.cpu_count(), "shards": options.shards}
        print(json.dumps({**about, "results": [asdict(row) for row in rows]}, indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
