"""Membership: runs the roster of this machine. It makes the requests of `Roster` on the store, and tells what changed.

Calls to the store block, so each is made in a worker thread, and given up after a third of the time to live; a look,
which is several, after two thirds: where the store is slow, a machine that sees nothing shows itself no more. One that
was given up keeps its thread until it ends; a few of them leave no thread for others, and a write takes none of reads.
The numbers of the machines (`nodes`) are a task of their own. Nothing is written before the bucket holds this service.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import structlog
import trio
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from shardd.replication.attach import Mismatch, read_service
from shardd.replication.members import create_move, moves_from, publish, read_all, withdraw
from shardd.replication.nodes import Nodes
from shardd.replication.objects import Objects
from shardd.replication.outage import Outage
from shardd.replication.store import Absent, Store, StoreError
from shardd.roster.members import Member
from shardd.roster.moves import Move
from shardd.roster.roster import CreateMove, LookAround, Publish, Roster, RosterRequest, RosterState
from shardd.roster.view import Found, Held

TURN_S = 0.1
"""Seconds between two looks of the roster at the time."""
TERMS_S = 0.5
"""Seconds between two questions for the next terms of the shards that have no process here."""
MOVING_S = 0.1
"""The same, for those that are moved."""
READS = 8
"""Calls that read, at once."""
WITHDRAW_S = 3.0
_log: FilteringBoundLogger = structlog.get_logger()
A = TypeVar("A")


class Membership:
    """Of this machine, whose object has what is constant from `own`, in the service that began at `created_ms`.
    `heard` is called with all members, by machine, and with the numbers of all machines, when they were read first, and
    at each change of what is constant. `decided` is called when the roster may have decided something else."""

    def __init__(
        self,
        store: Store,
        own: Member,
        roster: Roster,
        created_ms: int,
        ttl_s: float,
        heard: Callable[[Mapping[str, Member], Mapping[str, int]], Awaitable[None]],
        decided: Callable[[], Awaitable[None]],
    ) -> None:
        self.roster = roster
        self._store = store
        self._own = own
        self._created_ms = created_ms
        self._patience_s = ttl_s / 3
        self._heard = heard
        self._decided = decided
        self._objects = [Objects(store, index) for index in range(len(roster.view.holders))]
        self._numbers: dict[str, int] = {}
        self._outage = Outage()
        self._reads, self._writes = trio.CapacityLimiter(READS), trio.CapacityLimiter(1)
        self._known: dict[str, Member] = {}
        self._told: list[Member] | None = None
        self._wake = trio.Event()

    @staticmethod
    def now() -> float:
        """Seconds of a clock that also runs while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def run(self) -> None:
        """Run the roster until cancelled, or until it is refused."""
        while not await self._try(self._is_ours, self._reads):  # noqa: ASYNC110 - the bucket has no event
            await trio.sleep(min(self._patience_s, 1.0))
        roster = self.roster
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._number)
            nursery.start_soon(self._watch_terms, TERMS_S, lambda index: index not in roster.runs)
            nursery.start_soon(self._watch_terms, MOVING_S, lambda index: index in roster.moving)
            while roster.state is not RosterState.REFUSED:
                request = roster.tick(self.now(), time.time())
                if request is not None:
                    nursery.start_soon(self._carry, request)
                await self._decided()
                with trio.move_on_after(TURN_S):
                    await self._wake.wait()
                self._wake = trio.Event()
            await self._decided()
            nursery.cancel_scope.cancel()

    def look_again(self) -> None:
        """The shards of this machine have reported something."""
        self._wake.set()

    def _is_ours(self) -> bool:
        try:
            return read_service(self._store).service == self._created_ms
        except (Absent, Mismatch):
            return False  # the first machine makes it; of a mismatch the shards tell, and do not start

    async def _carry(self, request: RosterRequest) -> None:
        found = None
        with trio.move_on_after(self._patience_s * (2 if isinstance(request, LookAround) else 1)):
            if isinstance(request, Publish):
                await self._try(partial(self._publish, request.member), self._writes)
            elif isinstance(request, CreateMove):
                await self._try(partial(create_move, self._store, request.move), self._writes)
            else:
                found = await self._look(getattr(request, "from_move", 0))
        self.roster.answered(request, found, self.now(), time.time())
        self._wake.set()

    def _publish(self, member: Member) -> None:
        """Write this machine's object. Other machines take its time to be after its last write, also if that one was
        given up: it is read when the thread of writes is free."""
        own = self._own
        at_ms = round(1000 * time.time())
        made = replace(member, at_ms=at_ms, address=own.address, key=own.key, endpoint=own.endpoint)
        publish(self._store, made)

    async def _look(self, from_move: int) -> Found | None:
        """The findings of a look; None if a part of them could not be read."""
        members: list[Mapping[str, Member] | None] = [None]
        moves: list[list[Move] | None] = [None]
        holders: list[Held | None] = [None] * len(self._objects)

        async def read(into: list[A | None], at: int, call: Callable[[], A]) -> None:
            into[at] = await self._try(call, self._reads)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, members, 0, partial(read_all, self._store, self._known))
            nursery.start_soon(read, moves, 0, partial(moves_from, self._store, from_move, len(holders)))
            for index in range(len(holders)):
                nursery.start_soon(read, holders, index, partial(self._held, index))
        if members[0] is not None:
            await self._tell(members[0])
        known: Sequence[Held] = [each for each in holders if each is not None]
        if members[0] is None or moves[0] is None or len(known) < len(holders):
            return None
        return Found(tuple(members[0].values()), known, moves[0])

    def _held(self, index: int) -> Held:
        objects = self._objects[index]
        term = objects.newest_term()
        if term is None:
            return Held()
        alive = None if index in self.roster.runs else objects.alive(term.term)
        return Held(term.term, term.member, alive, term.ttl_ms / 1000, term.shown, term.endpoint, term.key)

    async def _watch_terms(self, pause_s: float, watched: Callable[[int], bool]) -> None:
        """Look at once when another machine has taken one of the shards that are `watched`."""
        limiter = trio.CapacityLimiter(1)
        while True:
            for index, objects in enumerate(self._objects):
                if watched(index):
                    with trio.move_on_after(self._patience_s):
                        if await self._try(objects.has_later_term, limiter):
                            self.roster.look_again()
                            self._wake.set()
            await trio.sleep(pause_s)

    async def _tell(self, members: Mapping[str, Member]) -> None:
        self._known = dict(members)
        lasting = [Member(m.machine, m.nonce, m.address, m.key, m.endpoint) for m in members.values()]
        if lasting != self._told:
            _log.info("members", machines=[each.address for each in lasting])
            with trio.CancelScope(shield=True):  # of the end of a look: they would count as reported
                await self._heard(self._known, self._numbers)
            self._told = lasting

    async def _number(self) -> None:
        """Give this machine a number, and read those of the others whenever one is lacking."""
        nodes, limiter = Nodes(self._store), trio.CapacityLimiter(1)
        while True:
            if self._known.keys() - self._numbers.keys():
                found = await self._try(partial(nodes.number, self._own.machine), limiter)
                if found is not None and self._numbers != (numbers := nodes.numbers()):
                    self._numbers = numbers
                    await self._heard(self._known, numbers)
            await trio.sleep(self._patience_s)

    async def withdraw(self) -> None:
        """Remove this machine's member: its keys are allowed no more. Gives up after `WITHDRAW_S`."""
        with trio.move_on_after(WITHDRAW_S):
            await self._try(lambda: withdraw(self._store, self._own), self._writes)

    async def _try(self, call: Callable[[], A], limiter: trio.CapacityLimiter) -> A | None:
        """What a call returns; None if the store failed it."""
        try:
            answer: A = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
        except StoreError as error:
            self._outage.failed(error)
            return None
        self._outage.answered()
        return answer
