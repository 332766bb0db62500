"""The page: counts of several gateways in memory that they share, so that limits hold over all of them.

The supervisor makes the memory, and each gateway inherits its descriptor. It has a column for each counter, and in it a
cell for each gateway. Numbers are u64 in the byte order of the machine. With r gateways, a spare included, the cell of
gateway g in column c is at offset 8·(r·c + g):

    column    counter
    0         1 while the gateway accepts connections
    1         connections of HTTP
    2         connections of Walrus
    3         connections of Rog
    4         streams
    5         WebSockets whose client has not proven a key yet
    6 + 2·k   requests in flight of the key in place k
    7 + 2·k   streams of the key in place k

A cell has one writer: its gateway, and the supervisor once that process is gone. So no cell is locked, and nothing that
a gateway leaves behind, at whatever step it dies, outlasts it:

    1  A gateway puts its own count, the slot that it wants included, into its cell.
    2  It sums the cells of the column.
    3  If the sum is above the limit, it puts the count from before into its cell, and refuses the request.
    4  If it dies, the supervisor reaps it, then clears its row, then starts the next one.

Of gateways that do this at the same time for the last free slot, each may see the others and refuse. In theory each may
miss what another has not yet made visible to it, and the limit is passed by one for each of them: the limits protect
memory, no data depends on them.

The supervisor gives each key its place, which the key keeps for as long as the supervisor runs. A key that comes when
all places are given has place -1: each gateway counts it alone, and allows it an equal part of the limit.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from enum import IntEnum

MOST_KEYS = 1 << 16
"""Places for keys. The kernel gives memory only to those that are used."""


class Column(IntEnum):
    ACCEPTING = 0
    HTTP = 1
    WALRUS = 2
    ROG = 3
    STREAMS = 4
    UNPROVEN = 5
    KEY_REQUESTS = 6
    """Of the key in place 0."""
    KEY_STREAMS = 7
    """Of the key in place 0."""


_FIRST = 6
_PER_KEY = 2


def column_of(first: Column, place: int) -> int:
    """The column of a counter of the key in `place`."""
    return first + _PER_KEY * place


def _bytes(rows: int) -> int:
    return 8 * rows * (_FIRST + _PER_KEY * MOST_KEYS)


class Page:
    """The supervisor's side. `close` it at the end."""

    def __init__(self, rows: int) -> None:
        self.descriptor = os.memfd_create("gateways", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, _bytes(rows))
        self._rows = rows
        self._words = memoryview(mmap.mmap(self.descriptor, _bytes(rows))).cast("Q")
        self._places: dict[bytes, int] = {}

    def clear(self, row: int) -> None:
        """Forget the counts of a gateway whose process is gone."""
        used = self._rows * (_FIRST + _PER_KEY * len(self._places))
        self._words[row : used : self._rows] = memoryview(bytes(8 * (used // self._rows))).cast("Q")

    def places(self, digests: Iterable[bytes]) -> list[int]:
        """The place of each key; -1 for those that came when all places were given."""
        found = []
        for digest in digests:
            if len(self._places) < MOST_KEYS:
                self._places.setdefault(digest, len(self._places))
            found.append(self._places.get(digest, -1))
        return found

    def close(self) -> None:
        os.close(self.descriptor)


class Row:
    """The side of gateway `index` of `rows`."""

    def __init__(self, descriptor: int, rows: int, index: int) -> None:
        self.rows = rows
        self._index = index
        self._words = memoryview(mmap.mmap(descriptor, _bytes(rows))).cast("Q")
        self._places: dict[bytes, int] = {}

    def know(self, digests: Sequence[bytes], places: Sequence[int]) -> None:
        """Note the places of keys. Those of removed keys stay known, because their last requests have not ended."""
        self._places.update(zip(digests, places, strict=True))

    def place(self, digest: bytes) -> int:
        return self._places.get(digest, -1)

    def put(self, column: int, count: int) -> None:
        self._words[column * self.rows + self._index] = count

    def sum(self, column: int) -> int:
        """The count of all gateways."""
        return sum(self._words[column * self.rows : (column + 1) * self.rows])

    def least(self, column: int) -> int:
        """The smallest count of the gateways that accept connections; 0 if none does."""
        accepting = self._words[: self.rows]
        counts = self._words[column * self.rows : (column + 1) * self.rows]
        return min((count for count, accepts in zip(counts, accepting, strict=True) if accepts), default=0)
