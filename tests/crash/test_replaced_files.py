"""Claims about files that are replaced while the shard runs: when it needs them no more, it removes its own, and sets
apart what is whole and was not written there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest

from shardd.storage import catalog
from shardd.storage.lost import FOLDER
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import SHARD, Harness

LIMITS: dict[str, Any] = {"cache_bytes": 0, "segment_max_events": 10, "cold_dir": "/cold", "hot_retain_segments": 9}
DURABLE = {"durability": "fsync"}


def checkpoint(shard: Harness) -> None:
    shard.append("b", "more", config=DURABLE)
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()


def made(value: str = "ours", **limits: Any) -> tuple[Harness, FaultDisk]:
    """A shard with three segments of topic `a`. Those of another value have the same lengths, numbers and times."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS | limits)
    for first in range(0, 30, 10):
        shard.append("a", *(f"{value} {n}" for n in range(first, first + 10)), config=DURABLE)
        checkpoint(shard)
    return shard, disk


def first_of(disk: FaultDisk, pattern: str = "seg-*.data") -> Path:
    """The first file of topic `a` with such a name."""
    return min(path for path in disk.names if path.match(f"topics/{1:016x}/{pattern}"))


def cleared(shard: Harness) -> Harness:
    shard.call("delete_records", "a", {"before_seq": 15})
    return shard


def evicted(shard: Harness) -> Harness:
    shard.call("configure", "a", {"cap_records": 5})
    return shard


def deleted(shard: Harness) -> Harness:
    shard.call("delete_topic", "a")
    return shard


def deleted_when_set_apart(shard: Harness) -> Harness:
    assert isinstance(shard.disk, FaultDisk)
    for path in shard.disk.names:
        shard.shard.checkpoints.inventory.parts.drop(path)
    shard.reply("diff", "a", b"{}")
    return deleted(shard)


def deleted_before_its_first_use(shard: Harness) -> Harness:
    return deleted(shard.restarted())


def deleted_when_unloaded(shard: Harness) -> Harness:
    number, contents = catalog.load(shard.disk, SHARD) or (0, {})
    for entry in contents["topics"]:
        entry.pop("index", None)  # as of a large topic, whose files a start reads
    catalog.write(shard.disk, SHARD, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})
    return deleted(shard.restarted())


WAYS = [cleared, evicted, deleted, deleted_when_set_apart, deleted_before_its_first_use, deleted_when_unloaded]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def apart(disk: FaultDisk) -> dict[Path, bytes]:
    """The files that were set apart, by the paths that they had."""
    found = {path: bytes(node.data) for path, node in disk.names.items() if FOLDER in path.parts}
    return {Path(*(part for part in path.parts if part != FOLDER)): data for path, data in found.items()}


@ways
def test_a_segment_that_was_replaced_is_set_apart(way: Callable[[Harness], Harness]) -> None:
    shard, disk = made()
    path = first_of(disk)
    foreign = bytes(made("else")[1].names[path].data)
    assert len(foreign) == len(disk.names[path].data)
    disk.names[path].data[:] = foreign
    shard = way(shard)
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk)[path] == foreign
    assert apart(disk).keys() == {path, path.with_suffix(".idx")}
    assert path not in disk.names
    assert shard.call("stats")["files_set_apart"] == 2


@ways
@pytest.mark.parametrize("damage", ["none", "of a body", "of the last mark", "cut", "missing"])
def test_a_segment_of_its_own_is_removed_whole_or_damaged(way: Callable[[Harness], Harness], damage: str) -> None:
    """A deletion of its topic is a way out of damage: it makes room."""
    shard, disk = made()
    path = first_of(disk)
    data = disk.names[path].data
    if damage == "missing":
        del disk.names[path]
    elif damage == "cut":
        del data[-8:]
    elif damage != "none":
        data[80 if damage == "of a body" else -24] ^= 1
    shard = way(shard)
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk) == {}
    assert path not in disk.names
    assert path.with_suffix(".idx") not in disk.names


