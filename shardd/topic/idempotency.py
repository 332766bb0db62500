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

    def __contains__(self, key: bytes) -> bool:
        """Whether a write with this key is pending or done."""
        return key in self._done or key in self._pending

    def find(self, key: bytes) -> tuple[int, int]:
        """First seq and number of records of the done write with this key."""
        return self._done[key][:2]

    def share(self, key: bytes, waiter: Waiter) -> None:
        """Call `waiter` with the outcome of the write with this key, which is pending or done."""
        if key in self._done:
            waiter(None)
        else:
            self._pending[key].append(waiter)

    def begin(self, key: bytes) -> None:
        assert key not in self, "a second write with a key shares the outcome of the first"
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
        """Commit times jumped ahead by `ms`. Moves the keys with them, so that they last as long as before."""
        self._done = {key: (first, count, ts + ms) for key, (first, count, ts) in self._done.items()}

    def dump(self) -> list[tuple[bytes, int, int, int]]:
        return [(key, *value) for key, value in self._done.items()]

    def load(self, entries: list[tuple[bytes, int, int, int]]) -> None:
        self._done = {key: (first, count, ts) for key, first, count, ts in entries}
