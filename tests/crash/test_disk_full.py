"""Claims about a disk of limited size that fills up: requests and checkpoints that free space are never refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode
from shardd.storage import free_space
from shardd.storage.ballast import PREFIX
from shardd.storage.free_space import PER_TOPIC
from tests.support.fault_disk import FaultDisk, Node
from tests.support.harness import SHARD, FakeClock, Harness
from tests.support.programs import leave_out

CAPACITY = 64 << 20
LIMITS: dict[str, Any] = {
    "min_free_bytes": 2 << 20,
    "checkpoint_bytes": 64 << 20,
    "wal_segment_bytes": 64 << 20,
    "cache_bytes": 0,
}
SHARDS = (SHARD, SHARD.with_name("shard-01"))
LONG = "x" * 60_000


class CappedDisk(FaultDisk):
    """A disk that records the most bytes that were ever used."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = CAPACITY


def two(disk: FaultDisk, clock: FakeClock, **limits: Any) -> list[Harness]:
    """Two shards on one disk, which hold space as their processes do."""
    shards = [Harness(disk, clock, path, **{**LIMITS, **limits}) for path in SHARDS]
    for shard in shards:
        shard.shard.control.hold_space(shard.shard.outcome)
    return shards


def later(clock: FakeClock) -> None:
    clock.advance(150)


def refused(shard: Harness, topic: str, *data: Any) -> bool:
    error = shard.reply("append", topic, {"records": [{"data": each} for each in data]}).error
    assert error is None or (error.code, error.detail.get("limit")) == (ErrorCode.THROTTLED, "disk_free"), error
    return error is not None


def fill(shards: list[Harness], rng: random.Random, clock: FakeClock, *, small: bool = False) -> int:
    """Write to all shards until each has refused. Returns the number of accepted writes."""
    taken, open_ = 0, list(shards)
    while open_:
        shard = rng.choice(open_)
        data = [1] * 400 if small else [LONG] * rng.randint(1, 4)
        if refused(shard, f"t{rng.randrange(8)}", *data):
            open_.remove(shard)
        else:
            taken += 1
        if rng.random() < 0.1:
            later(clock)
    return taken


def settle(shards: list[Harness], clock: FakeClock) -> None:
    """Do what the shards' processes do while the disk is low."""
    for _ in range(4):
        for shard in shards:
            later(clock)
            shard.shard.commits.sync_now()
            if shard.shard.control.due:
                shard.shard.checkpoint_now()


@pytest.mark.parametrize("seed", range(6))
def test_checkpoints_of_all_shards_find_room_however_full_the_disk_is(seed: int) -> None:
    rng, clock, disk = random.Random(seed), FakeClock(), CappedDisk()
    shards = two(disk, clock, segment_max_events=rng.choice((7, 10_000)))
    assert fill(shards, rng, clock, small=seed % 2 == 1) > 20
    for shard in shards:
        shard.shard.commits.sync_now()
    plans = [(shard, shard.shard.control.begin()) for shard in shards]
    for shard, _ in plans:
        while not refused(shard, "t0", LONG):  # promised bytes are for the checkpoints only
            pass
    for shard, plan in plans:
        shard.shard.checkpoints.writer.write(plan)
        shard.shard.control.end(plan)
    assert all(shard.shard.checkpoints.inventory.newest.number == 1 for shard in shards)


@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
def test_after_deletions_the_room_comes_back_and_writes_with_it(again: bool) -> None:
    rng, clock, disk = random.Random(1), FakeClock(), CappedDisk()
    shards = two(disk, clock)
    fill(shards, rng, clock)
    settle(shards, clock)
    fill(shards, rng, clock)
    settle(shards, clock)
    kept = [shard.everything("t7") for shard in shards]
    for shard in shards:
        for n in range(7):
            assert shard.call("delete_topic", f"t{n}")["deleted"]
    if again:
        shards = two(disk.after_crash("process"), clock)
    settle(shards, clock)
    for shard, records in zip(shards, kept, strict=True):
        assert not shard.shard.space.low
        assert not refused(shard, "t0", LONG, LONG, LONG)
        assert shard.everything("t7") == records
    taken = 0
    for _ in range(3):
        taken += fill(shards, rng, clock)
        settle(shards, clock)
    assert taken > 200, "most of the disk is free again"


def test_deletions_are_logged_with_nothing_free() -> None:
    rng, clock, disk = random.Random(2), FakeClock(), CappedDisk()
    shards = two(disk, clock)
    fill(shards, rng, clock)
    disk.names[Path("/data/elsewhere")] = Node(bytearray(disk.room()))
    assert disk.room() == 0
    later(clock)
    for shard in shards:
        assert refused(shard, "t0", 1)
        assert shard.call("delete_topic", "t1")["deleted"]
        assert shard.call("delete_records", "t2", {"before_seq": 10**6})["deleted"]
        shard.call("cursor_put", "t3", {"seq": 1}, cursor="c")
    settle(shards, clock)
    assert disk.room() > 0
    again = two(disk.after_crash("process"), clock)
    for shard in again:
        assert "t1" not in shard.shard.directory.visible
        assert shard.everything("t2") == []
        assert shard.call("cursor_get", "t3", cursor="c")["seq"] == 1


