"""Claims about quarantine: a damaged topic affects no other topic, loses nothing more, and comes back when repaired."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proto.format.frame import DELETED, check
from proto.model.errors import TopicsError
from shardd.checkpoint import slices
from shardd.offline.verify import verify
from shardd.storage.disk import RealDisk
from tests.support.fault_disk import Crash, FaultDisk, Node
from tests.support.harness import SHARD, FakeClock, Harness

LIMITS: dict[str, Any] = {
    "cache_bytes": 0,
    "segment_max_events": 10,
    "cold_dir": "/cold",
    "hot_retain_segments": 1,
    "hot_retain_bytes": 0,
    "wal_segment_bytes": 4096,
}
DURABLE = {"durability": "fsync"}


def checkpoint(shard: Harness) -> None:
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()


def stored() -> tuple[Harness, FaultDisk]:
    """Topic `bad` with cold and hot segments, and `good` with one that is not sealed."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    for number in range(40):
        shard.append("bad", number, config=DURABLE)
        if number % 10 == 9:
            checkpoint(shard)
    shard.append("good", "a", "b", config=DURABLE)
    for topic in ("bad", "good"):
        shard.call("cursor_put", topic, {"seq": 1}, cursor="c")
    checkpoint(shard)
    checkpoint(shard)
    assert any(Path("/cold") in path.parents for path in disk.names)
    return shard, disk


def gone(disk: FaultDisk, which: Callable[[Path], bool]) -> dict[Path, Node]:
    """Remove files, and folders that fit, from the disk. Returns the nodes of the files."""
    taken = {path: disk.names.pop(path) for path in [p for p in disk.names if which(p)]}
    assert taken
    for path in taken:
        disk.durable.pop(path, None)
    for dirs in (disk.dirs, disk.unsynced_dirs):
        dirs -= {path for path in dirs if which(path)}
    return taken


def cold(path: Path) -> bool:
    return Path("/cold") in path.parents


def refusal(shard: Harness, op: str = "diff", topic: str = "bad", body: Any = b"{}", **options: Any) -> TopicsError:
    error = shard.reply(op, topic, body, **options).error
    assert error is not None
    return error


def check_refused(shard: Harness) -> None:
    for op, body in (("diff", b"{}"), ("append", {"records": [{"data": 1}]}), ("configure", {"ttl_ms": 5})):
        error = refusal(shard, op, body=body)
        assert (error.code, (error.detail or {})["reason"]) == ("not_ready", "damaged")
        assert "seg-" not in f"{error.message} {error.detail}"
        assert "/data" not in f"{error.message} {error.detail}"
    assert shard.call("state", "bad")["quarantined"]["reason"] == "damaged"
    assert [each.get("quarantined") for each in shard.call("list", page_size=10)] == [True, None]
    assert {each["topic"] for each in shard.call("all_cursors", page_size=10)} <= {"good"}
    stats = shard.reply("stats").extra.figures
    assert stats is not None
    assert stats.topics_quarantined == 1
    assert [r["data"] for r in shard.everything("good")][:2] == ["a", "b"]


def data(shard: Harness, topic: str = "bad") -> list[Any]:
    return [record["data"] for record in shard.everything(topic)]


def test_a_vanished_cold_folder_is_the_trouble_of_its_topics_alone_and_heals() -> None:
    shard, disk = stored()
    shard.append("bad", "in the log only")
    taken = gone(disk, cold)
    refusal(shard)
    check_refused(shard)
    again = shard.restarted()
    check_refused(again)
    for number in range(5):  # several checkpoints, so that the log is trimmed
        again.append("good", *range(200))
        checkpoint(again)
        again = again.restarted() if number % 2 else again
    check_refused(again)
    assert not any(cold(path) for path in disk.names), "the folder was created while the real one was missing"
    disk.names |= taken
    expected = [*range(40), "in the log only"]
    again.clock.advance(61_000)
    assert data(again) == expected
    assert "quarantined" not in again.call("state", "bad")
    assert again.append("bad", "new")["last_seq"] == 42
    checkpoint(again)
    assert data(again.restarted()) == [*expected, "new"]
    checkpoint(again)
    assert not [path for path in disk.names if path.name.startswith("held-")]


