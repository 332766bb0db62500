"""Claims about batches in memory."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from proto.format.columns import Columns, constant, optional, plain
from proto.format.frame import encode_batch
from shardd.storage.batch import FRESH, FRESH_BYTES, Batch, Fresh, merged


def batch(start: int, gone: tuple[int, ...]) -> Batch:
    columns = Columns(5, 1, plain([b"x" * 10**size for size in range(5)]))
    made = Batch(encode_batch(columns, 1, 1).head, 1, columns)
    made.cut(start)
    for position in gone:
        made.delete([position])
    return made


def test_records_deleted_together_count_as_those_deleted_one_by_one() -> None:
    ranges = [tuple(range(first, stop)) for first in range(5) for stop in range(first + 1, 6)]
    for start in range(3):
        for gone in ((), *combinations(range(5), 1), *combinations(range(5), 2)):
            for positions in ranges:
                together, single = batch(start, gone), batch(start, gone)
                together.delete(positions)
                for position in positions:
                    single.delete([position])
                assert (together.live, together.live_size, together.flags) == (
                    single.live,
                    single.live_size,
                    single.flags,
                )


def test_only_neighbouring_batches_are_merged() -> None:
    def at(first_seq: int) -> Batch:
        columns = Columns(5, 1, plain([b"x"] * 5))
        return Batch(encode_batch(columns, 1, first_seq).head, first_seq, columns)

    assert merged([at(1), at(6)], 1, 1).last_seq == 10
    with pytest.raises(AssertionError, match="neighbouring"):
        merged([at(1), at(7)], 1, 1)


# -- columns that are kept


def small(seq: int, kind: int) -> tuple[Batch, Columns]:
    """A batch of one or two records, with tags or meta or neither, and the columns it was made of."""
    count = 1 + kind % 2
    tag = None if kind % 3 else constant(b"t" * (kind % 5))
    meta = None if kind % 4 else optional([b'{"k":%d}' % kind] + [None] * (count - 1))
    columns = Columns(
        count, 1000 + kind, plain([b"%d" % kind] * count), tag, None, meta, b"key" if kind % 7 == 0 else b""
    )
    return Batch(encode_batch(columns, 1, seq).head, seq, columns), columns


@pytest.mark.parametrize("first", range(12))
def test_batches_are_merged_to_the_same_bytes_whether_their_columns_were_kept_or_not(first: int) -> None:
    fresh, kept, decoded = Fresh(), [], []
    seq = 1
    for kind in range(first, first + 9):
        batch, columns = small(seq, kind)
        fresh.keep(batch, columns)
        assert batch.decoded is columns
        kept.append(batch)
        decoded.append(small(seq, kind)[0])
        seq = batch.last_seq + 1
    assert merged(kept, 1, 1).buffer == merged(decoded, 1, 1).buffer
    count = sum(batch.count for batch in kept)
    whole = merged(kept, 1, 1).columns()
    for name in ("data", "tag", "meta"):
        cells: list[bytes | None] = []
        for batch in decoded:
            column = getattr(batch.columns(), name)
            cells += [None] * batch.count if column is None else column.cells(0, batch.count)
        column = getattr(whole, name)
        assert cells == ([None] * count if column is None else list(column.cells(0, count)))


def test_only_so_many_columns_are_kept_and_none_of_a_large_batch() -> None:
    fresh = Fresh()
    batches = []
    for seq in range(1, FRESH + 3):
        batch, columns = small(seq, 2)
        fresh.keep(batch, columns)
        batches.append(batch)
    assert [batch.decoded is None for batch in batches[:3]] == [True, True, False]
    assert batches[-1].decoded is not None
    columns = Columns(1, 5, plain([b"x" * FRESH_BYTES]))
    large = Batch(encode_batch(columns, 1, 1).head, 1, columns)
    fresh.keep(large, columns)
    assert large.decoded is None


# -- masks


def masked(marks: str) -> Batch:
    """A batch with a deleted record for each 0 of `marks`."""
    columns = Columns(len(marks), 1, constant(b"1"))
    made = Batch(encode_batch(columns, 1, 1).head, 1, columns)
    made.delete([place for place, mark in enumerate(marks) if mark == "0"])
    return made


@pytest.mark.parametrize("density", [0.001, 0.05, 0.5, 0.999, 1.0])
def test_a_live_mask_ends_at_the_last_record_that_is_wanted_or_at_the_end(density: float) -> None:
    chance = random.Random(7)
    count = 3000
    made = masked("".join("01"[chance.random() < density] for _ in range(count)))
    for start, stop, most in ((0, count, 1), (0, count, 8), (17, 2400, 300), (2990, count, 50), (5, 5, 3)):
        mask, live = made.live_mask(start, stop, most)
        whole = made.mask(start, stop)
        assert mask == whole[: len(mask)]
        assert live == mask.count(1) == min(most, whole.count(1))
        assert mask.endswith(b"\1") if live == most else len(mask) == stop - start


def test_a_live_mask_looks_at_few_more_records_than_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = masked("0" + "1" * 100_000)
    looked: list[int] = []
    whole = Batch.mask

    def seen(self: Batch, start: int, stop: int) -> bytes:
        looked.append(stop - start)
        return whole(self, start, stop)

    monkeypatch.setattr(Batch, "mask", seen)
    made.live_mask(0, 100_001, 8)
    assert sum(looked) < 100