def test_a_log_that_meets_the_full_disk_is_cut_back_and_goes_on() -> None:
    clock, disk = FakeClock(), CappedDisk()
    shard = Harness(disk, clock, **{**LIMITS, "min_free_bytes": 0})
    shard.append("a", 1, config={"durability": "fsync"})
    disk.capacity = disk.used + 100
    for data in (LONG, "y" * 50):
        assert refused(shard, "a", data)
        assert not shard.shard.commits._wal.read_only
    disk.capacity = CAPACITY
    assert shard.append("a", 2)["first_seq"] == 2
    assert [r["data"] for r in shard.restarted(disk.after_crash("drop")).everything("a")] == [1, 2]


def test_a_sync_that_meets_the_full_disk_leaves_the_log_writable() -> None:
    """A file system that allocates blocks late fails at the sync. The acknowledged frames then need space once more."""
    clock, disk = FakeClock(), CappedDisk()
    (shard,) = two(disk, clock)[:1]
    shard.append("a", 1, config={"durability": "fsync"})
    shard.append("b", LONG)  # acknowledged, not synced
    ident = shard.send("append", "a", {"records": [{"data": 2}]})
    shard.shard.flush()
    disk.capacity = disk.used + 1000
    disk.faults[len(disk.calls)] = OSError(28, "no space left on device")
    shard.shard.commits.sync_now()
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.code is ErrorCode.THROTTLED
    disk.capacity = CAPACITY
    settle([shard], clock)
    shard.append("a", 3)
    again = shard.restarted(disk.after_crash("drop"))
    assert [r["data"] for r in again.everything("b")] == [LONG]
    assert [r["data"] for r in again.everything("a")] == [1, 3]


@pytest.mark.parametrize("number", [5, 28])
def test_an_aborted_checkpoint_leaves_nothing(number: int) -> None:
    """After a failure of any call, either the checkpoint's catalog exists, or none of its bytes."""
    limits = {"segment_max_events": 20, "cold_dir": "/cold", "hot_retain_segments": 0, "cache_bytes": 0}
    failed = 0
    for at in range(200):
        disk = FaultDisk()
        shard = Harness(disk, **limits)
        for n in range(3):
            shard.append("a", *range(30 * n, 30 * n + 30))
            shard.append("b", n)
            shard.shard.checkpoint_now()
        shard.append("a", *range(90, 120))
        shard.append("b", *range(3, 50))
        shard.shard.commits.sync_now()
        before = {path: bytes(node.data) for path, node in disk.names.items()}
        plan = shard.shard.control.begin()
        disk.faults[len(disk.calls) + at] = OSError(number, "injected")
        done = len(disk.calls) + at
        try:
            shard.shard.checkpoints.writer.write(plan)
            error = None
        except OSError as caught:
            error, failed = caught, failed + 1
        if len(disk.calls) <= done:
            break
        if error is not None and not plan.committed:
            assert {path: bytes(node.data) for path, node in disk.names.items()} == before, disk.calls[done]
        shard.shard.control.end(plan, error)
        for harness in (shard, shard.restarted(disk.after_crash("process")), shard.restarted(disk.after_crash("drop"))):
            assert [r["data"] for r in harness.everything("a")] == list(range(120))
            assert [r["data"] for r in harness.everything("b")] == list(range(50))
    else:
        raise AssertionError("the checkpoint never ended")
    assert failed > 10


def test_a_stopped_shard_holds_nothing_and_a_killed_one_finds_what_it_held() -> None:
    clock, disk = FakeClock(), CappedDisk()
    shards = two(disk, clock)
    assert all(shard.shard.space._ballast.held for shard in shards)  # type: ignore[union-attr]
    killed = disk.after_crash("process")
    again = two(killed, clock)
    assert sum(name.startswith(PREFIX) for name in killed.list(SHARD)) == 1
    assert not again[0].shard.space.low
    for shard in shards:
        shard.shard.close()
        shard.shard.space.end()
    assert not disk.allotments


class HeldDisk(FaultDisk):
    """A disk that records the most bytes that ballast ever held."""

    most_held = 0

    def allot(self, path: Path, size: int) -> None:
        super().allot(path, size)
        self.most_held = max(self.most_held, sum(held for _, held in self.allotments.values()))


