"""Claims about HTTP/2 frames as bytes: what is counted, what h2 never sees, where a turn ends."""

from __future__ import annotations

import pytest

from gateway.http.http2_frames import (
    CALM,
    EARNED_BY_ANSWER,
    EARNED_BY_DATA,
    FRAME_SIZE_ERROR,
    IDLE_FRAMES,
    IDLE_FRAMES_PER_S,
    LATE_RESET,
    SETTINGS_COST,
    TURN_FRAMES,
    Frames,
    Refused,
)
from proto.model.limits import MAX_HEADER_BYTES
from tests.support import http2
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

HEAD = frame(HEADERS, b"\x82", http2.END_HEADERS, 1)
PADDED = 8
IDLE = {
    "ping": frame(PING, b"12345678"),
    "pong": frame(PING, b"12345678", 1),
    "priority": frame(PRIORITY, b"\0\0\0\0\x10", 0, 1),
    "unknown": frame(0x42, b"x"),
    "goaway": frame(GOAWAY, bytes(8)),
    "window": frame(WINDOW_UPDATE, b"\0\0\0\1"),
    "reset": frame(RST_STREAM, b"\0\0\0\0", 0, 1),
    "empty data": frame(DATA, b"", 0, 1),
    "padding": frame(DATA, b"\xc8" + b"\0" * 200, PADDED, 1),
    "data of no stream": frame(DATA, b"x" * 100, 0, 3),
    "trailers": HEAD,
    "continuation": frame(CONTINUATION, b"", 0, 1),
}
DROPPED = {"ping", "pong", "priority", "unknown", "goaway"}


def begun() -> Frames:
    frames = Frames()
    frames.feed(http2.PREFACE + HEAD)
    assert frames.take({}, 1.0) == http2.PREFACE
    assert frames.take({}, 1.0) == HEAD
    return frames


def passed(frames: Frames, data: bytes, now: float = 1.0) -> bytes:
    """What h2 sees of `data` while stream 1 is open."""
    frames.feed(data)
    seen = b""
    while more := frames.take({1}, now):
        seen += more
    return seen


@pytest.mark.parametrize("kind", IDLE)
def test_frames_that_bring_nothing_are_bounded_at_once_and_a_second(kind: str) -> None:
    frames, each = begun(), IDLE[kind]
    assert passed(frames, each * IDLE_FRAMES) == (b"" if kind in DROPPED else each * IDLE_FRAMES)
    passed(frames, each * IDLE_FRAMES_PER_S, 2.0)
    with pytest.raises(Refused) as refused:
        passed(frames, each, 2.0)
    assert refused.value.code == CALM


@pytest.mark.parametrize(
    "each",
    [
        frame(DATA, b"x" * 100, 0, 1),
        frame(DATA, b"x", http2.END_STREAM, 1),
        frame(DATA, b"", http2.END_STREAM, 1),
    ],
)
def test_frames_that_bring_something_are_free(each: bytes) -> None:
    assert passed(begun(), each * 5000) == each * 5000


def test_a_client_that_acknowledges_what_it_gets_is_never_refused() -> None:
    frames = begun()
    for number in range(3, 20_001, 2):
        each = frame(HEADERS, b"\x82", http2.END_HEADERS | http2.END_STREAM, number)
        each += frame(WINDOW_UPDATE, b"\0\0\0\1") + frame(WINDOW_UPDATE, b"\0\0\0\1", 0, number)
        assert passed(frames, each + IDLE["ping"]) == each
        frames.idle.earn(EARNED_BY_DATA)
        frames.idle.earn(EARNED_BY_ANSWER)


def test_a_request_that_is_reset_earns_nothing() -> None:
    frames = begun()
    for number in range(3, 3 + 2 * (IDLE_FRAMES - LATE_RESET + 1), 2):
        frames.idle.earn(LATE_RESET - 1)
        passed(frames, frame(HEADERS, b"\x82", 5, number) + frame(RST_STREAM, b"\0\0\0\0", 0, number))
    frames.idle.earn(0)
    with pytest.raises(Refused):
        passed(frames, frame(RST_STREAM, b"\0\0\0\0", 0, number) * 2)


