"""Claims about `topics salvage`: whole records stay, lost ones are reported, and it can be repeated after any kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proto.format.frame import check
from shardd.offline.salvage import SECTOR, salvage
from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from shardd.replication.attach import MARK
from shardd.storage.owner import MANIFEST
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import SHARD, FakeClock, Harness
from tests.support.routed import Net
from tests.support.shipped import SMALL, Shipped

LIMITS: dict[str, Any] = {
    "cache_bytes": 0,
    "segment_max_events": 10,
    "cold_dir": "/cold",
    "hot_retain_segments": 1,
    "hot_retain_bytes": 0,
}
DURABLE = {"durability": "fsync"}


def checkpoint(shard: Harness) -> None:
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()


def stored() -> FaultDisk:
    """Topic `bad` has 0 to 39 without 4 and 17, three batches a segment. Topic `good` is sound. One record and a cursor
    of `bad` are in the log only."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    for number in range(0, 40, 5):
        records = [{"data": number + n, "tag": f"t{number + n}"} for n in range(5)]
        shard.call("append", "bad", {"records": records, "config": DURABLE})
        checkpoint(shard)
    shard.call("delete_records", "bad", {"match": "t4"})
    shard.call("delete_records", "bad", {"match": "t17"})
    shard.append("good", "a", "b", config=DURABLE)
    for _ in range(3):
        shard.append("good", "c")
        checkpoint(shard)
    shard.append("bad", "in the log", config=DURABLE)
    shard.call("cursor_put", "bad", {"seq": 33}, cursor="reader")
    shard.shard.commits.sync_now()
    return disk


def segments(disk: FaultDisk) -> list[Path]:
    found = [path for path in disk.names if path.suffix == ".data" and path.parent.name.endswith("1")]
    found = [path for path in found if Path("/backup") not in path.parents]
    return sorted(found, key=lambda path: path.name)


def damage(disk: FaultDisk) -> None:
    """The first batch of the second segment is damaged, the third segment is gone."""
    found = segments(disk)
    for node in (disk.names[found[1]],):
        node.data[100] ^= 1
        node.synced = bytes(node.data)
    for path in (found[2], found[2].with_suffix(".idx")):
        disk.names.pop(path)
        disk.durable.pop(path, None)


def run(disk: FaultDisk, name: str = "bad", backup: tuple[Path, Path] | None = None) -> dict[str, Any]:
    (found,) = salvage(disk, SHARD, FakeClock(), Harness(FaultDisk(), **LIMITS).limits, name, backup)
    return found


