"""Reading ahead: which parts are fetched, and where the log ended when one was absent."""

from __future__ import annotations

import math

import trio

from shardd.replication.names import ShardNames
from shardd.replication.objects import Objects
from shardd.replication.read_ahead import MOST, ReadAhead
from shardd.replication.store import StoreError, Unreachable
from tests.support.bucket import MemoryStore

NAMES = ShardNames(0)


class Log:
    """A log of `parts` parts, and a clock that counts the looks at it."""

    def __init__(self, parts: int) -> None:
        self.store = MemoryStore()
        self.store.objects = {NAMES.part(number): b"part" for number in range(1, parts + 1)}
        self.now = 0.0
        self.ahead = ReadAhead(Objects(self.store, 0), lambda: self.now)

    async def behind(self, number: int) -> None:
        async with trio.open_nursery() as nursery:
            self.ahead.behind(number, nursery)

    def asked(self, number: int) -> int:
        return self.store.calls.count(("get", NAMES.part(number)))


async def test_a_part_that_was_absent_tells_when_the_log_ended_before_it() -> None:
    log = Log(parts=3)
    log.now = 7.0
    await log.behind(1)
    log.now = 8.0
    await log.ahead.fetched(2)
    assert log.ahead.end_read_at == -math.inf
    await log.ahead.fetched(3)
    assert log.ahead.end_read_at == -math.inf
    await log.ahead.fetched(4)
    assert log.ahead.end_read_at == 7.0
    await log.ahead.fetched(5)
    assert log.ahead.end_read_at == 7.0


async def test_what_was_absent_is_asked_for_again_and_what_was_found_is_not() -> None:
    log = Log(parts=2)
    await log.behind(1)
    log.now = 1.0
    await log.behind(1)
    assert [log.asked(number) for number in range(2, 3 + MOST)] == [1, 2, 2, 2, 0]
    await log.ahead.fetched(3)
    assert log.ahead.end_read_at == 1.0


async def test_a_store_that_does_not_answer_tells_nothing() -> None:
    def fault(operation: str, name: str) -> StoreError | None:
        return Unreachable("no connection")

    log = Log(parts=0)
    log.store.fault = fault
    await log.behind(1)
    await log.ahead.fetched(1 + MOST)
    assert log.ahead.end_read_at == -math.inf
