"""Claims about what observers are told of responses that go on: streams, and connections that become WebSockets."""

from __future__ import annotations

import pytest

from gateway.http.messages import Channel, Gone, Response, Write
from gateway.observe.exchange import Exchange, RequestObserver, observed


class Watcher:
    """Notes the bytes that it is told of, when the response begins and when it is over."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, int, int]] = []

    def answered(self, exchange: Exchange) -> None:
        self.told.append(("answered", exchange.stream, exchange.received_bytes, exchange.sent_bytes))

    def ended(self, exchange: Exchange) -> None:
        self.told.append(("ended", exchange.stream, exchange.received_bytes, exchange.sent_bytes))


class Line:
    """A channel with pieces to receive."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sent: list[bytes] = []

    async def receive_some(self) -> bytes:
        if not self.pieces:
            raise ConnectionResetError
        return self.pieces.pop(0)

    async def send_some(self, data: bytes) -> None:
        self.sent.append(data)


def exchange() -> Exchange:
    return Exchange("GET", "/v0/ws", 200, 1.0, 1.0, received_bytes=10)


def watched(response: Response) -> Watcher:
    watcher = Watcher()
    observers: list[RequestObserver] = [watcher]
    observed(response, exchange(), observers)
    return watcher


async def test_the_bytes_of_a_connection_that_was_upgraded_are_counted_in_both_directions() -> None:
    async def talk(channel: Channel) -> None:
        await channel.send_some(b"hello")
        assert await channel.receive_some() == b"abc"
        assert await channel.receive_some() == b"de"

    response = Response(101, b"head", upgraded=talk)
    watcher, line = watched(response), Line(b"abc", b"de")
    assert response.upgraded is not None
    await response.upgraded(line)
    assert line.sent == [b"hello"]
    assert watcher.told == [("answered", True, 10, 4), ("ended", True, 15, 9)]


async def test_observers_are_told_of_the_end_of_a_conversation_whose_client_leaves() -> None:
    async def talk(channel: Channel) -> None:
        while True:
            await channel.receive_some()

    response = Response(101, b"head", upgraded=talk)
    watcher = watched(response)
    assert response.upgraded is not None
    with pytest.raises(ConnectionResetError):
        await response.upgraded(Line(b"abc"))
    assert watcher.told[-1] == ("ended", True, 13, 4)


async def test_a_stream_is_counted_as_far_as_it_was_sent() -> None:
    async def live(write: Write, gone: Gone) -> bool:
        await write(b"12345")
        await write(b"678")
        return True

    async def refuse_long(piece: bytes) -> None:
        if len(piece) < 5:
            raise BrokenPipeError

    async def gone() -> None:
        raise AssertionError("nobody waits for it")

    response = Response(200, live=live)
    watcher = watched(response)
    assert response.live is not None
    with pytest.raises(BrokenPipeError):
        await response.live(refuse_long, gone)
    assert watcher.told == [("answered", True, 10, 0), ("ended", True, 10, 5)]
