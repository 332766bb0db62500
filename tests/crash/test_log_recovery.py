"""Claims about the log after every kind of stop: what is read back, what is cut, what is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proto.format.frame import Header
from proto.ipc.message import Reply
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage.wal import file_name
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import SHARD, FakeClock, Harness

WAL = SHARD / "wal"


def loaded(**limits: int) -> Harness:
    """Two topics, some frames of different sizes, everything synced."""
    shard = Harness(**limits)
    shard.call("configure", "a", {"durability": "fsync"})
    for i in range(5):
        shard.append("a", *range(i), {"n": i})
        shard.append("b", "x" * i)
    shard.shard.commits.sync_now()
    return shard


def contents(shard: Harness) -> dict[str, list[object]]:
    return {name: [r["data"] for r in shard.everything(name)] for name in shard.shard.directory.visible}


def last_file(disk: FaultDisk) -> Path:
    return WAL / disk.list(WAL)[-1]


@pytest.mark.parametrize("zeros", [False, True])
def test_a_torn_tail_is_cut_at_every_byte_of_its_last_frames(zeros: bool) -> None:
    shard = loaded()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    path = last_file(disk)
    whole = bytes(disk.names[path].data)
    starts = [0]
    while starts[-1] < len(whole):
        starts.append(starts[-1] + Header(whole, starts[-1]).length)
    states: dict[int, dict[str, list[object]]] = {}
    for cut in range(starts[-5], len(whole) + 1):
        torn = whole[:cut] + bytes(len(whole) - cut if zeros else 0)
        complete = max(start for start in starts if whole[:start] == torn[:start])
        disk.names[path].data = bytearray(torn)
        again = shard.restarted()
        assert again.disk.size(path) == complete
        state = contents(again)
        assert state == states.setdefault(complete, state), f"cut at {cut}"
        assert contents(again.restarted()) == state
        again.append("b", "after")
        assert contents(again.restarted())["b"] == [*state["b"], "after"]
    assert len(states) == 5


def test_zeros_after_the_last_frame_are_cut() -> None:
    shard = loaded()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    before = contents(shard)
    disk.names[last_file(disk)].data += bytes(4096)
    assert contents(shard.restarted()) == before


def test_damage_that_a_later_frame_proves_is_refused_with_its_place() -> None:
    shard = loaded()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    path = last_file(disk)
    whole = bytes(disk.names[path].data)
    second = Header(whole, 0).length
    damaged = bytearray(whole)
    damaged[second + 70] ^= 1
    disk.names[path].data = bytearray(damaged)
    with pytest.raises(RecoveryError, match=rf"{path}, offset {second}: frame 2 is damaged"):
        shard.restarted()
    assert disk.names[path].data == damaged, "nothing may be changed"


def test_a_bad_sector_in_the_log_is_refused_with_its_file() -> None:
    shard = loaded()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    path = last_file(disk)
    before = bytes(disk.names[path].data)
    disk.bad[path] = range(len(before) - 1, len(before))
    with pytest.raises(OSError, match=rf"Input/output error: '{path}'"):
        shard.restarted()
    assert bytes(disk.names[path].data) == before


def test_damage_in_an_older_file_is_refused() -> None:
    shard = loaded(wal_segment_bytes=4096)
    for i in range(100):
        shard.append("b", i)
        shard.shard.commits.sync_now()
    shard.append("b", "witness")
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    first = WAL / disk.list(WAL)[0]
    disk.names[first].data[100] ^= 255
    with pytest.raises(RecoveryError, match="damaged"):
        shard.restarted()


def test_a_missing_file_in_the_middle_is_refused() -> None:
    shard = loaded(wal_segment_bytes=4096)
    for i in range(200):
        shard.append("b", i)
        shard.shard.commits.sync_now()
    shard.append("b", "witness")
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    names = disk.list(WAL)
    assert len(names) > 3
    del disk.names[WAL / names[1]]
    with pytest.raises(RecoveryError, match="damaged"):
        shard.restarted()


def test_an_unknown_frame_version_is_refused() -> None:
    shard = loaded()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    disk.names[last_file(disk)].data[4] = 2
    with pytest.raises(RecoveryError, match="format version 2"):
        shard.restarted()


def test_a_file_that_never_got_its_name_is_removed() -> None:
    shard = loaded()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    temporary = WAL / (file_name(99) + ".tmp")
    disk.create(temporary)
    before = contents(shard)
    assert contents(shard.restarted()) == before
    assert temporary not in disk.names


def script(shard: Harness, sent: dict[str, list[object]], acked: dict[str, list[object]]) -> None:
    """A run with creations, both classes, a deletion and several rotations. Stores what was sent and what was acked."""
    rng = random.Random(5)
    shard.reply("configure", "safe", {"durability": "fsync"})
    for step in range(30):
        name = rng.choice(("safe", "fast", "other"))
        data: list[object] = [f"{step}.{i}" for i in range(rng.randint(1, 4))]
        sent.setdefault(name, []).extend(data)
        reply = shard.reply("append", name, {"records": [{"data": d} for d in data]})
        if reply.error is None:
            acked.setdefault(name, []).extend(data)
        if step == 20:
            # After a deletion is sent, its records may exist or not. After it is acked, they do not exist.
            acked.pop("other", None)
            if shard.reply("delete_topic", "other").error is None:
                sent["other"] = []


def is_subsequence(part: list[object], whole: list[object]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


def check_after(
    disk: FaultDisk, survival: Survival, sent: dict[str, list[object]], acked: dict[str, list[object]]
) -> None:
    again = Harness(disk, FakeClock(), wal_segment_bytes=4096)
    found = contents(again)
    for name, data in acked.items():
        if survival == "process" or name == "safe":
            assert is_subsequence(data, found.get(name, [])), f"an acked record of {name} is missing"
    for name, data in found.items():
        assert is_subsequence(data, sent.get(name, [])), f"{name} holds records that were never sent, or not in order"
    assert contents(again.restarted()) == found


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_crash_before_any_disk_call_loses_nothing_acked(survival: Survival) -> None:
    probe = Harness(wal_segment_bytes=4096)
    script(probe, {}, {})
    assert isinstance(probe.disk, FaultDisk)
    calls = len(probe.disk.calls)
    assert {"write", "sync", "create", "sync_dir"} <= {what for what, _ in probe.disk.calls}
    for crash_at in range(calls + 1):
        disk = FaultDisk()
        disk.crash_at = crash_at
        sent: dict[str, list[object]] = {}
        acked: dict[str, list[object]] = {}
        try:
            script(Harness(disk, wal_segment_bytes=4096), sent, acked)
        except Crash:
            pass
        for seed in range(3 if survival == "tear" else 1):
            check_after(disk.after_crash(survival, seed), survival, sent, acked)


def test_a_crash_in_the_middle_of_recovery_changes_nothing() -> None:
    shard = loaded(wal_segment_bytes=4096)
    for i in range(60):
        shard.append("b", i)
        if i % 10 == 0:
            shard.shard.commits.sync_now()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    del disk.names[WAL / disk.list(WAL)[-1]].data[-20:]
    torn = disk.settled()
    probe = torn.after_crash("process")
    expected = contents(Harness(probe))
    for crash_at in range(len(probe.calls)):
        attempt = torn.after_crash("process")
        attempt.crash_at = crash_at
        with pytest.raises(Crash):
            Harness(attempt)
        for survival in ("process", "drop"):
            assert contents(Harness(attempt.after_crash(survival))) == expected  # type: ignore[arg-type]


def test_a_retry_is_acknowledged_only_after_the_log_of_a_killed_process_was_synced() -> None:
    shard = loaded()
    body = {"records": [{"data": "once"}], "idempotency_key": "k"}
    shard.send("append", "a", body)
    shard.shard.flush()  # written, and the process dies before its sync
    assert isinstance(shard.disk, FaultDisk)
    again = shard.restarted(shard.disk.after_crash("process"))
    answer = again.call("append", "a", body)
    assert isinstance(again.disk, FaultDisk)
    later = again.restarted(again.disk.after_crash("drop"))
    assert contents(later)["a"][-1] == "once"
    assert later.call("append", "a", body)["last_seq"] == answer["last_seq"]


@pytest.mark.parametrize("what", ["write", "sync", "create", "sync_dir", "truncate"])
@pytest.mark.parametrize("number", [5, 28])
def test_any_failing_call_fails_requests_but_loses_nothing(what: str, number: int) -> None:
    probe = Harness(wal_segment_bytes=4096)
    script(probe, {}, {})
    disk = FaultDisk()
    shard = Harness(disk, wal_segment_bytes=4096)
    sent: dict[str, list[object]] = {}
    acked: dict[str, list[object]] = {}
    rng = random.Random(number)
    for step in range(120):
        disk.fail = {what: OSError(number, "injected")} if rng.random() < 0.1 else {}
        name = ("safe", "fast")[step % 2]
        config = {"config": {"durability": "fsync"}} if name == "safe" else {}
        data = f"{step}" + "x" * 100
        sent.setdefault(name, []).append(data)
        reply = shard.reply("append", name, {"records": [{"data": data}], **config})
        assert isinstance(reply, Reply)
        if reply.error is None:
            acked.setdefault(name, []).append(data)
        disk.fail = {}
        assert {n: d for n, d in contents(shard).items() if d} == {n: d for n, d in acked.items() if d}
    for survival in ("process", "drop"):
        check_after(disk.after_crash(survival), survival, sent, acked)  # type: ignore[arg-type]