def test_a_shard_without_cold_segments_does_not_fill_the_place_of_a_vanished_folder() -> None:
    shard, disk = stored()
    other = Harness(disk, shard.clock, SHARD.with_name("shard-01"), **LIMITS)
    taken = gone(disk, cold)
    for number in range(3):
        other.append("theirs", *range(10))
        checkpoint(other)
        other = other.restarted() if number % 2 else other
    assert not any(cold(path) for path in (*disk.names, *disk.dirs))
    disk.names |= taken
    other.append("theirs", "more")
    checkpoint(other)
    assert {path.parts[2] for path in disk.names if cold(path)} == {"shard-00", "shard-01"}
    assert data(other.restarted(), "theirs") == [*list(range(10)) * 3, "more"]


def test_a_topic_that_returns_while_a_checkpoint_is_planned_is_in_its_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LOOK", 1)
    shard, disk = stored()
    shard.append("bad", "in the log only")
    taken = gone(disk, cold)
    again = shard.restarted()
    again.append("good", "c")
    again.shard.commits.sync_now()
    planning = again.shard.control.planning()
    next(planning)
    disk.names |= taken
    again.clock.advance(61_000)
    assert data(again) == [*range(40), "in the log only"]
    again.shard.checkpoints.writer.write(slices.exhaust(planning))
    last = again.restarted(disk.after_crash("process"))
    assert data(last) == [*range(40), "in the log only"]
    assert data(last, "good") == ["a", "b", "c"]


def test_held_frames_stay_as_long_as_a_catalog_that_a_start_may_use_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LOOK", 1)
    shard, disk = stored()
    shard.append("bad", "in the log only")
    taken = gone(disk, cold)
    shard = shard.restarted()
    checkpoint(shard)
    checkpoint(shard)
    held = next(path for path in disk.names if path.name.startswith("held-"))
    shard.append("good", "c")
    shard.shard.commits.sync_now()
    planning = shard.shard.control.planning()
    for _ in shard.shard.directory.by_id:
        next(planning)  # each of them has an entry after that
    disk.names |= taken
    shard.clock.advance(61_000)
    assert data(shard) == [*range(40), "in the log only"]
    plan = slices.exhaust(planning)
    shard.shard.checkpoints.writer.write(plan)
    shard.shard.control.end(plan)
    checkpoint(shard)
    checked = disk.after_crash("process")
    newest = max(path for path in checked.names if path.name.startswith("catalog-"))
    checked.names[newest].data[-20] ^= 1
    last = shard.restarted(checked)
    assert data(last) == [*range(40), "in the log only"]
    assert data(last, "good") == ["a", "b", "c"]
    checkpoint(shard)
    assert held not in disk.names


def test_what_came_back_is_read_by_the_next_start() -> None:
    shard, disk = stored()
    shard.append("bad", "later")
    shard.call("delete_records", "bad", {"before_seq": 5})
    taken = gone(disk, cold)
    again = shard.restarted()
    checkpoint(again)
    checkpoint(again)
    again = again.restarted()
    disk.names |= taken
    assert data(again.restarted()) == [*range(4, 40), "later"]


def test_a_folder_that_is_back_before_the_next_look_is_not_looked_for_at_each_request() -> None:
    shard, disk = stored()
    taken = gone(disk, cold)
    refusal(shard)
    disk.names |= taken
    refusal(shard)
    shard.clock.advance(5_001)
    assert data(shard) == list(range(40))


@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped", "unreadable"])
def test_a_damaged_segment_is_the_trouble_of_its_topic_alone(damage: str) -> None:
    shard, disk = stored()
    path = next(path for path in sorted(disk.names) if path.suffix == ".data" and not cold(path))
    if damage == "truncated":
        del disk.names[path].data[100:]
    elif damage == "missing":
        del disk.names[path]
    elif damage == "flipped":
        disk.names[path].data[80] ^= 1
    else:
        disk.unreadable[path] = OSError(5, "Input/output error")
    shard.shard.checkpoints.inventory.parts.drop(path)
    refusal(shard, body={"from_seq": 30})
    check_refused(shard)
    checkpoint(shard)
    again = shard.restarted()
    refusal(again, body={"from_seq": 30})
    check_refused(again)
    again.append("good", "c")
    checkpoint(again)
    checkpoint(again)
    assert again.call("delete_topic", "bad")["deleted"]
    assert again.append("bad", "a new one")["last_seq"] == 1
    checkpoint(again)
    checkpoint(again)
    checkpoint(again)
    assert data(again.restarted()) == ["a new one"]
    assert data(again.restarted(), "good") == ["a", "b", "c"]


