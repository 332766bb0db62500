"""Transport: ZeroMQ and control sockets for trio. The only module that imports zmq.

ZeroMQ does not support trio, but every socket has a descriptor that becomes readable when the socket's state changes.
That descriptor is edge-triggered, and *any* call on the socket may consume the edge, a send included:

    1. the reader finds nothing more to read and waits for the descriptor
    2. a message arrives: the descriptor becomes readable
    3. before the reader runs, another task sends; ZeroMQ processes its mailbox and clears the descriptor
    4. the reader's wait never ends, although a message is queued

`send` therefore checks `EVENTS` after each send while the reader waits, and wakes the reader if there is input.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import trio
import zmq

from proto.ipc.control import Control, Decoder, encode

MAX_TICK = 256
"""Messages received before the reader yields. More would delay the other tasks, fewer would shrink the groups."""


class MessageSocket:
    """ZeroMQ socket that delivers multipart messages in groups.

    High-water marks are off. The asking process bounds what is in flight, because it can refuse requests.
    """

    def __init__(self, kind: int, endpoint: str, *, bind: bool) -> None:
        self._socket: Any = zmq.Context.instance().socket(kind)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        if bind:
            self._socket.bind(endpoint)
        else:
            self._socket.connect(endpoint)
        self._parked: trio.CancelScope | None = None
        self.on_input: Callable[[], object] | None = None
        self.endpoint = endpoint

    @classmethod
    def dealer(cls, endpoint: str) -> MessageSocket:
        """The asking side. Messages are lists of frames."""
        return cls(zmq.DEALER, endpoint, bind=False)

    @classmethod
    def router(cls, endpoint: str) -> MessageSocket:
        """The answering side. The first frame of each message, in and out, names the peer."""
        return cls(zmq.ROUTER, endpoint, bind=True)

    def send(self, frames: list[bytes]) -> None:
        """Queue one message; never blocks. A message to a dead peer is lost."""
        self._socket.send_multipart(frames, zmq.DONTWAIT)
        if self._parked is not None and self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._parked.cancel()
            self._parked = None
        elif self.on_input is not None and self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self.on_input()

    @property
    def descriptor(self) -> int:
        """Descriptor for the epoll set of an owner that does not `read`. It becomes readable when messages arrive, but
        may be unreadable although some are there: see `flush`."""
        return int(self._socket.getsockopt(zmq.FD))

    def flush(self) -> bool:
        """Send what is queued. Returns True if messages can be received: an owner that does not `read` must then call
        `take` before it waits for the descriptor, because the call consumes its edge."""
        return bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def take(self) -> list[list[bytes]]:
        """Messages that have arrived, up to `MAX_TICK`; never blocks. An owner that does not `read` calls it until it
        returns none."""
        messages: list[list[bytes]] = []
        receive = self._socket.recv_multipart
        try:
            while len(messages) < MAX_TICK:
                messages.append(receive(zmq.DONTWAIT))
        except zmq.Again:
            pass
        return messages

    async def read(self, handle: Callable[[list[list[bytes]]], None]) -> None:
        """Call `handle` with messages in arrival order, up to `MAX_TICK` at a time, until cancelled."""
        descriptor = self.descriptor
        while True:
            messages = self.take()
            if messages:
                handle(messages)
                await trio.lowlevel.checkpoint()
                continue
            with trio.CancelScope() as scope:
                self._parked = scope
                try:
                    await trio.lowlevel.wait_readable(descriptor)
                finally:
                    self._parked = None

    def close(self) -> None:
        self._socket.close(linger=0)


class ControlLink:
    """One end of the socket pair between the supervisor and a child."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
        self._decoder = Decoder()
        self._ready: list[Control] = []
        self._sending = trio.Lock()

    @classmethod
    def inherited(cls, descriptor: int) -> ControlLink:
        """The child's end, from its inherited descriptor."""
        return cls(socket.socket(fileno=descriptor))

    async def send(self, message: Control) -> None:
        """Send one message. Raises `trio.BrokenResourceError` if the peer is gone."""
        async with self._sending:
            await self._stream.send_all(encode(message))

    async def receive(self) -> Control | None:
        """The next message, or None when the peer is gone. Raises `ControlError` for malformed bytes."""
        while not self._ready:
            try:
                data = await self._stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not data:
                return None
            self._ready = self._decoder.feed(bytes(data))
        return self._ready.pop(0)

    async def aclose(self) -> None:
        await self._stream.aclose()
