"""Claims about memory: what a shard keeps, and what it gives back to the system."""

from __future__ import annotations

from weakref import ref

import pytest

from shardd.storage import segment
from shardd.storage.disk import Disk
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness


def stored(disk: Disk) -> Harness:
    """A topic with 40 records in one frame that only a file has."""
    shard = Harness(disk, cache_bytes=0, segment_max_events=10)
    for _ in range(4):
        shard.append("a", *range(10))
    for _ in range(2):
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    return shard


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each check of a stored frame."""
    seen: list[int] = []
    original = segment.check

    def check(view: memoryview) -> object:
        seen.append(len(view))
        return original(view)

    monkeypatch.setattr(segment, "check", check)
    return seen


def test_a_frame_is_checked_whenever_it_comes_from_its_file(checks: list[int]) -> None:
    disk = FaultDisk()
    shard = stored(disk)
    path = next(path for path in disk.names if path.suffix == ".data" and SHARD in path.parents)
    for _ in range(3):
        shard.shard.checkpoints.inventory.parts.drop(path)
        assert len(shard.everything("a")) == 40
    assert len(checks) == 3


def test_a_frame_of_which_records_are_cut_is_checked_once(checks: list[int]) -> None:
    """Else evicting record by record would cost a checksum over a thousand records each time."""
    shard = stored(FaultDisk())
    for seq in range(2, 12):
        shard.call("delete_records", "a", {"before_seq": seq})
    assert len(checks) == 1


def test_damage_is_found_by_the_next_read() -> None:
    disk = FaultDisk()
    shard = stored(disk)
    assert len(shard.everything("a")) == 40
    path = next(path for path in disk.names if path.suffix == ".data" and SHARD in path.parents)
    disk.names[path].data[200] ^= 1
    shard.shard.checkpoints.inventory.parts.drop(path)
    reply = shard.reply("diff", "a", {})
    assert reply.error is not None
    assert reply.error.detail == {"reason": "damaged"}


@pytest.mark.parametrize("cap", [{"cap_records": 41}, {"cap_bytes": 41 * 17}])
def test_a_cap_that_meets_damaged_records_sets_the_topic_apart_and_ends_no_shard(cap: dict[str, int]) -> None:
    disk = FaultDisk()
    shard = stored(disk)
    path = next(path for path in disk.names if path.suffix == ".data" and SHARD in path.parents)
    disk.names[path].data[200] ^= 1
    shard.call("configure", "a", cap)
    refused = [shard.reply("append", "a", {"records": [{"data": 1}] * 3}).error for _ in range(3)]
    last = refused[-1]
    assert last is not None
    assert (last.detail or {})["reason"] == "damaged"
    again = shard.restarted()
    again.append("b", 1)
    assert again.reply("diff", "a", {}).error is not None
    assert [record["data"] for record in again.everything("b")] == [1]


def test_records_that_are_gone_are_not_cached() -> None:
    shard = Harness(cache_bytes=1 << 20)
    for _ in range(4):
        shard.append("a", *range(10))
    shard.shard.checkpoint_now()
    batches = shard.shard.directory.visible["a"].records.batches
    (whole,) = batches
    assert whole.stored is not None
    assert whole.buffer is not None
    cached = ref(whole)
    del whole
    shard.call("delete_records", "a", {"before_seq": 41})
    assert batches == []
    assert cached() is None


def test_many_small_batches_do_not_take_more_memory_than_the_cache_may_have() -> None:
    shard = Harness(cache_bytes=4096)
    for number in range(40):
        shard.append(f"t{number}", 1)
    shard.shard.checkpoint_now()
    held = [topic.records.batches[0].buffer for topic in shard.shard.directory.visible.values()]
    assert 0 < sum(each is not None for each in held) <= 4096 // 256
