"""The batches of a topic: found by seq, and merged only with their neighbours."""

from __future__ import annotations

import random
from itertools import chain, compress

import pytest

from proto.format.columns import Columns, plain
from proto.format.frame import encode_batch
from shardd.storage.batch import Batch
from shardd.storage.catalog import SUMS
from shardd.topic.batch_sequence import MERGE_FAN, BatchSequence, Slice


def batch(first_seq: int, count: int = 1) -> Batch:
    columns = Columns(count, 5, plain([b"1"] * count))
    return Batch(encode_batch(columns, 1, first_seq).head, first_seq, columns)


def sequence(count: int) -> BatchSequence:
    found = BatchSequence()
    for seq in range(1, count + 1):
        found.append(batch(seq))
        found.merge_newest(found.batches[-1].level, 1)
    return found


def test_small_batches_are_merged_when_there_are_enough_of_one_level() -> None:
    found = sequence(MERGE_FAN + 3)
    assert [(each.first_seq, each.count) for each in found.batches] == [(1, 32), (33, 1), (34, 1), (35, 1)]
    assert [found.place(seq) for seq in (0, 1, 32, 33, 35, 90)] == [-1, 0, 0, 1, 3, 3]
    assert len(sequence(MERGE_FAN * MERGE_FAN).batches) == 1


def test_a_sum_is_that_of_the_batches_up_to_a_seq_and_those_that_a_segment_has() -> None:
    found = sequence(MERGE_FAN + 3)
    sums = [each.sum for each in found.batches]
    assert [found.sum_upto(seq) for seq in (0, 32, 34, 90)] == [sum(sums[:end]) % SUMS for end in (0, 1, 3, 4)]
    merged, left = found.batches[:2]
    found.filed(merged)
    assert (found.sum_upto(90), merged.sum) == (sum(sums) % SUMS, 0)
    found.keep([merged, *found.batches[2:]])
    assert found.sum_upto(90) == (sum(sums) - sums[1]) % SUMS
    found.filed(left)  # it was written meanwhile
    found.drop_front(1)
    assert found.sum_upto(90) == sum(sums) % SUMS


def test_batches_before_a_part_are_not_merged_with_later_ones() -> None:
    found = sequence(20)
    found.part()
    for seq in range(30, 30 + MERGE_FAN):
        found.append(batch(seq))
        found.merge_newest(0, 1)
    assert [each.first_seq for each in found.batches] == [*range(1, 21), 30]


def test_the_list_stays_the_same_object() -> None:
    found = sequence(5)
    seen = found.batches
    found.drop_front(2)
    found.keep(each for each in list(found.batches) if each.first_seq != 4)
    assert [each.first_seq for each in seen] == [3, 5]
    assert seen is found.batches
    assert [found.place(seq) for seq in (2, 3, 4, 5)] == [-1, 0, 0, 1]


def test_batches_without_a_place_in_a_file_are_merged_up_to_a_seq() -> None:
    found = sequence(5)
    unstored = found.unstored(4, 1)
    assert [(each.first_seq, each.count) for each in unstored] == [(1, 4)]
    assert [each.first_seq for each in found.batches] == [1, 5]


def test_a_window_that_is_full_passes_over_deleted_records_behind_it_only_up_to_a_live_one() -> None:
    found = BatchSequence()
    found.append(batch(1, 200))
    found.batches[0].delete([0, *range(3, 200)])
    assert _window(found, 2) == ([2, 3], 200)
    assert _window(found, 1) == ([2], 2)
    found = BatchSequence()
    found.append(batch(1, 200))
    found.batches[0].delete([0, *range(3, 190)])
    assert _window(found, 2) == ([2, 3], 3)
    assert _window(found, 20) == ([2, 3, *range(191, 201)], 200)


def _window(found: BatchSequence, limit: int) -> tuple[list[int], int]:
    slices, examined = found.window(1, limit, 1 << 20, 200)
    return list(chain.from_iterable(map(_seqs, slices))), examined


def _seqs(piece: Slice) -> list[int]:
    if piece.places is not None:
        return list(piece.seqs)
    seqs = range(piece.first_seq + piece.start, piece.first_seq + piece.stop)
    return list(seqs if piece.mask is None else compress(seqs, piece.mask))


def test_chosen_records_are_those_that_live_whatever_else_is_asked_for() -> None:
    chance = random.Random(3)
    found = BatchSequence()
    for first_seq, count in ((5, 40), (45, 1), (60, 300)):
        found.append(batch(first_seq, count))
    live = set(chain(range(5, 46), range(60, 360)))
    found.batches[0].cut(3)
    found.batches[2].delete([place for place in range(300) if place % 3])
    live -= {5, 6, 7} | {60 + place for place in range(300) if place % 3}
    for share in (0.01, 0.1, 0.9, 1):
        asked = [seq for seq in range(1, 400) if chance.random() < share]
        told = list(chain.from_iterable(each.seqs for each in found.chosen(asked)))
        assert told == [seq for seq in asked if seq in live]
    assert found.chosen([]) == BatchSequence().chosen([1, 2]) == []


def test_a_window_passes_over_batches_without_live_records(monkeypatch: pytest.MonkeyPatch) -> None:
    found = BatchSequence()
    for at in range(500):
        found.append(batch(1 + 10 * at, 10))
        if 0 < at < 499:
            found.batches[at].delete(range(10))
    looked: list[int] = []
    whole = Batch.mask

    def seen(self: Batch, start: int, stop: int) -> bytes:
        looked.append(stop - start)
        return whole(self, start, stop)

    monkeypatch.setattr(Batch, "mask", seen)
    slices, last = found.window(5, 10, 1000, 5000)
    assert [(each.first_seq + each.start, each.stop - each.start) for each in slices] == [(5, 6), (4991, 4)]
    assert (last, sum(looked) <= 10) == (4994, True)


def test_the_first_record_since_a_time_is_found_in_any_batch() -> None:
    times = [10, 10, 20, 20, 20, 30, 50]
    found = BatchSequence()
    for first, stop in ((0, 2), (2, 3), (3, 6), (6, 7)):
        part = times[first:stop]
        columns = Columns(len(part), part if len(set(part)) > 1 else part[0], plain([b"1"] * len(part)))
        found.append(Batch(encode_batch(columns, 1, first + 1).head, first + 1, columns))
    for since in range(60):
        expected = next((seq for seq, ts in enumerate(times, 1) if ts >= since), None)
        assert found.first_since(since) == expected, since
    assert BatchSequence().first_since(0) is None
