"""Claims about reshard: all topics move, and no stop in between loses or doubles a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cbor2
import pytest
from structlog.testing import capture_logs

from proto.model.limits import Limits
from proto.model.names import shard_of
from shardd.offline.reshard import DECISION, MACHINE, MANIFEST, STAGING, Reshard, shard_name
from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage import catalog
from shardd.storage.batch import Batch
from shardd.storage.errors import Exhausted
from tests.support.fault_disk import Crash, FaultDisk, Node, Survival
from tests.support.harness import FakeClock, Harness
from tests.support.routed import Net

DATA = Path("/data")
LIMITS: dict[str, Any] = {"segment_max_events": 10, "cache_bytes": 0}
NAMES = [f"topic:{i}" for i in range(6)]


def loaded(shards: int, **limits: Any) -> FaultDisk:
    """A data directory with every kind of content, cleanly closed."""
    disk = FaultDisk()
    file = disk.create(DATA / MANIFEST)
    file.write([json.dumps({"format": 1, "shards": shards, "created_ms": 5}).encode()])
    file.sync()
    for index in range(shards):
        shard = Harness(disk, FakeClock(), DATA / shard_name(index), **{**LIMITS, **limits})
        for name in (n for n in NAMES if shard_of(n, shards) == index):
            shard.append(name, "of an earlier life")
            shard.call("delete_topic", name)
            shard.call("configure", name, {"cap_records": 12, "durability": "fsync"})
            for i in range(16):
                body = {"records": [{"data": i, "tag": f"t{i % 3}", "meta": {"k": i}}], "idempotency_key": f"k{i}"}
                shard.call("append", name, body)
                if i == 8:
                    shard.shard.checkpoint_now()
            shard.call("delete_records", name, {"match": "t1"})
            shard.call("cursor_put", name, {"seq": 7}, cursor="me")
        shard.shard.close()
    disk.sync_dir(DATA)
    return disk


def contents(disk: FaultDisk, **limits: Any) -> dict[str, Any]:
    shards = json.loads(bytes(disk.read(DATA / MANIFEST)))["shards"]
    found: dict[str, Any] = {"shards": shards}
    for index in range(shards):
        shard = Harness(disk, FakeClock(), DATA / shard_name(index), **{**LIMITS, **limits})
        for name, topic in shard.shard.directory.visible.items():
            assert shard_of(name, shards) == index
            state = shard.call("state", name, touch=False)
            found[name] = (
                shard.everything(name),
                {key: state[key] for key in ("head_seq", "earliest_seq", "count", "bytes", "config", "last_write_ts")},
                topic.epoch,
                topic.records.losses.evict_floor,
                shard.call("cursor_get", name, cursor="me")["seq"],
                shard.call("append", name, {"records": [{"data": 0}], "idempotency_key": "k15"})["deduped"],
            )
    return found


def reshard(disk: FaultDisk, shards: int, **limits: Any) -> int:
    return Reshard(disk, DATA, FakeClock(), Limits(**{**LIMITS, **limits})).run(shards)


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 2), (2, 5), (2, 1)])
def test_every_topic_arrives_whole(old: int, new: int) -> None:
    disk = loaded(old)
    before = contents(disk.after_crash("process"))
    assert reshard(disk, new) == new
    after = contents(disk.after_crash("drop"))
    assert after == {**before, "shards": new}
    assert {p.relative_to(DATA).parts[0] for p in disk.names} == {MANIFEST, *map(shard_name, range(new))}


def test_sums_begin_again_with_what_is_there() -> None:
    disk = loaded(2)
    before = contents(disk)
    for index in range(2):
        path = DATA / shard_name(index)
        number, found = catalog.load(disk, path) or (0, {})
        for entry in found["topics"]:
            entry["sum"] ^= 1
        found["id_sum"] += 1
        catalog.write(disk, path, number, {name: [cbor2.dumps(value)] for name, value in found.items()})
    with capture_logs() as logs:
        reshard(disk, 3)
    assert {each["event"] for each in logs} == {"records_missing", "topics_missing"}
    assert contents(disk) == before | {"shards": 3}
    for index in range(3):
        assert verify(disk, DATA / shard_name(index), FakeClock(), Limits(**LIMITS)).problems == []


def test_the_cold_tier_comes_home() -> None:
    cold = {"cold_dir": "/cold", "hot_retain_segments": 0}
    disk = loaded(2, **cold)
    assert any(Path("/cold") in p.parents for p in disk.names)
    before = contents(disk.after_crash("process"), **cold)
    reshard(disk, 3, **cold)
    assert not any(Path("/cold") in p.parents for p in disk.names)
    assert contents(disk, **cold) == {**before, "shards": 3}


@pytest.mark.parametrize("durable", [False, True])
def test_the_leases_of_a_queue_move_with_it(durable: bool) -> None:
    disk = FaultDisk()
    file = disk.create(DATA / MANIFEST)
    file.write([json.dumps({"format": 1, "shards": 1, "created_ms": 5}).encode()])
    file.sync()
    shard = Harness(disk, FakeClock(), DATA / shard_name(0), **LIMITS)
    shard.call("configure", "q", {"type": "queue", "leases_durable": durable})
    shard.append("q", *range(4))
    token = shard.call("claim", "q", {"node": "w", "max": 2})["claimed"][0]["lease_id"]
    shard.call("nack", "q", {"node": "w", "seqs": [2]})
    shard.shard.close()
    disk.sync_dir(DATA)
    assert reshard(disk, 3) == 3
    moved = Harness(disk, FakeClock(), DATA / shard_name(shard_of("q", 3)), **LIMITS)
    assert moved.call("state", "q")["queue"] == {
        "ready": 3,
        "in_flight": 1,
        "delayed": 0,
        "dead_lettering": 0,
        "dead_lettered": 0,
    }
    assert moved.call("claim", "q", {"node": "v"})["claimed"][0]["deliveries"] == 2
    assert moved.call("ack", "q", {"node": "w", "seqs": [1], "lease_ids": [token]})["acked"] == 1


def test_after_a_power_cut_a_destination_has_its_copies_and_gives_no_seq_again() -> None:
    net = Net(1, **LIMITS)
    net.router("r", "source", "dest")
    net.of("source").append("source", 1, 2)
    net.settle()
    assert net.of("dest").append("dest", "seen")["first_seq"] == 3
    disk = net.shards[0].disk
    assert isinstance(disk, FaultDisk)
    file = disk.create(DATA / MANIFEST)
    file.write([json.dumps({"format": 1, "shards": 1, "created_ms": 5}).encode()])
    file.sync()
    disk.sync_dir(DATA)
    after = disk.after_crash("drop")
    assert reshard(after, 2) == 2
    moved = Harness(after, FakeClock(), DATA / shard_name(shard_of("dest", 2)), **LIMITS)
    dest = moved.shard.directory.find("dest")
    assert [(batch.first_seq, batch.count) for batch in dest.records.batches] == [(1, 2)]
    assert dest.position.next_seq > 3


def test_the_same_number_changes_nothing() -> None:
    disk = loaded(2)
    before = contents(disk.after_crash("process"))
    assert reshard(disk, 2) == 2
    assert contents(disk) == before


def test_a_later_topic_of_an_old_name_has_a_higher_epoch() -> None:
    disk = loaded(1)
    reshard(disk, 2)
    for name in NAMES:
        shard = Harness(disk, FakeClock(), DATA / shard_name(shard_of(name, 2)), **LIMITS)
        epoch = shard.shard.directory.find(name).epoch
        shard.call("delete_topic", name)
        shard.append(name, 1)
        assert shard.shard.directory.find(name).epoch > epoch


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_crash_before_any_disk_call_is_finished_by_the_next_attempt(survival: Survival) -> None:
    original = loaded(2)
    expected = {**contents(original.after_crash("process")), "shards": 3}
    probe = original.after_crash("process")
    reshard(probe, 3)
    for crash_at in range(len(probe.calls)):
        disk = original.after_crash("process")
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            reshard(disk, 3)
        after = disk.after_crash(survival, crash_at)
        decided = DECISION in after.list(DATA)
        if not decided and not any(p.name == MANIFEST and b'"shards": 3' in n.data for p, n in after.names.items()):
            whole = after.after_crash("process")
            assert contents(whole) == {**expected, "shards": 2}, f"crash before call {crash_at}"
        assert reshard(after, 3) == 3
        assert contents(after.after_crash("drop")) == expected, f"crash before call {crash_at}"
        assert STAGING not in after.list(DATA)


@pytest.mark.parametrize("what", ["create", "write", "sync", "sync_dir", "replace"])
def test_a_disk_error_is_told_and_the_next_attempt_succeeds(what: str) -> None:
    original = loaded(2)
    expected = {**contents(original.after_crash("process")), "shards": 3}
    probe = original.after_crash("process")
    reshard(probe, 3)
    for number in [n for n, (name, _) in enumerate(probe.calls) if name == what]:
        disk = original.after_crash("process")
        disk.faults[number] = OSError(28, "No space left on device")
        with pytest.raises(OSError, match="No space"):
            reshard(disk, 3)
        disk.faults.clear()
        reshard(disk, 3)
        assert contents(disk) == expected


def test_damage_stops_it_before_anything_is_changed() -> None:
    disk = loaded(2)
    path = next(p for p in sorted(disk.names) if p.suffix == ".data")
    disk.names[path].data[90] ^= 1
    before = {p: bytes(n.data) for p, n in disk.names.items()}
    with pytest.raises(RecoveryError, match=r'topic "topic:\d" is damaged \(.*checksum.*\): salvage it first') as error:
        reshard(disk, 3)
    assert str(path) in str(error.value)
    assert {p: bytes(n.data) for p, n in disk.names.items() if STAGING not in p.parts} == before


def test_a_lack_of_descriptors_is_not_told_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = loaded(2)

    def exhausted(batch: Batch) -> Batch:
        raise Exhausted("seg.data: too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("shardd.offline.reshard.copied_batch", exhausted)
        with pytest.raises(RecoveryError, match="too many open files: raise the limit of open files"):
            reshard(disk, 3)
    assert reshard(disk, 3) == 3


@pytest.mark.parametrize("place", ["lost+found/wal", "topics/00000000000000ff"])
@pytest.mark.parametrize("tier", [DATA, Path("/cold")], ids=["data", "cold"])
def test_a_file_that_does_not_belong_stops_it(tier: Path, place: str) -> None:
    """The directories of the old shards are removed in the end, with all that is in them."""
    disk = loaded(2, cold_dir="/cold")
    path = tier / "shard-01" / place / f"seg-{1:020d}.data"
    content = bytes(disk.names[next(p for p in sorted(disk.names) if p.suffix == ".data")].data)
    disk.names[path] = disk.durable[path] = Node(bytearray(content), content)
    before = {p: bytes(n.data) for p, n in disk.names.items()}
    with pytest.raises(RecoveryError, match="does not belong") as error:
        reshard(disk, 3, cold_dir="/cold")
    assert str(path) in str(error.value)
    assert {p: bytes(n.data) for p, n in disk.names.items() if STAGING not in p.parts} == before
    disk.remove(path)
    assert reshard(disk, 3, cold_dir="/cold") == 3


def test_a_directory_that_may_lack_shards_stops_it() -> None:
    disk = loaded(2)
    disk.create(DATA / MACHINE).sync()
    with pytest.raises(RecoveryError, match="one of several machines"):
        reshard(disk, 3)
    disk.remove(DATA / MACHINE)
    assert reshard(disk, 3) == 3


@pytest.mark.parametrize("top", [DATA, Path("/cold")])
@pytest.mark.parametrize("name", ["shard-02", "shard-00.bak", "shard-old"])
def test_what_is_named_like_a_shard_and_is_none_stops_it(top: Path, name: str) -> None:
    disk = loaded(2, cold_dir="/cold")
    disk.make_dir(top / name)
    disk.create(top / name / "kept").write([b"kept"])
    before = {path: bytes(node.data) for path, node in disk.names.items()}
    with pytest.raises(RecoveryError, match=f"{top / name} is none of the 2 shards of manifest.json"):
        reshard(disk, 1, cold_dir="/cold")
    assert {path: bytes(node.data) for path, node in disk.names.items()} == before


def test_what_is_named_like_a_shard_does_not_keep_an_exchange_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = {"cold_dir": "/cold", "hot_retain_segments": 0}
    disk = loaded(2, **cold)
    before = contents(disk.after_crash("process"), **cold)

    def dies(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Reshard, "_exchange", dies)
        with pytest.raises(Crash):
            reshard(disk, 1, **cold)
    assert DECISION in disk.list(DATA)
    kept = [top / "shard-00.bak" / "kept" for top in (DATA, Path("/cold"))]
    for path in kept:
        disk.make_dir(path.parent)
        disk.create(path).write([b"kept"])
    assert reshard(disk, 1, **cold) == 1
    assert [bytes(disk.read(path)) for path in kept] == [b"kept"] * 2
    assert contents(disk, **cold) == before | {"shards": 1}


def test_a_folder_with_what_only_this_machine_had_stops_it() -> None:
    """A shard whose bucket has another history is set aside in its directory."""
    disk = loaded(2)
    path = DATA / "shard-01" / "aside-0a1b2c3d" / "wal" / f"wal-{1:020d}.log"
    disk.names[path] = disk.durable[path] = Node(bytearray(b"frames"), b"frames")
    before = {p: bytes(n.data) for p, n in disk.names.items()}
    with pytest.raises(RecoveryError, match=r"shard-01/aside-0a1b2c3d does not belong"):
        reshard(disk, 3)
    assert {p: bytes(n.data) for p, n in disk.names.items() if STAGING not in p.parts} == before


class TestVerify:
    def test_sound_files_have_no_problems(self) -> None:
        disk = loaded(1)
        report = verify(disk, DATA / "shard-00", FakeClock(), Limits(**LIMITS))
        assert report.problems == []
        assert report.topics == len(NAMES)
        assert report.segment_frames > 0

    def test_nothing_is_changed(self) -> None:
        disk = loaded(1)
        log = next(p for p in disk.names if p.parent.name == "wal")
        disk.names[log].data += b"torn"
        before = {p: bytes(n.data) for p, n in disk.names.items()}
        report = verify(disk, DATA / "shard-00", FakeClock(), Limits(**LIMITS))
        assert report.problems == []
        assert "torn tail" in report.notes[0]
        assert {p: bytes(n.data) for p, n in disk.names.items()} == before

    def test_every_flipped_bit_in_a_segment_is_found(self) -> None:
        disk = loaded(1)
        path = next(p for p in sorted(disk.names) if p.suffix == ".data")
        data = disk.names[path].data
        checked = len(data) // 8
        for offset in range(0, checked, 7):
            data[offset] ^= 4
            report = verify(disk, DATA / "shard-00", FakeClock(), Limits(**LIMITS))
            data[offset] ^= 4
            if not report.problems:
                # Only a changed delete flag may pass without being damage.
                assert offset >= 72
