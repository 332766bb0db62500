"""The tag index of one topic: in which batches a tag occurs. Built when a deletion first asks, kept up lazily.

Batches rather than records, because then sets do the work: a batch of a thousand records costs as much as it has
different tags. Which records of a batch carry a tag is looked up in the batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Set
from itertools import compress
from typing import Any

from proto.format.frame import Column, Columns, Encoding

RUN = 32_768
"""Tags that are sorted at a time: some milliseconds."""


class TagIndex:
    """`upto` is the last seq that is indexed. A batch is known by a seq of it, so it may be merged into a larger one.

    Batches of which nothing is left stay in until the index is made anew: `entries` tells how many there are in all.
    """

    def __init__(self) -> None:
        self.upto = 0
        self.entries = 0
        # Most tags occur in one batch only: they cost a place in the dict and no object.
        self._places: dict[bytes, int | array[int]] = {}
        # In sorted runs and not sorted yet, once somebody has asked for a prefix.
        self._runs: list[list[bytes]] | None = None
        self._unsorted: list[bytes] = []

    def add(self, first_seq: int, columns: Columns, start: int, mask: bytes | None) -> None:
        """Index the records of a batch from its `start`-th on: those that `mask` has a 1 for, or all."""
        self.upto = first_seq + columns.count - 1
        if columns.tag is None:
            return
        place = first_seq + start
        tags = _distinct(columns.tag, start, columns.count, mask)
        new = tags.difference(self._places)  # not `-`, which would walk through all that are known
        for tag in tags - new:
            known = self._places[tag]
            if isinstance(known, int):
                self._places[tag] = array("Q", (known, place))
            else:
                known.append(place)
        self._places |= dict.fromkeys(new, place)
        self.entries += len(tags)
        if self._runs is not None:
            self._unsorted += new

    def equal(self, tag: bytes) -> Set[bytes]:
        """The tag, if it occurs."""
        return {tag} if tag in self._places else set()

    def starting_with(self, prefix: bytes) -> Set[bytes]:
        """The tags that start with `prefix`."""
        while self.unsorted:
            self.sort()
        found: set[bytes] = set()
        for run in self._runs or ():
            first = at = bisect_left(run, prefix)
            while at < len(run) and run[at].startswith(prefix):
                at += 1
            found.update(run[first:at])
        return found & self._places.keys()

    @property
    def unsorted(self) -> int:
        """How many tags `starting_with` would have to sort first."""
        return len(self._places) if self._runs is None else len(self._unsorted)

    def sort(self) -> None:
        """Sort some of them."""
        if self._runs is None:
            self._runs, self._unsorted = [], list(self._places)
        chosen = self._unsorted[-RUN:]
        del self._unsorted[-RUN:]
        if not self._runs or len(self._runs[-1]) + len(chosen) > RUN:
            self._runs.append([])
        self._runs[-1] += chosen
        self._runs[-1].sort()

    def places(self, tags: Set[bytes]) -> list[int]:
        """A seq of each batch that may have one of these tags, ascending."""
        found: set[int] = set()
        for tag in tags:
            place = self._places[tag]
            if isinstance(place, int):
                found.add(place)
            else:
                found.update(place)
        return sorted(found)

    def forget(self, tags: Set[bytes]) -> None:
        """No record has these tags any more."""
        for tag in tags:
            place = self._places.pop(tag)
            self.entries -= 1 if isinstance(place, int) else len(place)
        if self._runs is not None and sum(map(len, self._runs)) > 2 * len(self._places) + RUN:
            self._runs, self._unsorted = None, []  # most of what is sorted does not occur any more


def carriers(columns: Columns, tags: Set[bytes], start: int, stop: int) -> list[int]:
    """Which records of a batch, `start` to `stop` (exclusive), have one of these tags."""
    column = columns.tag
    if column is None or start >= stop:
        return []
    if column.encoding == Encoding.CONSTANT:
        return list(range(start, stop)) if bytes(column.values) in tags else []
    return list(compress(range(start, stop), map(tags.__contains__, column.cells(start, stop))))


def _distinct(column: Column, start: int, stop: int, mask: bytes | None) -> set[bytes]:
    if mask is not None and 1 not in mask:
        return set()
    if column.encoding == Encoding.CONSTANT:
        return {bytes(column.values)}
    cells = column.cells(start, stop)
    tags: set[Any] = set(cells if mask is None else compress(cells, mask))
    tags.discard(None)
    return tags


Match = tuple[str, bytes]
"""`("Eq", tag)` or `("Glob", prefix)`."""
