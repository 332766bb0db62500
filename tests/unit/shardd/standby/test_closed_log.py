"""The closed log: what a standby has on its disk."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from proto.format.frame import Header
from proto.model.limits import Limits
from shardd.checkpoint.slices import exhaust
from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from shardd.replication import role
from shardd.replication.attach import MARK, Mark, Mismatch, read_mark, write_mark
from shardd.replication.messages import Apply, Kind, Part, Position, ReadPart, Restore, Result
from shardd.replication.objects import Objects
from shardd.shard import open_shard
from shardd.standby import closed_log
from shardd.standby.closed_log import ClosedLog
from shardd.storage import catalog
from shardd.storage.disk import Disk, RealDisk
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import SHARD, FakeClock, Harness
from tests.support.roles import Machine, Time
from tests.support.shipped import SMALL, Shipped, contents


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)


@pytest.fixture
def holder() -> Shipped:
    return Shipped(MemoryStore(), **SMALL, shards=2).attach()


class Rebooted(RealDisk):
    def boot_id(self) -> str:
        return "another boot"


class Files:
    """A standby's directory, and the parts that it applies."""

    def __init__(self, store: MemoryStore, path: Path, disk: Disk | None = None, **limits: int) -> None:
        self.disk = disk or RealDisk()
        self.path = path / "shard-00"
        self.disk.make_dir(self.path)
        self.disk.sync_dir(path)
        self.clock = FakeClock()
        self.limits = Limits(**(SMALL | limits))
        self.objects = Objects(store, 0)
        self.closed = ClosedLog(self.disk, self.path, self.objects, self.limits)
        self.position = self.closed.open()

    def follow(self) -> Result:
        """Apply parts until there are none, or one differs."""
        while True:
            part = self.objects.carry(ReadPart(self.position.part + 1))
            if not isinstance(part, Part):
                return Result.DONE
            if part.kind is Kind.FRAMES:
                answer = self.closed.carry(Apply(part))
                if answer is not Result.DONE:
                    assert isinstance(answer, Result)
                    return answer
                self.closed.fold()
            self.position = Position(part.number, max(self.position.frame_no, part.last_no))

    def opened(self) -> Harness:
        self.closed.close()
        return Harness(self.disk, self.clock, self.path, **SMALL)


