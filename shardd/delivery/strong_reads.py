"""Unsynced records: visible records of `disk` topics that no sync covers yet.

Readers with `consistency: "strong"` see a topic up to the last record before the first unsynced one.
"""

from __future__ import annotations

from collections import defaultdict, deque

from shardd.topic.topic import Topic


class Unsynced:
    def __init__(self) -> None:
        self._writes: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
        """Topic id → (frame number, first seq in it) of each unsynced write, in order."""

    def wrote(self, topic: Topic, frame_no: int, first_seq: int) -> None:
        """Notes that records from `first_seq` on are visible and wait for the sync of frame `frame_no`."""
        self._writes[topic.id].append((frame_no, first_seq))

    def head(self, topic: Topic) -> int:
        """The topic's last visible seq before its first unsynced record."""
        writes = self._writes.get(topic.id)
        return writes[0][1] - 1 if writes else topic.records.head_seq

    def synced(self, upto_no: int, *, everything: bool) -> None:
        """Drops the writes in frames up to `upto_no`, which are on the device. With `everything`, drops all writes:
        after a failed sync the log gives its frames new numbers, so the noted ones are void."""
        if everything:
            self._writes.clear()
            return
        for ident, writes in list(self._writes.items()):
            while writes and writes[0][0] <= upto_no:
                writes.popleft()
            if not writes:
                del self._writes[ident]