def let_go() -> tuple[FaultDisk, Path, bytes]:
    """The disk of a process that was killed between the catalog that lacks a segment, and its removal; the segment, and
    its bytes before it was full."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    shard.append("a", *(f"ours {n}" for n in range(6)), config=DURABLE)
    checkpoint(shard)
    path = first_of(disk)
    before = bytes(disk.names[path].data)
    for first in (6, 10, 20):
        shard.append("a", *(f"ours {n}" for n in range(first, first + 10 - first % 10)))
        checkpoint(shard)
    whole = bytes(disk.names[path].data)
    assert whole.startswith(before)
    assert whole != before
    cleared(shard)
    checkpoint(shard)
    assert bytes(disk.names[path].data[: len(whole)]) == whole
    return disk.after_crash("process"), path, before


def after(disk: FaultDisk) -> FaultDisk:
    """The disk after a start and its checkpoints."""
    shard = Harness(disk, **LIMITS)
    for _ in range(3):
        checkpoint(shard)
    return disk


@pytest.mark.parametrize("whose", ["another's", "another topic's", "one of another time"])
def test_a_segment_that_was_replaced_before_a_start_that_does_not_need_it_is_set_apart(whose: str) -> None:
    disk, path, _ = let_go()
    if whose == "another topic's":
        foreign = next(bytes(n.data) for p, n in disk.names.items() if p.match(f"topics/{2:016x}/*.data"))
    else:
        foreign = bytes(made("else" if whose == "another's" else "ours")[1].names[path].data)
    disk.names[path].data[:] = foreign
    index = path.with_suffix(".idx")
    entries = bytes(disk.names[index].data)
    assert apart(after(disk)) == {path: foreign, index: entries}
    assert path not in disk.names


@pytest.mark.parametrize("damage", ["none", "an earlier state", "of a body", "cut", "missing"])
def test_a_segment_of_its_own_that_no_start_needs_is_removed_whole_or_damaged(damage: str) -> None:
    disk, path, before = let_go()
    data = disk.names[path].data
    assert len(data) > len(before)
    if damage == "missing":
        del disk.names[path]
    elif damage == "an earlier state":
        data[:] = before
    elif damage == "cut":
        del data[-8:]
    elif damage == "of a body":
        data[len(before) + 80] ^= 1
    assert apart(after(disk)) == {}
    assert path not in disk.names
    assert path.with_suffix(".idx") not in disk.names


@pytest.mark.parametrize(
    "damage", ["a bad sector", "of the first entry", "of the last entry", "cut", "empty", "missing"]
)
def test_a_damaged_index_sets_no_segment_apart(damage: str) -> None:
    disk, path, _ = let_go()
    index = path.with_suffix(".idx")
    data = disk.names[index].data
    if damage == "missing":
        del disk.names[index]
    elif damage == "a bad sector":
        disk.unreadable[index] = OSError(5, "Input/output error")
    elif damage == "cut":
        del data[-8:]
    elif damage == "empty":  # of a checkpoint that was killed as it began to write over it
        data.clear()
    else:
        data[9 if damage == "of the first entry" else -50] ^= 1
    assert apart(after(disk)) == {}
    assert not {path, index} & set(disk.names)


def test_a_segment_that_is_replaced_by_a_later_state_is_set_apart() -> None:
    """As one of a backup that is newer than the shard."""
    disk, path, _ = let_go()
    index = path.with_suffix(".idx")
    later, first = bytes(disk.names[path].data), bytes(disk.names[index].data[:64])
    disk.names[index].data[:] = first
    assert apart(after(disk)) == {path: later, index: first}


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_kill_at_any_call_of_a_checkpoint_leaves_nothing_that_looks_like_another_file(survival: Survival) -> None:
    """What it wrote and did not remove is its own: the next start removes it."""

    def at_a_checkpoint() -> tuple[Harness, FaultDisk]:
        shard, disk = made()
        cleared(shard)
        checkpoint(shard)
        shard.append("a", *(f"more {n}" for n in range(25)))
        shard.shard.commits.sync_now()
        return shard, disk

    shard, disk = at_a_checkpoint()
    begun = len(disk.calls)
    shard.shard.checkpoint_now()
    calls = range(begun, len(disk.calls))
    assert len(calls) > 10
    for number in calls:
        shard, disk = at_a_checkpoint()
        disk.crash_at = number
        with pytest.raises(Crash):
            shard.shard.checkpoint_now()
        again = after(disk.after_crash(survival, number))
        assert apart(again) == {}, number
        seqs = [r["$seq"] for r in Harness(again, **LIMITS).everything("a")]
        assert seqs == list(range(15, 56)), number


@ways
def test_a_segment_that_the_device_cannot_read_is_removed(way: Callable[[Harness], Harness]) -> None:
    """A deletion of its topic is a way out of damage."""
    shard, disk = made()
    path = first_of(disk)
    disk.unreadable[path] = OSError(5, "Input/output error")
    shard = way(shard)
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk) == {}
    assert path not in disk.names
    assert path.with_suffix(".idx") not in disk.names


def test_a_segment_of_no_topic_that_the_device_cannot_read_is_set_apart() -> None:
    """It may be intact. The shard neither ends nor fails each of its checkpoints."""
    shard, disk = made()
    path = first_of(disk)
    deleted(shard)
    checkpoint(shard)
    shard = shard.restarted()
    assert path in disk.names
    disk.unreadable[path] = OSError(5, "Input/output error")
    for _ in range(3):
        checkpoint(shard)
    assert path in apart(disk)
    assert path not in disk.names


def test_a_file_that_cannot_be_compared_for_want_of_descriptors_is_removed_later() -> None:
    shard, disk = made(wal_segment_bytes=4096)
    deleted(shard)
    checkpoint(shard)
    path = first_of(disk)
    disk.unreadable[path] = OSError(24, "Too many open files")
    checkpoint(shard)
    assert path in disk.names
    disk.unreadable.clear()
    assert shard.shard.checkpoints.inventory.garbage
    checkpoint(shard)
    assert path not in disk.names
    assert apart(disk) == {}
    assert not shard.shard.checkpoints.inventory.leaving


def test_a_log_file_that_cannot_be_compared_for_want_of_descriptors_is_compared_later() -> None:
    shard, disk = logged("ours")
    checkpoint(shard)
    path = sorted(path for path in disk.names if path.match("wal/*.log"))[1]
    foreign = bytes(logged("else")[1].names[path].data)
    disk.names[path].data[:] = foreign
    disk.unreadable[path] = OSError(24, "Too many open files")
    checkpoint(shard)
    assert path in disk.names
    disk.unreadable.clear()
    checkpoint(shard)
    assert apart(disk) == {path: foreign}


def test_a_segment_that_was_replaced_is_set_apart_once_there_is_room() -> None:
    shard, disk = made()
    path = first_of(disk)
    foreign = bytes(made("else")[1].names[path].data)
    disk.names[path].data[:] = foreign
    deleted(shard)
    checkpoint(shard)
    disk.fail["make_dir"] = OSError(28, "No space left on device")
    checkpoint(shard)
    assert bytes(disk.names[path].data) == foreign
    disk.fail.clear()
    checkpoint(shard)
    assert apart(disk)[path] == foreign
    assert path not in disk.names


def test_an_older_state_of_a_segment_is_set_apart() -> None:
    """It begins with the same frame, and continues in another way."""
    shard, disk = made(segment_max_events=100)
    path = first_of(disk)
    older, other = made(segment_max_events=100)
    older.append("a", "in another way")
    checkpoint(older)
    foreign = bytes(other.names[path].data)
    shard.append("a", "in this way", "too")
    checkpoint(shard)
    disk.names[path].data[:] = foreign
    shard = deleted(shard)
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk)[path] == foreign


def test_frames_after_those_that_count_are_no_other_file() -> None:
    """A checkpoint that was not finished may leave some."""
    shard, disk = made()
    path = first_of(disk)
    disk.names[path].data += bytes(disk.names[path].data)
    deleted(shard)
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk) == {}


def test_the_copy_in_the_data_directory_of_a_segment_that_moved_may_have_been_replaced() -> None:
    shard, disk = made(hot_retain_segments=2)
    hot = first_of(disk)
    shard.append("a", *range(10))
    checkpoint(shard)
    assert Path("/cold") / hot.relative_to(SHARD.parent) in disk.names
    foreign = bytes(made("else")[1].names[hot].data)
    disk.names[hot].data[:] = foreign
    for _ in range(2):
        checkpoint(shard)
    assert apart(disk)[hot] == foreign
    assert hot not in disk.names
    assert shard.diff("a")["records"][0]["data"] == "ours 0"


def with_held(value: str) -> tuple[Harness, FaultDisk, Path]:
    """A shard that has read its held frames, and needs their file no more."""
    shard, disk = made(value)
    shard.append("a", f"{value} in the log")
    path = first_of(disk)
    node = disk.names.pop(path)
    shard = shard.restarted()
    checkpoint(shard)
    disk.names[path] = node
    held = first_of(disk, "held-*")
    return shard.restarted(), disk, held


@pytest.mark.parametrize("deletes", [False, True], ids=["read", "deleted"])
def test_held_frames_that_were_replaced_are_set_apart(deletes: bool) -> None:
    shard, disk, path = with_held("ours")
    foreign = bytes(with_held("else")[1].names[path].data)
    disk.names[path].data[:] = foreign
    if deletes:
        shard = deleted(shard.restarted())
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk) == {path: foreign}
    if not deletes:
        assert shard.everything("a")[-1]["data"] == "ours in the log"


def test_held_frames_of_a_topic_that_returns_while_they_are_written_are_removed() -> None:
    shard, disk = made()
    shard.append("a", "in the log")
    path = first_of(disk)
    node = disk.names.pop(path)
    shard = shard.restarted()
    shard.append("b", "more")
    shard.shard.commits.sync_now()
    plan = shard.shard.control.begin()
    shard.shard.checkpoints.writer.write(plan)
    held = first_of(disk, "held-*")
    disk.names[path] = node
    shard.clock.advance(61_000)
    assert shard.everything("a")[-1]["data"] == "in the log"
    shard.shard.control.end(plan)
    for _ in range(2):
        checkpoint(shard)
    assert held not in disk.names
    assert apart(disk) == {}
    assert shard.restarted().everything("a")[-1]["data"] == "in the log"


def test_held_frames_are_removed_when_they_were_read() -> None:
    shard, disk, path = with_held("ours")
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk) == {}
    assert path not in disk.names


def logged(value: str, started: bool = False) -> tuple[Harness, FaultDisk]:
    """A shard with several log files. Those of another value have the same lengths, numbers and times."""
    disk = FaultDisk()
    shard = Harness(disk, wal_segment_bytes=4096)
    for n in range(150):
        shard.append("a", f"{value} {n}", config=DURABLE)
    return (shard.restarted() if started else shard), disk


@pytest.mark.parametrize("started", [False, True], ids=["written", "read"])
def test_a_log_file_that_was_replaced_is_set_apart_and_its_own_is_removed(started: bool) -> None:
    shard, disk = logged("ours", started)
    logs = [path for path in sorted(disk.names) if path.match("wal/*.log")]
    assert len(logs) > 3
    foreign = bytes(logged("else", started)[1].names[logs[1]].data)
    assert foreign != disk.names[logs[1]].data
    disk.names[logs[1]].data[:] = foreign
    disk.names[logs[2]].data[70] ^= 1
    for _ in range(3):
        checkpoint(shard)
    assert apart(disk) == {logs[1]: foreign}
    assert not disk.names.keys() & set(logs[:3])


def test_a_log_file_that_the_device_cannot_read_is_removed() -> None:
    shard, disk = logged("ours")
    checkpoint(shard)
    logs = [path for path in sorted(disk.names) if path.match("wal/*.log")]
    disk.unreadable[logs[1]] = OSError(5, "Input/output error")
    checkpoint(shard)
    assert apart(disk) == {}
    assert not disk.names.keys() & set(logs[:3])
