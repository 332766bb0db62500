"""Claims about checkpoints under every kind of stop and every kind of disk error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from shardd.checkpoint.slices import exhaust
from shardd.recovery.wal_scan import RecoveryError
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import SHARD, FakeClock, Harness

LIMITS: dict[str, Any] = {
    "wal_segment_bytes": 4096,
    "segment_max_events": 20,
    "cache_bytes": 0,
    "cold_dir": "/cold",
    "hot_retain_segments": 1,
}
State = dict[str, tuple[list[tuple[int, object]], int, int]]


def state(shard: Harness) -> State:
    """The live records, head and evict floor of each topic."""
    found: State = {}
    for name, topic in sorted(shard.shard.directory.visible.items()):
        records = [(r["$seq"], r["data"]) for r in shard.everything(name)] if topic.records.count else []
        found[name] = (records, topic.records.head_seq, topic.records.losses.evict_floor)
        assert topic.records.count == len(records)
    return found


class Script:
    """A run over everything that a checkpoint handles. Stores the state after each step."""

    def __init__(self, shard: Harness) -> None:
        self.shard = shard
        self.states: list[State] = [{}]
        self.rng = random.Random(7)

    def run(self) -> None:
        self.step("configure", "safe", {"durability": "fsync"})
        self.step("configure", "capped", {"cap_records": 25, "durability": "fsync"})
        for round_ in range(4):
            for i in range(9):
                tags = [{"data": f"{round_}.{i}.{k}", "tag": f"t{k}"} for k in range(self.rng.randint(1, 5))]
                self.step("append", "safe", {"records": tags})
                self.step("append", "capped", {"records": tags[:2]})
            if round_ == 1:
                self.step("delete_records", "safe", {"match": "t1"})
            if round_ == 2:
                self.step("delete_records", "safe", {"before_seq": 12})
                self.step("append", "gone", {"records": [{"data": 1}], "config": {"durability": "fsync"}})
            self.checkpoint()
            if round_ == 3:
                self.step("delete_topic", "gone", b"")
        self.checkpoint()
        self.step("append", "safe", {"records": [{"data": "last"}]})
        self.shard.shard.close()

    def step(self, op: str, topic: str, body: Any) -> None:
        self.states.append({})  # before its answer, the step may have happened or not
        self.shard.call(op, topic, body)
        self.states[-1] = state(self.shard)

    def checkpoint(self) -> None:
        self.shard.shard.commits.sync_now()
        self.shard.shard.checkpoint_now()
        assert state(self.shard) == self.states[-1]


def test_the_script_reaches_everything() -> None:
    shard = Harness(**LIMITS)
    Script(shard).run()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    assert {"create", "write", "write_at", "sync", "sync_dir", "replace", "remove"} <= {what for what, _ in disk.calls}
    assert any(Path("/cold") in path.parents for path in disk.names)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_crash_before_any_disk_call_leaves_the_state_before_or_after_the_step(survival: Survival) -> None:
    probe = Harness(**LIMITS)
    whole = Script(probe)
    whole.run()
    assert isinstance(probe.disk, FaultDisk)
    for crash_at in range(len(probe.disk.calls) + 1):
        disk = FaultDisk()
        disk.crash_at = crash_at
        script: Script | None = None
        try:
            script = Script(Harness(disk, **LIMITS))
            script.run()
        except Crash:
            pass
        done = len(script.states) if script is not None else 1
        allowed = [whole.states[max(done - 2, 0)], whole.states[done - 1]]
        for seed in range(2 if survival == "tear" else 1):
            after = disk.after_crash(survival, seed)
            again = Harness(after, FakeClock(), **LIMITS)
            found = state(again)
            assert found in allowed or _in_between(found, allowed), f"crash before call {crash_at}, {seed}"
            twice = again.restarted(after.after_crash("process"))
            assert state(twice) == found
            again.append("safe", "goes on", config={"durability": "fsync"})
            again.shard.commits.sync_now()
            again.shard.checkpoint_now()
            expected = state(again)
            assert state(again.restarted(after.after_crash("drop"))) == expected


def _in_between(found: State, allowed: list[State]) -> bool:
    """A first write creates its topic in the same group. If the log is cut in between, the topic exists, empty."""
    before, after = allowed
    extra = set(found) - set(before)
    return all(found.get(n) == before[n] for n in before) and all(found[n][0] == [] and n in after for n in extra)


@pytest.mark.parametrize("bad_sector", [False, True])
def test_an_unreadable_catalog_falls_back_to_the_one_before(bad_sector: bool) -> None:
    shard = Harness(**LIMITS)
    script = Script(shard)
    script.run()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    names = [name for name in disk.list(SHARD) if name.startswith("catalog-")]
    assert len(names) == 2
    if bad_sector:
        disk.bad[SHARD / names[1]] = range(40, 41)
    else:
        disk.names[SHARD / names[1]].data[40] ^= 1
    again = shard.restarted()
    assert state(again) == script.states[-1]
    again.append("safe", "goes on")
    disk.bad.clear()
    again.shard.checkpoint_now()
    assert again.restarted().everything("safe")[-1]["data"] == "goes on"


def test_without_any_readable_catalog_the_start_is_refused() -> None:
    shard = Harness(**LIMITS)
    Script(shard).run()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    for name in disk.list(SHARD):
        if name.startswith("catalog-"):
            disk.names[SHARD / name].data[40] ^= 1
    with pytest.raises(RecoveryError, match="no catalog can be read"):
        shard.restarted()


def test_an_index_is_made_again_from_its_segment() -> None:
    shard = Harness(**LIMITS)
    script = Script(shard)
    script.run()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    for path in [p for p in disk.names if p.suffix == ".idx"]:
        disk.names[path].data[10] ^= 1
    assert state(shard.restarted()) == script.states[-1]
    for path in [p for p in disk.names if p.suffix == ".idx"]:
        del disk.names[path]
    assert state(shard.restarted()) == script.states[-1]


def test_damage_in_a_segment_is_told_with_its_place_and_harms_no_other_read() -> None:
    shard = Harness(**LIMITS)
    Script(shard).run()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    path = next(p for p in sorted(disk.names) if p.suffix == ".data" and "cold" not in str(p))
    disk.names[path].data[80] ^= 1
    again = shard.restarted()
    errors = [again.reply("diff", name, {"limit": 1000}).error for name in again.shard.directory.visible]
    told = [error for error in errors if error is not None]
    assert len(told) == 1
    assert told[0].code == "not_ready"
    assert str(path) not in told[0].message
    (apart,) = [t.damage for t in again.shard.directory.visible.values() if t.damage is not None]
    assert str(path) in apart.reason
    assert "offset 0" in apart.reason


@pytest.mark.parametrize("what", ["create", "write", "write_at", "sync", "sync_dir", "replace"])
@pytest.mark.parametrize("number", [5, 28])
def test_a_checkpoint_that_fails_changes_nothing_and_the_next_one_works(what: str, number: int) -> None:
    for skip in range(6):
        shard = Harness(**LIMITS)
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        shard.append("a", *range(30), config={"durability": "fsync"})
        shard.call("append", "a", {"records": [{"data": "x", "tag": "t"}] * 3})
        shard.shard.checkpoint_now()
        shard.call("delete_records", "a", {"match": "t"})
        shard.append("a", "new")
        before = state(shard)
        plan = shard.shard.control.begin()
        seen = 0
        real = disk.call

        def call(name: str, path: str, real: Any = real, skip: int = skip) -> Any:
            nonlocal seen
            if name == what:
                seen += 1
                if seen == skip + 1:
                    raise OSError(number, "injected")
            return real(name, path)

        disk.call = call  # type: ignore[method-assign]
        try:
            shard.shard.checkpoints.writer.write(plan)
        except OSError:
            disk.call = real  # type: ignore[method-assign]
        else:
            disk.call = real  # type: ignore[method-assign]
            exhaust(shard.shard.checkpoints.adopter.adopting(plan))
        assert state(shard) == before
        for survival in ("process", "drop"):
            assert state(shard.restarted(disk.after_crash(survival))) == before  # type: ignore[arg-type]
        shard.shard.checkpoint_now()
        assert state(shard) == before
        assert state(shard.restarted(disk.after_crash("drop"))) == before


def test_the_log_is_trimmed_and_dead_segments_go() -> None:
    shard = Harness(wal_segment_bytes=4096, segment_max_events=20, cache_bytes=0)
    shard.call("configure", "a", {"cap_records": 30})
    for i in range(400):
        shard.append("a", i)
        if i % 50 == 49:
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    assert len(disk.list(SHARD / "wal")) <= 8
    segments = [p for p in disk.names if p.suffix == ".data"]
    assert len(segments) <= 8
    assert [r["data"] for r in shard.restarted().everything("a")] == list(range(370, 400))


@pytest.mark.parametrize("survival", ["process", "drop"])
def test_the_log_continues_in_its_file_beside_the_empty_one_of_a_failed_rotation(survival: Survival) -> None:
    disk = FaultDisk()
    shard = Harness(disk)
    shard.append("a", 1, config={"durability": "fsync"})
    first = next(path for path in disk.names if path.match("wal/*.log"))
    disk.fail = {"sync_dir": OSError(5, "injected"), "remove": OSError(5, "injected")}
    shard.shard.log.rotate()
    disk.fail = {}
    shard.send("append", "a", {"records": [{"data": 2}]})
    shard.shard.flush()
    for _ in range(2):
        shard.shard.checkpoint_now()
    assert len([path for path in disk.names if path.match("wal/*.log")]) == 2
    shard.append("a", 3)
    again = shard.restarted(disk.after_crash(survival))
    assert [r["data"] for r in again.everything("a")] == [1, 2, 3]
    for _ in range(2):
        shard.shard.checkpoint_now()
    assert first not in disk.names
    shard.append("a", 4)
    assert [r["data"] for r in shard.restarted(disk.after_crash(survival)).everything("a")] == [1, 2, 3, 4]


def test_records_beyond_the_cache_are_read_from_their_files() -> None:
    shard = Harness(segment_max_events=100, cache_bytes=0)
    for i in range(0, 1000, 10):
        shard.append("a", *range(i, i + 10))
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    assert all(batch.buffer is None for batch in shard.shard.directory.find("a").records.batches)
    assert [r["data"] for r in shard.everything("a")] == list(range(1000))
