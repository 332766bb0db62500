"""Messages and control messages survive encoding and decoding; other bytes are refused."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc import control
from proto.ipc.control import ControlError, Decoder, Progress, Shards, ShardState, Start, Stop
from proto.ipc.message import VERSION, Cancel, Kind, MessageError, Parked, Reply, Request, decode
from proto.ipc.operations import TABLE
from proto.model.errors import ErrorCode, TopicsError

pack = msgspec.msgpack.encode
REQUEST = VERSION << 8 | Kind.REQUEST
NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    int: NUMBERS,
    int | None: st.none() | NUMBERS,
    tuple[int, ...]: st.lists(NUMBERS, max_size=3).map(tuple),
    tuple[int, int]: st.tuples(NUMBERS, NUMBERS),
    dict[str, Any]: st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | NUMBERS | st.text(max_size=3)),
}


def filled(struct: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Return a strategy for Structs of this type, with any values in their fields."""
    return st.builds(struct, **{name: _of(kind) for name, kind in get_type_hints(struct).items()})


def _of(kind: Any) -> st.SearchStrategy[Any]:
    if kind in VALUES:
        return VALUES[kind]
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return st.lists(_of(parts[0]), max_size=2).map(tuple) if parts[-1] is ... else st.tuples(*map(_of, parts))
    if get_origin(kind) is dict:
        return st.dictionaries(st.text(max_size=3), _of(parts[1]), max_size=2)
    return st.one_of(*map(_of, parts)) if parts else st.from_type(kind)


operations = st.sampled_from(TABLE).flatmap(lambda row: filled(row.request))
answers = st.sampled_from([row.answer for row in TABLE if row.answer]).flatmap(filled)


@given(st.integers(0, 2**64 - 1), operations, st.text(max_size=20), st.binary(max_size=50))
def test_requests_survive_the_wire(ident: int, operation: msgspec.Struct, topic: str, body: bytes) -> None:
    request = Request(ident, operation, topic, body, "trace", 2**63)
    back = decode(request.encode())
    assert back == request
    assert isinstance(back, Request)
    assert type(back.options) is type(operation)


@given(st.integers(0, 2**32), st.binary(max_size=50), st.booleans(), st.tuples(*[st.integers(0, 2**60)] * 3), answers)
def test_replies_survive_the_wire(
    ident: int, body: bytes, created: bool, counters: tuple[int, int, int], extra: msgspec.Struct
) -> None:
    reply = Reply(ident, body, created, {"wal_append_ms": 0.5, "records_scanned": 3}, counters, extra)
    back = decode(reply.encode())
    assert back == reply
    assert isinstance(back, Reply)
    assert type(back.extra) is type(extra)
    assert type(back.performance["records_scanned"]) is int


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_survives_the_wire(code: ErrorCode) -> None:
    back = decode(Reply(1, error=TopicsError(code, "why", {"field": "x"}, retry_after_ms=7)).encode())
    assert isinstance(back, Reply)
    assert back.error is not None
    assert (back.error.code, back.error.message, back.error.detail) == (code, "why", {"field": "x"})
    assert back.error.retry_after_ms == 7


def test_short_messages_survive_the_wire() -> None:
    assert decode(Parked(7).encode()) == Parked(7)
    assert decode(Cancel(8).encode()) == Cancel(8)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xff\xff"],
        [pack([1])],
        [pack(REQUEST)],
        [cbor2.dumps({"v": 1, "k": 1, "id": 1, "op": "ping", "t": "", "o": {}})],
        [pack([REQUEST])],
        [pack([REQUEST, 1, ["nothing"], "", "", 0])],
        [pack([REQUEST, 1, ["cursor_get"], "", "", 0])],
        [pack([REQUEST, 1, ["cursor_get", 7], "", "", 0])],
        [pack([REQUEST, "1", ["ping"], "", "", 0])],
        [pack([REQUEST + 256, 1, ["ping"], "", "", 0])],
        [pack([VERSION << 8 | 99, 1])],
        [pack([VERSION << 8 | Kind.REPLY, 1, [0, 0, 0], {}, ["page", ["a"]], False, False, 0, None])],
        [pack([VERSION << 8 | Kind.REPLY, 1, [0, 0, 0], {}, None, False, False, 0, ["no_code", "", None, None]])],
    ],
)
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(MessageError):
        decode(frames)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.binary(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=5,
)
packable = st.recursive(
    values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)
headers = st.tuples(
    st.integers(0, 5).map(lambda kind: VERSION << 8 | kind),
    packable,
    st.sampled_from([row.op for row in TABLE]).flatmap(
        lambda op: st.lists(packable, max_size=6).map(lambda v: [op, *v])
    ),
    *[packable] * 4,
)


@given(st.one_of(headers.map(pack), packable.map(pack), st.binary(max_size=40)))
def test_garbage_is_a_message_or_refused(raw: bytes) -> None:
    """Decoding raises only `MessageError`, so that callers handle one error."""
    try:
        decode([raw])
    except MessageError:
        pass


@given(
    st.lists(st.sampled_from([Progress("replay", 5, 9), Stop(), Start("shard", {"max_limit": 5}, 1, 2, "/d")])),
    st.data(),
)
def test_control_messages_survive_however_the_bytes_are_cut(
    messages: list[control.Control], data: st.DataObject
) -> None:
    raw = b"".join(map(control.encode, messages))
    decoder = Decoder()
    found: list[control.Control] = []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        found += decoder.feed(raw[:size])
        raw = raw[size:]
    assert found == messages


def test_shard_states_survive() -> None:
    states = [ShardState(0, "replay", "ipc://x", 3, 5, 10), ShardState(1)]
    assert Shards.of(states).parsed() == states
    assert [state.progress for state in states] == [0.5, 0.0]
    assert ShardState(0, "ready").progress == 1.0


@given(st.one_of(st.binary(max_size=40), values.map(lambda value: _framed(cbor2.dumps(value)))))
def test_control_garbage_is_a_message_or_refused(raw: bytes) -> None:
    try:
        Decoder().feed(raw)
    except ControlError:
        pass


def _framed(payload: bytes) -> bytes:
    return control.LENGTH.pack(len(payload)) + payload


@pytest.mark.parametrize(
    "raw", [b"\xff\xff\xff\xff", b"\1\0\0\0\xff", control.LENGTH.pack(9) + cbor2.dumps(["Nobody", {}])]
)
def test_what_is_no_control_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ControlError):
        Decoder().feed(raw)
