"""`topics bench`: a small load on a running service, measured by one client.

It tells what this client sees, not what the service can do: client and network take their part, and a client on the
machine of the service takes the service's processors as well.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
import typer

from supervisor.cli.quantities import counted
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import complain, read_seconds, table, tell
from supervisor.client.python_client import Json, NewRecord

TITLES = {
    "what": "what",
    "records_per_s": "records/s",
    "requests_per_s": "requests/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}
Row = dict[str, str | float]


@remote(local=True)
async def bench(
    on: Remote,
    seconds: Annotated[
        float, typer.Option(parser=read_seconds, metavar="DURATION", help="Time for each of the four loads.")
    ] = 2.0,
    size: Annotated[int, typer.Option(min=2, max=1_000_000, help="Bytes of a record's data.")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Records of a batch.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at a time of the second load.")] = 16,
    durability: Annotated[str | None, typer.Option(help="Class of the topic [that of the service].")] = None,
) -> None:
    """Measure a small load on a running service, in a topic of its own that is deleted at the end.

    One record a request, one after the other and several at a time, batches, and reads of batches. Exit status: 0 done,
    1 refused, 2 wrong options, 3 the service is not reachable.
    """
    topic = f"bench.{uuid.uuid4().hex[:12]}"
    data = Json(b'"%s"' % (b"x" * (size - 2)))
    config: dict[str, Any] = {} if durability is None else {"durability": durability}
    await on.client.configure(topic, **config)
    try:
        rows = await _loads(on, topic, data, batch, concurrency, seconds)
    finally:
        with anyio.move_on_after(10, shield=True):
            await on.client.delete_topic(topic)
    if on.as_json:
        on.print({"size": size, "batch": batch, "concurrency": concurrency, "seconds": seconds, "loads": rows})
        return
    shown: list[Row] = [{title: row[name] for name, title in TITLES.items()} for row in rows]
    tell(table(shown, [*TITLES.values()]))
    cores = counted(os.cpu_count() or 1, "processor")
    shared = ", which it shares with the service" if on.endpoint.local is not None else ""
    complain(f"as one client sees it, records of {counted(size, 'byte')}; this machine has {cores}{shared}")


async def _loads(on: Remote, topic: str, data: Json, batch: int, concurrency: int, seconds: float) -> list[Row]:
    one, many = [NewRecord(data)], [NewRecord(data)] * batch
    seq = 0

    async def publish(records: list[NewRecord]) -> int:
        await on.client.publish(topic, records=records, batch_records=batch, batch_bytes=8 << 20)
        return len(records)

    async def read() -> int:
        nonlocal seq
        reading = on.client.read(topic, from_seq=seq, limit=batch)
        count = 0
        async for _ in reading:
            count += 1
            if count == batch:
                break
        seq = reading.seq if count == batch else 0
        return count

    return [
        await _measure("append, one at a time", lambda: publish(one), 1, seconds),
        await _measure(f"append, {concurrency} at a time", lambda: publish(one), concurrency, seconds),
        await _measure(f"append, batches of {batch}", lambda: publish(many), 1, seconds),
        await _measure(f"read, batches of {batch}", read, 1, seconds),
    ]


async def _measure(what: str, request: Callable[[], Awaitable[int]], concurrency: int, seconds: float) -> Row:
    """The row of one load, as `TITLES`: rates, and the time of a request, median and 99th percentile."""
    times: list[float] = []
    records = 0
    await request()  # connections are made before the clock runs
    began = time.perf_counter()

    async def repeat() -> None:
        nonlocal records
        while time.perf_counter() - began < seconds:
            start = time.perf_counter()
            done = await request()  # before the sum is read, as others add to it meanwhile
            records += done
            times.append(time.perf_counter() - start)

    async with anyio.create_task_group() as group:
        for _ in range(concurrency):
            group.start_soon(repeat)
    elapsed = time.perf_counter() - began
    times.sort()
    p50, p99 = (round(1000 * times[int(share * (len(times) - 1))], 2) for share in (0.5, 0.99))
    return dict(zip(TITLES, (what, round(records / elapsed), round(len(times) / elapsed), p50, p99), strict=True))
