"""Which records readers may see that no sync covers yet: those of `disk` topics, for the length of the sync window.

Readers with `consistency: "strong"` see a topic up to the last record before the first of these.
"""

from __future__ import annotations

from collections import deque

from shardd.topic.topic import Topic


class Unsynced:
    def __init__(self) -> None:
        self._writes: dict[int, deque[tuple[int, int]]] = {}
        """Topic id → (number of the frame, first seq in it) of each write that is not synced, in order."""

    def wrote(self, topic: Topic, frame_no: int, first_seq: int) -> None:
        """Records from `first_seq` on became visible, and wait for the sync of frame `frame_no`."""
        writes = self._writes.get(topic.id)
        if writes is None:
            writes = self._writes[topic.id] = deque()
        writes.append((frame_no, first_seq))

    def head(self, topic: Topic) -> int:
        """The last seq that is visible and needs no further sync."""
        writes = self._writes.get(topic.id)
        return writes[0][1] - 1 if writes else topic.head_seq

    def synced(self, upto_no: int, *, everything: bool) -> None:
        """Frames up to `upto_no` are on the device. With `everything`, all there are: after a failed sync the log
        gives frames new numbers, so those that were noted here say nothing any more."""
        if everything:
            self._writes.clear()
            return
        for ident, writes in list(self._writes.items()):
            while writes and writes[0][0] <= upto_no:
                writes.popleft()
            if not writes:
                del self._writes[ident]
