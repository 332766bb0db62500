"""Claims about the Walrus parser: every rule of the protocol that can be checked without a server."""

from __future__ import annotations

import struct

import pytest

from proto.wire import walrus
from proto.wire.byte_parser import MAX_SKIP_BYTES, ProtocolError, Skip
from tests.support.parsed import parse_all


def frame(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw


def refused(text: str | bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        walrus.parse(text.encode() if isinstance(text, str) else text)
    assert not caught.value.fatal
    return caught.value.message


def test_the_example_frame_of_the_document() -> None:
    assert walrus.encode(b"PUT logs hello") == b"\x0e\0\0\0PUT logs hello"
    assert parse_all(walrus.read, b"\x0e\0\0\0PUT logs hello") == ([walrus.Put("logs", "hello")], 18)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("REGISTER logs", walrus.Register("logs")),
        ("REGISTER logs \r\n", walrus.Register("logs")),
        ("PUT logs a b  c", walrus.Put("logs", "a b  c")),
        ("PUT logs   leading", walrus.Put("logs", "  leading")),
        ("PUT logs trailing \t\n", walrus.Put("logs", "trailing")),
        ("PUT logs line\nbreak", walrus.Put("logs", "line\nbreak")),
        ("PUT logs bell\x1f", walrus.Put("logs", "bell\x1f")),
        ('PUT logs {"é":1}', walrus.Put("logs", '{"é":1}')),
        ("GET logs", walrus.Get("logs")),
        ("STATE a.b:c_d-1", walrus.StateCommand("a.b:c_d-1")),
        ("METRICS", walrus.Metrics()),
        ("METRICS\n", walrus.Metrics()),
    ],
)
def test_commands(text: str, command: walrus.Command) -> None:
    assert walrus.parse(text.encode()) == command


def test_what_is_no_command_is_told_why() -> None:
    assert "unknown command 'HELLO'" in refused("HELLO world")
    assert "unknown command ''" in refused("")
    assert "unknown command 'put'" in refused("put logs x")
    assert "unknown command" in refused(" GET logs")
    assert "UTF-8" in refused(b"PUT logs \xff")
    assert "usage: PUT" in refused("PUT logs")
    assert "usage: PUT" in refused("PUT logs   ")
    assert "usage: PUT" in refused("PUT")
    assert "usage: GET" in refused("GET")
    assert "usage: GET" in refused("GET a b")
    assert "usage: METRICS" in refused("METRICS now")
    for bad in ("_x", "a/b", "é", "a" * 256):
        assert "not valid" in refused(f"REGISTER {bad}")
        assert "not valid" in refused(f"PUT {bad} payload")


def test_frames_of_up_to_65536_bytes_are_taken_and_longer_ones_read_to_their_end() -> None:
    longest = "PUT t " + "x" * (65536 - 6)
    found, _ = parse_all(walrus.read, frame(longest) + frame(longest + "x") + frame("GET t"))
    assert found[0] == walrus.Put("t", "x" * 65530)
    assert isinstance(found[1], ProtocolError)
    assert not found[1].fatal
    assert found[2] == walrus.Get("t")


def test_a_length_above_16_mib_is_fatal() -> None:
    found, _ = parse_all(walrus.read, struct.pack("<I", MAX_SKIP_BYTES + 1))
    assert isinstance(found[0], ProtocolError)
    assert found[0].fatal
    steps = walrus.read()
    next(steps)
    assert steps.send(struct.pack("<I", MAX_SKIP_BYTES)) == Skip(MAX_SKIP_BYTES)


def test_errors_are_one_line() -> None:
    assert walrus.failure("a\nb\r\n c") == b"ERR a b c"
