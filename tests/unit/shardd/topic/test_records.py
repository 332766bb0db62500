"""Claims about the records of a topic: counts agree with the batches, whatever leaves."""

from __future__ import annotations

import random

import pytest

from proto.format.columns import Column, Columns, Encoding
from proto.format.frame import encode_batch
from proto.model.topic_config import TopicConfig
from shardd.storage.catalog import SUMS
from shardd.topic.promises import Promises
from shardd.topic.records import Records, Totals
from shardd.topic.topic import Topic


def columns(count: int, ts: int = 1) -> Columns:
    ends = [3 * place for place in range(count + 1)]
    return Columns(count, ts, Column(Encoding.PLAIN, b"123" * count, ends), None, None, None)


def add(records: Records, count: int, ts: int = 1) -> None:
    first, batch = records.head_seq + 1, columns(count, ts)
    records.add(encode_batch(batch, 1, first).head, first, batch, None)


def sound(records: Records) -> bool:
    """Whether counts and floor agree with the batches."""
    live = [seq for seq in range(records.head_seq + 2) if records.alive(seq)]
    sizes = sum(batch.live_size for batch in records.batches)
    assert (records.count, records.bytes) == (len(live), sizes)
    assert (records.totals.records, records.totals.bytes) == (records.count, records.bytes)
    assert records.floor == (live[0] if live else records.head_seq + 1)
    assert records.sequence.sum_upto(records.head_seq) == sum(batch.sum for batch in records.batches) % SUMS
    return True


@pytest.mark.parametrize("seed", range(12))
def test_counts_and_floor_agree_with_the_batches_whatever_leaves(seed: int) -> None:
    chance = random.Random(seed)
    records, now = Records(1), 1
    for _ in range(60):
        now += chance.randrange(3)
        seqs = range(1, records.head_seq + 2)
        what = chance.randrange(7)
        if what < 3:
            add(records, chance.randrange(1, 6), now)
        elif what == 3:
            records.delete_seqs(sorted(chance.sample(seqs, min(len(seqs), 3))))
        elif what == 4:
            floor = records.floor
            assert records.expire(now - 3) is (records.floor > floor), "the catalog's entry holds only if nothing went"
        elif what == 5:
            records.evict(TopicConfig(cap_records=chance.randrange(1, 9)))
        else:
            records.leave_out(2, chance.choice([None, "source_trim"]))
        assert sound(records)


def test_seqs_that_no_batch_has_are_passed_over() -> None:
    records = Records(1)
    add(records, 2)
    records.leave_out(10_000, None)
    add(records, 3)
    records.delete_seqs([0, 2, *range(3, 10_003), 10_004, 2**64])
    assert [seq for seq in range(10_010) if records.alive(seq)] == [1, 10_003, 10_005]
    assert sound(records)


def test_records_are_counted_in_one_total_at_a_time() -> None:
    records, shard = Records(1), Totals(records=5, bytes=50)
    add(records, 4)
    own = records.totals
    records.count_in(shard)
    assert (own.records, own.bytes, shard.records) == (0, 0, 9)
    records.count_in(Totals())
    assert (shard.records, shard.bytes) == (5, 50)


def test_more_records_than_are_staged_cannot_become_visible() -> None:
    records = Records(1)
    records.staged(2, 20)
    records.promised(Promises(), 20)
    records.unstaged(2, 20)
    records.kept()
    assert records.promise is None
    with pytest.raises(AssertionError, match="staged before"):
        records.unstaged(1, 10)


def test_a_batch_that_leaves_out_a_seq_is_not_added() -> None:
    records, batch = Records(1), columns(1)
    with pytest.raises(AssertionError, match="seq order"):
        records.add(encode_batch(batch, 1, 2).head, 2, batch, None)


def test_an_entry_of_the_catalog_lasts_until_a_record_expires() -> None:
    topic = Topic("t", 1, 1, TopicConfig(ttl_ms=10))
    add(topic.records, 2, ts=100)
    add(topic.records, 2, ts=200)
    entry = topic.catalogued = b"entry"
    topic.expire(105)
    assert topic.catalogued is entry
    topic.expire(150)
    assert (topic.catalogued, topic.records.floor) == (None, 3)


def test_a_failed_extension_of_the_tag_index_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(1)
    add(records, 2)
    with monkeypatch.context() as patch:
        patch.setattr("shardd.storage.batch.Batch.columns", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            records.index()
    assert records.unindexed("Eq") == 2
    records.index()
    assert records.unindexed("Eq") == 0


def test_seqs_that_neither_a_batch_nor_a_gap_has_are_named() -> None:
    records = Records(1)
    for reason in (None, "cap"):
        add(records, 3)
        records.leave_out(2, reason)
    add(records, 1)
    assert records.absent(1) == [(4, 5)]
    records.leave_out(4, None)
    assert records.absent(5) == [(5, 5), (12, 15)]
    assert Records(1).absent(1) == []
