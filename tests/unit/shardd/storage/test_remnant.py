"""Claims about remnants: they have what the file has, and only what was checked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import repeat

import pytest

from proto.format.columns import Columns, constant, optional, plain
from proto.format.frame import DELETED, encode_batch
from proto.model.limits import RECORD_OVERHEAD
from shardd.storage.batch import Batch
from shardd.storage.errors import SegmentError
from shardd.storage.remnant import PER_RECORD, Remnants

COUNT = 400


class File:
    """A stored frame whose reads are counted. It cannot be read while `damaged`."""

    segment = None

    def __init__(self, columns: Columns, remnants: Remnants | None = None) -> None:
        self.frame = memoryview(encode_batch(columns, 1, 1).head)
        self.remnants = remnants or Remnants()
        self.reads = 0
        self.damaged = False

    def load(self) -> memoryview:
        self.reads += 1
        if self.damaged:
            raise SegmentError("damaged")
        return self.frame


def columns(count: int = COUNT) -> Columns:
    tags = optional([None if at % 3 else b"tag%d" % at for at in range(count)])
    data = plain([b"x" * (at % 50) for at in range(count)])
    return Columns(count, list(range(1000, 1000 + count)), data, tags, constant(b"node"))


def stored(live: Sequence[int], remnants: Remnants | None = None, count: int = COUNT) -> tuple[Batch, File]:
    """A batch that only a file has, whose flags leave these records."""
    flags = bytearray([DELETED]) * count
    for position in live:
        flags[position] = 0
    file = File(columns(count), remnants)
    return Batch.of_file(file, 1, count, (1000, 1000 + count - 1), 0, bytes(flags)), file


def cells(batch: Batch, positions: Sequence[int]) -> list[tuple[object, ...]]:
    found, places = batch.records(positions)
    texts = (column.cells_at(places) if column else repeat(None) for column in (found.data, found.tag, found.node))
    return list(zip(found.times_at(places), *texts, strict=False))


def test_a_batch_of_which_little_is_left_is_read_once() -> None:
    live = [3, 77, 78, 250, 399]
    batch, file = stored(live)
    whole = Batch(file.frame, 1, columns())
    assert file.reads == 1
    assert cells(batch, live) == cells(whole, live)
    batch.delete([77, 78])
    batch.delete([4, 5, 250, 251])
    assert (batch.live, batch.first_live, batch.last_live) == (2, 4, 400)
    assert batch.live_of_few(0, COUNT, 9) == [3, 399]
    assert batch.live_of_few(4, 399, 9) == []
    assert cells(batch, [399]) == cells(whole, [399])
    batch.cut(10)
    assert (batch.live, batch.live_size, file.reads) == (1, columns().size(399, 400) + RECORD_OVERHEAD, 1)


@pytest.mark.parametrize("limit", [1 << 20, 3000, 0])
def test_deletions_count_as_without_a_remnant(limit: int) -> None:
    chance = random.Random(5)
    for _ in range(30):
        live = sorted(chance.sample(range(COUNT), 60))
        batch, _ = stored(live, Remnants(limit))
        whole = Batch(encode_batch(columns(), 1, 1).head, 1, columns())
        whole.delete([at for at in range(COUNT) if at not in set(live)])
        while whole.live:
            if chance.random() < 0.1:
                start = whole.start + chance.randrange(20)
                batch.cut(start)
                whole.cut(start)
            first = chance.randrange(COUNT)
            run = list(range(first, min(first + chance.choice((1, 2, 40)), COUNT)))
            gone = chance.choice((run, sorted(chance.sample(range(COUNT), 8))))
            batch.delete(gone)
            whole.delete(gone)
            assert (batch.live, batch.live_size, batch.flags) == (whole.live, whole.live_size, whole.flags)
            left = whole.live_at(range(COUNT))
            assert cells(batch, left) == cells(whole, left)
            if batch.remnant is not None:
                assert batch.live_of_few(0, COUNT, 7) == left[:7]
                start = max(100, whole.start)
                assert batch.has_live(start, 200) == whole.has_live(start, 200)


def test_a_batch_that_cannot_be_read_leaves_no_remnant() -> None:
    batch, file = stored(range(0, COUNT, 2))
    file.damaged = True
    batch.delete([at for at in range(COUNT) if at > 9])
    assert (batch.live, batch.remnant) == (5, None)
    with pytest.raises(SegmentError):
        batch.records([2])
    file.damaged = False
    assert len(cells(batch, [2])) == 1
    assert batch.remnant is not None


def test_the_oldest_remnants_go_and_are_read_again() -> None:
    one = stored([7])[0].remnant
    assert one is not None
    remnants = Remnants(3 * one.size)
    batches = [stored([7], remnants) for _ in range(5)]
    assert [batch.remnant is None for batch, _ in batches] == [True, True, False, False, False]
    first, file = batches[0]
    assert cells(first, [7]) == cells(batches[4][0], [7])
    assert file.reads == 2
    assert [batch.remnant is None for batch, _ in batches] == [False, True, True, False, False]


def test_a_remnant_that_is_too_large_is_used_and_not_kept() -> None:
    batch, file = stored([1, 2], Remnants(PER_RECORD))
    assert len(cells(batch, [1, 2])) == 2
    assert (batch.remnant, file.reads) == (None, 2)


def test_another_object_of_a_batch_inherits_its_remnant_unless_it_lacks_a_live_record() -> None:
    for known, live, inherits in (([5, 6], [5, 6], True), ([5, 6], [6], True), ([5, 6], [6, 7], False)):
        probe, _ = stored(known)
        batch = Batch.of_file(File(columns()), 1, COUNT, (1000, 1399), 0, b"")
        flags = bytearray([DELETED]) * COUNT
        for position in live:
            flags[position] = 0
        batch.resume(0, bytes(flags), 1)
        batch.inherit(probe)
        assert (batch.remnant is not None) == inherits
        assert cells(batch, live) == cells(Batch(File(columns()).frame, 1, columns()), live)
        assert (probe.remnant is None) == inherits
