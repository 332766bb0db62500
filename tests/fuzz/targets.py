"""Fuzz targets: what must hold for any bytes that reach a parser. It yields only commands and `ProtocolError`s, the
same ones however the bytes are split, and all within the limits. The fuzzer and the corpus test use these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proto.model.names import is_topic
from proto.wire import rog, walrus
from proto.wire.byte_parser import MAX_SKIP_BYTES, ProtocolError, Skip, Steps
from tests.support.parsed import parse_all

ROG_LIMIT = 300
"""Bytes. Small, so that inputs of a few hundred bytes exceed it."""


def byte_by_byte(read: Callable[[], Steps[Any]], data: bytes) -> list[Any]:
    """The result of `parse_all` for a connection that receives single bytes."""
    found: list[Any] = []
    at = 0
    while at < len(data):
        steps = read()
        try:
            wanted = next(steps)
            while True:
                size = wanted.size if isinstance(wanted, Skip) else wanted
                assert 0 <= size <= MAX_SKIP_BYTES
                piece = bytearray()
                while len(piece) < size:
                    if at == len(data):
                        return found
                    piece.append(data[at])
                    at += 1
                wanted = steps.send(b"" if isinstance(wanted, Skip) else bytes(piece))
        except StopIteration as end:
            found.append(end.value)
        except ProtocolError as error:
            found.append(error)
            if error.fatal:
                return found
    return found


def _shown(found: list[Any]) -> list[Any]:
    return [(each.message, each.fatal) if isinstance(each, ProtocolError) else each for each in found]


def walrus_input(data: bytes) -> None:
    found, done = parse_all(walrus.read, data)
    assert done <= len(data)
    assert _shown(byte_by_byte(walrus.read, data)) == _shown(found)
    for command in found:
        if isinstance(command, ProtocolError):
            assert b"\n" not in walrus.failure(command.message)
            walrus.failure(command.message).decode()
        elif not isinstance(command, walrus.Metrics):
            assert is_topic(command.topic)
            if isinstance(command, walrus.Put):
                assert command.payload
                assert command.payload[-1] not in walrus.WHITE
                text = f"PUT {command.topic} {command.payload}".encode()
                assert walrus.parse(text) == command
                assert len(b"OK " + command.payload.encode()) <= walrus.MAX_FRAME_BYTES


def rog_input(data: bytes) -> None:
    def read() -> Steps[rog.Command]:
        return rog.read(ROG_LIMIT)

    found, done = parse_all(read, data)
    assert done <= len(data)
    assert _shown(byte_by_byte(read, data)) == _shown(found)
    for command in found:
        if isinstance(command, ProtocolError):
            assert rog.failure(command.message)[:1] == b"\1"
            continue
        assert command.log
        if isinstance(command, rog.Publish):
            assert len(command.data) <= ROG_LIMIT
        again, _ = parse_all(read, rog.encode(command))
        assert again == [command]


TARGETS: dict[str, Callable[[bytes], None]] = {"walrus": walrus_input, "rog": rog_input}
