"""Claims about shards with many topics: the work of a checkpoint and of a start is in proportion to the changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from proto.format.frame import check
from shardd.checkpoint import segment_summary, slices
from shardd.offline.verify import verify
from shardd.shard import Shard, opened_shard
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def shard_with(topics: int, **limits: Any) -> Harness:
    shard = Harness(FaultDisk(), **limits)
    for n in range(topics):
        shard.append(f"t{n}", n, config={"durability": "fsync"} if n % 3 == 0 else {})
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    return shard


def state(shard: Harness) -> dict[str, Any]:
    found = {}
    for name, topic in sorted(shard.shard.directory.visible.items()):
        records = [(r["$seq"], r["data"]) for r in shard.everything(name)] if topic.records.count else []
        cursors = {cursor: at.seq for cursor, at in topic.cursors.items()}
        found[name] = [records, topic.records.losses.evict_floor, topic.config, cursors, topic.records.head_seq]
    return found


def check_restarts(shard: Harness, expected: dict[str, Any]) -> None:
    """After the death of the process, and of the machine, when seqs may jump: `disk` topics had reserved some."""
    assert isinstance(shard.disk, FaultDisk)
    assert state(shard.restarted(shard.disk.after_crash("process"))) == expected
    found = state(shard.restarted(shard.disk.after_crash("drop")))
    assert {name: fields[:-1] for name, fields in found.items()} == {n: fields[:-1] for n, fields in expected.items()}


def test_a_checkpoint_looks_at_what_has_changed() -> None:
    shard = shard_with(200)
    shard.append("t5", "more")
    shard.call("cursor_put", "t6", {"seq": 1}, cursor="c")
    shard.call("delete_records", "t7", {"before_seq": 2})
    shard.call("configure", "t8", {"cap_records": 9})
    shard.append("new", 1)
    shard.call("delete_topic", "t9")
    before = state(shard)
    shard.shard.commits.sync_now()
    plan = shard.shard.control.begin()
    assert sorted(each.topic.name for each in plan.topics) == ["new", "t5", "t6", "t7", "t8"]
    shard.shard.checkpoints.writer.write(plan)
    shard.shard.control.end(plan)
    check_restarts(shard, before)


def test_what_a_failed_checkpoint_had_planned_is_planned_again() -> None:
    shard = shard_with(10)
    shard.append("t1", "x", config={"durability": "fsync"})
    plan = shard.shard.control.begin()
    shard.shard.control.end(plan, OSError(5, "injected"))
    assert [each.topic.name for each in shard.shard.control.begin().topics] == ["t1"]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [True, False])
def test_a_slice_is_bounded(changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LOOK", 64)
    monkeypatch.setattr(slices, "SLICE", 8)
    shard = shard_with(200)
    if changed:
        for n in range(200):
            shard.append(f"t{n}", "again")
        shard.shard.commits.sync_now()
    planning = shard.shard.control.planning()
    seen = []
    planned = shard.shard.checkpoints.planner._plan_topic
    looked = 0

    def count(*arguments: Any) -> None:
        nonlocal looked
        looked += 1
        planned(*arguments)

    monkeypatch.setattr(shard.shard.checkpoints.planner, "_plan_topic", count)
    while True:
        looked = 0
        try:
            next(planning)
        except StopIteration as end:
            plan = end.value
            break
        seen.append(looked)
    assert max(seen) <= (8 if changed else 0)
    assert len(seen) >= (200 // 8 if changed else 200 // 64)
    shard.shard.checkpoints.writer.write(plan)
    assert len(list(shard.shard.control.ending(plan))) == (200 // 8 if changed else 0)


@pytest.mark.parametrize("seed", range(4))
def test_what_happens_between_the_slices_is_in_the_catalog_or_in_the_log(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "LOOK", 8)
    monkeypatch.setattr(slices, "SLICE", 4)
    rng = random.Random(seed)
    shard = shard_with(12, segment_max_events=5, wal_segment_bytes=4096)

    def something() -> None:
        for _ in range(rng.randrange(4)):
            name = f"t{rng.randrange(16)}"
            what = rng.randrange(6)
            if what == 0:
                shard.reply("configure", name, {"cap_records": rng.choice((0, 1, 3, 50))})
            elif what == 1:
                shard.reply("delete_topic", name)
            elif what == 2:
                shard.reply("delete_records", name, {"match": "a"})
            elif what == 3:
                shard.reply("cursor_put", name, {"seq": 1, "force": True}, cursor="c")
            else:
                records = [{"data": rng.random(), "tag": rng.choice("ab")} for _ in range(rng.randrange(1, 5))]
                shard.reply("append", name, {"records": records, "idempotency_key": str(rng.random())})
        if rng.random() < 0.7:
            shard.shard.commits.sync_now()

    def check() -> None:
        shard.shard.commits.sync_now()
        check_restarts(shard, state(shard))

    for _ in range(2):
        something()
        planning = shard.shard.control.planning()
        while True:
            try:
                next(planning)
            except StopIteration as end:
                plan = end.value
                break
            something()
        something()
        shard.shard.checkpoints.writer.write(plan)
        check()
        for _ in shard.shard.control.ending(plan):
            something()
        check()


def test_files_that_no_topic_knows_go_with_the_first_checkpoint() -> None:
    shard = shard_with(3)
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    folder = next(path.parent for path in disk.names if path.suffix == ".data")
    for stray in (folder / "seg-00000000000000000099.data", folder.with_name("00000000000000ff") / "seg-1.idx"):
        disk.create(stray)
        again = shard.restarted()
        assert stray in disk.names
        again.append("t1", 1)
        again.shard.checkpoint_now()
        assert stray not in disk.names
        assert state(again.restarted()) == state(again)


class CountingDisk(FaultDisk):
    """The segment files that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Path] = []

    def read(self, path: Path) -> memoryview:
        if "topics" in path.parts:
            self.reads.append(path)
        return super().read(path)

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        self.reads.append(path)
        return super().read_part(path, offset, size)


