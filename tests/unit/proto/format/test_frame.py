"""The frame: what is encoded is decoded, and what was changed is noticed."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from proto.format.columns import Columns, constant, plain
from proto.format.frame import (
    CHECKSUM,
    HEADER,
    FrameError,
    Kind,
    UnknownVersion,
    check,
    content_hash,
    decode_batch,
    decode_map,
    encode_batch,
    encode_map,
)
from tests.support.batches import batches, rows


@given(batches(), st.integers(1, 2**60), st.integers(1, 2**60))
def test_a_batch_survives_its_frame(batch: Columns, topic_id: int, first_seq: int) -> None:
    frame = encode_batch(batch, topic_id, first_seq, frame_no=7, synced_no=5)
    raw = frame.head + frame.tail
    header = check(raw)
    assert len(raw) == header.length == len(frame)
    assert header.length % 8 == 0
    assert (header.kind, header.topic_id, header.first_seq) == (Kind.BATCH, topic_id, first_seq)
    assert (header.frame_no, header.synced_no) == (7, 5)
    back = decode_batch(raw, header)
    assert rows(back) == rows(batch)
    assert back.key == batch.key


@given(batches(), st.data())
def test_any_changed_byte_before_the_flags_is_noticed(batch: Columns, data: st.DataObject) -> None:
    frame = encode_batch(batch, 1, 1)
    raw = bytearray(frame.head + frame.tail)
    at = data.draw(st.integers(0, len(frame.head) + 7))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        check(raw)


def test_delete_flags_are_outside_the_checksum() -> None:
    batch = Columns(3, 1, plain([b"1", b"2", b"3"]))
    frame = encode_batch(batch, 1, 1, deleted=b"\0\xd5\0")
    raw = bytearray(frame.head + frame.tail)
    header = check(raw)
    assert raw[header.flags_at : header.flags_at + 3] == b"\0\xd5\0"
    raw[header.flags_at] = 0xD5
    check(raw)


def test_a_constant_column_is_stored_once() -> None:
    one = encode_batch(Columns(1000, 1, plain([b"1"] * 1000), node=constant(b"n" * 100)), 1, 1)
    many = encode_batch(Columns(1000, 1, plain([b"1"] * 1000), node=plain([b"n" * 100] * 1000)), 1, 1)
    assert len(one) + 90_000 < len(many)


def test_maps_survive_their_frame() -> None:
    frame = encode_map(Kind.TOPIC_CREATE, 4, {"name": "a", "config": {"ttl_ms": 3}}, 99, frame_no=1)
    raw = frame.head + frame.tail
    header = check(raw)
    assert decode_map(raw, header) == {"name": "a", "config": {"ttl_ms": 3}}
    assert header.ts_ms == 99
    assert HEADER.size == 64


def test_renumbering_changes_the_place_only() -> None:
    frame = encode_batch(Columns(1, 5, plain([b"1"])), 1, 1, frame_no=9)
    moved = frame.renumbered(10, 8)
    header = check(moved.head + moved.tail)
    assert (header.frame_no, header.synced_no) == (10, 8)
    assert rows(decode_batch(moved.head)) == rows(decode_batch(frame.head))


def test_a_content_hash_is_of_the_records_and_their_seqs_and_of_no_place_or_flag() -> None:
    batch = Columns(1, 5, plain([b"1"]))
    frame = encode_batch(batch, 1, 1, frame_no=9)
    moved = frame.renumbered(10, 8)
    deleted = encode_batch(batch, 1, 1, frame_no=9, deleted=b"\xd5")
    same = {content_hash(each.head + each.tail) for each in (frame, moved, deleted)} | {content_hash(frame.head)}
    assert same == {content_hash(b"12345678" + moved.head, 8)}
    others = [encode_batch(batch, 2, 1), encode_batch(batch, 1, 2), encode_batch(Columns(1, 6, plain([b"1"])), 1, 1)]
    others.append(encode_batch(Columns(1, 5, plain([b"2"])), 1, 1))
    assert len(same | {content_hash(each.head) for each in others}) == 5


def test_a_whole_frame_with_flags_of_a_later_release_is_unknown_and_a_damaged_one_is_damaged() -> None:
    frame = encode_batch(Columns(1, 5, plain([b"1"])), 1, 1)
    raw = bytearray(frame.head + frame.tail)
    raw[6] |= 8
    with pytest.raises(FrameError, match="checksum") as damaged:
        check(raw)
    assert not isinstance(damaged.value, UnknownVersion)
    CHECKSUM.pack_into(raw, len(frame.head), xxhash.xxh3_64_intdigest(raw[: len(frame.head)]))
    with pytest.raises(
        UnknownVersion, match="frame flags 0b1000, this release knows 0b111: use the release that wrote"
    ):
        check(raw)
