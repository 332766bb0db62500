"""Claims about delete flags: a flipped flag is reported as damage, and no deleted record comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import pytest

from proto.format.frame import DELETED, check
from shardd.offline.verify import verify
from shardd.storage import catalog
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import SHARD, FakeClock, Harness

LIMITS: dict[str, Any] = {"cache_bytes": 0, "segment_max_events": 8, "cold_dir": "/cold", "hot_retain_segments": 1}
DURABLE = {"durability": "fsync"}


def checkpoint(shard: Harness) -> None:
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()


def data(shard: Harness, topic: str = "a") -> list[Any]:
    return [record["data"] for record in shard.everything(topic)]


def acked(disk: FaultDisk) -> Harness:
    """A queue with three jobs. The second one was acked, and its flag is in the file."""
    shard = Harness(disk, **LIMITS)
    config = {"type": "queue", **DURABLE}
    shard.call("append", "a", {"records": [{"data": n} for n in range(3)], "config": config})
    checkpoint(shard)
    jobs = shard.call("claim", "a", {"node": "w", "max": 2})["claimed"]
    shard.call("ack", "a", {"node": "w", "seqs": [jobs[1]["$seq"]]})
    shard.append("b", "unharmed", config=DURABLE)
    for _ in range(3):
        shard.append("b", "more")
        checkpoint(shard)
    return shard


def flags(disk: FaultDisk) -> tuple[Path, int, int]:
    """The segment of topic `a`, the offset of its first frame's flags, and their number."""
    path = next(path for path in sorted(disk.names) if path.suffix == ".data" and path.parent.name.endswith("1"))
    header = check(memoryview(bytes(disk.names[path].data)))
    return path, header.flags_at, header.count


def test_a_flipped_flag_is_damage_and_no_job_comes_back() -> None:
    disk = FaultDisk()
    shard = acked(disk)
    path, at, count = flags(disk)
    assert [byte == DELETED for byte in disk.names[path].data[at : at + count]] == [False, True, False]
    for place in (1, 0, 2):  # the flag that is set first
        for bit in range(8):
            disk.names[path].data[at + place] ^= 1 << bit
            again = shard.restarted()
            error = again.reply("claim", "a", {"node": "v", "max": 10}).error
            assert error is not None, f"bit {bit} of flag {place}"
            assert (error.detail or {})["reason"] == "damaged"
            assert data(again, "b")[0] == "unharmed"
            report = verify(disk, SHARD, FakeClock(), shard.limits)
            assert any("delete flags" in problem and '"a"' in problem for problem in report.problems)
            disk.names[path].data[at + place] ^= 1 << bit
    assert not verify(disk, SHARD, FakeClock(), shard.limits).problems


def listed(value: str = "ours") -> tuple[Harness, FaultDisk, Path]:
    """A shard whose next checkpoint writes a flag into the file at this path."""
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    records = [{"data": f"{value} {n}", "tag": f"t{n}"} for n in range(3)]
    shard.call("append", "a", {"records": records, "config": DURABLE})
    shard.append("b", "unharmed", config=DURABLE)
    checkpoint(shard)
    shard.call("delete_records", "a", {"match": "t1"})
    checkpoint(shard)
    return shard, disk, flags(disk)[0]


def check_kept(shard: Harness, disk: FaultDisk, path: Path, whole: bytes) -> None:
    """No checkpoint changes the wrong file at this path, and after its repair nothing is missing."""
    spoilt = bytes(disk.names[path].data)
    for _ in range(3):
        shard.append("b", "more")
        checkpoint(shard)
    assert bytes(disk.names[path].data) == spoilt
    assert len(shard.shard.quarantine) == 1
    disk.names[path].data[:] = whole
    shard.clock.advance(61_000)
    for again in (shard, shard.restarted(disk.after_crash("process"))):
        assert data(again) == ["ours 0", "ours 2"]
        for _ in range(3):
            again.append("b", "more")
            checkpoint(again)
        assert isinstance(again.disk, FaultDisk)
        _, at, _ = flags(again.disk)
        assert again.disk.names[path].data[at + 1] == DELETED
        last = again.restarted()
        assert data(last) == ["ours 0", "ours 2"]
        assert len(last.shard.quarantine) == 0


def test_no_flag_is_written_into_a_file_of_a_topic_that_is_set_apart() -> None:
    """The right file would come back without it, and would be damage then."""
    shard, disk, path = listed()
    whole = bytes(disk.names[path].data)
    disk.names[path].data[70] ^= 1
    shard.shard.checkpoints.inventory.parts.drop(path)
    assert shard.reply("diff", "a", b"{}").error is not None
    check_kept(shard, disk, path, whole)