def records(shard: Harness, topic: str = "bad") -> tuple[list[Any], list[tuple[int, int, str]]]:
    """The records that a reader gets, and the losses that it is told."""
    data, gaps, cursor = [], [], 0
    while True:
        answer = shard.diff(topic, cursor)
        if answer["tombstone"]:
            gaps.append((answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"], answer["tombstone"]["reason"]))
        data += [record["data"] for record in answer["records"]]
        cursor = answer["next_from_seq"]
        if answer["caught_up"]:
            return data, gaps


WHOLE = [*(n for n in range(10) if n != 4), *range(15, 17), *(18, 19), *range(30, 40), "in the log"]
GAPS = [(11, 15, "mixed"), (21, 30, "mixed")]


def test_what_is_whole_stays_and_the_rest_is_told() -> None:
    disk = stored()
    damage(disk)
    shard = Harness(disk, **LIMITS)
    assert shard.reply("diff", "bad", {}).error is not None
    problems = verify(disk, SHARD, FakeClock(), shard.limits).problems
    assert problems
    assert all('"bad"' in problem for problem in problems)
    found = run(disk)
    assert (found["kind"], found["lost"]) == ("salvaged", [[11, 15], [21, 30]])
    again = Harness(disk, **LIMITS)
    assert records(again) == (WHOLE, GAPS)
    assert again.call("cursor_get", "bad", cursor="reader")["seq"] == 33
    assert again.append("bad", "new")["last_seq"] == 42
    assert records(again, "good") == (["a", "b", "c", "c", "c"], [])
    assert not verify(disk, SHARD, FakeClock(), again.limits).problems
    assert not segments(disk), "the files that were damaged are gone"


@pytest.mark.parametrize("at", range(0, 50_000, 5000))
def test_a_bad_sector_costs_the_batches_in_it_and_no_others(at: int) -> None:
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    for number in range(5):
        shard.append("bad", str(number) * 10_000, config=DURABLE)
        checkpoint(shard)
    (path,) = segments(disk)
    begin = at // SECTOR * SECTOR
    disk.bad[path] = range(begin, begin + SECTOR)
    ends = [0]
    while len(ends) < 6:
        ends.append(ends[-1] + check(disk.names[path].data, ends[-1]).length)
    hit = [n for n in range(5) if ends[n] < begin + SECTOR and begin < ends[n + 1]]
    assert 0 < len(hit) < 3
    assert run(disk)["kind"] == "salvaged"
    assert [data[0] for data in records(Harness(disk, **LIMITS))[0]] == [str(n) for n in range(5) if n not in hit]


def test_a_sound_topic_is_left_alone() -> None:
    disk = stored()
    Harness(disk, **LIMITS).shard.close()
    before = {path: bytes(node.data) for path, node in disk.names.items()}
    assert run(disk) == {"kind": "sound", "topic": "bad"}
    assert {path: bytes(node.data) for path, node in disk.names.items()} == before
    with pytest.raises(RecoveryError, match="there is no topic"):
        run(disk, "no such")


@pytest.mark.parametrize("survival", ["process", "drop"])
def test_killed_before_any_disk_call_it_can_be_repeated(survival: Survival) -> None:
    whole = stored()
    damage(whole)
    start = len(whole.calls)
    run(whole)
    calls = len(whole.calls) - start
    assert calls > 20
    for crash_at in range(calls + 1):
        disk = stored()
        damage(disk)
        disk.crash_at = len(disk.calls) + crash_at
        try:
            run(disk)
        except Crash:
            pass
        after = disk.after_crash(survival)
        started = Harness(after.after_crash("process"), **LIMITS)  # the service may be started in between
        assert started.shard.directory.find("bad").damage is not None or records(started) == (WHOLE, GAPS)
        started.append("good", "more")
        run(after)
        again = Harness(after, **LIMITS)
        assert records(again) == (WHOLE, GAPS), f"killed before call {crash_at}"
        assert records(again, "good")[0][:2] == ["a", "b"]
        assert not verify(after, SHARD, FakeClock(), again.limits).problems


def test_a_backup_fills_what_is_lost() -> None:
    disk = stored()
    backup = Path("/backup/shard-00"), Path("/backup/cold")
    for top, target in ((SHARD, backup[0]), (Path("/cold/shard-00"), backup[1] / "shard-00")):
        for path in [path for path in disk.names if top in path.parents]:
            disk.names[target / path.relative_to(top)] = disk.names[path]
    copies = {path: bytes(node.data) for path, node in disk.names.items() if Path("/backup") in path.parents}
    for path, data in copies.items():
        disk.names[path] = type(disk.names[path])(bytearray(data), data)
    damage(disk)
    found = run(disk, backup=backup)
    assert (found["lost"], found["restored"]) == ([], 15)
    expected = [*(n for n in range(40) if n not in (4, 17)), "in the log"]
    assert records(Harness(disk, **LIMITS)) == (expected, [])


def made_by(disk: FaultDisk, service: int, path: Path = SHARD) -> None:
    """Make a shard with a topic `bad` of three records. All services have the same names, ids, epochs and seqs."""
    file = disk.create(path.parent / MANIFEST)
    file.write([json.dumps({"format": 1, "shards": 2, "created_ms": service}).encode()])
    file.sync()
    disk.sync_dir(path.parent)
    shard = Harness(disk, path=path, cache_bytes=0)
    for number in range(3):
        shard.append("bad", f"{service}/{number}", config=DURABLE)
        checkpoint(shard)
    shard.shard.close()


def test_a_backup_of_another_service_is_refused() -> None:
    disk, backup = FaultDisk(), Path("/backup/shard-00")
    made_by(disk, 1)
    made_by(disk, 2, backup)
    disk.names[segments(disk)[0]].data[100] ^= 1
    before = {path: bytes(node.data) for path, node in disk.names.items()}
    with pytest.raises(RecoveryError, match="is of service 2, and this is service 1: take a backup of this one"):
        run(disk, backup=(backup, Path("/backup/cold")))
    assert {path: bytes(node.data) for path, node in disk.names.items()} == before


def test_a_backup_from_before_a_reshard_is_of_the_same_service() -> None:
    disk, backup = FaultDisk(), Path("/backup/shard-01")
    made_by(disk, 1)
    made_by(disk, 1, backup)
    disk.names[segments(disk)[0]].data[100] ^= 1
    found = run(disk, backup=(backup, Path("/backup/cold")))
    assert (found["lost"], found["restored"]) == ([], 1)
    assert records(Harness(disk, **LIMITS)) == (["1/0", "1/1", "1/2"], [])


def test_a_directory_that_is_copied_to_a_bucket_is_refused_because_the_bucket_would_lack_the_change() -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(3):
        shard.append("bad", number, config=DURABLE)
        shard.sync()
        shard.ship()
        shard.shard.checkpoint_now()
    shard.shard.close()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    disk.names[segments(disk)[0]].data[100] ^= 1
    before = {path: bytes(node.data) for path, node in disk.names.items()}
    with pytest.raises(RecoveryError, match=r"shard-00/bucket\.json says that a bucket has a copy.*`topics restore"):
        run(disk)
    assert {path: bytes(node.data) for path, node in disk.names.items()} == before
    disk.remove(SHARD / MARK)  # the bucket is not used any more
    assert run(disk)["kind"] == "salvaged"


def test_frames_that_were_held_are_replayed() -> None:
    disk = stored()
    damage(disk)
    shard = Harness(disk, **LIMITS)
    for _ in range(4):
        shard.append("good", "more")
        checkpoint(shard)
    assert [path for path in disk.names if path.name.startswith("held-")]
    run(disk)
    again = Harness(disk, **LIMITS)
    assert records(again) == (WHOLE, GAPS)
    assert not [path for path in disk.names if path.name.startswith("held-")]


def test_a_damaged_flag_is_mended_and_no_record_comes_back() -> None:
    disk = stored()
    path = segments(disk)[0]
    data = disk.names[path].data
    place = data.index(0xD5, 64)
    data[place] ^= 0x10
    assert Harness(disk, **LIMITS).reply("diff", "bad", {}).error is not None
    assert run(disk)["lost"] == []
    assert records(Harness(disk, **LIMITS))[0][:6] == [0, 1, 2, 3, 5, 6]


FOREIGN = set(range(50, 90))


def other_disk() -> FaultDisk:
    """As `stored`, of another service that began at another time: the same names, ids and seqs, 50 to 89 for 0 to
    39."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    shard.clock.advance(1000)
    for number in range(0, 40, 5):
        records = [{"data": number + n + 50, "tag": f"t{number + n}"} for n in range(5)]
        shard.call("append", "bad", {"records": records, "config": DURABLE})
        checkpoint(shard)
    return disk


def replace(disk: FaultDisk, path: Path, data: bytes) -> None:
    node = disk.names[path]
    node.data[:] = data
    node.synced = bytes(data)


@pytest.mark.parametrize("index", ["its own", "the other's", "missing"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_whole_segment_of_another_service_is_set_apart_and_none_of_it_is_taken(at: int, index: str) -> None:
    disk, other = stored(), other_disk()
    ours, theirs = segments(disk)[at], segments(other)[at]
    foreign = bytes(other.names[theirs].data)
    replace(disk, ours, foreign)
    if index == "the other's":
        replace(disk, ours.with_suffix(".idx"), bytes(other.names[theirs.with_suffix(".idx")].data))
    elif index == "missing":
        disk.names.pop(ours.with_suffix(".idx"))
        disk.durable.pop(ours.with_suffix(".idx"), None)
    found = run(disk)
    assert found["kind"] == "salvaged"
    assert "whole frames were not written here" in " ".join(found["problems"])
    assert len(found["lost"]) == 1
    data, gaps = records(Harness(disk, **LIMITS))
    assert not FOREIGN & {each for each in data if isinstance(each, int)}
    (first, last), lost = found["lost"][0], set(range(found["lost"][0][0] - 1, found["lost"][0][1]))
    assert data == [*(n for n in range(40) if n not in lost | {4, 17}), "in the log"]
    assert [(a, b) for a, b, _ in gaps] == [(first, last)] or at == 0
    kept = [bytes(node.data) for path, node in disk.names.items() if "lost+found" in path.parts]
    assert foreign in kept, "nothing intact is removed"


def test_frames_of_another_service_in_a_segment_that_is_damaged_besides_are_told_by_its_index() -> None:
    disk, other = stored(), other_disk()
    ours = segments(disk)[1]
    foreign = bytearray(other.names[segments(other)[1]].data)
    foreign[100] ^= 1  # the first batch
    replace(disk, ours, bytes(foreign))
    found = run(disk)
    assert "whole frames were not written here" in " ".join(found["problems"])
    data, _ = records(Harness(disk, **LIMITS))
    assert not FOREIGN & {each for each in data if isinstance(each, int)}


@pytest.mark.parametrize("survival", ["process", "drop"])
def test_killed_before_any_disk_call_what_is_foreign_is_neither_taken_nor_removed(survival: Survival) -> None:
    other = other_disk()
    foreign = bytes(other.names[segments(other)[1]].data)

    def spoiled() -> FaultDisk:
        disk = stored()
        replace(disk, segments(disk)[1], foreign)
        return disk

    whole = spoiled()
    start = len(whole.calls)
    lost = run(whole)["lost"]
    for crash_at in range(0, len(whole.calls) - start + 1, 3):
        disk = spoiled()
        disk.crash_at = len(disk.calls) + crash_at
        try:
            run(disk)
        except Crash:
            pass
        after = disk.after_crash(survival)
        assert run(after)["kind"] in ("salvaged", "sound")
        data, gaps = records(Harness(after, **LIMITS))
        assert not FOREIGN & {each for each in data if isinstance(each, int)}
        assert [[a, b] for a, b, _ in gaps] == lost, f"killed before call {crash_at}"
        assert foreign in [bytes(node.data) for node in after.names.values()], f"killed before call {crash_at}"


def test_records_that_an_ephemeral_topic_has_from_another_class_stay() -> None:
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    for number in range(3):
        shard.append("bad", number, config=DURABLE)
        checkpoint(shard)
    shard.call("configure", "bad", {"durability": "ephemeral"})
    shard.append("bad", "brief")
    checkpoint(shard)
    (path,) = segments(disk)
    disk.names[path].data[100] ^= 1
    found = run(disk)
    assert (found["kind"], found["lost"], found["kept"]) == ("salvaged", [[2, 2]], 2)
    assert records(Harness(disk, **LIMITS))[0] == [0, 2]


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_after_a_power_cut_another_topic_that_routers_write_to_gives_no_seq_again(durability: str) -> None:
    net = Net(1, **LIMITS)
    shard = net.of("bad")
    for number in range(3):
        shard.append("bad", number, config=DURABLE)
        checkpoint(shard)
    shard.call("configure", "dest", {"durability": durability})
    shard.call("configure", "source", DURABLE)
    net.router("r", "source", "dest")
    shard.append("source", 1, 2)
    net.settle()
    assert shard.append("dest", "seen")["first_seq"] == 3
    assert isinstance(shard.disk, FaultDisk)
    after = shard.disk.after_crash("drop")
    (path,) = (path for path in segments(after) if "source" not in str(path))
    after.names[path].data[100] ^= 1
    assert run(after)["kind"] == "salvaged"
    net.shards[0] = Harness(after, net.clock, **LIMITS)
    net.restore()
    assert net.of("dest").append("dest", "another")["first_seq"] > 3
