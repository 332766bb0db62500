"""Remnants: the live records of batches of which few are left, in memory.

A file's batch is read and checked as a whole. Where most of its records are deleted, as in a queue whose jobs were
acknowledged, that costs far more than the records that are left. So when such a batch has been read, these are copied,
and are claimed, counted and deleted without reading the file again. Only bytes that were checked are copied.

Records that are deleted later stay in the remnant. None is added: a deleted record never comes back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from proto.format.columns import Columns, taken

SPARSE = 8
"""A batch with fewer than one live record in so many is kept as a remnant."""
REMNANTS_BYTES = 4 << 20
PER_RECORD = 200
"""Estimate of the bytes that a record takes beside its own."""


class Owner(Protocol):
    """A batch, see `shardd.storage.batch`."""

    remnant: Remnant | None


class Remnant:
    """The records of a batch at these positions, which ascend, in columns of their own."""

    __slots__ = ("_places", "_positions", "batch", "columns")

    def __init__(self, batch: Owner, columns: Columns, positions: Sequence[int]) -> None:
        self.batch = batch
        self.columns = taken(columns, positions)
        self._positions = positions
        self._places = dict(zip(positions, count()))

    def places(self, positions: Sequence[int]) -> list[int]:
        """Where in `columns` the records at these positions of the batch are."""
        return list(map(self._places.__getitem__, positions))

    def within(self, start: int, stop: int) -> Sequence[int]:
        """The positions from `start` to before `stop`."""
        return self._positions[bisect_left(self._positions, start) : bisect_left(self._positions, stop)]

    def has(self, positions: Sequence[int]) -> bool:
        return all(map(self._places.__contains__, positions))

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        count = self.columns.count
        return self.columns.size(0, count) + PER_RECORD * (count + 4)


class Remnants:
    """The remnants of a shard, of at most `max_bytes` in all. The oldest ones go first."""

    def __init__(self, max_bytes: int = REMNANTS_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: deque[Remnant] = deque()

    def keep(self, remnant: Remnant) -> None:
        remnant.batch.remnant = remnant
        self._kept.append(remnant)
        self._bytes += remnant.size
        while self._bytes > self._max_bytes:
            oldest = self._kept.popleft()
            self._bytes -= oldest.size
            oldest.batch.remnant = None
