"""The Python client with a real service: under asyncio, under trio, blocking, and while processes are killed."""

from __future__ import annotations

import gc
import logging
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.support.service import Service, until
from topics_client import (
    AsyncClient,
    Client,
    CursorNotFound,
    Gap,
    GapError,
    Job,
    NotAQueue,
    TopicDeleted,
    TopicNotFound,
)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "packages" / "topics-client")}

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def run(backend: str, service: Service, main: Callable[[AsyncClient], Awaitable[None]], seconds: float = 50) -> None:
    async def all_of_it() -> None:
        with anyio.fail_after(seconds):
            async with AsyncClient(service.url) as client:
                await main(client)

    anyio.run(all_of_it, backend=backend)


async def first(client: AsyncClient, topic: str) -> Any:
    async with client.tail(topic) as tail:
        return (await anext(tail)).data


@both
def test_publish_and_read(shared: Service, backend: str) -> None:
    topic = f"client:{backend}"

    async def main(client: AsyncClient) -> None:
        with pytest.raises(TopicNotFound):
            await client.state(topic)
        done = await client.publish(topic, {"n": 0}, tag="a", meta={"k": 1}, config={"durability": "fsync"})
        assert (done.created, done.first_seq) == (True, 1)
        done = await client.publish(topic, records=({"data": n} for n in range(2500)), idempotency_key="load")
        assert (done.count, done.last_seq) == (2500, 2501)
        again = await client.publish(topic, records=({"data": n} for n in range(2500)), idempotency_key="load")
        assert (again.deduped, again.last_seq) == (True, 2501)
        reading = client.read(topic)
        seen = [record async for record in reading]
        assert [record.seq for record in seen] == list(range(1, 2502))
        assert (seen[0].data, seen[0].tag, seen[0].meta) == ({"n": 0}, "a", {"k": 1})
        assert (reading.seq, reading.head_seq) == (2501, 2501)
        async with client.publisher(topic, batch_records=100) as publisher:
            for n in range(250):
                await publisher.send(n)
        assert publisher.published == 250
        assert (await client.state(topic))["head_seq"] == 2751
        assert await client.delete_records(topic, before_seq=2751) == 2750
        assert [record.data async for record in client.read(topic)] == [249]

    run(backend, shared, main)


@both
def test_a_gap_is_raised_or_given(shared: Service, backend: str) -> None:
    topic = f"gap:{backend}"

    async def main(client: AsyncClient) -> None:
        await client.configure(topic, cap_records=5)
        await client.publish(topic, records=({"data": n} for n in range(20)), batch_records=1)
        with pytest.raises(GapError):
            await anext(client.read(topic))
        items = [item async for item in client.read(topic, gaps="yield")]
        assert isinstance(items[0], Gap)
        assert (items[0].first_seq, items[0].last_seq, items[0].reason) == (1, 15, "cap")
        async with client.tail(topic, gaps="yield") as tail:
            assert [(await anext(tail)).seq for _ in range(6)] == [15, 16, 17, 18, 19, 20]

    run(backend, shared, main)


@both
def test_a_tail_goes_on_where_its_cursor_is_and_tells_of_deleted_topics(shared: Service, backend: str) -> None:
    a, b = f"tail-a:{backend}", f"tail-b:{backend}"

    async def main(client: AsyncClient) -> None:
        for topic in (a, b):
            await client.publish(topic, records=[{"data": n} for n in range(3)])
        async with client.tail([a, b], cursor="reader", heartbeat_ms=1000) as tail:
            seen = [await anext(tail) for _ in range(6)]
            await tail.commit()
            assert sorted((item.topic, item.seq) for item in seen) == [(t, n) for t in (a, b) for n in (1, 2, 3)]
        assert (await client.cursor(a, "reader"))["seq"] == 3
        async with client.tail([a, b], cursor="reader") as tail, anyio.create_task_group() as group:
            group.start_soon(client.publish, b, "new")
            item = await anext(tail)
            assert (item.topic, item.seq) == (b, 4)
            await client.delete_topic(a)
            assert await anext(tail) == TopicDeleted(a, 3)
            await client.delete_topic(b)
            assert [type(item) async for item in tail] == [TopicDeleted]

    run(backend, shared, main)