@pytest.mark.parametrize("where", ["in a body", "in flags"])
@pytest.mark.parametrize("known", [False, True])
def test_a_start_that_meets_a_bad_sector_sets_one_topic_apart(where: str, known: bool) -> None:
    """`known`: the start takes the topic from the catalog alone, and the first request reads its files."""
    shard, disk = stored()
    if not known:
        shard.append("bad", "in the log only")
        shard.shard.commits.sync_now()
    path = max(path for path in disk.names if path.suffix == ".data" and path.parent.name == f"{1:016x}")
    at = {"in a body": 80, "in flags": check(disk.read(path)).flags_at}[where]
    disk.bad[path] = range(at, at + 1)
    again = shard.restarted()
    refusal(again, body={"from_seq": 30})
    check_refused(again)
    problems = verify(disk, SHARD, FakeClock(), again.limits).problems
    assert problems
    assert all('topic "bad"' in problem and str(path) in problem for problem in problems)
    again.append("good", "c")
    checkpoint(again)
    again = again.restarted()
    check_refused(again)
    del disk.bad[path]
    again.clock.advance(61_000)
    assert data(again) == [*range(40), *(["in the log only"] if not known else [])]
    assert data(again, "good") == ["a", "b", "c"]


def test_an_index_with_a_bad_sector_is_told_and_made_from_its_segment() -> None:
    shard, disk = stored()
    shard.append("bad", "in the log only")
    path = next(path for path in sorted(disk.names) if path.suffix == ".idx" and not cold(path))
    disk.bad[path] = range(1)
    again = shard.restarted()
    checkpoint(again)
    assert data(again.restarted()) == [*range(40), "in the log only"]
    assert any(str(path) in problem for problem in verify(disk, SHARD, FakeClock(), again.limits).problems)


def about_to_move() -> tuple[Harness, FaultDisk, Path]:
    """A shard whose next checkpoint moves the file at this path to the cold tier. It has a delete flag."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    shard.append("good", "a", "b", config=DURABLE)
    records = [{"data": n, "tag": f"t{n}"} for n in range(10)]
    shard.call("append", "bad", {"records": records, "config": DURABLE})
    checkpoint(shard)
    shard.call("delete_records", "bad", {"match": "t3"})
    for _ in range(3):
        shard.append("good", "more")
        checkpoint(shard)
    shard.append("bad", *range(10, 20))
    checkpoint(shard)
    shard.append("bad", "new")
    path = min(path for path in disk.names if path.suffix == ".data" and path.parent.name == f"{2:016x}")
    assert not cold(path)
    return shard, disk, path


def moved(path: Path) -> Path:
    return Path("/cold") / path.relative_to(SHARD.parent)


@pytest.mark.parametrize("damage", ["of a body", "of a flag", "of the last byte", "cut", "missing", "another segment"])
def test_a_damaged_segment_is_not_copied_to_the_cold_tier(damage: str) -> None:
    """Its topic is set apart, as by a read, and the file stays where and as it is."""
    shard, disk, path = about_to_move()
    expected = data(shard)
    node = disk.names[path]
    whole = bytes(node.data)
    if damage == "missing":
        del disk.names[path]
    elif damage == "another segment":
        node.data[:] = disk.names[max(p for p in disk.names if p.suffix == ".data" and p.parent == path.parent)].data
    elif damage == "cut":
        del node.data[-8:]
    else:
        header = check(memoryview(whole))
        node.data[{"of a body": 80, "of a flag": header.flags_at + 3}.get(damage, header.flags_at - 1)] ^= 1
    spoilt = bytes(node.data)
    for _ in range(3):
        checkpoint(shard)
        shard.append("good", "more")
    assert not [name for name in disk.names if cold(name) and name.suffix in (".data", ".idx")]
    assert bytes(node.data) == spoilt
    assert len(shard.shard.quarantine) == 1
    check_refused(shard)
    again = shard.restarted(disk.after_crash("process"))
    check_refused(again)
    node.data[:] = whole
    disk.names[path] = node
    shard.clock.advance(61_000)
    assert data(shard) == expected
    shard.append("bad", "later")
    checkpoint(shard)
    checkpoint(shard)
    assert bytes(disk.names[moved(path)].data) == whole
    assert path not in disk.names
    assert data(shard.restarted()) == [*expected, "later"]


@pytest.mark.parametrize("damage", ["a bad sector", "of a bit", "cut", "missing"])
def test_a_segment_whose_index_is_damaged_moves_to_the_cold_tier_with_a_new_one(damage: str) -> None:
    shard, disk, path = about_to_move()
    expected, index = data(shard), path.with_suffix(".idx")
    whole = bytes(disk.names[index].data)
    if damage == "a bad sector":
        disk.bad[index] = range(1)
    elif damage == "missing":
        del disk.names[index]
    elif damage == "cut":
        del disk.names[index].data[-1]
    else:
        disk.names[index].data[9] ^= 1
    for _ in range(2):
        checkpoint(shard)
        shard.append("good", "more")
    assert bytes(disk.names[moved(index)].data) == whole
    assert not {path, index} & set(disk.names)
    again = shard.restarted(disk.after_crash("drop"))
    assert data(again) == expected
    assert verify(again.disk, SHARD, FakeClock(), again.limits).problems == []


def test_a_segment_that_could_not_be_read_for_a_moment_moves_without_another_change_of_its_topic() -> None:
    shard, disk, path = about_to_move()
    disk.unreadable[path] = OSError(5, "Input/output error")
    for _ in range(3):
        checkpoint(shard)
    assert len(shard.shard.quarantine) == 1
    disk.unreadable.clear()
    shard.clock.advance(61_000)
    data(shard)
    assert len(shard.shard.quarantine) == 0
    checkpoint(shard)
    checkpoint(shard)
    assert moved(path) in disk.names
    assert path not in disk.names


def test_a_flag_that_is_half_written_is_no_damage_of_a_segment_that_moves() -> None:
    """The catalog lists it until the file has it, see step 5."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    records = [{"data": n, "tag": f"t{n % 2}"} for n in range(10)]
    shard.call("append", "bad", {"records": records, "config": DURABLE})
    checkpoint(shard)
    shard.call("delete_records", "bad", {"match": "t1"})
    checkpoint(shard)
    path = next(path for path in disk.names if path.suffix == ".data")
    flags_at = check(memoryview(bytes(disk.names[path].data))).flags_at
    shard.append("bad", *range(10, 20))
    disk.fail["write_at"] = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        checkpoint(shard)
    disk.fail.clear()
    disk.names[path].data[flags_at + 1] = DELETED
    for _ in range(3):
        shard.append("bad", "new")
        checkpoint(shard)
    assert moved(path) in disk.names
    assert len(shard.shard.quarantine) == 0
    expected = [*range(0, 10, 2), *range(10, 20), *["new"] * 3]
    assert data(shard) == expected
    assert data(shard.restarted(disk.after_crash("process"))) == expected


