"""Messages and control messages survive encoding and decoding; other bytes are refused."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc.in_hand import InHand
from proto.ipc.message import (
    INLINE_BYTES,
    NO_STATUS,
    VERSION,
    Cancel,
    Message,
    MessageError,
    NoMore,
    Packing,
    Parked,
    Reply,
    Request,
    Status,
    Taken,
    unpack,
)
from proto.ipc.operations import TABLE, Ping, Sampled, StateGet
from proto.model.errors import ErrorCode, TopicsError
from tests.support.packed import pack

pack_any = msgspec.msgpack.encode
NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    int: NUMBERS,
    float: st.floats(allow_nan=False),
    int | None: st.none() | NUMBERS,
    tuple[int, ...]: st.lists(NUMBERS, max_size=3).map(tuple),
    tuple[int, int]: st.tuples(NUMBERS, NUMBERS),
    dict[str, Any]: st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | NUMBERS | st.text(max_size=3)),
}


def filled(struct: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for Structs, or named tuples, of this type, with any values in their fields."""
    return st.builds(struct, **{name: _of(kind) for name, kind in get_type_hints(struct).items()})


def _of(kind: Any) -> st.SearchStrategy[Any]:
    if kind in VALUES:
        return VALUES[kind]
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return st.lists(_of(parts[0]), max_size=2).map(tuple) if parts[-1] is ... else st.tuples(*map(_of, parts))
    if get_origin(kind) is list:
        return st.lists(_of(parts[0]), max_size=2)
    if get_origin(kind) is dict:
        return st.dictionaries(st.text(max_size=3), _of(parts[1]), max_size=2)
    if parts:
        return st.one_of(*map(_of, parts))
    return filled(kind) if issubclass(kind, msgspec.Struct | tuple) else st.from_type(kind)


operations = st.sampled_from(TABLE).flatmap(lambda row: filled(row.request))
answers = st.sampled_from([row.answer for row in TABLE if row.answer]).flatmap(filled)


def travelled(message: Message) -> Message:
    (back,) = unpack(pack([message])).messages
    return back


@given(st.integers(0, 2**64 - 1), operations, st.text(max_size=20), st.binary(max_size=50))
def test_requests_survive_the_wire(ident: int, operation: msgspec.Struct, topic: str, body: bytes) -> None:
    request = Request(ident, operation, topic, body, "trace", 2**63)
    back = travelled(request)
    assert back == request
    assert isinstance(back, Request)
    assert type(back.options) is type(operation)


@given(st.integers(0, 2**32), st.binary(max_size=50), st.booleans(), answers)
def test_replies_survive_the_wire(ident: int, body: bytes, created: bool, extra: msgspec.Struct) -> None:
    reply = Reply(ident, body, created, {"wal_append_ms": 0.5, "records_scanned": 3}, extra)
    back = travelled(reply)
    assert back == reply
    assert isinstance(back, Reply)
    assert type(back.extra) is type(extra)
    assert type(back.performance["records_scanned"]) is int


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_survives_the_wire(code: ErrorCode) -> None:
    back = travelled(Reply(1, error=TopicsError(code, "why", {"field": "x"}, retry_after_ms=7)))
    assert isinstance(back, Reply)
    assert back.error is not None
    assert (back.error.code, back.error.message, back.error.detail) == (code, "why", {"field": "x"})
    assert back.error.retry_after_ms == 7


def test_a_reply_raises_its_error() -> None:
    failed, plain = Reply(1, error=TopicsError(ErrorCode.NOT_READY, "why")), Reply(1, b"{}")
    for raises in (failed.checked, failed.found):
        with pytest.raises(TopicsError, match="why"):
            raises()
    assert plain.checked() is plain
    assert Reply(1, extra=(found := Sampled(1, 2, 3, 4, (), ()))).found() is found
    with pytest.raises(AssertionError):
        plain.found()


@pytest.mark.parametrize("message", [Parked(7), Cancel(8), Taken(2**40), NoMore()])
def test_short_messages_survive_the_wire(message: Message) -> None:
    assert travelled(message) == message


@given(st.lists(st.sampled_from([0, 10, INLINE_BYTES, INLINE_BYTES + 1, 70_000, None]), max_size=20))
def test_a_packet_keeps_its_messages_in_order_with_their_bodies(sizes: list[int | None]) -> None:
    sent = [Cancel(n) if size is None else Reply(n, b"%d" % n * size) for n, size in enumerate(sizes)]
    status = Status(1, 2, 3, 4, True)
    frames = pack(sent, status)
    packet = unpack(frames)
    assert packet.messages == sent
    assert packet.status == status
    assert len(frames) == 1 + sum(len(each.body) > INLINE_BYTES for each in sent)
    assert len(frames[0]) <= (INLINE_BYTES + 30) * len(sent) + 30


