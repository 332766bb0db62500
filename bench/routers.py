"""Cost of routers for the writer, and latency and throughput of copies. About a minute, one table.

    make bench-routers                     a table
    python bench/routers.py --json         the same as JSON

Everything runs on this machine and shares its cores. "ack" is the latency of a write of one record, with one write in
flight and the given number of routers from its topic. "frames" is the growth of all logs of the service per write.
"visible" lasts from just before a write is sent until a long poll at the end of a chain of routers returns it. "copies"
is the number of records per second that routers copy from a source that is written in large batches.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from load import Line, post
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    routers: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    frames: float | None = None
    copies_per_s: float | None = None


class Asking:
    """One kept-alive connection."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"content-type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = json.loads(answer.read())
        if answer.status not in (200, 201):
            raise RuntimeError(f"{method} {path}: {content}")
        return content

    def close(self) -> None:
        self._connection.close()


def quantiles(latencies: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(latencies)
    return statistics.median(ordered), ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]


def router(client: Asking, source: str, dest: str) -> None:
    client.ask("PUT", f"/v0/routers/{source}-%3E{dest}", {"source": source, "dest": dest})


def frames(server: Server) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", "/v0/metrics", headers={"accept": "application/json"})
        return float(json.loads(connection.getresponse().read())["topics_wal_frames_total"])
    finally:
        connection.close()


def until_head(client: Asking, topic: str, head: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while client.ask("GET", f"/v0/topics/{topic}")["head_seq"] < head:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} does not get {head} records")
        time.sleep(0.01)


def acks(server: Server, fan_out: int, seconds: float) -> Row:
    """Measure single writes to a topic with the given number of routers."""
    client = Asking(server)
    source = f"ack{fan_out}"
    client.ask("PUT", f"/v0/topics/{source}", {})
    for number in range(fan_out):
        router(client, source, f"{source}:{number}")
    body = {"records": [{"data": {"n": 1, "text": "x" * 100}}]}
    for _ in range(20):
        client.ask("POST", f"/v0/topics/{source}", body)
    latencies = []
    before, end = frames(server), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        client.ask("POST", f"/v0/topics/{source}", body)
        latencies.append((time.perf_counter() - began) * 1000)
    grown = frames(server) - before
    for number in (0, fan_out - 1):
        if fan_out:
            until_head(client, f"{source}:{number}", 20 + len(latencies))
    client.close()
    p50, p99 = quantiles(latencies)
    return Row("ack of a write", fan_out, p50, p99, grown / len(latencies))


class Hops:
    """A chain of routers, a writer at its begin and a reader at its end."""

    def __init__(self, server: Server, count: int) -> None:
        self._key = server.key
        self._topics = [f"hop{count}:{number}" for number in range(count + 1)]
        for source, dest in pairwise(self._topics):
            made = server.request("PUT", f"/v0/routers/{source}-%3E{dest}", {"source": source, "dest": dest})
            if made[0] not in (200, 201):
                raise RuntimeError(str(made))
        self._writer, self._reader = Line(server.port), Line(server.port)
        self._written = 0

    def latencies(self, writes: int) -> list[float]:
        """Milliseconds from a write to its visibility at the end of the chain."""
        found = []
        body = b'{"records":[{"data":1}]}'
        write = post(f"/v0/topics/{self._topics[0]}", body, self._key)
        path = f"/v0/topics/{self._topics[-1]}/diff"
        for _ in range(writes):
            self._reader.send(post(path, b'{"from_seq":%d,"wait_ms":20000}' % self._written, self._key))
            time.sleep(0.01)  # the request is parked before the write is sent
            began = time.perf_counter()
            self._writer.send(write)
            answer = self._reader.receive()
            found.append((time.perf_counter() - began) * 1000)
            assert b'"data"' in answer, answer[:200]
            self._writer.receive()
            self._written += 1
        return found

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


def hops(server: Server, count: int, writes: int) -> Row:
    """Measure the time from a write to its visibility at the end of a chain."""
    chain = Hops(server, count)
    p50, p99 = quantiles(chain.latencies(writes))
    chain.close()
    return Row(f"visible after {count} hop{'s' * (count > 1)}", count, p50, p99)


def copies(server: Server, fan_out: int, batches: int, size: int) -> Row:
    """Records per second that arrive at the slowest destination, times the number of destinations."""
    client = Asking(server)
    source = f"copy{fan_out}"
    for number in range(fan_out):
        router(client, source, f"{source}:{number}")
    body = {"records": [{"data": {"n": n, "text": "x" * 60}} for n in range(size)]}
    began = time.monotonic()
    for _ in range(batches):
        client.ask("POST", f"/v0/topics/{source}?return_seqs=false", body)
    for number in range(fan_out):
        until_head(client, f"{source}:{number}", batches * size)
    took = time.monotonic() - began
    client.close()
    return Row("copies", fan_out, copies_per_s=fan_out * batches * size / took)


def run(seconds: float, shards: int) -> list[Row]:
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="topics-bench-") as directory,
        Server(Path(directory) / "data", shards) as server,
    ):
        for count in (1, 3):
            rows.append(hops(server, count, 100))
        for fan_out, batches in ((1, 200), (10, 100)):
            rows.append(copies(server, fan_out, batches, 1000))
        for fan_out in (0, 1, 10, 100, 1000):
            rows.append(acks(server, fan_out, seconds))
    return rows


def show(rows: list[Row]) -> None:
    table = Table("what", "routers", "p50 ms", "p99 ms", "frames a write", "copies/s", box=box.SIMPLE)

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    for row in rows:
        table.add_row(
            row.name,
            f"{row.routers:,}",
            number(row.p50_ms, ".2f"),
            number(row.p99_ms, ".2f"),
            number(row.frames, ".2f"),
            number(row.copies_per_s, ",.0f"),
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of acks")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run(options.seconds, options.shards)
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
