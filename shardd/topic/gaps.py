"""Gaps: seqs of a topic that never got a record, between seqs that did. Readers get them as tombstones.

Only routers leave gaps, when the source has lost records before they were copied. A topic loses its own records from
its front (`shardd.topic.tombstones`). A gap that reaches the front moves there, too. A batch never spans a gap.
"""

from __future__ import annotations

from bisect import bisect_left


class Gaps:
    """Ranges `[first, last, reason]`, in seq order."""

    __slots__ = ("_lasts", "ranges")

    def __init__(self, ranges: list[tuple[int, int, str]] | None = None) -> None:
        self.ranges = ranges if ranges is not None else []
        self._lasts = [last for _, last, _ in self.ranges]

    def add(self, first: int, last: int, reason: str) -> None:
        """Add the gap of seqs `first` to `last`. They must follow all other gaps."""
        assert not self._lasts or self._lasts[-1] < first
        if self.ranges and self.ranges[-1][1] == first - 1 and self.ranges[-1][2] == reason:
            first = self.ranges.pop()[0]
            self._lasts.pop()
        self.ranges.append((first, last, reason))
        self._lasts.append(last)

    def at(self, seq: int) -> tuple[int, str] | None:
        """Last seq and reason of the gap that contains `seq`; None if it is in no gap."""
        place = bisect_left(self._lasts, seq)
        if place == len(self.ranges) or self.ranges[place][0] > seq:
            return None
        return self.ranges[place][1], self.ranges[place][2]

    def after(self, seq: int) -> int:
        """The first seq from `seq` on that is in no gap."""
        while (gap := self.at(seq)) is not None:
            seq = gap[0] + 1
        return seq

    def next_after(self, seq: int) -> int | None:
        """First seq of the first gap that ends at or after `seq`; None if there is none."""
        place = bisect_left(self._lasts, seq)
        return self.ranges[place][0] if place < len(self.ranges) else None

    def below(self, floor: int) -> list[tuple[int, str]]:
        """Remove the gaps that end before `floor`. Returns their last seqs and reasons."""
        if not self.ranges or self.ranges[0][1] >= floor:
            return []
        place = bisect_left(self._lasts, floor)
        gone, self.ranges, self._lasts = self.ranges[:place], self.ranges[place:], self._lasts[place:]
        return [(last, reason) for _, last, reason in gone]
