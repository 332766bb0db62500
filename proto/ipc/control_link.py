"""Control link: the socket pair between the supervisor and a child, for trio. Without ZeroMQ, which the supervisor does
not load."""

from __future__ import annotations

import socket

import trio

from proto.ipc.control import Control, Decoder, encode


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