@pytest.mark.parametrize("started", [False, True], ids=["while it runs", "before it starts"])
def test_no_flag_is_written_into_a_file_of_another_segment(started: bool) -> None:
    """Nothing has read the file since. It has the same lengths, and the same numbers in its frame."""
    shard, disk, path = listed()
    whole = bytes(disk.names[path].data)
    disk.names[path].data[:] = listed("else")[1].names[path].data
    assert len(disk.names[path].data) == len(whole)
    check_kept(shard.restarted() if started else shard, disk, path, whole)


def test_flags_of_a_topic_that_returns_during_a_checkpoint_are_written() -> None:
    """The checkpoint had its list of flags before the topic was back."""
    shard, disk, path = listed()
    node = disk.names.pop(path)
    number, contents = catalog.load(disk, SHARD) or (0, {})
    for entry in contents["topics"]:
        entry.pop("index", None)  # as of a large topic, whose files a start reads
    catalog.write(disk, SHARD, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})
    shard = shard.restarted()
    assert len(shard.shard.quarantine) == 1
    shard.append("b", "more")
    shard.shard.commits.sync_now()
    plan = shard.shard.control.begin()
    shard.shard.checkpoints.writer.write(plan)
    disk.names[path] = node
    shard.clock.advance(61_000)
    assert data(shard) == ["ours 0", "ours 2"]
    shard.shard.control.end(plan)
    for _ in range(4):
        again = shard.restarted(disk.after_crash("process"))
        assert data(again) == ["ours 0", "ours 2"]
        assert len(again.shard.quarantine) == 0
        shard.append("b", "more")
        checkpoint(shard)
    _, at, _ = flags(disk)
    assert node.data[at + 1] == DELETED


class Script:
    """Deletions of every kind over many checkpoints. Stores the records after each acknowledged step."""

    def __init__(self, disk: FaultDisk) -> None:
        self.shard = Harness(disk, **LIMITS)
        self.allowed: list[list[Any]] = [[]]

    def run(self) -> None:
        for number in range(3):
            records = [{"data": 10 * number + n, "tag": f"t{n}"} for n in range(6)]
            self.step("append", {"records": records, "config": DURABLE})
            checkpoint(self.shard)
            self.step("delete_records", {"match": "t1"})
            checkpoint(self.shard)
            self.step("delete_records", {"match": "t3"})
            if number == 1:
                self.step("delete_records", {"before_seq": 9})
            checkpoint(self.shard)
        checkpoint(self.shard)
        checkpoint(self.shard)

    def step(self, op: str, body: Any) -> None:
        self.allowed.append(self.allowed[-1])
        self.shard.call(op, "a", body)
        self.allowed[-1] = data(self.shard)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_stop_at_any_call_is_never_taken_for_damage(survival: Survival) -> None:
    whole = FaultDisk()
    Script(whole).run()
    for crash_at in range(len(whole.calls) + 1):
        disk = FaultDisk()
        disk.crash_at = crash_at
        script = None
        try:
            script = Script(disk)
            script.run()
        except Crash:
            pass
        for seed in range(3 if survival == "tear" else 1):
            after = disk.after_crash(survival, seed)
            again = Harness(after, FakeClock(), **LIMITS)
            where = f"stop before call {crash_at}, {seed}"
            assert len(again.shard.quarantine) == 0, where
            if script is not None and "a" in again.shard.directory.visible:
                found = data(again)
                assert len(script.allowed) < 3 or found in _possible(script), where
            for _ in range(2):
                again.append("b", 1, config=DURABLE)
                checkpoint(again)
            assert len(again.restarted().shard.quarantine) == 0, where


def _possible(script: Script) -> list[list[Any]]:
    """The state acknowledged last; or, during a step, the state that the step makes of it."""
    last = script.allowed[-1]
    return [
        *script.allowed[-2:],
        *([*last, *range(10 * number, 10 * number + 6)] for number in range(3)),
        [n for n in last if n % 10 != 1],
        [n for n in last if n % 10 != 3],
        [n for n in last if n > 10],
    ]


def test_what_an_older_release_wrote_is_read_and_checked_from_its_next_checkpoint_on() -> None:
    disk = FaultDisk()
    shard = acked(disk)
    number, contents = catalog.load(disk, SHARD) or (0, {})
    for entry in contents["topics"]:
        del entry["checks"], entry["index"]
    catalog.write(disk, SHARD, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})
    again = shard.restarted()
    assert data(again) == [0, 2]
    again.append("b", 1)
    checkpoint(again)
    path, at, _ = flags(disk)
    disk.names[path].data[at + 1] ^= 1
    after = again.restarted()
    assert after.reply("claim", "a", {"node": "v"}).error is not None
    assert len(after.shard.quarantine) == 1