def various(disk: FaultDisk, topics: int = 20) -> Harness:
    """A cleanly stopped shard with topics whose records were evicted, acked and deleted."""
    shard = Harness(disk, segment_max_events=20)
    for n in range(topics):
        config = {"durability": "fsync", "cap_records": 25} if n % 3 == 0 else {"cap_bytes": 900}
        kind = {"type": "queue"} if n % 4 == 0 else {}
        for first in range(0, 30, 10):
            records = [{"data": first + at, "tag": f"t{at % 4}"} for at in range(10)]
            shard.call("append", f"t{n}", {"records": records, "config": config | kind})
            shard.shard.checkpoint_now()
            if kind:
                jobs = shard.call("claim", f"t{n}", {"node": "w", "max": 2})["claimed"]
                shard.call("ack", f"t{n}", {"node": "w", "seqs": [job["$seq"] for job in jobs]})
            elif n % 4 == 1:
                shard.call("delete_records", f"t{n}", {"match": f"t{first // 10}"})
            elif n % 4 == 2:
                shard.call("delete_records", f"t{n}", {"before_seq": first + 5})
    shard.shard.close()
    return shard


def inner(shard: Shard) -> dict[str, Any]:
    """The state of the topics that can be read without using them."""
    found = {}
    for topic in shard.directory.visible.values():
        records = topic.records
        found[topic.name] = [
            *(records.head_seq, records.floor, records.count, records.bytes),
            *(records.last_live, records.losses.evict_floor),
            [(b.first_seq, b.count, b.live, b.live_size, bytes(b.mask(b.start, b.count))) for b in records.batches],
            [(s.first_seq, s.size, s.records, s.frames, s.sealed) for s in topic.segments],
            None if topic.queue is None else topic.queue.dump(everything=True),
        ]
    return found


def started(disk: FaultDisk, shard: Harness, *, from_files: bool) -> Shard:
    return opened_shard(disk, shard.clock, shard.path, shard.limits, from_files=from_files)


def test_a_start_opens_no_file_of_topics_that_nothing_is_asked_of() -> None:
    disk = CountingDisk()
    shard = various(disk)
    expected = state(shard)
    disk.reads.clear()
    again = shard.restarted()
    assert len(again.shard.directory.visible) == 20
    assert inner(again.shard) == inner(started(disk.after_crash("process"), shard, from_files=True))
    assert disk.reads == []
    again.everything("t7")
    assert {path.parent.name for path in disk.reads} == {f"{again.shard.directory.find('t7').id:016x}"}
    assert state(again) == expected
    again.shard.checkpoint_now()
    disk.reads.clear()
    assert inner(again.restarted().shard) == inner(again.shard)
    assert disk.reads == []


