"""Throughput and latency of the main operations on this machine. Half a minute, one table.

    make bench-smoke                      a table
    python bench/smoke.py --json          the same as JSON

Everything runs on this machine and shares its cores: the service (2 shards, durability class `disk`), and the load
generator of `load.py`. The columns "gateway", "shards" and "load" are the shares of a core that each of them used; they
show the bottleneck. At the end, the number of acknowledged records is compared with that of the service.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import roundtrips
from load import LoadError, Outcome, drive, post
from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

CONNECTIONS = 16
DIFF_CONNECTIONS = 8
DIFF_LIMIT = 1000
RECORD = b'{"data":{"id":"%08x","kind":"page_view","path":"/products/%04d","user":%d,"ms":41.7,"ok":true,"ref":null}}'


def records(count: int) -> list[bytes]:
    """Distinct records of about a hundred bytes of data."""
    return [RECORD % (n * 2654435761 % 2**32, n % 10_000, 10_000 + n % 90_000) for n in range(count)]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. "× 100" means 100 records per request or, for ZeroMQ, 100 requests in flight. `value` is
    in `unit` per second, latencies are those of whole requests, the last three are shares of one core."""

    name: str
    value: float
    unit: str
    p50_ms: float | None = None
    p99_ms: float | None = None
    gateway: float | None = None
    shards: float | None = None
    load: float | None = None


class Repeated:
    """The same request, endlessly. `drive` waits for each answer, so `sent` is also the number of acknowledgements."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.sent += 1
        return self.request


def measured(
    server: Server, name: str, unit: str, factor: int, streams: Sequence[Iterator[bytes]], seconds: float
) -> Row:
    """Drive the service and measure its processes. Each request has `factor` units."""
    before = server.cpu_seconds()
    outcome: Outcome = drive(server.port, streams, seconds)
    busy = {part: (used - before[part]) / outcome.seconds for part, used in server.cpu_seconds().items()}
    return Row(
        name,
        outcome.per_second * factor,
        unit,
        round(outcome.p50_ms, 3),
        round(outcome.p99_ms, 3),
        round(busy["gateway"], 2),
        round(busy["shards"], 2),
        round(outcome.cpu_seconds / outcome.seconds, 2),
    )


def writes(server: Server, per_write: int, seconds: float) -> Row:
    """Measure writes of a number of records, one topic per connection. Raises `LoadError` if a record is missing."""
    body = b'{"records":[' + b",".join(records(per_write)) + b"]}"
    topics = [f"bench:{per_write}:{n}" for n in range(CONNECTIONS)]
    for topic in topics:
        server.request("PUT", f"/v0/topics/{topic}", {})
    streams = [Repeated(post(f"/v0/topics/{topic}?return_seqs=false", body)) for topic in topics]
    unit = "writes" if per_write == 1 else "records"
    row = measured(server, f"write × {per_write:,}", unit, per_write, streams, seconds)
    for topic, stream in zip(topics, streams, strict=True):
        expected = stream.sent * per_write
        head = server.request("GET", f"/v0/topics/{topic}")[1]["head_seq"]
        if head != expected:
            raise LoadError(f"{topic}: {expected} records were acknowledged, head_seq is {head}")
    return row


def diffs(server: Server, seconds: float) -> Row:
    """Measure reads of the records of `writes`, `DIFF_LIMIT` records at a time, repeatedly."""
    streams = []
    for n in range(DIFF_CONNECTIONS):
        path = f"/v0/topics/bench:1000:{n}"
        head = server.request("GET", path)[1]["head_seq"]
        answer = server.request("POST", f"{path}/diff", {"from_seq": 0, "limit": DIFF_LIMIT})[1]
        if len(answer["records"]) != DIFF_LIMIT:
            raise LoadError(f"a diff of {path} has {len(answer['records'])} records, expected {DIFF_LIMIT}")
        starts = range(0, min(head, 200 * DIFF_LIMIT) - DIFF_LIMIT + 1, DIFF_LIMIT)
        requests = [post(f"{path}/diff", b'{"from_seq":%d,"limit":%d}' % (start, DIFF_LIMIT)) for start in starts]
        streams.append(itertools.cycle(requests))
    return measured(server, f"diff × {DIFF_LIMIT:,}", "records", DIFF_LIMIT, streams, seconds)


def run(seconds: float, shards: int) -> list[Row]:
    rows = [Row(f"ZeroMQ × {n}", roundtrips.measure(n, min(seconds, 2.0)), "trips") for n in (1, 64)]
    with (
        tempfile.TemporaryDirectory(prefix="topics-bench-") as directory,
        Server(Path(directory) / "data", shards) as server,
    ):
        rows += [writes(server, per_write, seconds) for per_write in (1, 100, 1000)]
        rows.append(diffs(server, seconds))
    return rows


def show(rows: list[Row]) -> None:
    table = Table(
        "what", "per second", "", "p50 ms", "p99 ms", "gateway", "shards", "load", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for column in table.columns:
        column.justify = "left" if column.header in ("what", "") else "right"

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    for row in rows:
        shares = [number(value, ".0%") for value in (row.gateway, row.shards, row.load)]
        table.add_row(
            row.name, f"{row.value:,.0f}", row.unit, number(row.p50_ms, ".2f"), number(row.p99_ms, ".2f"), *shares
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (default 3)")
    parser.add_argument("--shards", type=int, default=2, help="shard processes (default 2)")
    options = parser.parse_args()
    rows = run(options.seconds, options.shards)
    if options.json:
        about = {"python": platform.python_version(), "cores": os.cpu_count(), "connections": CONNECTIONS}
        print(json.dumps({**about, "shards": options.shards, "results": [asdict(row) for row in rows]}, indent=2))
    else:
        show(rows)
        print(
            f"{CONNECTIONS} connections ({DIFF_CONNECTIONS} for diff), {options.shards} shards, durability disk, "
            f"{len(records(1)[0]) - 9} bytes of data per record, {os.cpu_count()} cores, load generator "
            f"included, Python {platform.python_version()}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
