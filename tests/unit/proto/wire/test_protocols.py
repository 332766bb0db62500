"""Claims about the Walrus and Rog parsers: every rule of the protocols that can be checked without a server."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.wire import rog, walrus
from proto.wire.byte_parser import MAX_SKIP_BYTES, ProtocolError, Skip, parse_all
from tests.fuzz.targets import ROG_LIMIT, TARGETS
from tests.support.programs import leave_out

ROOT = Path(__file__).parents[4]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"


def frame(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw


def refused(text: str | bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        walrus.parse(text.encode() if isinstance(text, str) else text)
    assert not caught.value.fatal
    return caught.value.message


# Walrus


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


# Rog


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


# Both, on arbitrary bytes


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:12]}")
def test_the_stored_corpus_is_taken(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(frame)), max_size=5).map(b"".join))
def test_any_bytes_are_taken(data: bytes) -> None:
    for target in TARGETS.values():
        target(data)


@pytest.mark.long
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_sixty_seconds_of_fuzzing_find_nothing(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        leave_out("atheris of the extra [fuzz]")
    found = tmp_path / "found"
    found.mkdir()
    seconds = os.environ.get("FUZZ_SECONDS", "60")
    command = [sys.executable, "-m", "tests.fuzz.run", target, f"-max_total_time={seconds}", "-max_len=4096"]
    command += [f"-artifact_prefix={tmp_path}/", str(found), str(CORPUS / target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    crashes = {path.name: path.read_bytes() for path in tmp_path.glob("crash-*")}
    assert done.returncode == 0, (crashes, done.stderr[-3000:])
    assert "stat::number_of_executed_units" in done.stderr or "DONE" in done.stderr or "Done" in done.stderr
