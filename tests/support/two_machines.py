"""A bad day of two machines with one bucket: namespaces, services, load, faults, and the checks afterwards.

Clients go where they find the holder: to the other machine when one does not answer, or answers 503. The load notes
which machine acknowledged what. A *fault* is a generator: it causes its damage, yields the seconds that it shall last,
and undoes the damage.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from proto.format.buffer import Buffer
from shardd.replication import parts
from shardd.replication.names import ShardNames, number_of
from shardd.replication.seal import Sealed
from tests.support.bucket import MemoryStore, S3Server
from tests.support.network import Network, network
from tests.support.service import Service, until
from tests.support.writers import Writer, read_all, verify_read

PORT = 4000
SHARDS = 2
PATIENCE_S = 240.0
"""Longest time until both machines are as they should be after a fault was undone. Test machines are slow."""
ANSWER_S = 3.0
"""How long a client waits for an answer before it tries the other machine."""
FSYNC = [f"safe:{n}" for n in range(4)]
DISK = [f"fast:{n}" for n in range(2)]
_ID = re.compile(rb'"id": ?"(w\d+/\d+)"')


class Pair:
    """Two machines, `one` and `two`, and their bucket. The test is among their clients."""

    def __init__(self, net: Network, bucket: S3Server, directory: Path, ttl_ms: int, **environment: str) -> None:
        self.encrypted = environment.get("TOPICS_BUCKET_ENCRYPT") == "true"
        self.net, self.bucket, self.ttl_s = net, bucket, ttl_ms / 1000
        self.machines: dict[str, Service] = {}
        for name in net.names:
            (directory / name).mkdir()
            settings = {
                "TOPICS_HOST": "0.0.0.0",
                "TOPICS_ALLOW_INSECURE_NO_AUTH": "true",
                "TOPICS_BUCKET": bucket.url,
                "TOPICS_REPLICATION": "sync",
                "TOPICS_BUCKET_TIMEOUT_MS": "2000",
                "TOPICS_TERM_TTL_MS": str(ttl_ms),
                "TOPICS_ADVERTISE": f"http://{net.address(name)}:{PORT}",
                "TOPICS_SHARDS": str(SHARDS),
            }
            self.machines[name] = Service(
                directory / name,
                shards=None,
                port=PORT,
                enter=net.spaces[name].enter,
                host=net.address(name),
                **(settings | bucket.environment | environment),
            )

    def name_of(self, address: str) -> str:
        return next((name for name in self.net.names if self.net.address(name) in address), "")

    def start(self, name: str) -> None:
        if self.machines[name].process is None:
            self.machines[name].start(wait=False)

    def ready(self, name: str) -> dict[str, Any]:
        """The answer to the readiness probe, with its status; {} if there is none."""
        try:
            status, answer = self.machines[name].request("GET", "/v0/ready", timeout_s=2)
        except (OSError, http.client.HTTPException):
            return {}
        return {"status": status, **answer.get("error", {}).get("detail", {})}

    def holder(self) -> str:
        """The machine that is ready; empty if none is."""
        return next((name for name in self.machines if self.ready(name).get("status") == 200), "")

    def standing_by(self, name: str) -> bool:
        return bool(self.ready(name).get("standby"))

    def other(self, name: str) -> str:
        return next(each for each in self.net.names if each != name)

    def whole(self) -> bool:
        """Whether one machine holds the shards and the other one stands by."""
        holder = self.holder()
        return holder != "" and self.standing_by(self.other(holder))

    def wait_holder(self, patience_s: float = PATIENCE_S) -> str:
        found: str = until(self.holder, f"a holder {self.states()}", patience_s)
        return found

    def wait_whole(self) -> None:
        try:
            until(self.whole, "a holder and a standby", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.states()}{self.log_tails()}") from None

    def states(self) -> dict[str, Any]:
        return {name: self.ready(name) for name in self.machines}

    def log_tails(self) -> str:
        return "".join(f"\n=== {name}{service.log_tail()}" for name, service in self.machines.items())

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `topics` on a machine."""
        service = self.machines[name]
        return subprocess.run(
            [*self.net.spaces[name].enter, sys.executable, "-m", "supervisor.cli", *arguments],
            env=service.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def content(self, name: str, data: bytes) -> Buffer:
        """What an object holds."""
        if not self.encrypted:
            return data
        store = MemoryStore()
        store.objects[name.removeprefix("topics/")] = data
        return Sealed(store, KEY).get(name.removeprefix("topics/"))


@contextmanager
def pair(directory: Path, ttl_ms: int, **environment: str) -> Iterator[Pair]:
    """Two machines and a bucket, with the services not started. Raises `NetworkError`."""
    with ExitStack() as stack:
        net = stack.enter_context(network("one", "two"))
        with net.inside("bucket"):
            bucket = stack.enter_context(S3Server(host="198.18.1.1"))
        stack.enter_context(net.inside("clients"))
        made = Pair(net, bucket, directory, ttl_ms, **environment)
        for service in made.machines.values():
            stack.callback(service.close)
        yield made


KEY = b"k" * 32


class Door:
    """A client's way to the holder: what `Writer` takes for a service."""

    def __init__(self, machines: Pair, rng: random.Random) -> None:
        self.machines = machines
        self.at = rng.choice(machines.net.names)

    def connect(self, timeout_s: float = ANSWER_S) -> http.client.HTTPConnection:
        return self.machines.machines[self.at].connect(min(timeout_s, ANSWER_S))

    def move(self) -> None:
        """Go to the other machine."""
        self.at = self.machines.other(self.at)


class Rover(Writer):
    """A writer that goes to the other machine when one does not take a write. It never sends a record twice."""

    def __init__(self, machines: Pair, name: str, topics: Sequence[str], seed: int, durability: str) -> None:
        self.door = Door(machines, random.Random(seed))
        super().__init__(self.door, name, topics, seed, durability)  # type: ignore[arg-type]
        self.by: dict[str, str] = {}
        """The machine that acknowledged a record, by its id."""
        self.given: dict[str, set[int]] = {topic: set() for topic in topics}

    def _write(self, connection: http.client.HTTPConnection) -> None:
        machine = self.door.at
        before = len(self.answers)
        try:
            super()._write(connection)
        except (OSError, http.client.HTTPException):
            self.door.move()
            self._stop_requested.wait(0.05)
            raise
        answer = self.answers[-1]
        assert len(self.answers) == before + 1
        if answer.status not in (200, 201):
            assert answer.status in (429, 503), answer
            self.door.move()
            self._stop_requested.wait(0.05)
            raise ConnectionError("the next one is sent elsewhere")
        acked = self.acked[answer.topic]
        self.by |= {acked[seq]["id"]: machine for seq in answer.body["seqs"]}
        given = self.given[answer.topic]
        assert not given.intersection(answer.body["seqs"]), f"a seq was acknowledged before: {answer}"
        given.update(answer.body["seqs"])
        self._stop_requested.wait(0.06)


Fault = Generator[float]


class TwoMachines:
    """The day: load, faults, checks."""

    def __init__(self, machines: Pair, seed: int, longest_s: float) -> None:
        self.pair = machines
        self.rng = random.Random(seed)
        self.longest_s = longest_s
        self.safe = [Rover(machines, f"w{n}", FSYNC[n % 2 :: 2], seed + n, "fsync") for n in range(4)]
        self.fast = [Rover(machines, "w8", DISK, seed + 8, "disk")]
        self.free = list(machines.net.names)
        """Machines without a fault."""
        self.epochs: dict[str, Any] = {}
        self.happened: list[str] = []

    @property
    def writers(self) -> list[Rover]:
        return [*self.safe, *self.fast]

    def begin(self) -> None:
        for name in self.pair.net.names:
            self.pair.start(name)
        for topic in (*FSYNC, *DISK):
            self._make(topic, "fsync" if topic in FSYNC else "disk")
        self.epochs = until(self._epochs, "the epochs", PATIENCE_S)
        self.pair.wait_whole()
        for writer in self.writers:
            writer.start()
        self.heal()

    def _make(self, topic: str, durability: str) -> None:
        def made() -> bool:
            holder = self.pair.holder()
            if not holder:
                return False
            try:
                path = f"/v0/topics/{topic}"
                status, _ = self.pair.machines[holder].request("PUT", path, {"durability": durability})
            except (OSError, http.client.HTTPException):
                return False
            return status in (200, 201)

        until(made, f"{topic} to be made", PATIENCE_S)

    def _epochs(self) -> dict[str, Any]:
        """The epoch of each topic; {} if the holder does not answer."""
        holder = self.pair.holder()
        if not holder:
            return {}
        asked = self.pair.machines[holder].request
        try:
            answers = {topic: asked("GET", f"/v0/topics/{topic}") for topic in (*FSYNC, *DISK)}
        except (OSError, http.client.HTTPException):
            return {}
        if any(status != 200 for status, _ in answers.values()):
            return {}
        return {topic: answer["epoch"] for topic, (_, answer) in answers.items()}

    def heal(self) -> None:
        """Return when one machine holds, the other stands by, and every writer has been acknowledged again."""
        self.pair.wait_whole()
        before = [writer.acks for writer in self.writers]

        def went_on() -> bool:
            for writer in self.writers:
                if writer.failure is not None:
                    raise writer.failure
            return all(writer.acks > was for writer, was in zip(self.writers, before, strict=True))

        try:
            until(went_on, "every writer to be acknowledged again", PATIENCE_S)
        except AssertionError as error:
            answers = [writer.answers[-1:] for writer in self.writers]
            raise AssertionError(f"{error}: {answers}{self.pair.log_tails()}") from None

    def happen(self, *names: str) -> None:
        """Let faults come one after the other, and go in the order of their lengths."""
        going: list[tuple[float, Fault]] = []
        for name in names:
            fault = self.faults()[name]()
            going.append((time.monotonic() + next(fault, 0.0), fault))
            self.happened.append(name)
        for end, fault in sorted(going, key=lambda each: each[0]):
            _pause(end - time.monotonic())
            next(fault, None)

    # -- faults

    def faults(self) -> dict[str, Callable[[], Fault]]:
        return {
            "a machine is killed": self.killed,
            "a machine stops for longer than the time to live": self.stopped,
            "a machine stops for a moment": self.paused,
            "a machine is cut from the bucket": self.cut_from_bucket,
            "a machine is cut from its clients": self.cut_from_clients,
            "a machine is cut from everything": self.cut_off,
            "a disk is wiped": self.wiped,
            "a machine is drained": self.drained,
            "a standby is told to take over": self.taken_over,
            "a shard is killed": self.shard_killed,
            "a shard hangs": self.shard_stopped,
            "both machines are killed": self.both_killed,
            "the bucket is away": self.bucket_stopped,
            "the bucket is cut off": self.bucket_cut,
        }

    @contextmanager
    def _machine(self) -> Iterator[str]:
        """A machine without a fault, more often the holder than not; empty if there is none."""
        holder = self.pair.holder()
        chosen = ""
        if self.free:
            chosen = holder if holder in self.free and self.rng.random() < 0.75 else self.rng.choice(self.free)
            self.free.remove(chosen)
        try:
            yield chosen
        finally:
            if chosen:
                self.free.append(chosen)

    def _moment(self) -> float:
        return self.rng.uniform(0.1, 0.6) * self.pair.ttl_s

    def _long(self) -> float:
        """Longer than the time to live."""
        return self.pair.ttl_s * self.rng.uniform(1.2, 1.5) + self.rng.uniform(0, self.longest_s)

    def _any(self) -> float:
        return self._moment() if self.rng.random() < 0.3 else self._long()

    def killed(self) -> Fault:
        with self._machine() as name:
            if name:
                self.pair.machines[name].kill_group()
                yield self._any()
                self.pair.start(name)

    def wiped(self) -> Fault:
        with self._machine() as name:
            if name:
                self.pair.machines[name].kill_group()
                shutil.rmtree(self.pair.machines[name].data_dir)
                yield self._any()
                self.pair.start(name)

    def drained(self) -> Fault:
        with self._machine() as name:
            if name:
                self.pair.machines[name].stop(timeout_s=60)
                yield self._any()
                self.pair.start(name)

    def both_killed(self) -> Fault:
        names, self.free = self.free, []
        for name in names:
            self.pair.machines[name].kill_group()
        yield self._any()
        for name in self.rng.sample(names, len(names)):
            self.pair.start(name)
        self.free += names

    def _stopped(self, seconds: float, children: str = "") -> Fault:
        """Stop the processes of a machine, or one child."""
        with self._machine() as name:
            if not name:
                return
            service = self.pair.machines[name]
            pids = [_pid(service, children)] if children else service.pids()
            stopped = []
            for pid in filter(None, pids):
                with suppress(ProcessLookupError):
                    stopped.append(os.pidfd_open(pid))
                    signal.pidfd_send_signal(stopped[-1], signal.SIGSTOP)
            yield seconds
            for each in stopped:
                try:
                    signal.pidfd_send_signal(each, signal.SIGCONT)
                except ProcessLookupError:
                    pass  # its supervisor did not wait for it
                os.close(each)

    def stopped(self) -> Fault:
        return self._stopped(self._long())

    def paused(self) -> Fault:
        return self._stopped(self._moment())

    def shard_stopped(self) -> Fault:
        return self._stopped(self._long(), f"shard-0{self.rng.randrange(SHARDS)}")

    def shard_killed(self) -> Fault:
        with self._machine() as name:
            if name and (pid := _pid(self.pair.machines[name], f"shard-0{self.rng.randrange(SHARDS)}")):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                yield self._moment()

    def _cut(self, *middles: str) -> Fault:
        with self._machine() as name:
            if name:
                for middle in middles:
                    self.pair.net.pull(name, middle)
                yield self._any()
                for middle in middles:
                    self.pair.net.plug(name, middle)

    def cut_from_bucket(self) -> Fault:
        return self._cut("bucket")

    def cut_from_clients(self) -> Fault:
        return self._cut("clients")

    def cut_off(self) -> Fault:
        return self._cut("bucket", "clients")

    def taken_over(self) -> Fault:
        holder = self.pair.holder()
        if holder and self.pair.standing_by(self.pair.other(holder)):
            self.pair.command(self.pair.other(holder), "takeover")  # it may fail, as other faults go on
            yield self._moment()

    def bucket_stopped(self) -> Fault:
        """The store takes requests and answers later, or never."""
        self.pair.bucket.signal(signal.SIGSTOP)
        yield self._any()
        self.pair.bucket.signal(signal.SIGCONT)

    def bucket_cut(self) -> Fault:
        self.pair.net.spaces["bucket"].ip("link", "set", "switch", "down")
        yield self._any()
        self.pair.net.spaces["bucket"].ip("link", "set", "switch", "up")

    # -- checks

    def end(self) -> None:
        """Stop the load, and check every promise made to it, on both machines and in the bucket."""
        self.heal()
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.finish()
        self._check()
        holder = self.pair.wait_holder()
        self.pair.machines[holder].kill_group()
        self._check()
        self._check_terms()
        with self.pair.net.inside("bucket"):
            done = self.pair.command(holder, "replica", "verify")
        assert done.returncode == 0, done.stdout + done.stderr

    def _read(self, topic: str) -> list[tuple[int, Any]]:
        """Every record of a topic. On a slow machine, a holder may be silent for a moment."""
        found: list[tuple[int, Any]] = []

        def answered() -> bool:
            holder = self.pair.holder()
            if holder:
                with suppress(OSError, http.client.HTTPException, AssertionError):
                    found[:] = read_all(self.pair.machines[holder], topic)
                    return True
            return False

        until(answered, f"the records of {topic}", PATIENCE_S)
        return found

    def _check(self) -> None:
        assert verify_read(self._read, self.safe) > 0
        for writer in self.writers:
            for topic, acked in writer.acked.items():
                ids = [acked[seq]["id"] for seq in sorted(acked)]
                sent = [int(each.partition("/")[2]) for each in ids]
                rows = [(seq, each, writer.by[each]) for seq, each in zip(sorted(acked), ids, strict=True)]
                wrong = [rows[max(at - 3, 0) : at + 3] for at in range(1, len(sent)) if sent[at] < sent[at - 1]]
                assert not wrong, f"{topic}: {writer.name} was acknowledged out of order: {wrong}"
        for topic in DISK:
            held = dict(self._read(topic))
            for writer in self.fast:
                other = {seq: data for seq, data in writer.acked[topic].items() if held.get(seq, data) != data}
                assert not other, f"{topic}: seqs name two records: {min(other.items())}, {held[min(other)]}"
        assert until(self._epochs, "the epochs", PATIENCE_S) == self.epochs

    def _check_terms(self) -> None:
        """Each acknowledged record is in one part, of a term whose holder acknowledged it; a term has one holder."""
        found: dict[str, str] = {}
        with self.pair.net.inside("bucket"):
            shards = [ShardNames(number) for number in range(SHARDS)]
            objects = self.pair.bucket.objects
            kept = [(objects(f"topics/{names.terms}"), objects(f"topics/{names.log}")) for names in shards]
        for held, log in kept:
            terms = {number_of(name): json.loads(bytes(self.pair.content(name, data))) for name, data in held.items()}
            latest = 0
            for name, data in log.items():
                number = number_of(name)
                assert number is not None
                part, frames = parts.decode(self.pair.content(name, data), number)
                if not part.has_frames:
                    latest = max(latest, part.term)
                    continue
                assert part.term >= latest, f"{name}: term {part.term} has a part behind a fence of term {latest}"
                assert bytes.fromhex(terms[part.term]["nonce"]) == part.nonce, f"{name}: two holders in one term"
                for each in _ID.findall(frames):
                    assert each.decode() not in found, f"{each} is in two parts"
                    found[each.decode()] = self.pair.name_of(terms[part.term]["address"])
        for writer in self.safe:
            for record, machine in writer.by.items():
                assert found.get(record) == machine, f"{record}: acknowledged by {machine}, held by {found.get(record)}"


def _pid(service: Service, child: str) -> int | None:
    """The pid of a child; None before it was started."""
    found: int | None = service.status().get("children", {}).get(child, {}).get("pid")
    return found


def _pause(seconds: float) -> None:
    """A fault's length: the load goes on meanwhile."""
    threading.Event().wait(max(seconds, 0))


def schedule(
    directory: Path,
    seed: int,
    steps: Sequence[Sequence[str]] | int,
    ttl_ms: int,
    longest_s: float,
    encrypted: bool = False,
) -> str:
    """Run a schedule: the faults of each step come together. A number stands for so many random steps. Returns what
    happened. Raises `NetworkError`."""
    given = {"TOPICS_CHECKPOINT_BYTES": "300000", "TOPICS_CHECKPOINT_INTERVAL_MS": "5000"}
    if encrypted:
        (directory / "key").write_bytes(KEY)
        given |= {"TOPICS_BUCKET_KEY_FILE": str(directory / "key"), "TOPICS_BUCKET_ENCRYPT": "true"}
    with pair(directory, ttl_ms, **given) as machines:
        day = TwoMachines(machines, seed, longest_s)
        names = list(day.faults())
        chance = day.rng
        if isinstance(steps, int):
            steps = [chance.sample(names, chance.choice((1, 1, 2))) for _ in range(steps)]
        try:
            day.begin()
            for step in steps:
                day.happen(*step)
                if chance.random() < 0.8:
                    day.heal()
            day.end()
        except AssertionError as error:
            error.add_note(f"seed {seed}, {steps}; so far: {'; '.join(day.happened)}")
            raise
        for service in machines.machines.values():
            assert "Traceback" not in service.log_text(), service.log_tail()
        acks = sum(writer.acks for writer in day.writers)
        return f"seed {seed}: {acks} acknowledged, {'; '.join(day.happened)}"