def written(holder: Shipped, count: int, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        holder.append("a", "x" * 50, number)
        holder.append("b", number)
        holder.sync()
        holder.ship()


def test_what_is_applied_is_what_the_holder_has(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path)
    written(holder, 5)
    assert standby.follow() is Result.DONE
    written(holder, 5, 5)
    again = Files(holder.store, tmp_path)  # a process that kept no position compares
    assert again.follow() is Result.DONE
    assert contents(again.opened()) == contents(holder)
    assert verify(RealDisk(), again.path, again.clock, again.limits).problems == []


def torn(standby: Files, after_no: int) -> None:
    """What a power cut may leave: a frame behind this one is zeros, and later ones are whole."""
    (path,) = (standby.path / "wal").iterdir()
    data, at = bytearray(path.read_bytes()), 0
    while Header(data, at).frame_no <= after_no:
        at += Header(data, at).length
    end = at + Header(data, at).length
    data[at:end] = bytes(end - at)
    path.write_bytes(data)


def test_frames_that_a_power_cut_tore_are_read_from_the_bucket_again(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path, wal_segment_bytes=1 << 20)
    written(holder, 2)
    standby.follow()
    standby.closed.keep(standby.position)
    kept_no = standby.position.frame_no
    written(holder, 3, 2)
    standby.follow()
    standby.closed.close()
    torn(standby, kept_no)
    again = Files(holder.store, tmp_path)
    assert again.closed.last_no == kept_no
    assert again.follow() is Result.DONE
    assert contents(again.opened()) == contents(holder)


@pytest.mark.parametrize("why", ["kept", "held", "held before", "claimed", "a backup"])
def test_a_damaged_frame_that_the_bucket_may_not_have_is_refused(holder: Shipped, tmp_path: Path, why: str) -> None:
    standby = Files(holder.store, tmp_path, wal_segment_bytes=1 << 20)
    written(holder, 2)
    standby.follow()
    kept = standby.position
    written(holder, 3, 2)
    standby.follow()
    standby.closed.keep(standby.position if why == "kept" else kept)
    standby.closed.close()
    mark = read_mark(RealDisk(), standby.path)
    assert mark is not None
    others: dict[str, dict[str, Any]] = {
        "kept": {},
        "held": {"held": True},
        "held before": {"nonce": "11" * 16},
        "claimed": {"claimed": "11" * 16},
        "a backup": {"part": -1, "frame_no": 0},
    }
    write_mark(RealDisk(), standby.path, replace(mark, **others[why]))
    torn(standby, kept.frame_no)
    with pytest.raises(RecoveryError, match="it had been synced"):
        Files(holder.store, tmp_path)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("fault", ["failed syncs", "a kill before a sync"])
def test_what_a_process_did_not_sync_is_on_the_device_before_more_follows_it(
    holder: Shipped, monkeypatch: pytest.MonkeyPatch, fault: str, keeps: bool
) -> None:
    """The kernel shows those frames, and after a failed sync it takes them for written."""
    monkeypatch.setattr(closed_log, "KEEP_BYTES", 1 if keeps else 1 << 30)
    disk = FaultDisk()
    standby = Files(holder.store, SHARD.parent, disk, wal_segment_bytes=1 << 20)
    written(holder, 2)
    assert standby.follow() is Result.DONE
    written(holder, 1, 2)
    if fault == "failed syncs":
        disk.fail["sync"] = OSError(5, "Input/output error")
        with pytest.raises(OSError, match="Input/output error"):
            standby.follow()
    else:
        disk.crash_at = len(disk.calls) + 1
        with pytest.raises(Crash):
            standby.follow()
        assert disk.calls[-1][0] == "write"
    again = Files(holder.store, SHARD.parent, disk.after_crash("process"))
    assert again.closed.last_no > standby.closed.last_no
    written(holder, 2, 3)
    assert again.follow() is Result.DONE
    assert isinstance(again.disk, FaultDisk)
    found = Files(holder.store, SHARD.parent, again.disk.after_crash("drop"))
    assert found.closed.last_no == again.closed.last_no
    assert contents(found.opened()) == contents(holder)


def test_a_standby_makes_checkpoints_so_that_its_log_stays_short(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path, checkpoint_bytes=4096)
    holder.call("configure", "seqs", {"durability": "disk"})
    for begin in range(0, 200, 20):
        written(holder, 20, begin)
        holder.append("seqs", begin)
    holder.sync()
    holder.ship()
    assert standby.follow() is Result.DONE
    assert catalog.numbers(RealDisk(), standby.path)
    held = sum(path.stat().st_size for path in (standby.path / "wal").iterdir())
    assert held < 5 * 4096 < sum(len(data) for name, data in holder.store.objects.items() if "/log/" in name)
    found = exhaust(open_shard(RealDisk(), standby.clock, standby.path, standby.limits, restarted=False))
    assert found.directory.visible["seqs"].position.next_seq == holder.shard.directory.visible["seqs"].position.next_seq
    assert contents(standby.opened())["a"] == contents(holder)["a"]


def test_a_standby_that_starts_with_a_long_log_knows_that(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path)
    written(holder, 20)
    assert standby.follow() is Result.DONE
    assert standby.closed.foldable == sum(path.stat().st_size for path in (standby.path / "wal").iterdir())
    standby.closed.keep(standby.position)
    again = Files(holder.store, tmp_path)
    assert again.closed.foldable == standby.closed.foldable
    again.closed.open()  # as a start does again when the bucket did not answer
    assert again.closed.foldable == standby.closed.foldable
    assert not again.closed.fold(), "it is shorter than TOPICS_CHECKPOINT_BYTES"
    assert again.closed.fold(soon=True)
    assert again.closed.foldable == 0
    assert not again.closed.fold(soon=True)
    assert Files(holder.store, tmp_path).closed.foldable == 0
    written(holder, 2, 20)
    assert again.follow() is Result.DONE
    assert 0 < again.closed.foldable < standby.closed.foldable
    assert contents(again.opened()) == contents(holder)


def test_a_log_that_the_bucket_may_not_have_is_not_folded(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path)
    written(holder, 2)
    assert standby.follow() is Result.DONE
    again = Files(holder.store, tmp_path)  # no position was kept: it has to compare
    assert again.closed.foldable == 0
    assert not again.closed.fold(soon=True)
    assert again.follow() is Result.DONE
    assert again.closed.fold(soon=True)


def test_a_restored_directory_is_not_folded_although_the_bucket_has_all_of_it(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path)
    written(holder, 2)
    assert standby.follow() is Result.DONE
    (standby.path / MARK).unlink()
    restored = Files(holder.store, tmp_path)
    assert restored.closed.from_backup
    assert not restored.closed.fold(soon=True)
    assert Files(holder.store, tmp_path).closed.from_backup


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_a_checkpoint_of_a_standby_keeps_the_seqs_that_the_holder_has_reserved(
    holder: Shipped, tmp_path: Path, durability: str
) -> None:
    standby = Files(holder.store, tmp_path, checkpoint_bytes=4096)
    holder.call("configure", "seqs", {"durability": durability})
    holder.append("seqs", 1)
    written(holder, 30)
    assert standby.follow() is Result.DONE
    assert catalog.numbers(RealDisk(), standby.path)
    given = holder.append("seqs", "acknowledged, and in no part")["last_seq"]
    standby.closed.close()
    taken_over = Harness(Rebooted(), standby.clock, standby.path, **SMALL)
    assert taken_over.append("seqs", "of the next holder")["first_seq"] > given


def test_a_log_that_differs_is_said_to(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path)
    written(holder, 2)
    standby.follow()
    shard = standby.opened()
    shard.append("a", "of its own")
    shard.shard.commits.sync_now()
    shard.shard.close()
    written(holder, 2, 2)
    again = Files(holder.store, tmp_path)
    assert again.follow() is Result.DIFFERS


def test_a_restore_sets_the_directory_aside_and_takes_the_newest_manifest(holder: Shipped, tmp_path: Path) -> None:
    written(holder, 30)
    holder.shard.checkpoint_now()
    holder.copy()
    written(holder, 5, 30)
    for name in sorted(name for name in holder.store.objects if "/log/" in name)[:20]:
        holder.store.delete(name)
    other = Harness(RealDisk(), FakeClock(), tmp_path / "shard-00", **SMALL)
    other.append("mine", "of its own")
    other.shard.commits.sync_now()
    other.shard.close()
    write_mark(RealDisk(), tmp_path / "shard-00", Mark(holder.store.url, "l", part=0))
    standby = Files(holder.store, tmp_path)
    position = standby.closed.carry(Restore())
    assert isinstance(position, Position)
    (aside,) = standby.path.glob("aside-*")
    assert list((aside / "wal").iterdir())
    standby.position = position
    assert standby.follow() is Result.DONE
    assert contents(standby.opened()) == contents(holder)


def test_a_restore_that_died_is_made_again(holder: Shipped, tmp_path: Path) -> None:
    written(holder, 3)
    (tmp_path / "shard-00" / "topics").mkdir(parents=True)
    (tmp_path / "shard-00" / "topics" / "half").write_bytes(b"?")
    write_mark(RealDisk(), tmp_path / "shard-00", Mark(holder.store.url, "l", incomplete=True))
    standby = Files(holder.store, tmp_path)
    assert standby.position == Position()
    assert not (standby.path / "topics").exists()
    assert standby.follow() is Result.DONE
    assert contents(standby.opened()) == contents(holder)


def test_a_directory_that_a_start_emptied_counts_from_then_on(holder: Shipped, tmp_path: Path) -> None:
    written(holder, 3)
    (tmp_path / "shard-00").mkdir()
    write_mark(RealDisk(), tmp_path / "shard-00", Mark(holder.store.url, "l", held=True, incomplete=True))
    standby = followed(holder.store, tmp_path)
    standby.closed.hold(standby.position, "n")
    again = Files(holder.store, tmp_path)
    assert again.closed.last_no == standby.closed.last_no > 0
    assert again.closed.held
    assert again.closed.mark.lineage != "l", "its files are not those that the older manifests were made from"


@pytest.mark.parametrize("survival", ["process", "drop"])
def test_a_restore_that_died_anywhere_keeps_what_only_this_machine_had(
    holder: Shipped, survival: Literal["process", "drop"]
) -> None:
    written(holder, 3)
    holder.shard.checkpoint_now()
    holder.copy()
    whole = followed(holder.store, SHARD.parent, FaultDisk())
    shard = whole.opened()
    shard.append("a", "of its own")
    shard.shard.commits.sync_now()
    shard.shard.close()
    assert isinstance(whole.disk, FaultDisk)

    def kept(disk: FaultDisk) -> bool:
        logs = [path for path in disk.names if path.parent.name == "wal"]
        own = [path for path in logs if b"of its own" in disk.names[path].data]
        return any(path.parent == SHARD / "wal" or path.parts[-3].startswith("aside-") for path in own)

    last = 0
    while True:
        disk = whole.disk.settled()
        files = Files(holder.store, SHARD.parent, disk)
        disk.crash_at = len(disk.calls) + last
        try:
            assert isinstance(files.closed.carry(Restore()), Position)
            break
        except Crash:
            last += 1
        after = disk.after_crash(survival)
        again = Files(holder.store, SHARD.parent, after)
        assert kept(after), f"after call {last}"
        assert kept(after.after_crash("drop")), f"after call {last}, and the power fails"
        if again.closed.last_no <= files.position.frame_no:
            position = again.closed.carry(Restore())
            assert isinstance(position, Position)
            again.position = position
            assert again.follow() is Result.DONE
            assert kept(after), f"after call {last}, and another restore"
            assert contents(again.opened()) == contents(holder), f"after call {last}"
    assert last > 10
    assert kept(disk)


def marked(standby: Files, **fields: object) -> None:
    """Change the mark of a directory that no process uses."""
    mark = read_mark(standby.disk, standby.path)
    assert mark is not None
    write_mark(standby.disk, standby.path, replace(mark, **fields))


def followed(store: MemoryStore, path: Path, disk: Disk | None = None) -> Files:
    """A directory as the process leaves it that followed the shard to its end."""
    standby = Files(store, path, disk)
    assert standby.follow() is Result.DONE
    standby.closed.keep(standby.position)
    standby.closed.close()
    return standby


def test_files_that_the_bucket_has_are_removed_and_made_again_from_it(holder: Shipped, tmp_path: Path) -> None:
    written(holder, 5)
    followed(holder.store, tmp_path)
    (tmp_path / "shard-00" / "aside-1").mkdir()
    assert Files(holder.store, tmp_path).closed.clear()
    assert [path.name for path in (tmp_path / "shard-00").iterdir()] == ["aside-1"], "what was set aside stays"
    again = Files(holder.store, tmp_path)
    assert again.follow() is Result.DONE
    assert contents(again.opened()) == contents(holder)


@pytest.mark.parametrize("how", ["cleared", "restored", "restored by a start"])
def test_what_was_set_apart_in_lost_and_found_stays(holder: Shipped, tmp_path: Path, how: str) -> None:
    written(holder, 3)
    holder.shard.checkpoint_now()
    holder.copy()
    cold = tmp_path / "cold" / "shard-00"
    standby = followed(holder.store, tmp_path / "data")
    apart = [top / "lost+found" / "wal" / "wal-1.log" for top in (standby.path, cold)]
    for path in apart:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"of another shard")
    (cold / "topics").mkdir()
    if how == "restored by a start":
        marked(standby, incomplete=True)
    limits = Limits(**SMALL, cold_dir=str(tmp_path / "cold"))
    closed = ClosedLog(RealDisk(), standby.path, standby.objects, limits)
    closed.open()
    if how == "cleared":
        assert closed.clear()
        assert [path.name for path in standby.path.iterdir()] == ["lost+found"]
    else:
        assert isinstance(closed.carry(Restore()), Position)
    assert [path.read_bytes() for path in apart] == [b"of another shard"] * 2
    assert not (cold / "topics").exists()
    closed.close()
    assert Files(holder.store, tmp_path / "data").follow() is Result.DONE


