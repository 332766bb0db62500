"""The byte budget: how many bytes this process may hold for clients at once, shared fairly by keys.

The budget counts request bodies, from before their first byte is read until they are answered. It counts responses,
from before the shard is asked until they are sent, and bytes queued for streams. Heads above 8 KiB count too. An
*owner* is a key and one of these kinds, so unread responses never keep request bodies from coming in.

`admits` decides. An owner may take twice what it would leave free: two thirds of the total while it is alone, two
fifths each with two owners, and so on towards equal shares. So an owner that holds nothing always finds room, however
long the others hold theirs. An owner that holds nothing may take all that is free.

A request that is not admitted waits, and its client is not read from. Owners that hold least are admitted first. Once a
request has waited for a quarter of the patience, no other passes it. At the end of the patience it is refused with
`429 throttled`.

A body of unknown length grows as it arrives, so bodies that each hold a part may all wait for the rest:

1. The first of them continues beyond the total, one body at a time.
2. It ends and returns its bytes.
3. The next one continues.

Bytes return when a `Hold` is released, at the latest when nothing refers to it any more.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import trio

from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key
from proto.model.memory_shares import DEFAULT_BYTES, gateway_share
from proto.process.driven import in_task

FREE_BYTES = 4 << 10
"""Bodies and responses up to this size are not counted; the limit on connections bounds them."""
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


@dataclass(slots=True, eq=False)
class _Waiter:
    hold: Hold
    size: int
    since: float
    event: trio.Event = field(default_factory=trio.Event)


class Hold:
    """The bytes that one request, message or batch of records holds; `size` is the number that the budget counts."""

    __slots__ = ("_budget", "owner", "size")

    def __init__(self, budget: Budget, owner: Owner) -> None:
        self._budget = budget
        self.owner = owner
        self.size = 0

    async def grow(self, size: int) -> None:
        """Wait until the hold may be `size` bytes. Returns at once if it is that large. Raises `429 throttled`."""
        size = self._budget.counted(size)
        if size > self.size and not self.take(size):
            await self._budget.wait(self, size - self.size)

    def take(self, size: int) -> bool:
        """Grow to `size` bytes if the budget allows it now; return whether it did. Never waits."""
        size = self._budget.counted(size)
        if size > self.size:
            if not self._budget.free_for(self.owner, size - self.size):
                return False
            self._budget.book(self, size - self.size)
        return True

    def set(self, size: int) -> None:
        """Set the size to bytes that already exist. Never waits; an excess makes other requests wait."""
        size = self._budget.counted(size)
        if size != self.size:
            self._budget.book(self, size - self.size)

    def release(self) -> None:
        """Return the bytes to the budget. A second call does nothing."""
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
        """The hold that may grow beyond the total."""
        self._admitting = False
        self._thread = threading.get_ident()
        self._returned: deque[tuple[Owner, int]] = deque()

    def dropped(self, hold: Hold) -> None:
        """Take back the bytes of a collected hold. If the garbage collector ran in another thread, the bytes are queued
        and counted at the next request."""
        if threading.get_ident() == self._thread:
            self.book(hold, -hold.size)
        else:
            self._returned.append((hold.owner, hold.size))

    def hold(self, kind: Kind, key: Key | None = None) -> Hold:
        return Hold(self, owner(kind, key))

    def counted(self, size: int) -> int:
        """The bytes to count for `size`, at most an owner's largest share. So a larger request is served too, when its
        owner holds nothing else."""
        return min(size, self.total * TIMES_THE_REST // (TIMES_THE_REST + 1))

    @property
    def waiting(self) -> int:
        """How many requests wait for bytes."""
        return sum(map(len, self._queues.values()))

    def free_for(self, owner: Owner, size: int) -> bool:
        while self._returned:
            whose, returned = self._returned.popleft()
            self._count(whose, -returned)
        if self._queues and (owner in self._queues or self._overdue(trio.current_time())):
            return False
        return admits(self.total, self.used, self._held.get(owner, 0), size)

    def book(self, hold: Hold, size: int) -> None:
        """Count `size` more bytes for a hold, or fewer if it is negative."""
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
        """Wait until the budget has given `hold` `size` more bytes. Raises `429 throttled` after the patience."""
        await in_task()
        waiter = _Waiter(hold, size, trio.current_time())
        self._queues.setdefault(hold.owner, deque()).append(waiter)
        self._admit()
        try:
            with trio.move_on_after(self._patience_s):
                await waiter.event.wait()
        finally:
            if not waiter.event.is_set():
                self._withdraw(waiter)
                self._admit()
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

    def _overdue(self, now: float) -> bool:
        return any(queue[0].since + self._patience_s / 4 <= now for queue in self._queues.values())

    def _admit(self) -> None:
        if self._admitting:
            return  # called from within, by `book` of an admitted waiter
        self._admitting = True
        try:
            while (waiter := self._next()) is not None:
                self._withdraw(waiter)
                self.book(waiter.hold, waiter.size)
                waiter.event.set()
        finally:
            self._admitting = False

    def _next(self) -> _Waiter | None:
        """Return the waiter to admit next, or None."""
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
        return 0.0  # released by an object that outlived trio's loop
