"""Throughput of jobs, and the cost of a claim in a large queue.

    make bench-queues                           about two minutes
    python bench/queues.py --seconds 1 --waiting 100000 --held 10000

First table: produce → claim → ack over HTTP, batches of 1, 16 and 100, leases durable or not, 1 and 8 workers. Every
worker is a thread with its own connection that produces a batch, claims one and acks it, round after round. All workers
share one interpreter. A job counts when its ack was answered.

Second table: 50 connections claim 8 jobs a time and ack them, in a request of its own or in the next claim, while
others wait; all in one thread that does little else.

Third table: one claim of 16 jobs, in a small queue, in one with many waiting jobs, and in one with many leases.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from server import Server
from workers import Workers

HEADERS = {"content-type": "application/json"}
JOB = {"data": {"type": "resize", "url": "s3://bucket/image.png", "width": 640}}


class Client:
    """Kept-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def post(self, path: str, body: Any, method: str = "POST") -> Any:
        self._connection.request(method, f"/v0/topics/{path}", json.dumps(body), HEADERS)
        answer = self._connection.getresponse()
        parsed = json.loads(answer.read())
        if answer.status not in (200, 201):
            raise RuntimeError(f"{path}: {answer.status} {parsed}")
        return parsed


def work(port: int, topic: str, node: str, batch: int, deadline: float, done: list[int]) -> None:
    client = Client(port)
    jobs = {"records": [JOB] * batch}
    total = 0
    while time.monotonic() < deadline:
        client.post(topic, jobs)
        claimed = client.post(f"{topic}/claim", {"node": node, "max": batch})["claimed"]
        if claimed:
            total += client.post(f"{topic}/ack", {"node": node, "seqs": [job["$seq"] for job in claimed]})["acked"]
    done.append(total)


def throughput(server: Server, seconds: float, table: Table) -> None:
    for durable in (False, True):
        for workers in (1, 8):
            row = []
            for batch in (1, 16, 100):
                topic = f"q-{durable}-{workers}-{batch}"
                Client(server.port).post(topic, {"type": "queue", "leases_durable": durable}, "PUT")
                done: list[int] = []
                end = time.monotonic() + seconds
                threads = [
                    threading.Thread(target=work, args=(server.port, topic, f"w{n}", batch, end, done))
                    for n in range(workers)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                if len(done) != workers:
                    raise RuntimeError("a worker failed")
                row.append(f"{sum(done) / seconds:,.0f}")
            table.add_row("durable" if durable else "in memory", str(workers), *row)


def loops(server: Server, seconds: float, table: Table) -> None:
    for waiting in (10_000, 40_000):
        rates = []
        for finishing in (False, True):
            path = f"/v0/topics/loop-{waiting}-{finishing}"
            server.request("PUT", path, {"type": "queue"})
            with Workers(server.port, path, 50, 8, waiting, finishing=finishing) as workers:
                rates.append(workers.run(seconds)[0])
        table.add_row(f"{waiting:,}", *(f"{rate:,.0f}" for rate in rates), f"{rates[1] / rates[0]:.2f}")


def latency(client: Client, topic: str, table: Table, what: str) -> None:
    """Measure 200 claims of 16 jobs, each acked so that the queue stays the same."""
    times = []
    for _ in range(200):
        start = time.perf_counter()
        claimed = client.post(f"{topic}/claim", {"node": "w", "max": 16})["claimed"]
        times.append(time.perf_counter() - start)
        client.post(f"{topic}/ack", {"node": "w", "seqs": [job["$seq"] for job in claimed]})
    times.sort()
    table.add_row(what, f"{median(times) * 1000:.2f}", f"{times[int(len(times) * 0.99)] * 1000:.2f}")


def large(server: Server, waiting: int, held: int, table: Table) -> None:
    client = Client(server.port)
    client.post("small", {"type": "queue"}, "PUT")
    client.post("small", {"records": [JOB] * 5000})
    latency(client, "small", table, "5,000 jobs waiting")
    client.post("large", {"type": "queue", "lease_ms": 86_400_000}, "PUT")
    for _ in range(waiting // 10_000):
        client.post("large?return_seqs=false", {"records": [JOB] * 10_000})
    latency(client, "large", table, f"{waiting:,} jobs waiting")
    for _ in range(held // 1000):
        client.post("large/claim", {"node": "holder", "max": 1000})
    latency(client, "large", table, f"and {held:,} leases out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4, help="for each figure of the first table")
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--held", type=int, default=100_000)
    asked = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory) / "data", 2) as server:
        rates = Table("leases", "workers", "batch 1", "batch 16", "batch 100", title="jobs per second")
        throughput(server, asked.seconds, rates)
        console.print(rates)
        ways = Table("waiting", "own request", "in the claim", "×", title="jobs per second of 50 workers, 8 a claim")
        loops(server, asked.seconds, ways)
        console.print(ways)
        claims = Table("queue", "median", "99 %", title="a claim of 16, ms")
        large(server, asked.waiting, asked.held, claims)
        console.print(claims)


if __name__ == "__main__":
    main()