@both
def test_a_worker_acks_what_is_done_and_repeats_what_failed(shared: Service, backend: str) -> None:
    queue = f"work:{backend}"
    seen: Counter[int] = Counter()
    beats: list[Any] = []

    async def main(client: AsyncClient) -> None:
        await client.configure(queue, type="queue")
        begun, outlived = anyio.Event(), anyio.Event()
        extend = client.extend

        async def noticed(*arguments: Any, **options: Any) -> Any:
            answer = await extend(*arguments, **options)
            if begun.is_set():
                beats.append(answer)
            if len(beats) == 4:  # each third of a lease
                outlived.set()
            return answer

        client.extend = noticed  # type: ignore[method-assign]
        await client.publish(queue, records=[{"data": n} for n in range(50)])

        async def handler(job: Job) -> None:
            await anyio.lowlevel.checkpoint()
            seen[job.data] += 1
            if job.data == 7 and job.deliveries == 1:
                raise ValueError("once")
            if job.data == 9:
                begun.set()
                await outlived.wait()  # longer than its lease
            if len(seen) == 50 and seen[7] == 2:
                running.stop()

        running = client.worker(queue, handler, concurrency=8, lease_ms=2000, backoff=lambda _: 0.6)
        await running.run()
        assert (running.done, running.failed) == (50, 1)
        assert seen == Counter({n: 2 if n == 7 else 1 for n in range(50)})
        assert (await client.state(queue))["count"] == 0

    run(backend, shared, main)


@both
def test_administration(shared: Service, backend: str) -> None:
    source, dest, queue = f"src:{backend}", f"dst:{backend}", f"jobs:{backend}"

    async def main(client: AsyncClient) -> None:
        assert (await client.configure(source, ttl_ms=60_000))["ttl_ms"] == 60_000
        assert (await client.set_router("r:" + backend, source=source, dest=dest))["dest"] == dest
        assert [each["router"] for each in await client.routers(source=source)] == ["r:" + backend]
        assert (await client.router("r:" + backend))["source"] == source
        await client.publish(source, "copied")
        assert await first(client, dest) == "copied"
        assert await client.delete_router("r:" + backend)
        assert [each["topic"] for each in await client.topics(source)] == [source]
        await client.set_cursor(source, "c d/ä", 1)
        assert [(each["cursor"], each["seq"]) for each in await client.cursors(source)] == [("c d/ä", 1)]
        assert await client.delete_cursor(source, "c d/ä")
        with pytest.raises(CursorNotFound):
            await client.cursor(source, "c d/ä")
        with pytest.raises(NotAQueue):
            await client.claim(source, "n")
        await client.configure(queue, type="queue", max_deliveries=1, dead_letter=queue + ".dead")
        await client.publish(queue, "job")
        (job,) = await client.claim(queue, "n", lease_ms=10_000)
        assert (await client.peek(queue))[0]["state"] == "in_flight"
        assert (await client.extend(queue, "n", [job], lease_ms=5000))["extended"] == 1
        assert (await client.nack(queue, "n", [job]))["nacked"] == 1
        assert await client.claim(queue, "n") == []  # it is a dead letter
        assert await first(client, queue + ".dead") == "job"
        await client.redrive(queue + ".dead", queue)
        (job,) = await client.claim(queue, "n", wait_ms=5000)
        claimed = await client.claim(queue, "n", ack=[job])
        assert (claimed, claimed.ack, claimed.nack) == ([], {"acked": 1, "skipped": []}, None)
        assert (await client.ack(queue, "n", [job]))["skipped"] == [job.seq]
        assert await client.delete_topic(source)
        assert not await client.delete_topic(source)

    run(backend, shared, main)


@both
def test_blocking(shared: Service, backend: str) -> None:
    topic, queue = f"blocking:{backend}", f"blocking-q:{backend}"
    with Client(shared.url, backend=backend) as client:
        client.configure(queue, type="queue")
        assert client.publish(topic, {"n": 1}).first_seq == 1
        with client.publisher(topic) as publisher:
            for n in range(10):
                publisher.send(n)
        reading = client.read(topic)
        assert [record.seq for record in reading] == list(range(1, 12))
        assert reading.seq == 11
        with client.tail(topic, cursor="c", commit="manual") as tail:
            assert [next(tail).seq for _ in range(11)] == list(range(1, 12))
            tail.commit()
        assert client.cursor(topic, "c")["seq"] == 11
        client.publish(queue, records=[{"data": n} for n in range(5)])
        stop, seen = threading.Event(), set()

        def handler(job: Job) -> None:
            seen.add(job.data)
            if len(seen) == 5:
                stop.set()

        client.work(queue, handler, concurrency=2, stop=stop)
        assert seen == set(range(5))
        assert client.state(queue)["count"] == 0