class BlockDisk(FaultDisk):
    """A disk whose files and directories take whole blocks."""

    @property
    def used(self) -> int:
        blocks = sum(-(-len(node.data) // 4096) for node in self.names.values()) + len(self.dirs)
        return 4096 * blocks + sum(held for _, held in self.allotments.values())

    def make_dir(self, path: Path) -> None:
        if path not in self.dirs and self.room() < 4096:
            raise OSError(28, "no space left on device", str(path))
        super().make_dir(path)


def create(shards: list[Harness], clock: FakeClock, most: int, *, checkpoints: bool = True) -> int:
    """Make topics with a small record each, with the checkpoints that are due, until a write is refused. Returns their
    number."""
    for n in range(most):
        if n % 50 == 0:
            later(clock)
        shard = shards[n % len(shards)]
        if refused(shard, f"new:{n}", 1):
            return n
        if checkpoints and shard.shard.control.due:
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
    return most


def test_many_small_topics_hold_no_more_than_a_checkpoint_of_the_usual_size_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = 1 << 20
    monkeypatch.setattr(free_space, "LEAST_DUE", usual)
    monkeypatch.setattr(free_space, "STEP", usual)
    clock, disk = FakeClock(), HeldDisk()
    shard = two(disk, clock, checkpoint_bytes=usual)[0]
    topics = 400
    assert create([shard], clock, topics) == topics
    assert shard.shard.log.bytes_written < usual // 4
    assert topics * PER_TOPIC > 7 * usual
    others = free_space.FIXED + usual  # the other shard, which nothing is written to
    catalog = shard.shard.checkpoints.inventory.catalog_may_have
    assert disk.most_held <= 2 * usual + free_space.FIXED + catalog + others


@pytest.mark.parametrize("checkpoints", [True, False], ids=["with checkpoints", "in one checkpoint"])
def test_a_disk_that_is_full_of_small_topics_has_room_for_their_checkpoints(
    monkeypatch: pytest.MonkeyPatch, checkpoints: bool
) -> None:
    monkeypatch.setattr(free_space, "STEP", 1 << 18)
    clock, disk = FakeClock(), BlockDisk()
    disk.capacity = 10 << 20
    shards = two(disk, clock, min_free_bytes=1 << 20)
    topics = create(shards, clock, 2000, checkpoints=checkpoints)
    assert 200 < topics < 2000
    for shard in shards:
        shard.shard.commits.sync_now()
    disk.names[Path("/data/elsewhere")] = Node(bytearray(disk.room()))
    before = [shard.shard.checkpoints.inventory.newest.number for shard in shards]
    settle(shards, clock)
    assert all(
        shard.shard.checkpoints.inventory.newest.number > each for shard, each in zip(shards, before, strict=True)
    )
    for shard in shards:
        shard.shard.checkpoint_now()  # only the second one after a log file ended may remove it
        assert not sum(len(node.data) for path, node in disk.names.items() if path.parent == shard.path / "wal")
    del disk.names[Path("/data/elsewhere")]
    again = two(disk.after_crash("process"), clock)
    for n in range(0, topics, 97):
        assert [r["data"] for r in again[n % 2].everything(f"new:{n}")] == [1]


REAL = """
import sys
from pathlib import Path
from proto.model.errors import TopicsError
from shardd.storage.disk import RealDisk
from tests.support.harness import FakeClock, Harness

data, clock = Path(sys.argv[1]), FakeClock()
limits = dict(min_free_bytes=2 << 20, cache_bytes=0)

def start():
    shards = [Harness(RealDisk(), clock, data / f"shard-0{n}", **limits) for n in range(2)]
    for shard in shards:
        shard.shard.control.hold_space(shard.shard.outcome)
    return shards

def fill(shard, topics):
    written = 0
    while True:
        clock.advance(150)
        try:
            shard.append(f"t{written % topics}", "x" * 60_000)
        except TopicsError as error:
            assert error.detail["limit"] == "disk_free", error
            return written
        written += 1

def settle(shards):
    for _ in range(4):
        for shard in shards:
            clock.advance(150)
            shard.shard.commits.sync_now()
            if shard.shard.control.due:
                shard.shard.checkpoint_now()

shards = start()
first = sum(fill(shard, 8) for shard in shards)
settle(shards)
for shard in shards:
    fill(shard, 8)
(data / "filler").write_bytes(b"")
with open(data / "filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError as error:
        assert error.errno == 28
for shard in shards:
    for n in range(7):
        shard.call("delete_topic", f"t{n}")
(data / "filler").unlink()
if sys.argv[2] == "again":
    shards = start()
settle(shards)
assert not any(shard.shard.space.low for shard in shards), [shard.shard.space.free_bytes for shard in shards]
found = 0
for _ in range(3):
    found += sum(fill(shard, 8) for shard in shards)
    settle(shards)
assert found > first * 2 // 3, f"the room is not back: {found} of {first}"
"""


@pytest.mark.parametrize("how", ["running", "again"])
def test_a_real_full_disk_recovers(tmp_path: Path, how: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(REAL)
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=64m none "$1" && exec "$2" -P "$3" "$1" "$4"'
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--mount", "sh", "-c", script, "sh", str(disk), sys.executable, str(program), how]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        leave_out(f"the right to mount a file system ({done.stderr})")
    assert done.returncode == 0, done.stderr
