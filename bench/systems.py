"""The compared systems: each starts fresh on a free port and is used through the client that its users use.

    Topics      `topics serve`, HTTP by the standard library's http.client, JSON by json; appends also by topics_client
    Redis       `redis-server` with its append-only file, redis-py; streams, several commands in a pipeline
    JetStream   `nats-server` with file storage, nats-py; streams, several messages by `publish_async`
    beanstalkd  `beanstalkd` with its log, greenstalk; jobs only

`durable` means that an answer promises the record is on the device: class `fsync` of Topics, `appendfsync always` of
Redis, `-f0` of beanstalkd. Otherwise it is in the system's cache: class `disk`, `appendfsync everysec`, `-f50`.
JetStream syncs now and then (`sync_interval`); from version 2.10 on it can sync always.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from server import HERE, Server, proportional_mb

READY_S = 60.0
ANSWER_S = 60.0
"""How long a client waits for an answer."""
PAGE = 1000
NAME = "bench"
WRITERS = 16
PROGRAMS = os.environ.get("PATH", "") + ":/usr/sbin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def version_of(*command: str) -> str:
    """The first number with dots that a command prints."""
    done = subprocess.run([program(command[0]), *command[1:]], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found[0] if found else "?"


def program(name: str) -> str:
    return shutil.which(name, path=PROGRAMS) or ""


class System(ABC):
    """One system. Blocks."""

    name: str

    def __init__(self, directory: Path, durable: bool) -> None:
        self.directory = directory
        self.durable = durable
        self.port = 0

    @abstractmethod
    def start(self) -> None:
        """Start on the directory, return when a request is answered."""

    @abstractmethod
    def stop(self, *, kill: bool = False) -> None: ...

    @abstractmethod
    def pids(self) -> Sequence[int]: ...

    @abstractmethod
    def cycle(self, payload: str) -> None:
        """Put a job, take it, delete it."""

    def memory_mb(self) -> float:
        return proportional_mb(self.pids())

    def cpu_s(self) -> float:
        ticks = os.sysconf("SC_CLK_TCK")
        stats = [(Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split() for pid in self.pids()]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / ticks


class Log(System):
    """A system that has a log. One connection writes, one request at a time."""

    @abstractmethod
    def append(self, payload: str, count: int) -> None:
        """Write `count` records in one request, or what is next to it here; return when all are acknowledged."""

    def appenders(self) -> dict[str, Callable[[str, int], None]]:
        """`append` by the name of its column. More than one if users have several clients."""
        return {self.name: self.append}

    @abstractmethod
    def together(self, payload: str, count: int, seconds: float) -> float:
        """Records per second of `WRITERS` writers, each with a log, a connection and one request of its own."""

    @abstractmethod
    def read_all(self) -> int:
        """Read the whole log from its beginning in pages of `PAGE`; return the number of records."""

    @abstractmethod
    def latencies(self, count: int) -> list[float]:
        """Milliseconds from before a write is sent until a reader that waits has its record."""

    @abstractmethod
    def follow(self) -> socket.socket:
        """A connection to which the system pushes new records, or gets asked again by `again`."""

    def again(self, followers: Sequence[socket.socket]) -> None:
        """Called when all followers have received a record. Returns when they are ready for the next one."""
        return

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def clear(self) -> None:
        """Delete the log's records."""


class Threaded(Log):
    """A log whose client blocks: writers that work together are threads."""

    @abstractmethod
    def writer(self, number: int) -> Callable[[str, int], None]:
        """`append` to log `number` of `WRITERS`, for a thread of its own."""

    def together(self, payload: str, count: int, seconds: float) -> float:
        writers = [self.writer(number) for number in range(WRITERS)]
        for append in writers:
            append(payload, count)  # connects
        done, began = [0] * WRITERS, time.perf_counter()

        def write(number: int) -> None:
            while time.perf_counter() - began < seconds:
                writers[number](payload, count)
                done[number] += count

        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return sum(done) / (time.perf_counter() - began)


