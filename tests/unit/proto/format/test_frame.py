import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.format.frame import (
    HEADER,
    Columns,
    Encoding,
    FrameError,
    Kind,
    check,
    constant,
    decode_batch,
    decode_map,
    encode_batch,
    encode_map,
    merge,
    optional,
    plain,
    select,
)

cells = st.one_of(st.none(), st.binary(max_size=12))


@st.composite
def batches(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(1, 20))

    def column():  # type: ignore[no-untyped-def]
        if draw(st.booleans()):
            return optional([draw(st.binary(max_size=4))] * count)
        return optional(draw(st.lists(cells, min_size=count, max_size=count)))

    ts = draw(st.integers(0, 2**40))
    times = ts if draw(st.booleans()) else [ts + i for i in range(count)]
    data = plain(draw(st.lists(st.binary(min_size=1, max_size=20), min_size=count, max_size=count)))
    return Columns(count, times, data, column(), column(), column(), draw(st.binary(max_size=9)))


def rows(batch: Columns) -> list[tuple[object, ...]]:
    n = batch.count
    columns = [list(c.cells(0, n)) if c else [None] * n for c in (batch.data, batch.tag, batch.node, batch.meta)]
    return list(zip(batch.times(0, n), *columns, strict=True))


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
    assert optional([b"n"] * 5).encoding == Encoding.CONSTANT  # type: ignore[union-attr]


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
