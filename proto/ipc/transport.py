"""Transport: ZeroMQ for trio. `proto.ipc.remote` has the sockets between machines; no other module imports zmq.

**Turns.** A message is queued when it is sent, and leaves in a packet (`proto.ipc.message`) with all others that its
socket has for the same peer at the end of the turn. A turn is what happens between two waits of the process: steps, or
what all runnable tasks do (`proto.process.waiting`). Every socket that was made under trio is flushed at the end of the
turn, and no other state of a socket holds a message back. A socket made without trio has no turn and sends at once. An
owner may call `flush` earlier, so that its messages leave sooner.

**Edges.** ZeroMQ does not support trio, but every socket has a descriptor that becomes readable when the socket's state
changes. That descriptor is edge-triggered, and *any* call on the socket may consume the edge, a send included:

    1. the reader finds nothing more to read and waits for the descriptor
    2. a message arrives: the descriptor becomes readable
    3. before the reader is called, something is sent; ZeroMQ processes its mailbox and clears the descriptor
    4. the reader's wait never ends, although a message is queued

`flush` therefore checks `EVENTS` after it has sent, and calls `on_input` if there is input: the reader is then called
again before the process waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import zmq
from structlog.typing import FilteringBoundLogger

from proto.ipc.message import NO_STATUS, Message, MessageError, Packet, Packing, Status, unpack
from proto.process import waiting

MAX_PACKET = 64
"""Messages in a packet. A turn with more sends several."""
PACKET_BYTES = 64 << 10
"""A packet leaves as soon as its bodies have this many bytes: the peer reads it while the turn makes the next one, and
the memory of the bodies is used again."""
MAX_TICK = 256
"""Messages received before the reader yields. More would delay the other tasks, fewer would shrink the groups."""

# Numbers, because an operation on an enum costs more than the call that it is for.
_EVENTS, _INPUT, _MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
_NOW, _NOW_AND_MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)
_log: FilteringBoundLogger = structlog.get_logger()
Group = list[tuple[bytes, Packet]]
"""Packets, each with the peer that sent it; b"" for a dealer, which has only one."""


class MessageSocket:
    """ZeroMQ socket that delivers messages in groups.

    High-water marks are off. The asking process bounds what is in flight, because it can refuse requests.
    """

    def __init__(self, kind: int, endpoint: str, name: str = "") -> None:
        self._socket: Any = self._made(kind)
        if name:
            self._socket.setsockopt(zmq.ROUTING_ID, name.encode())
        self._attach(kind, endpoint)
        self._routes = kind == zmq.ROUTER
        # The methods of zmq's own class cost twice as much as those of its base.
        fast: Any = super(zmq.Socket, self._socket)
        self._transmit: Callable[..., object] = fast.send
        self._receive: Callable[[int], bytes] = fast.recv
        self._get: Callable[[int], int] = fast.get
        self._waiter = waiting.current()
        self._queues: dict[bytes, Packing] = {}
        self._planned = False
        """The turn flushes this socket. True if anything is queued, or sent since `EVENTS` was checked."""
        self._more = False
        """There may be input of which the descriptor does not tell."""
        self.endpoint = endpoint
        self.status: Callable[[], Status] = lambda: NO_STATUS
        """Makes the status that each packet carries."""
        self.on_input: Callable[[], object] = lambda: None
        """Called when the turn's `flush` finds input of which the descriptor will not tell. `read` sets it."""

    def _made(self, kind: int) -> Any:
        """A ZeroMQ socket with its options, neither bound nor connected."""
        made: Any = zmq.Context.instance().socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        return made

    def _attach(self, kind: int, endpoint: str) -> None:
        if kind == zmq.ROUTER:
            self._socket.bind(endpoint)
        else:
            self._socket.connect(endpoint)

    @classmethod
    def dealer(cls, endpoint: str, name: str = "") -> MessageSocket:
        """The asking side. It has one peer, which knows it by `name`. A router never reads from a second dealer of the
        same name."""
        return cls(zmq.DEALER, endpoint, name)

    @classmethod
    def router(cls, endpoint: str) -> MessageSocket:
        """The answering side. Each message, in and out, belongs to a peer."""
        return cls(zmq.ROUTER, endpoint)

    @property
    def descriptor(self) -> int:
        """Descriptor for the epoll set of an owner that does not `read`. It becomes readable when messages arrive, but
        may be unreadable although some are there: see `flush`."""
        return int(self._socket.getsockopt(zmq.FD))

    def send(self, message: Message, peer: bytes = b"") -> None:
        """Queue one message for the end of the turn; never blocks. A message to a dead peer is lost."""
        queue = self._queues.get(peer) or Packing()
        queue.add(message)
        self._queues[peer] = queue
        if not self._planned:
            self._plan()
            if self._waiter is None:
                return
        if queue.count == MAX_PACKET or queue.size >= PACKET_BYTES:
            self._send_packet(peer, self._queues.pop(peer))

    def tell_status(self, peer: bytes) -> None:
        """Have a packet with the status leave for a peer at the end of the turn, also without a message."""
        self._queues.setdefault(peer, Packing())
        if not self._planned:
            self._plan()

    def _plan(self) -> None:
        self._planned = True
        if self._waiter is None:
            self.flush()
        else:
            self._waiter.at_end(self._end_turn)

    def flush(self) -> bool:
        """Send queued messages. Returns True if messages may be there that the descriptor does not tell of: an owner
        that does not `read` must then `take` them before it waits."""
        if self._planned:
            self._planned = False
            queues, self._queues = self._queues, {}
            for peer, queue in queues.items():
                self._send_packet(peer, queue)
            if self._get(_EVENTS) & _INPUT:
                self._more = True
                self.on_input()
        return self._more

    def _end_turn(self) -> None:
        try:
            self.flush()
        except Exception:
            _log.exception("messages_not_sent", endpoint=self.endpoint)

    def _send_packet(self, peer: bytes, queue: Packing) -> None:
        *others, last = queue.frames(self.status())
        if self._routes:
            others.insert(0, peer)
        for frame in others:
            self._transmit(frame, _NOW_AND_MORE)
        self._transmit(last, _NOW)

    def take(self) -> Group:
        """Receive what has arrived, up to `MAX_TICK` messages; never blocks. A packet that cannot be read is logged."""
        group: Group = []
        count = 0
        self._more = False
        try:
            frames = self._receive_frames()
        except zmq.Again:
            return group
        while True:
            peer = frames.pop(0) if self._routes else b""
            try:
                packet = unpack(frames)
                group.append((peer, packet))
                count += len(packet.messages)
            except MessageError as error:
                # The packets of the others must not fail with it; its own requests time out.
                count += 1
                self._refuse(peer, str(error))
            if not self._get(_EVENTS) & _INPUT:  # costs less than the exception
                return group
            if count > MAX_TICK - MAX_PACKET:
                self._more = True
                return group
            frames = self._receive_frames()

    def _refuse(self, peer: bytes, reason: str) -> None:
        """A packet of this peer cannot be read."""
        _log.error("message_refused", endpoint=self.endpoint, reason=reason)

    def _receive_frames(self) -> list[bytes]:
        frames = [self._receive(_NOW)]
        while self._get(_MORE):
            frames.append(self._receive(_NOW))
        return frames

    async def read(self, handle: Callable[[Group], object]) -> None:
        """Call `handle` with packets in arrival order, up to `MAX_TICK` messages at a time, until cancelled. Messages
        that it sends on this socket leave when it returns."""
        descriptor, waiter = self.descriptor, self._waiter
        assert waiter is not None

        def step() -> bool:
            group = self.take()
            if group:
                handle(group)
            return self.flush()

        self.on_input = lambda: waiter.again(descriptor)
        await waiting.serve(descriptor, step)

    def close(self) -> None:
        self.flush()
        self._socket.close(linger=0)
