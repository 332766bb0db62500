"""Claims about chunked framing."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.chunked_body import ChunkDecoder
from proto.model.errors import ErrorCode, TopicsError


def encoded(pieces: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
    return chunks + b"0" + extension + b"\r\n" + trailers + b"\r\n"


def decode_all(wire: bytes, sizes: list[int], limit: int = 1 << 20) -> ChunkDecoder:
    decoder = ChunkDecoder(limit)
    at = 0
    for size in [*sizes, len(wire)]:
        if decoder.done:
            break
        decoder.feed(wire[at : at + size])
        at += size
    decoder.rest += wire[at:]
    return decoder


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.lists(st.integers(1, 9), max_size=60),
    st.sampled_from([b"", b";a=b", b' ; q="x y"']),
    st.sampled_from([b"", b"X-Sum: 1\r\n", b"A:\r\nB: 2\r\n"]),
    st.binary(max_size=20),
)
def test_any_body_split_anywhere_comes_back(
    pieces: list[bytes], sizes: list[int], extension: bytes, trailers: bytes, after: bytes
) -> None:
    decoder = decode_all(encoded(pieces, extension, trailers) + after, sizes)
    assert decoder.done
    assert decoder.body == b"".join(pieces)
    assert decoder.rest == after


def test_an_incomplete_body_is_never_done() -> None:
    wire = encoded([b"hello", b"x" * 300], b";e", b"T: 1\r\n")
    for cut in range(len(wire)):
        decoder = ChunkDecoder(1000)
        decoder.feed(wire[:cut])
        assert not decoder.done


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello\n0\r\n",
        b"5\r\nhelloo\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5_0\r\n",
        b"1" * 16 + b"\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\nbad name: 1\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"1;" + b"x" * 2000,
        b"0\r\n" + b"A: " + b"x" * 900 + (b"\r\nA: " + b"x" * 900) * 12 + b"\r\n\r\n",
    ],
)
def test_what_parsers_could_read_differently_is_refused(wire: bytes) -> None:
    with pytest.raises(TopicsError) as caught:
        ChunkDecoder(1 << 20).feed(wire)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_an_announced_size_above_the_limit_is_refused_before_its_bytes() -> None:
    decoder = ChunkDecoder(10)
    decoder.feed(b"6\r\nsix by\r\n")
    assert decoder.body == b"six by"
    with pytest.raises(TopicsError) as caught:
        decoder.feed(b"5\r\n")
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.slow
def test_chunks_of_two_bytes_take_no_more_memory_than_large_ones() -> None:
    wire = b"2\r\nxy\r\n" * (1 << 18)
    decoder = ChunkDecoder(1 << 20)
    tracemalloc.start()
    kept = [decoder.feed(wire[at : at + (16 << 10)]) for at in range(0, len(wire), 16 << 10)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(kept) > 100
    assert most < 2 << 20
    assert decoder.body == b"xy" * (1 << 18)