WORKER = """
import sys, time
from topics_client import Client
def handler(job):
    print("began", flush=True)
    time.sleep(0.3)
with Client(sys.argv[1]) as client:
    client.work("sigterm", handler)
print("ended", flush=True)
"""


def test_a_worker_that_gets_sigterm_finishes_its_job(shared: Service) -> None:
    with Client(shared.url) as client:
        client.configure("sigterm", type="queue")
        client.publish("sigterm", "job")
        command = [sys.executable, "-c", WORKER, shared.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == "ended\n"
        assert process.returncode == 0
        assert client.state("sigterm")["count"] == 0


PLAIN = {
    "a client that is not closed": """
client = Client(url, backend=backend)
client.publish(name, 1)
print([record.data for record in client.read(name)])
""",
    "a tail of a client without a name": """
Client(url, backend=backend).publish(name, 1)
print([next(Client(url, backend=backend).tail(name)).data])
""",
    "a publisher of a client without a name": """
with Client(url, backend=backend).publisher(name, linger_s=60) as publisher:
    publisher.send(1)
print([record.data for record in Client(url, backend=backend).read(name)])
""",
    "a worker whose handlers ran in threads": """
stop = threading.Event()
client = Client(url, backend=backend)
client.configure(name, type="queue")
client.publish(name, 1)
client.work(name, lambda job: (print([job.data]), stop.set()), stop=stop)
""",
    "a thread that goes on behind the main one": """
client = Client(url, backend=backend)
def later():
    threading.main_thread().join()
    client.publish(name, 1)
    print([record.data for record in client.read(name)])
threading.Thread(target=later).start()
""",
    "a client used by an exit handler": """
client = Client(url, backend=backend)
client.publish(name, 1)
atexit.register(lambda: print([record.data for record in client.read(name)]))
""",
    "a client that is closed while a call waits": """
client = Client(url, backend=backend)
client.publish(name, 1)
waiting = client.tail(name)
data = [next(waiting).data]
threading.Timer(0.3, client.close).start()
try:
    next(waiting)
except RuntimeError as error:
    assert "this client is closed" in str(error)
    print(data)
""",
    "a tail that is interrupted": """
client = Client(url, backend=backend)
client.publish(name, 1)
tail = client.tail(name)
data = [next(tail).data]
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    next(tail)
except KeyboardInterrupt:
    client.publish(name, 2)
    assert next(tail).data == 2
    print(data)
""",
    "a client in a child of a fork": """
client = Client(url, backend=backend)
client.publish(name, 1)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    try:
        client.publish(name, 2)
    except RuntimeError as error:
        assert "before a fork" in str(error)
    client.close()
    print([record.data for record in Client(url, backend=backend).read(name)])
""",
}


def without_times(output: str) -> str:
    """Without what asyncio's debug mode says of steps that took long, as they do on a busy machine."""
    return re.sub(r"^Executing .* took [0-9.]+ seconds\n", "", output, flags=re.MULTILINE)


@pytest.mark.parametrize("program", PLAIN)
def test_a_program_without_with_exits_by_itself(shared: Service, program: str) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    modules = "import atexit, os, signal, threading\nfrom topics_client import Client\n"
    running = []
    for backend in ("asyncio", "trio"):
        values = f"url, name, backend = {shared.url!r}, {program.replace(' ', '-') + backend!r}, {backend!r}\n"
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", modules + values + PLAIN[program]]
        running.append(subprocess.Popen(command, **pipes))
    try:
        told = [(*map(without_times, process.communicate(timeout=60)), process.returncode) for process in running]
    finally:
        for process in running:
            process.kill()
    assert told == [("[1]\n", "", 0), ("[1]\n", "", 0)]


def metrics(service: Service) -> str:
    with urlopen(f"{service.url}/metrics") as answer:
        return str(answer.read(), "utf-8")


@both
def test_what_is_dropped_is_closed_by_the_next_call(shared: Service, backend: str) -> None:
    before = threading.active_count()
    with Client(shared.url, backend=backend) as client:
        client.publish(f"dropped:{backend}", 1)
        for _ in range(20):
            assert next(Client(shared.url, backend=backend).tail(f"dropped:{backend}")).data == 1
        gc.collect()
        client.state(f"dropped:{backend}")
        until(lambda: threading.active_count() <= before + 1, "the threads of the dropped clients to end")
        for _ in range(20):
            assert next(client.tail(f"dropped:{backend}")).data == 1
        gc.collect()
        client.state(f"dropped:{backend}")
        until(lambda: "\ntopics_sse_connections 0.0\n" in metrics(shared), "the streams of the dropped tails to end")


class Chaos:
    """Publishes, tails and works until it is told to stop; then everything is compared."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.acked = 0
        self.tailed: list[int] = []
        self.worked: Counter[int] = Counter()
        self.stopping = anyio.Event()
        self.all_published = anyio.Event()

    async def publish(self) -> None:
        while not self.stopping.is_set():
            numbers = range(self.acked, self.acked + 5)
            await self.client.publish("chaos", records=[{"data": n} for n in numbers])
            await self.client.publish("chaos-q", records=[{"data": n} for n in numbers])
            self.acked += 5
        self.all_published.set()

    async def tail(self) -> None:
        """Read with a cursor; after each hundred records, another tail goes on from it."""
        while not self.complete():
            async with self.client.tail("chaos", cursor="c", heartbeat_ms=1000) as tail:
                for _ in range(100):
                    with anyio.move_on_after(2):
                        self.tailed.append((await anext(tail)).data)
                    if self.complete():
                        break
                await tail.commit()

    def complete(self) -> bool:
        return self.all_published.is_set() and len(self.tailed) >= self.acked

    async def handle(self, job: Job) -> None:
        self.worked[job.data] += 1

    async def compare(self) -> None:
        everything = list(range(self.acked))
        assert [record.data async for record in self.client.read("chaos")] == everything
        assert self.tailed == everything
        assert sorted(self.worked) == everything
        assert (await self.client.state("chaos-q"))["count"] == 0


def kill(service: Service, name: str) -> None:
    """Kill a child; return when its successor serves."""
    before = service.kill_child(name)
    until(lambda: service.child(name)["incarnation"] > before and service.is_ready(), f"the next {name}")


@pytest.mark.parametrize(
    ("backend", "kills"),
    [
        ("asyncio", 10),
        ("trio", 10),
        pytest.param("asyncio", 100, marks=pytest.mark.long),
        pytest.param("trio", 100, marks=pytest.mark.long),
    ],
)
def test_kills_lose_and_double_nothing(
    new_service: Callable[..., Service], caplog: pytest.LogCaptureFixture, backend: str, kills: int
) -> None:
    caplog.set_level(logging.ERROR, "topics_client")
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    service = new_service(shards=2, TOPICS_RESTART_LIMIT="1000").start()  # by default it gives up after ten

    async def main(client: AsyncClient) -> None:
        await client.configure("chaos", durability="fsync")
        await client.configure("chaos-q", type="queue", durability="fsync")
        chaos = Chaos(client)
        running = client.worker("chaos-q", chaos.handle, concurrency=4, lease_ms=2000, wait_ms=1000)
        async with anyio.create_task_group() as working:
            working.start_soon(running.run)
            async with anyio.create_task_group() as group:
                group.start_soon(chaos.publish)
                group.start_soon(chaos.tail)
                for _ in range(kills):
                    goal = chaos.acked + rng.randrange(1, 50)
                    while chaos.acked < goal:  # noqa: ASYNC110 - a random moment of the work
                        await anyio.sleep(0.01)
                    victim = rng.choice(["gateway", "shard-00", "shard-01"])
                    await anyio.to_thread.run_sync(partial(kill, service, victim))
                chaos.stopping.set()
            while (await client.state("chaos-q"))["count"]:  # noqa: ASYNC110 - the service has no event for it
                await anyio.sleep(0.1)
            running.stop()
        await chaos.compare()

    run(backend, service, main, seconds=20 + 12 * kills)  # a process that dies often is held back for 5 s