def test_a_message_that_cannot_be_encoded_fails_its_sender_and_not_the_packet() -> None:
    packing = Packing()
    packing.add(Request(1, StateGet(), "a", b"x" * 9000))
    with pytest.raises(UnicodeEncodeError):
        packing.add(Request(2, StateGet(), "long enough to have been written in part: " * 99 + "\ud800"))
    bad = Request(3, StateGet(), "\ud800", b"y" * 9000)
    with pytest.raises(UnicodeEncodeError):
        packing.add(bad)
    assert len(bad.body) == 9000
    packing.add(Request(4, StateGet(), "b", b"z" * 9000))
    there = unpack(packing.frames(NO_STATUS)).messages
    assert [(each.id, each.body[:1]) for each in there] == [(1, b"x"), (4, b"z")]


GOOD = [1, 1, ["ping"], "", b"", "", 0, []]
NO_STATUS_YET = [0, 0, 0, 0, False]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xff\xff"],
        [pack_any([VERSION])],
        [pack_any(VERSION)],
        [cbor2.dumps({"v": 1, "k": 1, "id": 1, "op": "ping", "t": "", "o": {}})],
        [pack_any([VERSION + 1, [GOOD], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[1]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[1, 1, ["nothing"]]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[1, 1, ["cursor_get"]]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[1, 1, ["cursor_get", 7]]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [GOOD, [1, "1", ["ping"]]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[99, 1]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[2, 1, b"", False, {}, ["page", ["a"]]]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[2, 1, b"", False, {}, None, ["no_code", "", None, None]]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [[2, 1, b"", False, {}, None, "bad_request"]], NO_STATUS_YET, []])],
        [pack_any([VERSION, [GOOD], [0, "0"], []])],
        [pack_any([VERSION, [GOOD], NO_STATUS_YET, [0]])],
        [pack_any([VERSION, [GOOD], NO_STATUS_YET, []]), b"x"],
        [pack_any([VERSION, [GOOD], NO_STATUS_YET, [1]]), b"x"],
        [pack_any([VERSION, [[4, 7]], NO_STATUS_YET, [0]]), b"x"],
    ],
)
def test_what_is_no_packet_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(MessageError):
        unpack(frames)


def test_the_packet_of_the_tests_is_one() -> None:
    assert unpack([pack_any([VERSION, [GOOD], NO_STATUS_YET, [0]]), b"x"]).messages == [Request(1, Ping(), body=b"x")]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.binary(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=5,
)
packable = st.recursive(
    values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)
messages = st.tuples(
    st.integers(0, 6),
    packable,
    st.sampled_from([row.op for row in TABLE]).flatmap(
        lambda op: st.lists(packable, max_size=6).map(lambda v: [op, *v])
    ),
    *[packable] * 4,
)
packets = st.tuples(
    st.just(VERSION),
    st.lists(st.one_of(messages, st.just(GOOD)), max_size=3),
    st.one_of(st.just(NO_STATUS_YET), packable),
    st.lists(st.integers(-2, 3), max_size=2),
)


@given(
    st.one_of(packets.map(pack_any), packable.map(pack_any), st.binary(max_size=40)),
    st.lists(st.binary(max_size=3), max_size=2),
)
def test_garbage_is_a_packet_or_refused(raw: bytes, bodies: list[bytes]) -> None:
    """Decoding raises only `MessageError`, so that callers handle one error."""
    try:
        unpack([raw, *bodies])
    except MessageError:
        pass


@pytest.mark.parametrize(
    "message", [Request(-1, StateGet(), "t"), Request(1, StateGet(), "t", deadline_ns=-1), Taken(-1)]
)
def test_numbers_below_zero_are_refused(message: Message) -> None:
    """A shard keeps them as u64 in memory that outlives it: one from a peer must not end its process."""
    with pytest.raises(MessageError):
        unpack(pack([message]))


def test_the_greatest_numbers_are_kept_by_a_shard() -> None:
    (message,) = unpack(pack([Request(2**64 - 1, StateGet(), "t", deadline_ns=2**64 - 1)])).messages
    assert isinstance(message, Request)
    InHand().take(message)
