"""The bad day: a service under load, the faults that hit it, and the checks afterwards.

The load remembers all that was acknowledged. It consists of `Writer`s with classes `fsync` and `disk`, a queue whose
jobs are published with idempotency keys and completed, a router with `exactly_once`, and a watcher that resumes by the
id of its last frame. A *fault* is a generator: it causes its damage, yields, and undoes the damage.
"""

from __future__ import annotations

import http.client
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from proto.model.names import shard_of
from tests.support.dials import Dials
from tests.support.events import Watch
from tests.support.inside import most_descriptors
from tests.support.looped import Looped
from tests.support.service import Service, ServiceError, until
from tests.support.volume import Volume
from tests.support.writers import Writer, read_all, verify

TOPICS = [f"day:{n}" for n in range(8)]
QUEUE = "day:jobs"
SOURCE, COPY = "day:source", "day:copy"
VICTIM = "day:victim"
SHARDS = ["shard-00", "shard-01"]
LEASE_MS = 2000
PATIENCE_S = 90.0
"""Longest time until the service answers every client again after a fault was undone. Test machines are slow."""


class PacedWriter(Writer):
    """A writer that pauses, so that the data of a long run fits a small volume and the memory of the test."""

    def _write(self, connection: http.client.HTTPConnection) -> None:
        super()._write(connection)
        self._stop_requested.wait(0.05)


class Worker(Looped):
    """A client. Its exceptions fail the test, except those of a service that is down for a while."""

    def __init__(self, name: str, day: BadDay) -> None:
        super().__init__(name)
        self.day = day

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the response, or `(0, None)` if there is none."""
        try:
            return self.day.service.request(method, path, body, timeout_s=15)
        except (OSError, http.client.HTTPException):
            self.stopping.wait(0.05)
            return 0, None


class Publisher(Worker):
    """Adds jobs to the queue and records to the router's source. Repeats each until it is acknowledged."""

    published = 0

    def turn(self) -> None:
        number = self.published
        for topic in (QUEUE, SOURCE):
            body = {"records": [{"data": number}], "idempotency_key": f"p{number}"}
            while (status := self.ask("POST", f"/v0/topics/{topic}", body)[0]) not in (200, 201):
                assert status in (0, 429, 503), f"{topic} answered {status}"
                if self.stopping.wait(0.05):
                    self.day.unsure.add(number)
                    return
        self.published += 1
        self.stopping.wait(0.05)


class Labourer(Worker):
    """Claims jobs and acknowledges them."""

    def turn(self) -> None:
        path = f"/v0/topics/{QUEUE}"
        status, answer = self.ask("POST", f"{path}/claim", {"node": self.name, "max": 20, "lease_ms": LEASE_MS})
        if status != 200 or not answer["claimed"]:
            self.stopping.wait(0.1)
            return
        jobs = {job["$seq"]: job["data"] for job in answer["claimed"]}
        self.day.started.update(jobs.values())
        self.ask("POST", f"{path}/ack", {"node": self.name, "seqs": list(jobs)})


class Watcher(Worker):
    """Follows all topics over one session, and resumes it whenever a stream has ended."""

    def __init__(self, name: str, day: BadDay) -> None:
        super().__init__(name, day)
        self.seen: dict[str, set[int]] = {topic: set() for topic in TOPICS}
        self.wid = self.last_id = ""

    def turn(self) -> None:
        if not self.wid:
            status, made = self.ask("POST", "/v0/watch", {"topics": {topic: {"from_seq": 0} for topic in TOPICS}})
            self.wid = made["wid"] if status == 200 else ""
            self.stopping.wait(0.05)
            return
        try:
            stream = Watch(self.day.service, self.wid, self.last_id)
        except (OSError, http.client.HTTPException):
            self.stopping.wait(0.1)
            return
        taken = 0
        try:
            assert stream.status in (200, 429, 503), stream.raw
            while not self.stopping.is_set() and not stream.ended.wait(0.05):
                taken = self._take(stream, taken)
            self._take(stream, taken)
        finally:
            stream.close()
        self.stopping.wait(0.05)

    def _take(self, stream: Watch, taken: int) -> int:
        fresh = stream.events[taken:]
        for event in fresh:
            self.last_id = event.ident or self.last_id
            if event.kind == "record":
                self.seen[event.data["topic"]].update(record["$seq"] for record in event.data["records"])
            assert event.kind != "tombstone", f"{self.name} was told of a loss: {event.data}"
        return taken + len(fresh)