def test_settings_count_for_more_and_may_not_be_many() -> None:
    frames = begun()
    passed(frames, frame(SETTINGS) * (IDLE_FRAMES // SETTINGS_COST))
    with pytest.raises(Refused):
        passed(frames, frame(SETTINGS))
    with pytest.raises(Refused):
        passed(begun(), frame(SETTINGS, http2.setting(0x1000, 1) * 51))


def test_a_ping_is_answered_without_h2() -> None:
    frames = begun()
    assert passed(frames, IDLE["pong"] + IDLE["ping"]) == b""
    assert bytes(frames.replies) == frame(PING, b"12345678", 1)


def test_a_client_that_leaves_in_order_is_noted_without_h2_which_would_end_its_streams() -> None:
    frames, data = begun(), frame(DATA, b"x" * 100, 0, 1)
    assert not frames.goes
    assert passed(frames, frame(GOAWAY, bytes(8) + b"bye") + data) == data
    assert frames.goes


@pytest.mark.parametrize(
    "odd",
    [
        frame(PING, b"1"),
        frame(PING, b"12345678", 0, 1),
        frame(PRIORITY, b"\0" * 5),
        frame(GOAWAY, bytes(7)),
        frame(GOAWAY, bytes(8), 0, 1),
        frame(GOAWAY, bytes(7) + b"\2"),
    ],
)
def test_h2_sees_what_it_has_to_refuse_and_the_failure_of_a_client(odd: bytes) -> None:
    frames = begun()
    assert passed(frames, odd) == odd
    assert not frames.goes


def test_h2_sees_all_that_comes_inside_a_head() -> None:
    frames = begun()
    data = frame(HEADERS, b"\x82", 0, 3) + IDLE["ping"]
    assert passed(frames, data) == data
    assert frames.inside_head
    assert passed(frames, frame(CONTINUATION, b"", http2.END_HEADERS, 3))
    assert not frames.inside_head


def test_a_long_frame_is_refused_before_it_comes() -> None:
    with pytest.raises(Refused) as refused:
        passed(begun(), frame(DATA, b"x" * (16385), 0, 1)[:9])
    assert refused.value.code == FRAME_SIZE_ERROR


def test_a_head_that_goes_on_is_refused_at_its_bound() -> None:
    frames = begun()
    passed(frames, frame(HEADERS, b"x" * 16384, 0, 3))
    for _ in range(MAX_HEADER_BYTES // 16384 - 1):
        passed(frames, frame(CONTINUATION, b"x" * 16384, 0, 3))
    with pytest.raises(Refused):
        passed(frames, frame(CONTINUATION, b"x", 0, 3))


def test_a_turn_has_few_frames_and_one_head() -> None:
    frames = begun()
    data = frame(DATA, b"x" * 100, 0, 1)
    frames.feed(data * 9)
    assert frames.take({1}, 1.0) == data * TURN_FRAMES
    assert passed(frames, b"") == data * (9 - TURN_FRAMES)
    frames.feed(frame(HEADERS, b"", 5, 3) + frame(HEADERS, b"", 5, 5))
    assert frames.take({1}, 1.0) == frame(HEADERS, b"", 5, 3)
    frames = begun()
    large = frame(DATA, b"x" * 16384, 0, 1)
    frames.feed(large * 2)
    assert frames.take({1}, 1.0) == large


def test_it_does_not_matter_in_which_pieces_the_bytes_come() -> None:
    data = http2.PREFACE + HEAD + IDLE["ping"] + frame(DATA, b"x" * 70, 0, 1) + IDLE["window"] + IDLE["unknown"] + HEAD
    whole = passed(Frames(), data)
    for cut in range(len(data)):
        frames = Frames()
        assert passed(frames, data[:cut]) + passed(frames, data[cut:]) == whole
    frames = Frames()
    assert b"".join(passed(frames, data[at : at + 1]) for at in range(len(data))) == whole
