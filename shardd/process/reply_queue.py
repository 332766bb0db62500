"""The reply queues: flow control of replies to askers, which are the gateway and the other shards.

Each asker reports now and then how many bytes of replies it has taken (`Taken`). Replies beyond a window of bytes not
taken wait here, in order. While any wait, the asker is *full*: its requests are not handled, and its parked reads are
not rendered. So an asker that hangs, or takes replies too slowly, costs this process one window and its parked reads,
and delays no other asker.

The supervisor reports that an asker is gone (`proto.ipc.askers`). One that hangs reports nothing: an asker that is full
and has taken nothing for the duration of a request timeout is forgotten. Its requests have timed out by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from proto.ipc.message import Message

SMALL_BYTES = 4 << 10
"""Replies of up to this many bytes are not counted."""


@dataclass(slots=True, eq=False, repr=False)
class _Asker:
    on_way: int = 0
    queue: deque[Message] = field(default_factory=deque)
    since: float = 0.0
    """When the asker last took bytes, or became full, in monotonic seconds."""


class Replies:
    def __init__(
        self,
        send: Callable[[Message, bytes], int],
        most: int,
        monotonic: Callable[[], float],
        gone: Callable[[bytes], bool] = lambda peer: False,
    ) -> None:
        """`send` returns the bytes of the body that it sent, those of a refusal if it sent one instead. `gone` says
        whether an asker has ended: nothing is queued for it."""
        self._send = send
        self.most = most
        """The window of each asker, in bytes."""
        self._monotonic = monotonic
        self._gone = gone
        self._askers: dict[Hashable, _Asker] = {}

    def send(self, peer: bytes, message: Message) -> None:
        """Send a reply, or queue it until the asker's window has room."""
        size = len(message.body)
        asker = self._askers.get(peer)
        if asker is None:
            if size <= SMALL_BYTES:
                self._send(message, peer)
                return
            if self._gone(peer):
                return
            asker = self._askers[peer] = _Asker()
        if asker.queue or not self._fits(asker, size):
            if not asker.queue:
                asker.since = self._monotonic()
            asker.queue.append(message)
        else:
            self._hand_over(peer, asker, message)

    def _fits(self, asker: _Asker, size: int) -> bool:
        # An asker does not report less than an eighth of the window.
        return size <= SMALL_BYTES or asker.on_way * 8 < self.most or asker.on_way + size <= self.most

    def _hand_over(self, peer: bytes, asker: _Asker, message: Message) -> None:
        sent = self._send(message, peer)
        if sent > SMALL_BYTES:
            asker.on_way += sent

    def full(self, peer: Hashable) -> bool:
        asker = self._askers.get(peer)
        return asker is not None and bool(asker.queue)

    def taken(self, peer: bytes, size: int) -> bool:
        """Count `size` bytes as taken by an asker, and send queued replies. Returns True if it was full and no longer
        is."""
        asker = self._askers.get(peer)
        if asker is None:
            return False
        asker.on_way = max(asker.on_way - size, 0)
        asker.since = self._monotonic()
        if not asker.queue:
            return False
        while asker.queue:
            if not self._fits(asker, len(asker.queue[0].body)):
                return False
            self._hand_over(peer, asker, asker.queue.popleft())
        return True

    def forget_silent(self, for_s: float) -> list[Hashable]:
        """Forget the askers that are full and have taken nothing for `for_s` seconds. Returns them."""
        before = self._monotonic() - for_s
        gone = [peer for peer, asker in self._askers.items() if asker.queue and asker.since <= before]
        for peer in gone:
            del self._askers[peer]
        return gone

    def forget(self, peer: bytes) -> None:
        """Drop the replies that are queued for an asker."""
        self._askers.pop(peer, None)