def with_a_batch_to_come() -> tuple[Harness, FaultDisk, Path]:
    """A shard whose next checkpoint appends a batch of "bad" to the file at this path."""
    disk = FaultDisk()
    shard = Harness(disk, cache_bytes=0)
    shard.append("bad", 1, config=DURABLE)
    shard.append("good", "a", "b", config=DURABLE)
    checkpoint(shard)
    shard.append("bad", 2)
    return shard, disk, next(path for path in sorted(disk.names) if path.suffix == ".data")


def test_batches_never_follow_a_file_that_is_not_whole() -> None:
    shard, disk, path = with_a_batch_to_come()
    whole = bytes(disk.names[path].data)
    del disk.names[path].data[50:]
    checkpoint(shard)
    assert len(disk.names[path].data) == 50
    check_refused(shard)
    disk.names[path].data[:] = whole
    shard.clock.advance(6_000)
    assert data(shard) == [1, 2]
    assert data(shard.restarted()) == [1, 2]


def test_batches_never_follow_bytes_that_a_read_found_damaged() -> None:
    """The file has its length, so only the read can tell."""
    shard, disk, path = with_a_batch_to_come()
    whole = bytes(disk.names[path].data)
    disk.names[path].data[70] ^= 1
    shard = shard.restarted(disk.after_crash("process"))
    disk = shard.disk  # type: ignore[assignment]
    check_refused(shard)
    checkpoint(shard)
    assert len(disk.names[path].data) == len(whole)
    disk.names[path].data[:] = whole
    shard.clock.advance(6_000)
    assert data(shard) == [1, 2]
    assert data(shard.restarted()) == [1, 2]


def test_batches_never_follow_the_frames_of_another_file() -> None:
    """Nothing has read the file since it was replaced. It is longer, so what follows the bytes that count is cut."""
    shard, disk, path = with_a_batch_to_come()
    whole = bytes(disk.names[path].data)
    other = FaultDisk()
    theirs = Harness(other)
    theirs.append("bad", *range(90), config=DURABLE)
    checkpoint(theirs)
    disk.names[path].data[:] = other.names[path].data
    checkpoint(shard)
    assert disk.names[path].data == other.names[path].data
    check_refused(shard)
    disk.names[path].data[:] = whole
    shard.clock.advance(6_000)
    assert data(shard) == [1, 2]
    assert data(shard.restarted()) == [1, 2]