class Meter(Worker):
    """The largest private memory of each child, in bytes."""

    def __init__(self, name: str, day: BadDay) -> None:
        super().__init__(name, day)
        self.peak: dict[str, int] = {}

    def turn(self) -> None:
        for name, child in self.day.service.status().get("children", {}).items():
            try:
                text = Path(f"/proc/{child['pid']}/status").read_text()
            except OSError:
                continue
            lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            self.peak[name] = max(self.peak.get(name, 0), 1024 * int(lines.get("RssAnon", "0 kB").split()[0]))
        self.stopping.wait(0.2)


class BadDay:
    def __init__(self, service: Service, volume: Volume, dials: Dials, cold: Path, seed: int) -> None:
        self.service, self.volume, self.dials, self.cold = service, volume, dials, cold
        self.rng = random.Random(seed)
        self.unsure: set[int] = set()
        """Numbers sent and not acknowledged when the load stopped."""
        self.victims = 0
        """How often the topic to damage was made."""
        self.started: set[int] = set()
        """Jobs that a worker got."""
        self.writers: list[Writer] = [
            PacedWriter(service, f"w{n}", TOPICS[n % 2 :: 2], seed + n, ("fsync", "disk")[n % 2]) for n in range(4)
        ]
        self.publisher = Publisher("publisher", self)
        self.watcher = Watcher("watcher", self)
        self.meter = Meter("meter", self)
        self.workers: list[Worker] = [self.publisher, self.watcher, self.meter]
        self.workers += [Labourer(f"labourer-{n}", self) for n in range(2)]

    # -- life

    def begin(self) -> None:
        # Two leases may end while a process hangs; the test only requires that no job is lost.
        queue = {"type": "queue", "durability": "fsync", "leases_durable": True, "max_deliveries": 1000}
        self._insist("PUT", f"/v0/topics/{QUEUE}", queue)
        for topic in (*TOPICS, SOURCE):
            n = TOPICS.index(topic) if topic in TOPICS else 0
            self._insist("PUT", f"/v0/topics/{topic}", {"durability": ("fsync", "disk")[n % 2]})
        router = {"source": SOURCE, "dest": COPY, "guarantee": "exactly_once"}
        self._insist("PUT", "/v0/routers/day-router", router)
        self.fill_victim()
        for thread in (*self.writers, *self.workers):
            thread.start()
        # A stream without an id continues where the session is, and one of the faults opens streams of this session.
        until(lambda: self.watcher.last_id, "the watcher to have an id to resume by", PATIENCE_S)

    def fill_victim(self) -> None:
        """Make a topic with sealed segments, which faults damage and no check reads."""
        self.victims += 1
        self._insist("PUT", f"/v0/topics/{VICTIM}", {})
        for _ in range(20):
            self._insist("POST", f"/v0/topics/{VICTIM}", {"records": [{"data": self._victim_data()}] * 20})

    def _victim_data(self) -> str:
        """Return data that only records of the present victim have."""
        return f"victim {self.victims} " + "v" * 1000

    def _insist(self, method: str, path: str, body: Any = None) -> Any:
        """Repeat a request until the response is neither 429 nor 503, and return it."""
        found: list[tuple[int, Any]] = []

        def answered() -> bool:
            try:
                found.append(self.service.request(method, path, body))
            except (OSError, http.client.HTTPException):
                return False
            return found[-1][0] not in (429, 503)

        until(answered, f"an answer to {method} {path}; the last: {found[-1:]}", PATIENCE_S)
        status, answer = found[-1]
        assert status < 400 or (method == "DELETE" and status == 404), (method, path, status, answer)
        return answer

    def heal(self) -> None:
        """Return when the service is ready and every client has made progress. Raises if one failed, or the service
        does not recover."""
        self.dials.turn()
        self.service.wait_ready(PATIENCE_S)
        before = [writer.acks for writer in self.writers]
        published = self.publisher.published

        def went_on() -> bool:
            for thread in (*self.writers, *self.workers):
                if thread.failure is not None:
                    raise thread.failure
            now = zip((writer.acks for writer in self.writers), before, strict=True)
            return all(is_now > was for is_now, was in now) and self.publisher.published > published

        try:
            until(went_on, "every writer to be acknowledged again", PATIENCE_S)
        except AssertionError as error:
            acks = [writer.acks for writer in self.writers]
            answers = [writer.answers[-1] for writer in self.writers if writer.answers]
            raise ServiceError(f"{error}: {before} → {acks}; {answers}{self.service.log_tail()}") from None

    def end(self) -> None:
        """Stop the load and check every promise made to it."""
        for writer in self.writers:
            writer.stop()
        self.publisher.finish()
        for writer in self.writers:
            writer.finish()
        acked = verify(self.service, self.writers)
        assert acked > 0
        heads = {topic: self.service.request("GET", f"/v0/topics/{topic}")[1]["head_seq"] for topic in TOPICS}

        def watched() -> bool:
            if self.watcher.failure is not None:
                raise self.watcher.failure
            return all(len(self.watcher.seen[topic]) >= head for topic, head in heads.items())

        until(watched, "the watcher to have seen every record", PATIENCE_S)
        expected = set(range(self.publisher.published))

        def jobs_left() -> int:
            return int(self._insist("GET", f"/v0/topics/{QUEUE}")["count"])

        until(lambda: jobs_left() == 0, "every job to be done", PATIENCE_S)
        assert expected <= self.started, f"jobs lost: {sorted(expected - self.started)[:5]}"
        source = [data for _, data in read_all(self.service, SOURCE)]
        assert expected <= set(source) <= expected | self.unsure, "records of the source were lost or made up"
        assert len(source) == len(set(source)), "an idempotency key let a record in twice"
        until(lambda: len(read_all(self.service, COPY)) >= len(source), "the router to be through", PATIENCE_S)
        assert [data for _, data in read_all(self.service, COPY)] == source
        for worker in self.workers:
            worker.finish()

    # -- faults

    def faults(self) -> dict[str, Callable[[], Generator[None]]]:
        return {
            "a shard is killed": self.shard_killed,
            "the gateway is killed": self.gateway_killed,
            "all processes are killed": self.service_killed,
            "a shard hangs for a moment": self.shard_paused,
            "a shard hangs": self.shard_hangs,
            "the gateway hangs for a moment": self.gateway_paused,
            "a shard is out of descriptors": self.descriptors_taken,
            "the disk is full": self.disk_full,
            "the disk is slow": self.disk_slow,
            "syncs fail": self.disk_failing,
            "the cold tier is gone": self.cold_gone,
            "a segment is cut off": self.segment_cut,
            "the clock is a day ahead": self.clock_ahead,
            "clients do not read": self.readers_slow,
            "clients are hostile": self.clients_hostile,
        }

    def _shard(self) -> str:
        return self.rng.choice(SHARDS)

    def _pid(self, name: str) -> int:
        return int(until(lambda: self.service.child(name)["pid"], f"{name} to run"))

    def shard_killed(self) -> Generator[None]:
        os.kill(self._pid(self._shard()), signal.SIGKILL)
        yield

    def gateway_killed(self) -> Generator[None]:
        os.kill(self._pid("gateway"), signal.SIGKILL)
        yield

    def service_killed(self) -> Generator[None]:
        self.service.kill_group()
        yield
        self.service.start(wait=False).wait_ready(PATIENCE_S)

    def _paused(self, name: str) -> Generator[None]:
        pid = self._pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # the supervisor did not wait for it

    def shard_paused(self) -> Generator[None]:
        return self._paused(self._shard())

    def gateway_paused(self) -> Generator[None]:
        return self._paused("gateway")

    def shard_hangs(self) -> Generator[None]:
        """Stop a shard until the supervisor has replaced it."""
        name = self._shard()
        # One that starts may be silent for much longer.
        until(lambda: self.service.child(name).get("phase", "ready") == "ready", f"{name} to serve", PATIENCE_S)
        before = self.service.child(name)["incarnation"]
        os.kill(self._pid(name), signal.SIGSTOP)
        until(lambda: self.service.child(name)["incarnation"] > before, f"a successor of {name}", PATIENCE_S)
        yield

    def descriptors_taken(self) -> Generator[None]:
        pid = self._pid(self._shard())
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most_descriptors(pid), limits[1]))
        try:
            yield
        finally:
            try:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            except ProcessLookupError:
                pass

    def disk_full(self) -> Generator[None]:
        self.volume.fill()
        try:
            yield
        finally:
            self.volume.relieve()

    def disk_slow(self) -> Generator[None]:
        self.dials.turn(sync_delay_s=0.4)
        yield

    def disk_failing(self) -> Generator[None]:
        """A shard that could not save acknowledged records refuses all writes; the operator starts it again."""
        self.dials.turn(sync_fails=True)
        yield
        self.dials.turn()
        for name in SHARDS:
            os.kill(self._pid(name), signal.SIGKILL)

    def cold_gone(self) -> Generator[None]:
        hidden = self.cold.with_name("cold-hidden")
        if self.cold.exists():
            self.cold.rename(hidden)
        try:
            yield
            self.service.request("POST", f"/v0/topics/{VICTIM}/diff", {"from_seq": 0})
        except (OSError, http.client.HTTPException):
            pass
        finally:
            if hidden.exists():
                if self.cold.exists():  # created again meanwhile: files moved there belong to it
                    for path in sorted(self.cold.rglob("*")):
                        if path.is_file():
                            target = hidden / path.relative_to(self.cold)
                            target.parent.mkdir(parents=True, exist_ok=True)
                            path.rename(target)
                    for path in sorted(self.cold.rglob("*"), reverse=True):
                        path.rmdir()
                    self.cold.rmdir()
                hidden.rename(self.cold)

    def _victim_segments(self) -> list[Path]:
        """Return the files with records of the victim. Folders have numbers for names, so the content decides."""
        shard = f"shard-{shard_of(VICTIM, len(SHARDS)):02d}"
        places = [self.volume.outside / "data" / shard, self.cold / shard]
        found = []
        for path in [path for place in places for path in sorted(place.glob("topics/*/*.data"))]:
            with suppress(FileNotFoundError):  # removed by a checkpoint meanwhile
                if self._victim_data().encode() in path.read_bytes():
                    found.append(path)
        return found

    def _cut_a_segment(self) -> bool:
        """Cut a segment of the victim, in both places while it is being moved to the cold tier. Returns False if it was
        moved before."""
        found = self._victim_segments()
        name = self.rng.choice(found).name if found else ""
        done = 0
        for path in found:
            if path.name == name:
                with suppress(FileNotFoundError):
                    os.truncate(path, path.stat().st_size // 2)
                    done += 1
        return done > 0

    def _damage_is_told(self) -> bool | None:
        """Read the victim from its start. Return True at the refusal that names the damage, False if every record was
        read, None if there was no answer."""
        from_seq = 0
        while True:
            try:
                status, answer = self.service.request("POST", f"/v0/topics/{VICTIM}/diff", {"from_seq": from_seq})
            except (OSError, http.client.HTTPException):
                return None
            if status == 200 and answer["caught_up"]:
                return False
            if status != 200:
                told = status == 503 and (answer["error"]["detail"] or {}).get("reason") == "damaged"
                return True if told else None
            from_seq = answer["next_from_seq"]

    def _cut_is_told(self) -> bool:
        """Cut a segment of a new victim, none of whose records were read yet. Returns False if the victim stayed whole:
        a checkpoint was still writing the segment, and the shard that was killed wrote it again from its log."""
        self._insist("DELETE", f"/v0/topics/{VICTIM}")
        self.fill_victim()
        until(self._cut_a_segment, "segments of the victim", PATIENCE_S)
        if self.rng.random() < 0.5:
            os.kill(self._pid(f"shard-{shard_of(VICTIM, len(SHARDS)):02d}"), signal.SIGKILL)
        told: list[bool | None] = []

        def decided() -> bool:
            told.append(self._damage_is_told())
            return told[-1] is not None

        until(decided, "the victim to be read or to be told to be damaged", PATIENCE_S)
        return told[-1] is True

    def segment_cut(self) -> Generator[None]:
        """Damage one topic and nothing else."""
        until(self._cut_is_told, "the topic to be told to be damaged", PATIENCE_S)
        yield
        self._insist("DELETE", f"/v0/topics/{VICTIM}")
        self.fill_victim()

    def clock_ahead(self) -> Generator[None]:
        self.dials.turn(clock_ahead_s=86_400.0)
        yield

    def readers_slow(self) -> Generator[None]:
        """Request streams and responses, and do not read them."""
        head = "GET /v0/topics?page_size=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        diff = '{"from_seq":0,"limit":1000}'
        ask = "POST /v0/topics/day:0/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        asked = (head + f"{ask}Content-Length: {len(diff)}\r\n\r\n{diff}" * 20).encode()
        stream = f"GET /v0/watch/{self.watcher.wid} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with ExitStack() as stack:
            for request in [asked] * 30 + [stream] * 5:
                self._send(stack, request)
            yield

    def clients_hostile(self) -> Generator[None]:
        """Send garbage, heads without an end, bodies without an end, pings without an end."""
        chunked = b"POST /v0/topics/day:0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunked += b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 2000
        ping = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\x08\6\0\0\0\0\0pingping" * 500
        with ExitStack() as stack:
            for _ in range(10):
                self._send(stack, self.rng.randbytes(2000))
                self._send(stack, b"GET /v0/topics HTTP/1.1\r\nX: ")
                self._send(stack, chunked)
                self._send(stack, ping)
            yield

    def _send(self, stack: ExitStack, sent: bytes) -> None:
        """Send on a connection that stays open until the stack is left."""
        try:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", self.service.port), 5))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(0.5)
            connection.sendall(sent)
        except OSError:
            pass  # the service may refuse, reset or not read

    def happen(self, name: str, longest_s: float) -> None:
        """Run one fault, from its damage to the service's recovery."""
        begun = time.monotonic()
        fault = self.faults()[name]()
        next(fault)
        time.sleep(self.rng.uniform(0.2, longest_s))
        for _ in fault:
            pass
        self.heal()
        print(f"{name}: over after {time.monotonic() - begun:.1f} s")  # noqa: T201 - shown when the test fails
