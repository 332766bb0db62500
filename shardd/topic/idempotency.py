"""Idempotency keys of one topic: which write each key belongs to.

    unknown ──write staged──► pending ──committed──► done ──window over──► unknown
                                 └──────undone───────────────────────────► unknown

A second write with a pending key waits for the outcome of the first write and shares it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from proto.model.errors import TopicsError

Waiter = Callable[[TopicsError | None], None]
"""Called with None when the write it waits for has committed, or with the error if it was undone."""


class Keys:
    """Keys of one topic. Done keys are in commit order, which is the order in which they expire."""

    __slots__ = ("_done", "_pending")

    def __init__(self) -> None:
        self._done: dict[bytes, tuple[int, int, int]] = {}
        self._pending: dict[bytes, list[Waiter]] = {}

    def __bool__(self) -> bool:
        return bool(self._done)

    def find(self, key: bytes) -> tuple[int, int] | None:
        """First seq and number of records of the committed write with this key; None if there is none."""
        done = self._done.get(key)
        return None if done is None else done[:2]

    def wait(self, key: bytes, waiter: Waiter) -> bool:
        """Wait for the pending write with this key. Returns False if there is none."""
        waiters = self._pending.get(key)
        if waiters is None:
            return False
        waiters.append(waiter)
        return True

    def begin(self, key: bytes) -> None:
        self._pending[key] = []

    def done(self, key: bytes, first_seq: int, count: int, ts_ms: int) -> list[Waiter]:
        """The write has committed, or was found in the log. Returns the waiters of its key."""
        self._done.pop(key, None)
        self._done[key] = (first_seq, count, ts_ms)
        return self._pending.pop(key, [])

    def failed(self, key: bytes) -> list[Waiter]:
        return self._pending.pop(key, [])

    def expire(self, oldest_ts: int) -> None:
        """Remove the keys of writes that committed before `oldest_ts` (ms)."""
        gone = list(takewhile(lambda entry: entry[1][2] < oldest_ts, self._done.items()))
        for key, _ in gone:
            del self._done[key]
        if gone and not self._done:
            self._done = {}  # removals do not give a dict's memory back

    def shift(self, ms: int) -> None:
        """The clock was set ahead by `ms`. Moves the keys with it, so that they last as long as before."""
        self._done = {key: (first, count, ts + ms) for key, (first, count, ts) in self._done.items()}

    def dump(self) -> list[tuple[bytes, int, int, int]]:
        return [(key, *value) for key, value in self._done.items()]

    def load(self, entries: list[tuple[bytes, int, int, int]]) -> None:
        self._done = {key: (first, count, ts) for key, first, count, ts in entries}
