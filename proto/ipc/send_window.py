"""How many bytes of requests are on their way to a shard: handed to its socket, and not answered yet.

ZeroMQ takes whatever it is given and gives nothing back, so a shard that hangs would have everything that is sent to it
meanwhile, twice over, in both processes. What does not fit waits with its asker, where it can still be withdrawn.

A request is on its way until it is answered or parked. One that was given up may never be: it is, until a later one is
answered, because a shard takes them in order.
"""

from __future__ import annotations

SMALL_BYTES = 4 << 10
"""Bodies up to this are not counted."""


class Window:
    """`most` bytes, or a single request of any size. Requests are sent in the order of their ids."""

    def __init__(self, most: int) -> None:
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
        """Or parked."""
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
