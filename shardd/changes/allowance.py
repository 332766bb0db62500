"""The allowance: the topics and bytes that this shard may hold under the caps over all shards.

The shard has a *limit*, and everything that grows is compared with it: writes of clients, new topics, copies of
routers, dead letters. The comparison is with numbers of the shard alone. The treasurer, in another shard, sets the
limit by orders (`shardd.changes.treasurer` has the messages and the rules).

    state     the limit is                            what does not fit
    FREE      none: a tool, or a test                 fits
    ALONE     the caps: the service has one shard     is refused
    DIVIDED   what the treasurer says. Before its     waits: the shard asks the treasurer, and the next orders decide
              first order the shard may not grow

A request that does not fit waits here as a `Waiter`. Nothing of it is staged, and its asker gets no `Parked`, so its
bytes stay in the asker's window. It ends in one of four ways:

    it fits              the limit was raised, or the shard holds less: it is carried out, from its beginning
    it is refused        an order says that nothing more is free (`429`)
    it waits too long    `PATIENCE_S`, before the first order `FIRST_PATIENCE_S`, or until its deadline: it is not known
                         what is free (`503`)
    it is not served     its topic is set apart, or its shard moves to another machine (`503`)

A refusal has to be certain. While changes are staged, a topic may come to hold less than was promised for it
(`shardd.topic.promises`). So a request that would fit beside what readers see already waits for the staged changes, and
is looked at again every `LOOK_S`. It is refused when its time is over.

Copies of routers do not wait here, but in their source: their lanes say what they want (`want`), and `changed` wakes
them when there is more room.

If the process dies, requests that wait are not carried out, and the limit is forgotten. The next process may hold what
its files have, and no more until the treasurer's first order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf

import trio

from proto.ipc.message import Reply, Request
from proto.ipc.operations import Mark, Room, RoomOrder, RoomReport, RoomWant
from proto.model.errors import TopicsError, invalid, not_ready
from proto.model.limits import Limits
from shardd.changes.admission import too_many_topics
from shardd.changes.containment import Respond
from shardd.changes.holdings import Holdings
from shardd.changes.treasurer import NO_CAP
from shardd.storage.indivisible import indivisible
from shardd.topic.topic import Topic

PATIENCE_S = 2.0
"""How long a request waits for room at most."""
FIRST_PATIENCE_S = 5.0
"""The same before the first order: the treasurer may have to find this process, on another machine than before."""
WANTED_S = 6.0
"""How long a lane's want lasts. Lanes that wait look again sooner, and want again."""
LOOK_S = 0.01
NEVER: Mark = (0, 0, 0, 0)