@pytest.mark.parametrize("why", ["not kept", "own frames", "held", "in no frame", "seqs", "another bucket", "no mark"])
def test_files_stay_if_something_in_them_may_be_in_no_bucket(holder: Shipped, tmp_path: Path, why: str) -> None:
    written(holder, 3)
    standby = followed(holder.store, tmp_path)
    if why == "not kept":
        written(holder, 2, 3)
        last = Files(holder.store, tmp_path)
        assert last.follow() is Result.DONE
        last.closed.close()
    elif why == "own frames":
        shard = standby.opened()
        shard.append("a", "of its own")
        shard.shard.commits.sync_now()
        shard.shard.close()
    elif why == "no mark":
        (standby.path / "bucket.json").unlink()
    else:
        changed = {"held": "held", "in no frame": "unshipped", "seqs": "skips", "another bucket": "url"}[why]
        marked(standby, **{changed: "file:///other" if changed == "url" else True})
    before = sorted(path for path in standby.path.rglob("*") if path.is_file() and path.suffix == ".log")
    assert not Files(holder.store, tmp_path).closed.clear()
    assert sorted(path for path in standby.path.rglob("*") if path.suffix == ".log") == before != []


def test_a_removal_that_died_anywhere_leaves_a_directory_that_can_follow(holder: Shipped) -> None:
    written(holder, 3)
    whole = followed(holder.store, SHARD.parent, FaultDisk())
    assert isinstance(whole.disk, FaultDisk)
    last = 0
    while True:
        disk = whole.disk.after_crash("process")
        files = Files(holder.store, SHARD.parent, disk)
        disk.crash_at = len(disk.calls) + last
        try:
            assert files.closed.clear()
            break
        except Crash:
            last += 1
        again = Files(holder.store, SHARD.parent, disk.after_crash("drop"))
        assert again.follow() is Result.DONE
        assert contents(again.opened()) == contents(holder), f"after call {last}"
    assert last > 5


