"""Columns: ranges, and what is made of batches without parsing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.format.columns import Columns, Encoding, merge, optional, part, plain, reordered, select
from proto.format.frame import decode_batch, encode_batch
from tests.support.batches import batches, rows


@given(batches(), st.data())
def test_any_range_of_cells_equals_that_range_of_all(batch: Columns, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, batch.count))
    stop = data.draw(st.integers(start, batch.count))
    raw = encode_batch(batch, 1, 1).head
    for column in (decode_batch(raw).data, decode_batch(raw).tag):
        if column is not None:
            every = list(column.cells(0, batch.count))
            assert list(column.cells(start, stop)) == every[start:stop]
            places = range(start, stop, 2)
            assert list(column.cells_at(places)) == every[start:stop:2]
            assert column.size_at(places) == sum(column.size(at, at + 1) for at in places)
            if column.encoding == Encoding.CONSTANT or start < stop:
                size = sum(len(c) for c in every[start:stop] if c is not None)
                assert column.size(start, stop) == size


@pytest.mark.slow
@given(st.lists(batches(), min_size=1, max_size=5))
def test_merging_keeps_every_record_in_order(parts: list[Columns]) -> None:
    decoded = [decode_batch(encode_batch(p, 1, 1).head) for p in parts]
    merged = merge(decoded)
    again = decode_batch(encode_batch(merged, 1, 1).head)
    assert rows(again) == [row for part in parts for row in rows(part)]


@given(batches(), st.data())
def test_select_keeps_exactly_the_chosen(batch: Columns, data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=batch.count, max_size=batch.count))
    chosen = [row for row, k in zip(rows(batch), keep, strict=True) if k]
    if chosen:
        assert rows(select(batch, keep)) == chosen


@given(batches(), st.data())
def test_a_part_is_that_range_of_the_records(batch: Columns, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, batch.count - 1))
    stop = data.draw(st.integers(start + 1, batch.count))
    assert rows(part(batch, start, stop)) == rows(batch)[start:stop]


@given(batches(), st.data())
def test_reordered_has_the_records_in_that_order(batch: Columns, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(batch.count)))
    assert rows(reordered(batch, order)) == [rows(batch)[at] for at in order]


def test_what_is_made_of_a_batch_has_no_key_and_no_due_times() -> None:
    batch = Columns(2, 1, plain([b"1", b"2"]), key=b"k", due=[5, 0])
    for made in (merge([batch, batch]), part(batch, 0, 2), select(batch, [1, 0]), reordered(batch, [1, 0])):
        assert (made.key, made.due) == (b"", None)


def test_the_smallest_encoding_is_taken() -> None:
    def encoding(*values: bytes | None) -> Encoding:
        column = optional(values)
        return Encoding.ABSENT if column is None else column.encoding

    assert encoding(None, None) is Encoding.ABSENT
    assert encoding(b"n", b"n") is Encoding.CONSTANT
    assert encoding(b"n") is Encoding.PLAIN
    assert encoding(b"n", b"m") is Encoding.PLAIN
    assert encoding(b"n", None) is Encoding.SPARSE