class AllowanceState(Enum):
    FREE = "free"
    ALONE = "alone"
    DIVIDED = "divided"


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for room."""

    topic: str
    topics: int
    bytes: int
    """The most that it adds."""
    sure_bytes: int
    """The least that it adds."""
    until_s: float
    go: Callable[[], None]
    """Carries the request out. It may wait again, as another waiter."""
    refuse: Callable[[TopicsError], None]
    too_many_bytes: TopicsError
    full: bool = False
    """An order, or the cap itself, says that nothing is free; but staged changes may make room."""


class Allowance:
    def __init__(self, limits: Limits, held: Holdings) -> None:
        self._limits = limits
        self._held = held
        self._caps = Room(limits.max_topics or NO_CAP, limits.max_total_bytes or NO_CAP)
        self.state = AllowanceState.FREE
        self.divides = 0
        """Number of shards whose wants are taken here. The room tasks set it where the treasurer is."""
        self.wants: list[RoomWant] = []
        """Wants for the treasurer, which the room tasks take in at once."""
        self.wanting = trio.Event()
        """Set when there are wants, or other news for the treasurer."""
        self.report = RoomReport(NEVER, Room(NO_CAP, NO_CAP))
        """The last order that was obeyed, and the limit."""
        self._waiting: dict[Waiter, None] = {}
        """In the order in which they came."""
        self._again_until_s: float | None = None
        """While a request is carried out again: until when it may wait."""
        self._full = (False, False)
        """While an order is obeyed: whether no more topics, and no more bytes, are free."""
        self._wanted = 0
        """Bytes that a lane wants."""
        self._wanted_until_s = 0.0
        self._left = 0
        """Bytes that were left when the lane wanted them."""
        self.changed = trio.Event()
        """Set and replaced when there is more room than before."""
        self.news = trio.Event()
        """Set when there is something new to ask for. The task that waits for it replaces it."""

    def bind(self, *, alone: bool) -> None:
        """Applies the caps from now on. `alone`: there is no other shard."""
        self.state = AllowanceState.ALONE if alone else AllowanceState.DIVIDED
        self.report = RoomReport(NEVER, self._caps if alone else self._at_most_caps(Room(0, 0)))

    # What grows

    def fits(self, topics: int, size: int) -> bool:
        """Whether the shard may hold so many topics and bytes more."""
        if self.state is AllowanceState.FREE:
            return True
        limit, held = self.limit, self._held.staged
        return (not topics or held.topics + topics <= limit.topics) and (not size or held.bytes + size <= limit.bytes)

    def wait(self, waiter: Waiter) -> None:
        """Keeps a request that does not fit, or refuses it."""
        if self._again_until_s is not None:
            waiter.until_s = self._again_until_s
        if self._sure(waiter, (True, True) if self.state is AllowanceState.ALONE else self._full):
            waiter.refuse(self._refusal(waiter))
            return
        self.news.set()
        self._waiting[waiter] = None

    @property
    def limit(self) -> Room:
        return self.report.limit

    @property
    def patience_s(self) -> float:
        """How long a request that begins to wait now waits for room at most, in seconds."""
        return FIRST_PATIENCE_S if self.report.at == NEVER else PATIENCE_S

    def refuse(self, topic: Topic | None, error: TopicsError) -> None:
        """Refuses the requests of a topic that wait. None: of all topics, also of those that do not exist yet."""
        for each in [each for each in self._waiting if topic is None or each.topic == topic.name]:
            del self._waiting[each]
            each.refuse(error)

    def want(self, size: int, now: float) -> None:
        """Asks for room for `size` bytes. `changed` says when to look again."""
        self._wanted, self._wanted_until_s = max(self._wanted, size), now + WANTED_S
        self._left = self._bytes_left
        self.news.set()

    @property
    def _bytes_left(self) -> int:
        return self.limit.bytes - self._held.staged.bytes

    # The treasurer's side

    def wish(self) -> Room | None:
        """What the limit lacks; None if nothing."""
        if self.state is not AllowanceState.DIVIDED or not self.unsettled:
            return None
        held, limit = self._held.staged, self.limit
        topics = held.topics + sum(each.topics for each in self._waiting) - limit.topics
        size = held.bytes + sum(each.bytes for each in self._waiting) + self._wanted - limit.bytes
        wish = Room(min(max(topics, 0), self._caps.topics), min(max(size, 0), self._caps.bytes))
        return wish if wish != (0, 0) else None

    def wanted(self, request: Request[RoomWant], respond: Respond) -> None:
        """Passes a shard's want to the treasurer. Raises `503` if it is not here."""
        want = request.options
        if not self.divides:
            raise not_ready("this shard does not divide the caps", outcome="not_done")
        if not 0 <= want.shard < self.divides:
            raise invalid(f"there is no shard {want.shard}", field="shard")
        with indivisible:
            self.wants.append(want)
            self.wanting.set()
            respond(Reply(request.id))

    def order(self, request: Request[RoomOrder], respond: Respond) -> None:
        respond(Reply(request.id, extra=self.obey(request.options)))

    def obey(self, order: RoomOrder) -> RoomReport:
        """Takes the limit that an order sets, and carries out or refuses what waits. Returns the report."""
        if self.newer(order.at):
            before, limit = self.limit, self._limit_by(order)
            self.report = RoomReport(order.at, limit)
            if limit.topics > before.topics or limit.bytes > before.bytes:
                self._wanted = 0  # lanes look again, and want what they lack then
                self._wake()
            self._serve(order.full)
            if any(not each.full for each in self._waiting):
                self.news.set()
        return self.report

    def newer(self, at: Mark) -> bool:
        """Whether an order is to be obeyed (rule 1)."""
        return at > self.report.at

    def _limit_by(self, order: RoomOrder) -> Room:
        if order.limit is not None:
            return order.limit
        if self.report.at == NEVER:
            return self._at_most_caps(self._held.lasting)
        if not order.give_back:
            return self.limit
        held, lasting = self._held.staged, self._held.lasting
        # What is copied again after a start may be above the limit, and counts.
        kept = Room(
            max(min(self.limit.topics, lasting.topics), held.topics),
            max(min(self.limit.bytes, lasting.bytes), held.bytes),
        )
        return self._at_most_caps(kept)

    def _at_most_caps(self, held: Room) -> Room:
        """The limit where there is no cap is none."""
        return Room(
            held.topics if self._limits.max_topics else NO_CAP, held.bytes if self._limits.max_total_bytes else NO_CAP
        )

    # What waits

    @property
    def unsettled(self) -> bool:
        """Whether anything waits for room."""
        return bool(self._waiting) or self._wanted > 0

    @property
    def unsure(self) -> bool:
        """Whether a request waits only because changes are staged."""
        return any(each.full for each in self._waiting)

    def pause_s(self, now: float) -> float:
        """When to look again at what waits, in seconds."""
        if self.unsure:
            return LOOK_S
        return max(min((each.until_s for each in self._waiting), default=inf) - now, 0)

    def tick(self, now: float) -> None:
        """Looks at what waits: it may fit by now, or its time may be over. Called now and then while `unsettled`. What
        it stages has to be flushed."""
        if self._wanted and self._bytes_left > self._left:
            self._left = self._bytes_left
            self._wake()
        if self._wanted and (now >= self._wanted_until_s or self.fits(0, self._wanted)):
            self._wanted = 0
        for each in list(self._waiting):
            if now >= each.until_s:
                del self._waiting[each]
                each.refuse(self._refusal(each) if each.full else _unknown())
            elif each.full or self.fits(each.topics, each.bytes):
                self._go(each)

    def _serve(self, full: tuple[bool, bool]) -> None:
        """Begins again with what fits after an order, and with what lacks more of what is used up: it may need less by
        now, and is refused otherwise."""
        self._full = full
        try:
            for each in list(self._waiting):
                if self.fits(each.topics, each.bytes) or any(self._lacks(each, full)):
                    self._go(each)
        finally:
            self._full = (False, False)

    def _go(self, waiter: Waiter) -> None:
        del self._waiting[waiter]
        self._again_until_s = waiter.until_s
        try:
            waiter.go()
        finally:
            self._again_until_s = None

    def _lacks(self, waiter: Waiter, full: tuple[bool, bool]) -> tuple[bool, bool]:
        """Whether a request lacks topics, and bytes, that are used up."""
        limit, held = self.limit, self._held.staged
        return (
            full[0] and waiter.topics > 0 and held.topics + waiter.topics > limit.topics,
            full[1] and waiter.bytes > 0 and held.bytes + waiter.bytes > limit.bytes,
        )

    def _sure(self, waiter: Waiter, full: tuple[bool, bool]) -> bool:
        """Whether to refuse a request for which there is no room: it lacks what is used up, and no staged change makes
        room for it."""
        topics, size = self._lacks(waiter, full)
        limit, visible = self.limit, self._held.visible
        waiter.full = topics or size
        return (topics and visible.topics + waiter.topics > limit.topics) or (
            size and visible.bytes + waiter.sure_bytes > limit.bytes
        )

    def _refusal(self, waiter: Waiter) -> TopicsError:
        if waiter.topics and self._held.staged.topics + waiter.topics > self.limit.topics:
            return too_many_topics(self._limits)
        return waiter.too_many_bytes

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


def _unknown() -> TopicsError:
    return not_ready("it is not known yet what all shards hold together; retry shortly", outcome="not_done")