@pytest.mark.parametrize("summary", [True, False], ids=["small topic", "large topic"])
def test_a_deletion_in_the_log_that_needs_a_damaged_file_is_the_trouble_of_its_topic_alone(summary: bool) -> None:
    """A deletion by tag reads the tags of all records before it, also when the log is read back."""
    disk = FaultDisk()
    shard = Harness(disk, cache_bytes=0)
    tags = [{"data": n, "tag": f"t{n}"} for n in range(4)]
    for _ in range(1 if summary else 130):
        shard.call("append", "bad", {"records": tags, "config": DURABLE})
    shard.append("good", "a", "b", config=DURABLE)
    checkpoint(shard)
    shard.call("delete_records", "bad", {"match": "t1"})
    shard.append("bad", "later")
    shard.shard.commits.sync_now()
    expected = shard.everything("bad")
    disk = disk.after_crash("process")
    path = min(path for path in disk.names if path.suffix == ".data")
    disk.names[path].data[70] ^= 1

    shard = shard.restarted(disk)
    check_refused(shard)
    assert verify(disk.after_crash("process"), SHARD, FakeClock(), shard.limits).problems
    shard.clock.advance(6_000)
    check_refused(shard)  # the file is looked at again, and is as it was
    checkpoint(shard)
    checkpoint(shard)
    assert isinstance(shard.disk, FaultDisk)
    shard = shard.restarted(shard.disk.after_crash("process"))
    check_refused(shard)
    assert isinstance(shard.disk, FaultDisk)
    shard.disk.names[path].data[70] ^= 1
    shard.clock.advance(6_000)
    assert shard.everything("bad") == expected
    assert shard.restarted().everything("bad") == expected


def deletion_needs_first_frame() -> Harness:
    disk = FaultDisk()
    shard = Harness(disk, cache_bytes=0)
    for _ in range(130):
        shard.call("append", "bad", {"records": [{"data": n, "tag": f"t{n}"} for n in range(4)], "config": DURABLE})
    checkpoint(shard)
    shard.append("bad", "later")
    shard.call("delete_records", "bad", {"match": "t1"})
    shard.shard.commits.sync_now()
    return shard


def last_of_three_segments() -> Harness:
    shard = Harness(FaultDisk(), cache_bytes=0, segment_max_events=20)
    for number in range(3):
        shard.append("bad", *range(20 * number, 20 * number + 20), config=DURABLE)
        checkpoint(shard)
    shard.append("bad", "in the log only")
    return shard


@pytest.mark.parametrize("scene", [last_of_three_segments, deletion_needs_first_frame])
def test_looks_that_fail_reserve_no_more_of_the_disk_and_count_no_records(scene: Callable[[], Harness]) -> None:
    """Each look reads the segments before the damaged one, or replays the held frames before the deletion."""
    shard = scene()
    expected = shard.everything("bad")
    assert isinstance(shard.disk, FaultDisk)
    disk = shard.disk.after_crash("process")
    *others, path = sorted(path for path in disk.names if path.suffix == ".data")
    assert len(others) == (2 if scene is last_of_three_segments else 0)
    whole = bytes(disk.names[path].data)
    if others:
        del disk.names[path].data[-8:]
    else:
        disk.names[path].data[70] ^= 1
    shard = shard.restarted(disk)
    inventory, totals = shard.shard.checkpoints.inventory, shard.shard.directory.totals
    for _ in range(10):
        shard.clock.advance(61_000)
        assert (refusal(shard).detail or {})["reason"] == "damaged"
        assert (inventory.segment_bytes, totals.written) == (0, 0)
    disk.names[path].data[:] = whole
    shard.clock.advance(61_000)
    assert shard.everything("bad") == expected
    assert totals.written == 0, "records of the log, which were written before the start"
    assert 0 < inventory.segment_bytes == shard.restarted().shard.checkpoints.inventory.segment_bytes


