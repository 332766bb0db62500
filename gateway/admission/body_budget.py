"""How many bytes this process may hold for clients at once: one number, shared fairly by keys.

Counted are request bodies, from before their first byte is read until they are answered; answers, from before the shard
is asked until they are sent; and what waits for streams. Each belongs to an *owner*, a key and one of these three
kinds, so that answers that are not read never keep bodies from coming in.

`admits` decides. An owner may take twice what it would leave free: two thirds of all while it is alone, two fifths each
while there are two, and so on towards equal shares. So there is always room for an owner that has nothing yet, however
long the others take. One that has nothing may take whatever is free.

What is not admitted waits, which means that its client is not read from: first those that hold least, and when one has
waited for a quarter of the patience, none passes it. At the end of the patience it is refused with `429 throttled`.

A body of unknown length grows as it comes, so bodies that each hold a part may all wait for the rest. The first of them
then goes on beyond the total, one at a time, and ends.

Bytes come back when a `Hold` is released, and at the latest when nothing refers to it any more.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum

import trio

from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key
from proto.model.memory_shares import DEFAULT_BYTES, gateway_share

FREE_BYTES = 4 << 10
"""Bodies and answers up to this are not counted; the number of connections bounds them."""
TIMES_THE_REST = 2
RETRY_AFTER_MS = 1000


class Kind(Enum):
    HEAD = "heads"
    BODY = "request bodies"
    ANSWER = "answers"
    STREAM = "streams"


Owner = tuple[Kind, bytes]


def owner(kind: Kind, key: Key | None) -> Owner:
    return kind, b"" if key is None else key.digest


def admits(total: int, used: int, mine: int, size: int) -> bool:
    """Whether an owner that holds `mine` of the `used` bytes may take `size` more of `total` now."""
    left = total - used - size
    return left >= 0 and (not mine or mine + size <= TIMES_THE_REST * left)


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    total: int
    used: int
    waiting: int
    by_kind: dict[str, int]


class _Waiter:
    __slots__ = ("event", "hold", "since", "size")

    def __init__(self, hold: Hold, size: int, since: float) -> None:
        self.hold = hold
        self.size = size
        self.since = since
        self.event = trio.Event()


class Hold:
    """What one request, message or batch of records holds; `size` is what is counted for it."""

    __slots__ = ("_budget", "owner", "size")

    def __init__(self, budget: Budget, owner: Owner) -> None:
        self._budget = budget
        self.owner = owner
        self.size = 0

    async def grow(self, size: int) -> None:
        """Wait until it may be `size` bytes; at once if it is already. Raises `429 throttled`."""
        size = self._budget.counted(size)
        if size > self.size and not self.take(size):
            await self._budget.wait(self, size - self.size)

    def take(self, size: int) -> bool:
        """Be `size` bytes if that is allowed now."""
        size = self._budget.counted(size)
        if size > self.size:
            if not self._budget.free_for(self.owner, size - self.size):
                return False
            self._budget.book(self, size - self.size)
        return True

    def set(self, size: int) -> None:
        """Be `size` bytes, for that is what there is. More than was allowed makes others wait."""
        size = self._budget.counted(size)
        if size != self.size:
            self._budget.book(self, size - self.size)

    def release(self) -> None:
        """Harmless a second time."""
        if self.size:
            self._budget.book(self, -self.size)

    def __del__(self) -> None:
        if self.size:
            self._budget.dropped(self)


class Budget:
    def __init__(self, total: int = gateway_share(DEFAULT_BYTES), patience_ms: int = 30_000) -> None:
        self.total = total
        self.used = 0
        self._patience_s = patience_ms / 1000
        self._held: dict[Owner, int] = {}
        self._queues: dict[Owner, deque[_Waiter]] = {}
        self._over: Hold | None = None
        """Goes on beyond the total."""
        self._admitting = False
        self._thread = threading.get_ident()
        self._returned: deque[tuple[Owner, int]] = deque()

    def dropped(self, hold: Hold) -> None:
        """The last that is heard of a hold. If the garbage collector ran in another thread, we hear of it later."""
        if threading.get_ident() == self._thread:
            self.book(hold, -hold.size)
        else:
            self._returned.append((hold.owner, hold.size))

    def hold(self, kind: Kind, key: Key | None = None) -> Hold:
        return Hold(self, owner(kind, key))

    def counted(self, size: int) -> int:
        """One larger than an owner's largest share is served too, with no other of its kind beside it."""
        return min(size, self.total * TIMES_THE_REST // (TIMES_THE_REST + 1))

    def statistics(self) -> BudgetStatistics:
        kinds = {kind.name.lower(): 0 for kind in Kind}
        for (kind, _), size in self._held.items():
            kinds[kind.name.lower()] += size
        return BudgetStatistics(self.total, self.used, sum(map(len, self._queues.values())), kinds)

    def free_for(self, owner: Owner, size: int) -> bool:
        while self._returned:
            whose, returned = self._returned.popleft()
            self._count(whose, -returned)
        if self._queues and (owner in self._queues or self._overdue(trio.current_time())):
            return False
        return admits(self.total, self.used, self._held.get(owner, 0), size)

    def book(self, hold: Hold, size: int) -> None:
        """Count `size` more for a hold, or less if it is negative."""
        hold.size += size
        self._count(hold.owner, size)
        if size > 0:
            return
        if self._over is hold and not hold.size:
            self._over = None
        if self._queues:
            self._admit()

    def _count(self, whose: Owner, size: int) -> None:
        self.used += size
        held = self._held.get(whose, 0) + size
        if held:
            self._held[whose] = held
        else:
            self._held.pop(whose, None)

    async def wait(self, hold: Hold, size: int) -> None:
        """Until `hold` was given `size` more bytes. Raises `429 throttled`."""
        waiter = _Waiter(hold, size, trio.current_time())
        self._queues.setdefault(hold.owner, deque()).append(waiter)
        self._admit()
        try:
            with trio.move_on_after(self._patience_s):
                await waiter.event.wait()
        finally:
            if not waiter.event.is_set():
                self._withdraw(waiter)
        if not waiter.event.is_set():
            raise TopicsError(
                ErrorCode.THROTTLED,
                f"too many bytes of {hold.owner[0].value} are in flight; send and ask for less at once, and read what "
                "is sent",
                {"limit": "memory_bytes", "retry_after_ms": RETRY_AFTER_MS},
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _withdraw(self, waiter: _Waiter) -> None:
        queue = self._queues[waiter.hold.owner]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.hold.owner]
        self._admit()

    def _overdue(self, now: float) -> bool:
        return any(queue[0].since + self._patience_s / 4 <= now for queue in self._queues.values())

    def _admit(self) -> None:
        if self._admitting:
            return  # from within: booking what is admitted
        self._admitting = True
        try:
            while (waiter := self._next()) is not None:
                queue = self._queues[waiter.hold.owner]
                queue.remove(waiter)
                if not queue:
                    del self._queues[waiter.hold.owner]
                self.book(waiter.hold, waiter.size)
                waiter.event.set()
        finally:
            self._admitting = False

    def _next(self) -> _Waiter | None:
        """Whose turn it is, if it is anybody's."""
        if not self._queues:
            return None
        overdue_from = _now() - self._patience_s / 4
        for whose in sorted(self._queues, key=lambda each: self._held.get(each, 0)):
            waiter = self._queues[whose][0]
            if admits(self.total, self.used, self._held.get(whose, 0), waiter.size):
                return waiter
            if waiter.since <= overdue_from:
                break
        growing = [waiter for queue in self._queues.values() for waiter in queue if waiter.hold.size]
        if self._over is not None:
            return next((waiter for waiter in growing if waiter.hold is self._over), None)
        first = min(growing, key=lambda waiter: waiter.since, default=None)
        if first is not None:
            self._over = first.hold
        return first


def _now() -> float:
    try:
        return trio.current_time()
    except RuntimeError:
        return 0.0  # given back by an object that outlived the loop
