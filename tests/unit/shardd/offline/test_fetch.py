"""A restore from a bucket: to which moment, and what stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.offline.fetch import fetch
from shardd.replication import checkpoint_copies
from shardd.replication.browse import Damaged
from shardd.replication.names import ShardNames
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.shipped import SMALL, Shipped, contents, restored

NAMES = ShardNames(0)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_PAUSE", 0.0)


@pytest.fixture
def shard() -> Shipped:
    return Shipped(MemoryStore(), **SMALL).attach()


def test_a_restore_to_a_moment_has_exactly_what_was_there(shard: Shipped) -> None:
    moments = []
    for round_ in range(6):
        for number in range(20):
            shard.append("a", "x" * 50, number, round_)
        shard.call("delete_records", "a", {"before_seq": 20 * round_ + 1})
        shard.sync()
        shard.ship()
        moments.append((shard.clock.now_ms(), contents(shard)))
        shard.clock.advance(1000)
        shard.shard.checkpoint_now()
        shard.copy()
        shard.clock.advance(1000)
    for moment, there in moments:
        assert contents(restored(shard, moment)) == there
        assert contents(restored(shard, moment + 500)) == there


def test_a_moment_before_the_first_checkpoint_is_restored_from_the_log(shard: Shipped) -> None:
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    moment, there = shard.clock.now_ms(), contents(shard)
    for round_ in range(3):
        shard.clock.advance(1000)
        shard.append("a", 2, round_)
        shard.sync()
        shard.ship()
    shard.shard.checkpoint_now()
    shard.copy()
    assert shard.store.objects.keys() >= {NAMES.part(2), NAMES.manifest(5)}
    shard.copies.retain()
    assert contents(restored(shard, moment)) == there


def test_a_topic_whose_time_is_ahead_costs_the_others_nothing(shard: Shipped) -> None:
    """Its frames, which may begin a part or be a part, have times after the moment. So has the log before `upto_no`."""
    shard.append("ahead", 0)
    shard.shard.directory.find("ahead").position.clock_set(shard.clock.now_ms() - 3_600_000)
    moments = []
    for round_ in range(4):
        for number in range(6):
            shard.append("ahead", number, round_)
            if number % 2:
                shard.sync()
                shard.ship()
            shard.append("b", number, round_)
            shard.sync()
            shard.ship()
            moments.append((shard.clock.now_ms(), shard.everything("b")))
            shard.clock.advance(1000)
        shard.shard.checkpoint_now()
        shard.copy()
    for moment, there in moments:
        assert restored(shard, moment).everything("b") == there
        assert restored(shard, moment + 500).everything("b") == there
    assert contents(restored(shard)) == contents(shard)


def test_a_moment_before_a_missing_part_does_not_need_it(shard: Shipped) -> None:
    moments = []
    for number in range(4):
        shard.append("a", number)
        shard.sync()
        shard.ship()
        moments.append((shard.clock.now_ms(), contents(shard)))
        shard.clock.advance(1000)
    del shard.store.objects[NAMES.part(4)]  # after the fence and the first two
    assert contents(restored(shard, moments[0][0])) == moments[0][1]
    for moment, _ in moments[1:]:
        with pytest.raises(Damaged, match="4 to 4 are missing"):
            restored(shard, moment)


def _problems(shard: Shipped, until_ms: int) -> list[str]:
    found = fetch(FaultDisk(boot=7), shard.store, Path("/data"), None, shard.limits, until_ms)
    return [each["problem"] for each in found if each["kind"] == "problem"]


def test_a_hole_behind_a_topic_whose_time_is_ahead_is_told_or_refused(shard: Shipped) -> None:
    """Its frame is later than the moment, but says nothing of the times in the part behind it, which is gone."""
    shard.append("ahead", 0)
    shard.shard.directory.find("ahead").position.clock_set(shard.clock.now_ms() - 3_600_000)
    moments = []
    for topics in (("b", "ahead"), ("b", "ahead"), ("ahead", "b")):
        for topic in topics:
            shard.append(topic, len(moments))
        shard.sync()
        shard.ship()
        moments.append((shard.clock.now_ms(), shard.everything("b")))
        shard.clock.advance(1000)
    assert [_problems(shard, moment) for moment, _ in moments] == [[]] * 3
    del shard.store.objects[NAMES.part(3)]  # after the fence and the first one
    for moment, _ in moments[:2]:
        (problem,) = _problems(shard, moment)
        assert "3 to 3 are missing" in problem
        assert "records of other topics may be missing" in problem
        assert restored(shard, moment).everything("b") == moments[0][1]
    with pytest.raises(Damaged, match="3 to 3 are missing"):
        restored(shard, moments[2][0])


def test_a_hole_behind_a_part_without_times_is_refused(shard: Shipped) -> None:
    """Such a part has the frame of a failed sync alone."""
    shard.append("a", 1, config={"durability": "fsync"})
    shard.sync()
    shard.ship()
    shard.send("append", "a", {"records": [{"data": 2}]})
    shard.shard.flush()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    disk.faults[len(disk.calls)] = OSError(5, "input/output error")
    shard.sync()
    shard.ship()
    shard.clock.advance(1000)
    shard.append("a", 3)
    shard.sync()
    shard.ship()
    moment = shard.clock.now_ms()
    shard.clock.advance(1000)
    shard.append("a", 4)
    shard.sync()
    shard.ship()
    assert [record["data"] for record in restored(shard, moment).everything("a")] == [1, 3]
    del shard.store.objects[NAMES.part(4)]  # after the fence, the first one and that without times
    with pytest.raises(Damaged, match="4 to 4 are missing"):
        restored(shard, moment)


def test_a_moment_before_what_the_bucket_has_is_refused(shard: Shipped) -> None:
    for _ in range(3):
        for number in range(30):
            shard.append("a", "x" * 200, number)
        shard.sync()
        shard.shard.checkpoint_now()
        shard.ship()
        shard.copy()
        shard.clock.advance(1000)
    shard.clock.advance(shard.limits.bucket_retain_ms)
    shard.append("a", 1)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.copy()
    shard.copies.retain()
    with pytest.raises(Damaged, match="reaches back to"):
        restored(shard, 1_700_000_000_000)
    assert contents(restored(shard)) == contents(shard)


def test_a_full_disk_stops_a_restore_with_its_reason(shard: Shipped) -> None:
    for number in range(50):
        shard.append("a", "x" * 100, number)
    shard.sync()
    shard.ship()
    disk = FaultDisk()
    disk.capacity = 3000
    with pytest.raises(OSError, match="did not take all bytes"):
        restored(shard, disk=disk)
