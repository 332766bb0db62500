"""Claims about memory: what a shard keeps, and what it gives back to the system."""

from __future__ import annotations

import pytest

from proto.process import allocator
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


def test_little_free_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "free_bytes", lambda: allocator.KEPT_BYTES)
    assert allocator.trim_heap() is False


def test_free_memory_is_counted_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    if not allocator.free_bytes():
        pytest.skip("the C library does not tell")
    blocks = [bytes(10_000) for _ in range(10_000)]
    kept = blocks[::100]  # what settles between
    before = allocator.free_bytes()
    del blocks
    assert allocator.free_bytes() > before + 50_000_000
    monkeypatch.setattr(allocator, "KEPT_BYTES", 0)
    monkeypatch.setattr(allocator._After, "free", 0)
    assert allocator.trim_heap() is True
    assert len(kept) == 100


def test_the_heap_is_looked_through_again_when_more_was_freed_or_used_since(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    looks = iter(
        [
            # free, resident → trimmed
            (100 * mib, 200 * mib, True),  # as found; then as left:
            (90 * mib, 110 * mib, None),
            (91 * mib, 111 * mib, False),  # holes that were given back are free still
            (150 * mib, 111 * mib, True),  # freed after the last time, e.g. messages that a hung shard kept
            (140 * mib, 60 * mib, None),
            (141 * mib, 61 * mib, False),
            (141 * mib, 90 * mib, True),  # used and freed in between
            (139 * mib, 60 * mib, None),
            (33 * mib, 61 * mib, False),  # in use again
            (45 * mib, 61 * mib, True),  # and freed
            (7 * mib, 50 * mib, None),
            (7 * mib, 99 * mib, False),  # little is kept
        ]
    )
    now = (0, 0)

    def look() -> bool | None:
        nonlocal now
        *now, trimmed = next(looks)  # type: ignore[assignment]
        return trimmed  # type: ignore[return-value]

    class C:
        @staticmethod
        def malloc_trim(_: int) -> int:
            assert look() is None
            return 1

    monkeypatch.setattr(allocator, "_c", C)
    monkeypatch.setattr(allocator, "free_bytes", lambda: now[0])
    monkeypatch.setattr(allocator, "resident_bytes", lambda: now[1])
    monkeypatch.setattr(allocator._After, "free", 0)
    monkeypatch.setattr(allocator._After, "resident", 0)
    for _ in range(8):
        trimmed = look()
        assert allocator.trim_heap() is trimmed
    assert next(looks, None) is None


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
