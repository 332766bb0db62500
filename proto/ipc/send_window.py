"""Send window: bounds the bytes of requests in flight to a shard, that is, sent to its socket and not yet answered.

ZeroMQ queues without limit and a queued message cannot be recalled. Without a window, requests to a hung shard would
fill the memory of both processes. A request that does not fit waits in the asking process, where it can be withdrawn.

A request is in flight until it is answered or parked. An abandoned request counts until it or a later request is
answered, because a shard takes requests in order.

**Size.** The shard states it in the status of each packet (`Status.window`). The same size bounds the replies that the
asker has not taken (`shardd.process.reply_queue`). Both sides must use one size: an asker reports what it has taken by
eighths, and a shard that waited for less than an eighth of the asker's size would wait for ever.

    at first    an asker uses `SMALLEST_WINDOW`, and no shard states less
    a change    the shard uses the new size at once, and sends each asker a packet, if need be an empty one. The asker
                uses it when it reads that packet
    smaller     until then the asker may send by the old size. From then on it sends large requests only when answers
                have made room. What it has taken and not reported may be an eighth of the new size now: it reports that
    larger      both send what waited for room

A packet that states a size comes after all replies that the shard has sent by the size before it, so the asker has
taken those when it reports by the new one.
"""

from __future__ import annotations

from proto.model.memory_shares import SMALLEST_WINDOW

SMALL_BYTES = 4 << 10
"""Bodies up to this size are not counted."""


class Window:
    """Window of `most` bytes, or of a single request of any size. Requests must be sent in the order of their ids."""

    def __init__(self, most: int = SMALLEST_WINDOW) -> None:
        self.most = most
        self.bytes = 0
        self._sent: dict[int, int] = {}
        self._given_up: dict[int, int] = {}

    def fits(self, size: int) -> bool:
        return size <= SMALL_BYTES or not self.bytes or self.bytes + size <= self.most

    def sent(self, ident: int, size: int) -> None:
        if size > SMALL_BYTES:
            self._sent[ident] = size
            self.bytes += size

    def answered(self, ident: int) -> None:
        """Release a request that was answered or parked, and abandoned requests up to its id."""
        if not self.bytes:
            return
        self.bytes -= self._sent.pop(ident, 0)
        if self._given_up:
            for each in [each for each in self._given_up if each <= ident]:
                self.bytes -= self._given_up.pop(each)

    def given_up(self, ident: int) -> None:
        size = self._sent.pop(ident, 0)
        if size:
            self._given_up[ident] = size
