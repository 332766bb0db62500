"""Membership: keeps this machine's member in the bucket, and reads those of the others.

Writing, reading, and the numbers of the machines (`nodes`) are tasks of their own: what takes long delays no news of
the others. Calls to the store block, so each is made in a worker thread, one at a time of each kind. Nothing is written
before the bucket holds this service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from shardd.replication.attach import Mismatch, read_service
from shardd.replication.members import Member, publish, read_all, withdraw
from shardd.replication.nodes import Nodes
from shardd.replication.outage import Outage
from shardd.replication.role import in_thread
from shardd.replication.store import Store, StoreError

TIMES = 3
"""A member is written, and the members are read, so often in the time to live of a term."""
WITHDRAW_S = 3.0
_log: FilteringBoundLogger = structlog.get_logger()
A = TypeVar("A")


class Membership:
    """Of machine `own` in the service that began at `created_ms`. `heard` is called with all members, by machine, and
    with the numbers of all machines, when they were read first, and at each change besides that of clocks."""

    def __init__(
        self,
        store: Store,
        own: Member,
        created_ms: int,
        ttl_s: float,
        now_ms: Callable[[], int],
        heard: Callable[[Mapping[str, Member], Mapping[str, int]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._own = own
        self._created_ms = created_ms
        self._pause_s = ttl_s / TIMES
        self._now_ms = now_ms
        self._heard = heard
        self._known: dict[str, Member] = {}
        self._numbers: dict[str, int] = {}
        self._outage = Outage()

    async def run(self) -> None:
        """Write and read until cancelled."""
        while not await self._try(self._is_ours):  # noqa: ASYNC110 - the bucket has no event
            await trio.sleep(self._pause_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._read)
            nursery.start_soon(self._number)

    def _is_ours(self) -> bool:
        try:
            return read_service(self._store).service == self._created_ms
        except Mismatch:
            return False  # the shards say so, and do not start

    async def _write(self) -> None:
        while True:
            await self._try(lambda: publish(self._store, self._member()))
            await trio.sleep(self._pause_s)

    def _member(self) -> Member:
        return msgspec.structs.replace(self._own, at_ms=self._now_ms())

    async def _read(self) -> None:
        told: list[Member] | None = None
        while True:
            found = await self._try(partial(read_all, self._store, self._known))
            if found is not None:
                self._known = found
                lasting = [msgspec.structs.replace(each, at_ms=0) for each in found.values()]
                if lasting != told:
                    told = lasting
                    _log.info("members", machines=[each.address for each in told])
                    await self._heard(found, self._numbers)
            await trio.sleep(self._pause_s)

    async def _number(self) -> None:
        """Give this machine a number, and read those of the others whenever one is lacking."""
        nodes = Nodes(self._store)
        while True:
            if self._known.keys() - self._numbers.keys():
                found = await self._try(partial(nodes.number, self._own.machine))
                if found is not None and self._numbers != (numbers := nodes.numbers()):
                    self._numbers = numbers
                    await self._heard(self._known, numbers)
            await trio.sleep(self._pause_s)

    async def withdraw(self) -> None:
        """Remove this machine's member: its keys are allowed no more. Gives up after `WITHDRAW_S`."""
        with trio.move_on_after(WITHDRAW_S):
            await self._try(lambda: withdraw(self._store, self._own))

    async def _try(self, call: Callable[[], A]) -> A | None:
        """What a call returns; None if the store failed it."""
        try:
            answer: A = await in_thread(call)
        except StoreError as error:
            self._outage.failed(error)
            return None
        self._outage.answered()
        return answer
