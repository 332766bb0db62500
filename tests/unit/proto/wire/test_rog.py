"""Claims about the Rog parser: every rule of the protocol that can be checked without a server."""

from __future__ import annotations

import struct

import pytest

from proto.wire import rog
from proto.wire.byte_parser import ProtocolError
from tests.fuzz.targets import ROG_LIMIT
from tests.support.parsed import parse_all


def read_rog(data: bytes) -> list[rog.Command | ProtocolError]:
    return parse_all(lambda: rog.read(ROG_LIMIT), data)[0]


def test_the_layouts_of_the_document() -> None:
    name = b"\x06events"
    assert read_rog(b"\x00\x0a" + name) == [rog.Create("events", 10)]
    assert read_rog(b"\x01\x02" + name + struct.pack(">Q", 3) + b"\0\xff\n") == [rog.Publish("events", 2, b"\0\xff\n")]
    u64 = struct.pack(">Q", 5) + b"group"
    assert read_rog(b"\x02\x02" + name + u64) == [rog.Fetch("events", 2, "group")]
    assert read_rog(b"\x03\x02" + name + u64) == [rog.Ack("events", 2, "group")]
    assert rog.SUCCESS == b"\0"
    assert rog.message(b"hi") == b"\0" + struct.pack(">Q", 2) + b"hi"
    assert rog.failure("é") == b"\1" + struct.pack(">Q", 2) + "é".encode()


@pytest.mark.parametrize("size", [1, 2, 127, 128, 254, 255])
def test_group_sizes_of_one_byte_and_of_eight(size: int) -> None:
    group = "g" * size
    head = b"\x02\x00\x01L"
    short, long = head + bytes([size]) + group.encode(), head + struct.pack(">Q", size) + group.encode()
    assert read_rog(short + long + short) == [rog.Fetch("L", 0, group)] * 3


def test_what_rog_cannot_take_is_refused_and_the_next_command_is_found() -> None:
    following = rog.encode(rog.Create("next", 1))
    for bad, words in [
        (b"\x00\x01\x00", "Log name must not be empty"),
        (b"\x00\x01\x01\xff", "Log name is not UTF-8"),
        (b"\x01\x00\x01\xff" + struct.pack(">Q", 2) + b"ab", "Log name is not UTF-8"),
        (b"\x01\x00\x01L" + struct.pack(">Q", ROG_LIMIT + 1) + bytes(ROG_LIMIT + 1), "at most 300"),
        (b"\x02\x00\x01L" + struct.pack(">Q", 0), "Group name must not be empty"),
        (b"\x02\x00\x01L" + struct.pack(">Q", 256) + bytes(256), "at most 255"),
        (b"\x03\x00\x01L\x01\xff", "Group name is not UTF-8"),
    ]:
        error, good = read_rog(bad + following)
        assert isinstance(error, ProtocolError)
        assert words in error.message
        assert good == rog.Create("next", 1)


@pytest.mark.parametrize(
    "bad", [b"\x04", b"\xff", b"\x01\x00\x01L" + b"\xff" * 8, b"\x02\x00\x01L" + b"\0" + b"\xff" * 7]
)
def test_what_cannot_be_passed_over_ends_the_connection(bad: bytes) -> None:
    (error,) = read_rog(bad + b"more")
    assert isinstance(error, ProtocolError)
    assert error.fatal


def test_names_that_cannot_be_sent_are_refused() -> None:
    for name in ("", "x" * 256):
        with pytest.raises(ProtocolError):
            rog.encode(rog.Create(name, 1))
