"""Promises: how many bytes topics may come to hold when their staged records are visible.

A topic with staged records has a *promise*: the most bytes that it will hold until all of them have committed, with
what they evict taken off. It is booked against the caps over all topics, as `most` less what the topic holds.

Why a topic never holds more than its promise, whatever happens meanwhile:

1. `most` is at least the size of the topic after each of its staged writes (`shardd.changes.admission`).
2. What evicts leaves the newest records that fit the caps. Records that expire meanwhile are the oldest ones. So the
   topic then holds a part of what it would hold otherwise.
3. Deletions and configurations that are staged after a write take effect after it. Those staged before it make it
   count no eviction that they could change.

So the promise, and not each write's own share, stays booked while any of them is staged. When one has ended, it sinks
to what the topic holds and the sizes of those that are left, if that is less.
"""

from __future__ import annotations


class Promises:
    """The promises of all topics of a shard, as bytes beyond what they hold now."""

    __slots__ = ("booked",)

    def __init__(self) -> None:
        self.booked = 0


class Promise:
    """The promise of one topic that holds `held` bytes."""

    __slots__ = ("_all", "_staged", "most")

    def __init__(self, promises: Promises, held: int) -> None:
        self.most = held
        self._all = promises
        self._staged = 0

    def add(self, needed: int) -> None:
        """Records are staged that need `needed` bytes more than was promised."""
        self.most += needed
        self._all.booked += needed
        self._staged += 1

    def changed(self, size: int) -> None:
        """The topic holds `size` bytes more than before, or fewer if it is negative."""
        self._all.booked -= size

    def end(self, held: int, pending: int) -> bool:
        """Staged records are visible or undone; those that are left have `pending` bytes. Returns False if none is."""
        assert self._staged > 0, "each promise ends once"
        self._staged -= 1
        sinks = self.most - (min(self.most, held + pending) if self._staged else held)
        self.most -= sinks
        self._all.booked -= sinks
        assert self._all.booked >= 0, "no topic holds more than its promise"
        return bool(self._staged)