def test_a_mark_of_a_later_release_is_refused_and_nothing_is_taken_for_whole(holder: Shipped, tmp_path: Path) -> None:
    (tmp_path / "shard-00" / "topics").mkdir(parents=True)
    mark = asdict(Mark(holder.store.url, "l", incomplete=True)) | {"since": 1}
    (tmp_path / "shard-00" / "bucket.json").write_text(json.dumps(mark))
    with pytest.raises(
        Mismatch, match=r"bucket\.json has since, which this release does not know: use the release that wrote"
    ):
        Files(holder.store, tmp_path)


def test_a_nonce_counts_at_the_place_where_its_process_ran_and_until_its_term_has_ended(tmp_path: Path) -> None:
    def opened(place: str) -> ClosedLog:
        found = ClosedLog(RealDisk(), tmp_path, Objects(MemoryStore(), 0), Limits(), place)
        found.open()
        return found

    one = opened("here")
    one.claim("n1", skips=False)
    assert one.previous == (), "this process's own is not an earlier one's"
    one.hold(Position(1, 5), "n1")
    assert set(opened("here").previous) == {"n1"}
    assert set(opened("").previous) == {"n1"}, "one machine alone has one place"
    moved = opened("there")
    assert moved.previous == ()
    assert set(opened("here").previous) == {"n1"}, "it has written nothing"
    moved.claim("n2", skips=False)
    assert opened("there").previous == ("n2",)
    assert opened("here").previous == ()
    moved.hold(Position(2, 5), "n2")
    moved.ended()
    assert opened("there").previous == ()


