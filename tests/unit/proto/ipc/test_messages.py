"""Messages and control messages survive encoding and decoding; other bytes are refused."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc import control
from proto.ipc.control import ControlError, Decoder, Progress, Shards, ShardState, Start, Stop
from proto.ipc.message import Cancel, MessageError, Parked, Reply, Request, decode
from proto.model.errors import ErrorCode, TopicsError

options = st.dictionaries(st.text(max_size=8), st.one_of(st.booleans(), st.integers(0, 2**63), st.text(max_size=8)))


@pytest.mark.slow
@given(st.integers(0, 2**64 - 1), st.text(max_size=20), st.text(max_size=20), options, st.binary(max_size=50))
def test_requests_survive_the_wire(ident: int, op: str, topic: str, opts: dict[str, object], body: bytes) -> None:
    request = Request(ident, op, topic, opts, body)
    assert decode(request.encode()) == request


@given(st.integers(0, 2**32), st.binary(max_size=50), st.booleans(), st.tuples(*[st.integers(0, 2**60)] * 3))
def test_replies_survive_the_wire(ident: int, body: bytes, created: bool, counters: tuple[int, int, int]) -> None:
    reply = Reply(ident, body, created, {"wal_append_ms": 0.5}, counters, {"names": ["a"]})
    assert decode(reply.encode()) == reply


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
        [cbor2.dumps([1])],
        [cbor2.dumps({"v": 1})],
        [cbor2.dumps({"v": 2, "k": 1, "id": 1})],
        [cbor2.dumps({"v": 1, "k": 99, "id": 1})],
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
headers = st.fixed_dictionaries(
    {"v": st.just(1), "k": st.integers(0, 5)}, optional=dict.fromkeys(("id", "op", "t", "o", "p", "n", "e"), values)
)


@given(st.one_of(headers.map(cbor2.dumps), values.map(cbor2.dumps), st.binary(max_size=40)))
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
