"""The tag index of one topic: the batches in which each tag occurs. The first deletion by tag builds it, later ones
extend it.

It indexes batches and not records, so that a batch costs one entry per distinct tag. The records of a batch that carry
a tag are found in the batch itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Set
from itertools import compress
from typing import Any

from proto.format.columns import Column, Columns, Encoding

RUN = 32_768
"""Number of tags that are sorted at a time, which takes some milliseconds."""


class TagIndex:
    """`upto` is the last seq that is indexed. The index names a batch by one of its seqs, so batches may be merged.

    Entries of batches without live records stay until the index is rebuilt. `entries` counts all entries.
    """

    def __init__(self) -> None:
        self.upto = 0
        self.entries = 0
        # A tag that occurs in one batch, as most do, needs no array.
        self._places: dict[bytes, int | array[int]] = {}
        # Sorted runs and tags not sorted yet. None until the first search for a prefix.
        self._runs: list[list[bytes]] | None = None
        self._unsorted: list[bytes] = []

    def add(self, first_seq: int, columns: Columns, start: int, mask: bytes | None) -> None:
        """Index the records of a batch from position `start` on. `mask` has a 1 for each to index; None indexes all."""
        self.upto = first_seq + columns.count - 1
        if columns.tag is None:
            return
        place = first_seq + start
        tags = _distinct(columns.tag, start, columns.count, mask)
        new = tags.difference(self._places)  # needs no set of all known tags, unlike `-`
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
        """The set of this tag, empty if it does not occur."""
        return {tag} if tag in self._places else set()

    def starting_with(self, prefix: bytes) -> Set[bytes]:
        """The known tags that start with `prefix`. Sorts the unsorted ones first."""
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
        """Number of tags that `starting_with` would have to sort first."""
        return len(self._places) if self._runs is None else len(self._unsorted)

    def sort(self) -> None:
        """Sort up to `RUN` of the unsorted tags."""
        if self._runs is None:
            self._runs, self._unsorted = [], list(self._places)
        chosen = self._unsorted[-RUN:]
        del self._unsorted[-RUN:]
        if not self._runs or len(self._runs[-1]) + len(chosen) > RUN:
            self._runs.append([])
        self._runs[-1] += chosen
        self._runs[-1].sort()

    def places(self, tags: Set[bytes]) -> list[int]:
        """One seq of each batch that may have one of these tags, ascending."""
        found: set[int] = set()
        for tag in tags:
            place = self._places[tag]
            if isinstance(place, int):
                found.add(place)
            else:
                found.update(place)
        return sorted(found)

    def forget(self, tags: Set[bytes]) -> None:
        """Remove tags that no record has any more."""
        for tag in tags:
            place = self._places.pop(tag)
            self.entries -= 1 if isinstance(place, int) else len(place)
        if self._runs is not None and len(self._unsorted) + sum(map(len, self._runs)) > 2 * len(self._places) + RUN:
            self._runs, self._unsorted = None, []  # most of these tags do not occur any more


def carriers(columns: Columns, tags: Set[bytes], start: int, stop: int) -> list[int]:
    """Positions of the records of a batch, from `start` to before `stop`, that have one of these tags."""
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