def test_without_other_machines_a_mark_is_as_earlier_releases_know_it(tmp_path: Path) -> None:
    closed = ClosedLog(RealDisk(), tmp_path, Objects(MemoryStore(), 0), Limits())
    closed.open()
    closed.hold(Position(1, 5), "n1")
    closed.ended()
    found = json.loads((tmp_path / "bucket.json").read_text())
    assert "place" not in found
    assert found["nonce"] == "n1"


async def test_a_machine_that_retention_has_passed_takes_over_from_a_manifest(holder: Shipped, tmp_path: Path) -> None:
    written(holder, 30)
    holder.shard.checkpoint_now()
    holder.copy()
    for name in sorted(name for name in holder.store.objects if "/log/" in name)[:-1]:
        holder.store.delete(name)
    async with trio.open_nursery() as nursery:
        machine = Machine(nursery, holder.store, tmp_path, "two", Time())
        harness = await machine.take_over()
        assert contents(harness) == contents(holder)
        nursery.cancel_scope.cancel()


def test_a_directory_that_never_met_the_bucket_must_have_its_last_frame(holder: Shipped, tmp_path: Path) -> None:
    written(holder, 3)
    other = Harness(RealDisk(), FakeClock(), tmp_path / "shard-00", **SMALL)
    other.append("a", "of its own")
    other.shard.commits.sync_now()
    with pytest.raises(Mismatch, match="older than the bucket, or both were written to independently"):
        Files(holder.store, tmp_path)
    for number in range(10):
        other.append("a", number)
    other.shard.commits.sync_now()
    other.shard.close()
    with pytest.raises(Mismatch, match="older than the bucket, or both were written to independently"):
        Files(holder.store, tmp_path)


