"""Control messages survive encoding and decoding however the bytes are cut; other bytes are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc import control
from proto.ipc.control import ControlError, Decoder, Progress, Shards, ShardState, Start, Stop
from proto.model.keys import Key
from proto.model.limits import Limits

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.binary(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=5,
)


@given(
    st.lists(
        st.sampled_from(
            [Progress("replay", 5, 9), Stop(), Start("shard", Limits(max_limit=5), 1, 2, "/d", keys=[Key(bytes(32))])]
        )
    ),
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
    assert Decoder().feed(control.encode(Shards(states))) == [Shards(states)]
    assert [state.progress for state in states] == [0.5, 0.0]
    assert ShardState(0, "ready").progress == 1.0


@given(st.one_of(st.binary(max_size=40), values.map(lambda value: _framed(msgspec.msgpack.encode(value)))))
def test_control_garbage_is_a_message_or_refused(raw: bytes) -> None:
    try:
        Decoder().feed(raw)
    except ControlError:
        pass


def _framed(payload: bytes) -> bytes:
    return control.LENGTH.pack(len(payload)) + payload


@pytest.mark.parametrize(
    "raw", [b"\xff\xff\xff\xff", b"\1\0\0\0\xff", control.LENGTH.pack(9) + msgspec.msgpack.encode({"type": "Nobody"})]
)
def test_what_is_no_control_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ControlError):
        Decoder().feed(raw)
