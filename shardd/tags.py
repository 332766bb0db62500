"""The tag index of one topic: which seqs carry a tag. Built when a deletion first asks, kept up lazily."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from proto.frame import Columns, Encoding


class TagIndex:
    """`upto` is the last seq that is indexed. Seqs of records that are gone stay in until the index is rebuilt."""

    def __init__(self) -> None:
        self.upto = 0
        self.entries = 0
        self._seqs: defaultdict[bytes, array[int]] = defaultdict(_seqs)
        self._sorted: list[bytes] | None = None

    def add(self, first_seq: int, columns: Columns, start: int) -> None:
        """Index the records of a batch from its `start`-th on."""
        self.upto = first_seq + columns.count - 1
        column = columns.tag
        if column is None:
            return
        known = len(self._seqs)
        seqs = range(first_seq + start, first_seq + columns.count)
        if column.encoding == Encoding.CONSTANT:
            self._seqs[bytes(column.values)].extend(seqs)
        else:
            for tag, seq in zip(column.cells(start, columns.count), seqs, strict=True):
                if tag is not None:
                    self._seqs[tag].append(seq)
        self.entries += len(seqs)
        if len(self._seqs) != known:
            self._sorted = None

    def equal(self, tag: bytes) -> Iterable[int]:
        """Seqs with exactly this tag, ascending."""
        return self._seqs.get(tag, ())

    def starting_with(self, prefix: bytes) -> Iterable[int]:
        """Seqs whose tag starts with `prefix`, in no order."""
        if self._sorted is None:
            self._sorted = sorted(self._seqs)
        names = self._sorted
        at = bisect_left(names, prefix)
        found: list[Iterable[int]] = []
        while at < len(names) and names[at].startswith(prefix):
            found.append(self._seqs[names[at]])
            at += 1
        return chain.from_iterable(found)


def _seqs() -> array[int]:
    return array("Q")


Match = tuple[str, bytes]
"""`("Eq", tag)` or `("Glob", prefix)`."""