def test_a_read_that_ends_late_takes_no_frames_away(holder: Shipped, tmp_path: Path) -> None:
    standby = Files(holder.store, tmp_path)
    written(holder, 2)
    found = [standby.objects.carry(ReadPart(number)) for number in (2, 1)]
    assert isinstance(found[0], Part)
    assert isinstance(found[1], Part)
    assert standby.closed.carry(Apply(found[1])) is Result.DONE
    assert standby.closed.carry(Apply(found[0])) is Result.DONE


@pytest.mark.parametrize("foreign", [False, True])
def test_a_log_of_another_shard_is_refused_when_it_is_looked_at(tmp_path: Path, foreign: bool) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "shards": 2, "created_ms": 7}))
    for index in range(2):
        path = tmp_path / f"shard-{index:02d}"
        path.mkdir()
        shard = Harness(RealDisk(), FakeClock(), path, **SMALL)
        for number in range(30):
            shard.append("a", index, number)
        shard.shard.commits.sync_now()
        shard.shard.close()
    if foreign:
        shutil.rmtree(tmp_path / "shard-00" / "wal")
        shutil.copytree(tmp_path / "shard-01" / "wal", tmp_path / "shard-00" / "wal")
        before = {path: path.read_bytes() for path in (tmp_path / "shard-00").rglob("*.log")}
        with pytest.raises(RecoveryError, match="shard-00/wal"):
            Files(MemoryStore(), tmp_path)
        assert {path: path.read_bytes() for path in before} == before
    else:
        assert Files(MemoryStore(), tmp_path).closed.last_no > 30
