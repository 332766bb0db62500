"""The harness: a shard without processes. Requests go in, replies come out; the test owns the disk and the clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from proto.ipc.figures import ClockFigures
from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import Operation, Room, RoomReport
from proto.model.limits import Limits
from shardd.changes.allowance import NEVER
from shardd.changes.treasurer import NO_CAP
from shardd.shard import opened_shard
from shardd.storage.disk import Disk
from shardd.storage.indivisible import indivisible
from tests.support.asked import operation, said
from tests.support.fault_disk import FaultDisk

SHARD = Path("/data/shard-00")


class FakeClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms
        self.elapsed = 0.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.elapsed

    def on_jump(self, jumped: Callable[[int], None]) -> None:
        self.jumped = jumped

    def statistics(self) -> ClockFigures:
        return ClockFigures()

    def advance(self, ms: int) -> None:
        self.ms += ms
        self.elapsed += ms / 1000


@cache
def _limits(**limits: Any) -> Limits:
    """Return limits, made once for equal values. They never change, and making them takes longer than many tests."""
    return Limits(**limits)


class Harness:
    def __init__(
        self, disk: Disk | None = None, clock: FakeClock | None = None, path: Path = SHARD, **limits: Any
    ) -> None:
        self.disk = disk if disk is not None else FaultDisk()
        self.clock = clock or FakeClock()
        self.path = path
        self.limits = _limits(**limits)
        indivisible.broken = False  # a shard opens in a process of its own
        self.shard = opened_shard(self.disk, self.clock, path, self.limits)
        self._ids = count(1)
        self.replies: dict[int, Message] = {}
        self.displaced = False
        """Used by `tests.support.routed`."""

    def send(self, op: str | Operation[Any], topic: str = "", body: Any = b"", **options: Any) -> int:
        """Submit a request without writing or syncing anything yet. Returns its id."""
        ident = next(self._ids)
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)

        def respond(message: Message) -> None:
            assert not isinstance(self.replies.get(ident), Reply), "answered twice"
            self.replies[ident] = message

        self.shard.handle(
            Request(ident, operation(op, options) if isinstance(op, str) else op, topic, raw), "peer", respond
        )
        return ident

    def reply(self, op: str | Operation[Any], topic: str = "", body: Any = b"", **options: Any) -> Reply:
        ident = self.send(op, topic, body, **options)
        self.shard.flush()
        if ident not in self.replies:
            self.shard.commits.sync_now()
        for _ in range(9):
            if ident not in self.replies:
                self.settle()
        message = self.replies[ident]
        assert isinstance(message, Reply)
        return message

    def settle(self) -> None:
        """Write and sync what is staged, and look at what waits for room."""
        self.shard.commits.sync_now()
        self.shard.allowance.tick(self.shard.monotonic())
        self.shard.flush()
        self.shard.commits.sync_now()

    def hold(self, topics: int = NO_CAP, size: int = NO_CAP) -> None:
        """Have the shard hold so much at most, as if those were the caps. Give the harness `max_total_bytes` for a cap
        on bytes."""
        self.shard.allowance.bind(alone=True)
        self.shard.allowance.report = RoomReport(NEVER, Room(topics, size))

    def call(self, op: str, topic: str = "", body: Any = b"", **options: Any) -> Any:
        """Return the decoded reply. Raises the `TopicsError` of a refusal."""
        reply = self.reply(op, topic, body, **options)
        if reply.error is not None:
            raise reply.error
        return msgspec.json.decode(reply.body) if reply.body else said(reply.extra)

    def parked(self, ident: int) -> bool:
        return isinstance(self.replies.get(ident), Parked)

    def append(self, topic: str, *data: Any, **fields: Any) -> Any:
        return self.call("append", topic, {"records": [{"data": d} for d in data], **fields})

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> Any:
        return self.call("diff", topic, {"from_seq": from_seq, **fields})

    def everything(self, topic: str) -> list[dict[str, Any]]:
        """Return all records, read by as many diffs as needed."""
        records: list[dict[str, Any]] = []
        cursor = 0
        while True:
            answer = self.diff(topic, cursor, limit=1000, include_tags=True)
            records += answer["records"]
            cursor = answer["next_from_seq"]
            if answer["caught_up"]:
                return records

    def restarted(self, disk: Disk | None = None, **limits: Any) -> Harness:
        """Return a new process on the same disk, or on the disk that a crash left, at the same time."""
        return Harness(disk or self.disk, self.clock, self.path, **(limits or msgspec.structs.asdict(self.limits)))
