"""The reader's own decoder of CBOR."""

from __future__ import annotations

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics import cbor

json_like = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**64), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=30),
        st.binary(max_size=30),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=5), inner, max_size=5)),
    max_leaves=20,
)


@given(json_like, st.binary(max_size=7))
def test_maps_decode_as_the_servers_library_encodes_them(value: object, padding: bytes) -> None:
    assert cbor.loads(cbor2.dumps(value) + padding) == value


@given(st.binary(max_size=40))
def test_random_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        cbor.loads(data)
    except cbor.CborError:
        pass
