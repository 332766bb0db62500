"""Machines without processes that have one shard each and share a store: its role, its files, and the shard if open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from proto.model.limits import Limits
from proto.model.replication import Replication
from shardd.replication import parts
from shardd.replication.attach import FORMAT, Service, Settings, Term, check_service
from shardd.replication.log_reader import LogReader
from shardd.replication.names import ShardNames, number_of
from shardd.replication.objects import Objects
from shardd.replication.role import Role
from shardd.replication.shipper import Pace, Shipper
from shardd.replication.states import ReplicaState
from shardd.standby.closed_log import ClosedLog
from shardd.storage.disk import RealDisk
from tests.support.bucket import MemoryStore
from tests.support.harness import FakeClock, Harness
from tests.support.shipped import CREATED_MS, SMALL, TIMING

NAMES = ShardNames(0)


class Time:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """One machine. Its role runs in `nursery` until `stop`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        store: MemoryStore,
        directory: Path,
        name: str,
        time: Time,
        index: int = 0,
        replication: Replication = Replication.SYNC,
        ttl_ms: int = 0,
        encrypt: bool | None = None,
        rank: float | None = None,
    ) -> None:
        """`rank`: as a roster gives it; None if there is none."""
        self.rank = rank
        self.store = store
        self.path = directory / name / f"shard-{index:02d}"
        self.path.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.time = time
        self.index = index
        self.replication = replication
        self.settings = Settings(replication.value, ttl_ms, 2, encrypt) if ttl_ms else Settings()
        self.incarnation = 0
        self.running = 0
        """Processes whose threads may still use the directory."""
        self.harness: Harness | None = None
        self._nursery = nursery
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.incarnation += 1
        nonce = f"{self.name}{self.incarnation}".encode().hex().zfill(32)
        heard = f"tcp://{self.name}:1", f"key {self.incarnation}"
        own = Term(0, nonce, self.name, 0, f"http://{self.name}", *self.settings, *heard)
        objects = Objects(self.store, self.index, own)
        limits = Limits(**SMALL)
        place = "" if self.rank is None else self.name
        self.local = ClosedLog(RealDisk(), self.path, objects, limits, place)
        service = Service(FORMAT, CREATED_MS, 2, *self.settings[:2], self.settings.encrypt)

        def check() -> None:
            check_service(self.store, service, objects.names.prefix)

        self.role = Role(
            objects,
            self.local,
            TIMING,
            check,
            leads=self.index == 0 or self.rank is not None,
            rank=self.rank or 0,
            replication=self.replication,
            now=self.time,
        )
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._run, self.role, self._scope)

    async def _run(self, role: Role, scope: trio.CancelScope) -> None:
        self.running += 1
        with scope:
            await role.run()
        self.running -= 1

    def stop(self) -> None:
        """End the process, as a kill does."""
        self._scope.cancel()
        self.harness = None

    async def open(self) -> Harness:
        """Open the shard when it may be, and ship what its log has more."""
        with trio.fail_after(60):
            await self.role.held.wait()
        assert self.role.error is None, self.role.error
        self.harness = Harness(RealDisk(), FakeClock(), self.path, **SMALL)
        log = self.harness.shard.log
        reader = LogReader(RealDisk(), self.path / "wal")
        pace = Pace(0.0, self.replication.awaited)
        self.shipper = Shipper(self.role, reader, log, self.harness.clock, pace)
        self.shipper.attach()
        self.shipper.begin()
        with trio.fail_after(60):
            await self.shipper.caught_up()
        return self.harness

    async def take_over(self) -> Harness:
        """Take the shard over by an operator's word, let the time pass that a holder may still answer, and open it."""
        self.role.take_over()
        with trio.fail_after(60):
            while self.role.replica is None or self.role.replica.state in (ReplicaState.STANDBY, ReplicaState.CLAIMING):  # noqa: ASYNC110
                await trio.sleep(0.002)
        self.time.now += TIMING.handover
        return await self.open()

    async def write(self, topic: str, *data: Any) -> None:
        """Append, sync and ship. Returns when the bucket has it, or the role is over."""
        assert self.harness is not None
        self.harness.append(topic, *data)
        self.harness.shard.commits.sync_now()
        self.shipper.synced()
        with trio.fail_after(60):
            await self.shipper.caught_up()

    def contents(self) -> dict[str, Any]:
        assert self.harness is not None
        shard = self.harness.shard
        return {name: [r["data"] for r in self.harness.everything(name)] for name in sorted(shard.directory.visible)}


class Pair:
    """Machines that share a store and a clock."""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        self.store: MemoryStore = MemoryStore()
        self.time = Time()
        self.nursery = nursery
        self.directory = directory

    def machine(
        self,
        name: str,
        index: int = 0,
        replication: Replication = Replication.SYNC,
        ttl_ms: int = 0,
        encrypt: bool | None = None,
        rank: float | None = None,
    ) -> Machine:
        more = self.time, index, replication, ttl_ms, encrypt, rank
        return Machine(self.nursery, self.store, self.directory, name, *more)

    def kinds(self, names: ShardNames = NAMES) -> list[tuple[int, int]]:
        """Term and kind of each part."""
        found = sorted(name for name in self.store.objects if name.startswith(names.log))
        heads = [parts.header(self.store.objects[name], at) for at, name in enumerate(found, 1)]
        return [(each.term, each.kind) for each in heads]

    def kinds_there(self) -> list[tuple[int, int]]:
        """As `kinds`, of the parts that can be read."""
        found = []
        for name, data in sorted(self.store.objects.items()):
            try:
                head = parts.header(data, number_of(name) or 0)
            except parts.PartError:
                continue
            found.append((head.term, head.kind))
        return found

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(60):
            while not condition():  # noqa: ASYNC110 — worker threads make it true
                await trio.sleep(0.002)

    async def silence(self) -> None:
        """Let the time to live pass, with looks in between."""
        for _ in range(5):
            self.time.now += TIMING.time_to_live / 3
            calls = len(self.store.calls)
            await self.until(lambda calls=calls: len(self.store.calls) > calls + 3)  # type: ignore[misc]