class Topics(Threaded):
    def __init__(self, directory: Path, durable: bool, shards: int) -> None:
        super().__init__(directory, durable)
        self.name = f"Topics, {shards} shard{'s' * (shards > 1)}"
        self._server = Server(directory, shards)

    @staticmethod
    def version() -> str:
        from proto import __version__

        return __version__

    def start(self) -> None:
        self._server.__enter__()
        self.port = self._server.port
        self._connection = self._connect()
        self._client: Any = None
        self._make()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)

    def _make(self) -> None:
        durability = "fsync" if self.durable else "disk"
        for name in (NAME, *(f"{NAME}:{number}" for number in range(WRITERS))):
            self._server.request("PUT", f"/v0/topics/{name}", {"durability": durability})
        self._server.request("PUT", "/v0/topics/jobs", {"type": "queue", "durability": durability})

    def stop(self, *, kill: bool = False) -> None:
        self._connection.close()
        if self._client is not None:
            self._client.close()
        self._server.stop(kill=kill)

    def pids(self) -> Sequence[int]:
        return list(self._server.processes())

    def _ask(self, path: str, body: Any) -> Any:
        self._send(path, body)
        return self._answer()

    def _send(self, path: str, body: Any, connection: http.client.HTTPConnection | None = None) -> None:
        headers = {"content-type": "application/json"}
        (connection or self._connection).request("POST", f"/v0/topics/{path}", json.dumps(body), headers)

    def _answer(self, connection: http.client.HTTPConnection | None = None) -> Any:
        answer = (connection or self._connection).getresponse()
        found = json.loads(answer.read())
        if answer.status not in (200, 201):
            raise RuntimeError(str(found))
        return found

    def append(self, payload: str, count: int) -> None:
        self._ask(f"{NAME}?return_seqs=false", {"records": [{"data": payload}] * count})

    def appenders(self) -> dict[str, Callable[[str, int], None]]:
        found = super().appenders()
        return found | {f"{self.name}, `topics_client`": self._publish} if self._server.shards > 1 else found

    def _publish(self, payload: str, count: int) -> None:
        if self._client is None:
            sys.path.append(str(HERE / "packages/topics-client"))
            from topics_client import Client

            self._client = Client(f"http://127.0.0.1:{self.port}")
        self._client.publish(NAME, records=[{"data": payload}] * count)

    def writer(self, number: int) -> Callable[[str, int], None]:
        connection, path = self._connect(), f"{NAME}:{number}?return_seqs=false"

        def append(payload: str, count: int) -> None:
            self._send(path, {"records": [{"data": payload}] * count}, connection)
            self._answer(connection)

        return append

    def read_all(self) -> int:
        total = position = 0
        while True:
            found = self._ask(f"{NAME}/diff", {"from_seq": position, "limit": PAGE})
            total += len(found["records"])
            if not found["records"]:
                return total
            position = found["next_from_seq"]

    def latencies(self, count: int) -> list[float]:
        follower = self.follow()
        found = []
        for number in range(count):
            marker = f"latency-{number}-".encode()
            began = time.perf_counter()
            self._send(f"{NAME}?return_seqs=false", {"records": [{"data": marker.decode()}]})
            data = b""
            while marker not in data:
                data += follower.recv(65536)
            found.append((time.perf_counter() - began) * 1000)
            self._answer()
        follower.close()
        return found

    def follow(self) -> socket.socket:
        _, made = self._server.request("POST", "/v0/watch", {"topics": {NAME: {"tail": True}}})
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)
        raw.sendall(f"GET {made['stream_url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        data = b""
        while b"event: caught-up" not in data:
            data += raw.recv(65536)
        return raw

    def cycle(self, payload: str) -> None:
        self._ask("jobs?return_seqs=false", {"records": [{"data": payload}]})
        claimed = self._ask("jobs/claim", {"node": "w", "max": 1})["claimed"]
        self._ask("jobs/ack", {"node": "w", "seqs": [claimed[0]["$seq"]]})

    def count(self) -> int:
        return int(self._server.request("GET", f"/v0/topics/{NAME}")[1]["head_seq"])

    def clear(self) -> None:
        for name in (NAME, *(f"{NAME}:{number}" for number in range(WRITERS))):
            self._server.request("DELETE", f"/v0/topics/{name}")
        self._make()


class Started(System):
    """A system whose one process is started here."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def connect(self) -> None:
        """Connect the client. Raises an error while the system is not ready."""

    def disconnect(self) -> None: ...

    def start(self) -> None:
        self.port = self.port or free_port()
        self.directory.mkdir(exist_ok=True)
        with (self.directory.parent / f"{self.name}.log").open("ab") as log:
            command, *options = self.command()
            self._process = subprocess.Popen(
                [program(command), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                return self.connect()
            except Exception:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self._process.kill()
                    raise
                time.sleep(0.005)

    def stop(self, *, kill: bool = False) -> None:
        self.disconnect()
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def pids(self) -> Sequence[int]:
        return [self._process.pid]


class Redis(Started, Threaded):
    name = "Redis"

    @staticmethod
    def version() -> str:
        return version_of("redis-server", "--version")

    def command(self) -> list[str]:
        fsync = "always" if self.durable else "everysec"
        options = {
            "port": str(self.port),
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": fsync,
            "save": "",
        }
        return ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]

    def connect(self) -> None:
        import redis

        self._client = redis.Redis(port=self.port, socket_timeout=ANSWER_S)
        self._client.xlen(NAME)  # BusyLoadingError while the file is read
        try:
            self._client.xgroup_create("jobs", "g", mkstream=True)
        except redis.ResponseError:
            pass  # the group is there

    def disconnect(self) -> None:
        self._client.close()

    def append(self, payload: str, count: int) -> None:
        self._append(NAME, payload, count)

    def _append(self, name: str, payload: str, count: int) -> None:
        if count == 1:
            self._client.xadd(name, {"data": payload})
            return
        with self._client.pipeline(transaction=False) as pipe:
            for _ in range(count):
                pipe.xadd(name, {"data": payload})
            pipe.execute()

    def writer(self, number: int) -> Callable[[str, int], None]:
        return partial(self._append, f"{NAME}:{number}")

    def read_all(self) -> int:
        total, position = 0, "-"
        while found := self._client.xrange(NAME, position, "+", PAGE):
            total += len(found)
            position = f"({found[-1][0].decode()}"
        return total

    def latencies(self, count: int) -> list[float]:
        reader = self._client.connection_pool.get_connection()
        found = []
        for _ in range(count):
            reader.send_command("XREAD", "BLOCK", 0, "STREAMS", NAME, "$")
            time.sleep(0.001)  # it waits before the write is sent
            began = time.perf_counter()
            self._client.xadd(NAME, {"data": "latency"})
            reader.read_response()
            found.append((time.perf_counter() - began) * 1000)
        self._client.connection_pool.release(reader)
        return found

    def follow(self) -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)
        return raw

    def again(self, followers: Sequence[socket.socket]) -> None:
        for each in followers:
            each.sendall(f"XREAD BLOCK 0 STREAMS {NAME} $\r\n".encode())
        while self._client.info("clients")["blocked_clients"] < len(followers):
            time.sleep(0.002)

    def cycle(self, payload: str) -> None:
        self._client.xadd("jobs", {"data": payload})
        [[_, [[number, _]]]] = self._client.xreadgroup("g", "w", {"jobs": ">"}, count=1)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.xack("jobs", "g", number).xdel("jobs", number).execute()

    def count(self) -> int:
        return int(self._client.xlen(NAME))

    def clear(self) -> None:
        self._client.delete(NAME, *(f"{NAME}:{number}" for number in range(WRITERS)))


class JetStream(Started, Log):
    name = "JetStream"

    @staticmethod
    def version() -> str:
        return version_of("nats-server", "--version")

    @classmethod
    def syncs_always(cls) -> bool:
        return tuple(int(part) for part in cls.version().split(".")[:2]) >= (2, 10)

    def command(self) -> list[str]:
        sync = "sync_interval: always" if self.durable else ""
        config = self.directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.directory}/js"\n{sync}\n}}\n'
        )
        return ["nats-server", "-c", str(config)]

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def connect(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._run(self._connect())

    async def _connect(self) -> None:
        import nats

        async def ignore(error: Exception) -> None: ...

        address = f"nats://127.0.0.1:{self.port}"
        self._nats = await nats.connect(address, allow_reconnect=False, connect_timeout=5, error_cb=ignore)
        self._js = self._nats.jetstream(publish_async_max_pending=4000)
        for name in (NAME, *(f"{NAME}-{number}" for number in range(WRITERS))):
            await self._js.add_stream(name=name, subjects=[name])
        await self._js.add_stream(name="jobs", subjects=["jobs"], retention="workqueue")
        self._jobs = await self._js.pull_subscribe("jobs", "w")

    def disconnect(self) -> None:
        self._run(self._nats.close())
        self._loop.close()

    def append(self, payload: str, count: int) -> None:
        self._run(self._append(NAME, payload.encode(), count))

    async def _append(self, name: str, data: bytes, count: int) -> None:
        if count == 1:
            await self._js.publish(name, data, timeout=ANSWER_S)
            return
        async with asyncio.timeout(ANSWER_S):
            await asyncio.gather(*[await self._js.publish_async(name, data) for _ in range(count)])

    def together(self, payload: str, count: int, seconds: float) -> float:
        return float(self._run(self._together(payload.encode(), count, seconds)))

    async def _together(self, data: bytes, count: int, seconds: float) -> float:
        await self._append(f"{NAME}-0", data, count)
        done, began = [0] * WRITERS, time.perf_counter()

        async def write(number: int) -> None:
            while time.perf_counter() - began < seconds:
                await self._append(f"{NAME}-{number}", data, count)
                done[number] += count

        await asyncio.gather(*(write(number) for number in range(WRITERS)))
        return sum(done) / (time.perf_counter() - began)

    def read_all(self) -> int:
        async def read() -> int:
            total, wanted = 0, self._last((await self._js.stream_info(NAME)).state)
            subscription = await self._js.subscribe(NAME, ordered_consumer=True)
            while total < wanted:
                await subscription.next_msg(timeout=ANSWER_S)
                total += 1
            await subscription.unsubscribe()
            return total

        return int(self._run(read()))

    @staticmethod
    def _last(state: Any) -> int:
        return int(state.messages)

    def latencies(self, count: int) -> list[float]:
        async def measure() -> list[float]:
            from nats.js.api import ConsumerConfig, DeliverPolicy

            config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
            subscription = await self._js.subscribe(NAME, ordered_consumer=True, config=config)
            found = []
            for _ in range(count):
                began = time.perf_counter()
                sent = asyncio.ensure_future(self._js.publish(NAME, b"latency"))
                await subscription.next_msg(timeout=ANSWER_S)
                found.append((time.perf_counter() - began) * 1000)
                await sent
            await subscription.unsubscribe()
            return found

        found: list[float] = self._run(measure())
        return found

    def follow(self) -> socket.socket:
        """A plain subscription: it has what JetStream stores, without a consumer's position."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)
        raw.sendall(b'CONNECT {"verbose":false}\r\nSUB ' + NAME.encode() + b" 1\r\nPING\r\n")
        data = b""
        while b"PONG" not in data:
            data += raw.recv(65536)
        return raw

    def cycle(self, payload: str) -> None:
        async def once() -> None:
            await self._js.publish("jobs", payload.encode())
            [message] = await self._jobs.fetch(1, timeout=ANSWER_S)
            await message.ack_sync()

        self._run(once())

    def count(self) -> int:
        return self._last(self._run(self._js.stream_info(NAME)).state)

    def clear(self) -> None:
        for name in (NAME, *(f"{NAME}-{number}" for number in range(WRITERS))):
            self._run(self._js.purge_stream(name))


class Beanstalkd(Started):
    name = "beanstalkd"

    @staticmethod
    def version() -> str:
        return version_of("beanstalkd", "-v")

    def command(self) -> list[str]:
        sync = "-f0" if self.durable else "-f50"
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.directory), sync]

    def connect(self) -> None:
        import greenstalk

        self._client = greenstalk.Client(("127.0.0.1", self.port))

    def disconnect(self) -> None:
        self._client.close()

    def cycle(self, payload: str) -> None:
        self._client.put(payload)
        self._client.delete(self._client.reserve(timeout=ANSWER_S))


Maker = Callable[[Path, bool], System]


def available(durable: bool) -> dict[str, Maker]:
    """Systems of this machine by name."""
    found: dict[str, Maker] = {
        "Topics, 1 shard": lambda path, durable: Topics(path, durable, 1),
        "Topics, 2 shards": lambda path, durable: Topics(path, durable, 2),
    }
    if program("redis-server"):
        found["Redis"] = Redis
    if program("nats-server") and (not durable or JetStream.syncs_always()):
        found["JetStream"] = JetStream
    if program("beanstalkd"):
        found["beanstalkd"] = Beanstalkd
    return found


def versions() -> dict[str, str]:
    found = {"Topics": Topics.version()}
    programs = {"redis-server": Redis, "nats-server": JetStream, "beanstalkd": Beanstalkd}
    return found | {each.name: each.version() for name, each in programs.items() if program(name)}