@pytest.mark.parametrize("seed", range(6))
def test_what_the_catalog_knows_is_what_the_files_have(seed: int) -> None:
    rng = random.Random(seed)
    shard = Harness(FaultDisk(), segment_max_events=rng.choice((5, 1000)), cache_bytes=0)
    shard.append("t0", "x", config={"type": "queue"})
    for step in range(60):
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        name = f"t{rng.randrange(4)}"
        what = rng.randrange(8)
        if what == 0:
            shard.reply("configure", name, {"cap_records": rng.choice((0, 3, 9)), "cap_bytes": rng.choice((0, 200))})
        elif what == 1:
            shard.reply("delete_records", name, {"match": rng.choice("abc")})
        elif what == 2:
            head = shard.shard.directory.visible[name].records.head_seq if name in shard.shard.directory.visible else 0
            shard.reply("delete_records", name, {"before_seq": rng.randrange(head + 2)})
        elif what == 3:
            shard.shard.checkpoint_now()
        elif what == 4 and name != "t0":
            shard.reply("delete_topic", name)
        else:
            config = {"type": "queue"} if name == "t0" else {}
            records = [{"data": "x" * rng.randrange(9), "tag": rng.choice("abc")} for _ in range(rng.randrange(1, 9))]
            shard.reply("append", name, {"records": records, "config": config})
            if name == "t0" and rng.random() < 0.5:
                jobs = shard.call("claim", "t0", {"node": "w", "max": 3})["claimed"]
                shard.reply("ack", "t0", {"node": "w", "seqs": [job["$seq"] for job in jobs[1:]]})
        if step % 5 == 4:
            shard.shard.commits.sync_now()
            known = started(disk.after_crash("process"), shard, from_files=False)
            assert inner(known) == inner(started(disk.after_crash("process"), shard, from_files=True))
            report = verify(disk.after_crash("process"), shard.path, shard.clock, shard.limits)
            assert not report.problems
            if rng.random() < 0.5:
                shard = shard.restarted()
                for each in list(shard.shard.directory.visible):
                    shard.call("diff", each, b"{}")
                assert len(shard.shard.quarantine) == 0


def break_file(disk: FaultDisk, path: Path, how: str) -> None:
    if how == "missing":
        del disk.names[path], disk.durable[path]
    elif how == "short":
        del disk.names[path].data[100:]
    else:
        header = check(memoryview(bytes(disk.names[path].data)))
        disk.names[path].data[header.flags_at + 2] ^= 0xD5


@pytest.mark.parametrize("how", ["missing", "short", "flag"])
@pytest.mark.parametrize("use", ["diff", "append", "delete_records", "log"])
def test_damage_is_met_at_the_first_use_and_is_the_trouble_of_its_topic_alone(how: str, use: str) -> None:
    disk = FaultDisk()
    shard = various(disk, 6)
    expected = state(shard)
    shard = shard.restarted()
    if use == "log":
        shard.append("t1", "later")
        shard.shard.commits.sync_now()
    folder = f"{shard.shard.directory.find('t1').id:016x}"
    path = max(path for path in disk.names if path.parent.name == folder and path.suffix == ".data")
    whole = bytes(disk.names[path].data)
    node = disk.names[path]
    break_file(disk, path, how)
    again = shard.restarted()
    assert len(again.shard.quarantine) == (1 if use == "log" else 0)
    body = {"diff": {}, "append": {"records": [{"data": 1}]}, "delete_records": {"match": "t2"}, "log": {}}[use]
    error = again.reply("diff" if use == "log" else use, "t1", body).error
    assert error is not None
    assert (error.detail or {})["reason"] == "damaged"
    assert again.call("state", "t1")["quarantined"]["reason"] == "damaged"
    assert state_but(again, "t1") == {name: fields for name, fields in expected.items() if name != "t1"}
    for _ in range(3):
        again.append("t2", "more")
        again.shard.checkpoint_now()
    node.data[:] = whole
    disk.names[path] = node
    disk.durable[path] = node
    again.clock.advance(61_000)
    found = [(r["$seq"], r["data"]) for r in again.everything("t1")]
    assert found == expected["t1"][0] + ([(31, "later")] if use == "log" else [])
    again.shard.checkpoint_now()
    assert [(r["$seq"], r["data"]) for r in again.restarted().everything("t1")] == found


def state_but(shard: Harness, name: str) -> dict[str, Any]:
    apart = shard.shard.directory.visible.pop(name)
    try:
        return state(shard)
    finally:
        shard.shard.directory.visible[name] = apart


def test_the_first_checkpoint_notices_files_that_are_missing() -> None:
    disk = FaultDisk()
    shard = various(disk, 3)
    folder = f"{shard.shard.directory.find('t1').id:016x}"
    for path in [path for path in disk.names if path.parent.name == folder]:
        break_file(disk, path, "missing")
    again = shard.restarted()
    again.shard.checkpoint_now()
    assert again.call("state", "t1")["quarantined"]["reason"] == "damaged"
    assert len(again.shard.quarantine) == 1


def test_large_topics_are_read_from_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_summary, "FRAMES", 2)
    disk = CountingDisk()
    shard = various(disk, 4)
    shard.append("small", 1)
    shard.shard.close()
    disk.reads.clear()
    again = shard.restarted()
    small = f"{again.shard.directory.find('small').id:016x}"
    assert {path.parent.name for path in disk.reads}.isdisjoint({small})
    assert len({path.parent.name for path in disk.reads}) >= 3
    assert state(again) == state(shard)