def test_flags_for_a_file_that_is_gone_are_kept_until_it_is_back() -> None:
    shard, disk = stored()
    shard.call("append", "bad", {"records": [{"data": "x", "tag": "t"}, {"data": "y"}]})
    checkpoint(shard)
    shard.call("delete_records", "bad", {"match": "t"})
    checkpoint(shard)
    path = max(path for path in disk.names if path.suffix == ".data" and path.parent.name.endswith("1"))
    taken = gone(disk, path.__eq__)
    for _ in range(3):
        shard.append("good", "more")
        checkpoint(shard)
    check_refused(shard)
    disk.names |= taken
    again = shard.restarted()
    assert data(again) == [*range(40), "y"]
    for _ in range(3):
        again.append("good", "more")
        checkpoint(again)
    assert data(again.restarted()) == [*range(40), "y"]


def test_whoever_waits_is_told() -> None:
    disk = FaultDisk()
    shard = Harness(disk, cache_bytes=0)
    shard.append("bad", 1, config=DURABLE)
    shard.append("good", "a", "b", config=DURABLE)
    checkpoint(shard)
    waiting = shard.send("diff", "bad", {"from_seq": 1, "wait_ms": 20_000})
    assert shard.parked(waiting)
    disk.unreadable = {path: OSError(5, "Input/output error") for path in disk.names if path.suffix == ".data"}
    refusal(shard)
    error = getattr(shard.replies[waiting], "error", None)
    assert isinstance(error, TopicsError)
    assert (error.detail or {})["reason"] == "damaged"


@pytest.mark.parametrize(("number", "reason"), [(errno.EIO, "damaged"), (errno.EMFILE, "exhausted")])
def test_workers_that_wait_are_told_and_no_job_is_lost(number: int, reason: str) -> None:
    disk = FaultDisk()
    shard = Harness(disk, cache_bytes=0)
    shard.call("append", "bad", {"records": [{"data": 1}], "config": {"type": "queue", "claim_jitter_ms": 5}})
    checkpoint(shard)
    disk.unreadable = {path: OSError(number, os.strerror(number)) for path in disk.names if path.suffix == ".data"}
    claim = shard.send("claim", "bad", {"node": "w"})
    shard.clock.advance(10)
    shard.shard.deliver()  # not during a request
    shard.shard.flush()
    error = getattr(shard.replies[claim], "error", None)
    assert isinstance(error, TopicsError)
    assert (error.detail or {})["reason"] == reason
    disk.unreadable.clear()
    shard.clock.advance(6_000)
    again = shard.send("claim", "bad", {"node": "w"})
    shard.clock.advance(10)
    shard.shard.deliver()
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert b'"count":1' in getattr(shard.replies[again], "body", b"")


def test_a_kill_at_any_call_of_the_checkpoints_that_hold_frames_loses_nothing() -> None:
    def run(crash_at: int | None) -> tuple[FaultDisk, dict[Path, Node]]:
        shard, disk = stored()
        shard.append("bad", "in the log only")
        taken = gone(disk, cold)
        disk.crash_at = None if crash_at is None else len(disk.calls) + crash_at
        try:
            again = shard.restarted()
            for number in range(3):
                again.append("good", number)
                checkpoint(again)
        except Crash:
            pass
        return disk, taken

    start = len(stored()[1].calls)  # approximate: appending the held frame takes a few more calls
    calls = len(run(None)[0].calls) - start
    for crash_at in range(calls + 1):
        for survival in ("process", "drop"):
            disk, taken = run(crash_at)
            after = disk.after_crash(survival)  # type: ignore[arg-type]
            again = Harness(after, FakeClock(), **LIMITS)
            check_refused(again)
            after.names |= taken
            assert data(again.restarted()) == [*range(40), "in the log only"], f"{survival} before call {crash_at}"


def test_a_real_file_cut_short_while_it_is_in_use_ends_no_process(tmp_path: Path) -> None:
    shard = Harness(RealDisk(), path=tmp_path / "shard-00", cache_bytes=0)
    for topic in ("bad", "good"):
        shard.append(topic, *("a", "b"), *("x" * 50_000 for _ in range(20)))
    checkpoint(shard)
    assert len(shard.diff("bad", limit=1)["records"]) == 1
    path = min((tmp_path / "shard-00" / "topics").glob("*/*.data"))
    with open(path, "r+b") as file:
        file.truncate(5000)
    shard.shard.checkpoints.inventory.parts.drop(path)
    refusal(shard, body={"from_seq": 2})
    check_refused(shard)
    check_refused(shard.restarted())


def test_a_shard_path_is_in_no_answer() -> None:
    shard, disk = stored()
    gone(disk, cold)
    assert str(SHARD) not in refusal(shard).message
