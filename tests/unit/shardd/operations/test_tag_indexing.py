"""Tag indexing: a large topic's first deletion by tag waits for the index; other requests do not."""

from __future__ import annotations

import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode
from shardd.delivery.scheduler import SLICE
from shardd.operations import tag_indexing
from shardd.storage.indivisible import indivisible
from shardd.topic import tag_index
from tests.support.fault_disk import FaultDisk
from tests.support.harness import FakeClock, Harness

RECORDS = 200
HALF = {"match": "t0"}


class WorkingClock(FakeClock):
    """A clock of which each reading takes half a slice, so a slice has room for one step."""

    def monotonic(self) -> float:
        self.elapsed += SLICE / 2
        return self.elapsed


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_indexing, "AT_ONCE", 5)
    monkeypatch.setattr(tag_indexing, "STEP", 1)


@pytest.fixture
def shard() -> Harness:
    return large()


def large(disk: FaultDisk | None = None, **limits: int) -> Harness:
    """A topic of several batches, every other record tagged `t0`."""
    shard = Harness(disk, WorkingClock(), **limits)
    for first in range(0, RECORDS, 10):
        records = [{"data": n, "tag": f"t{n % 2}"} for n in range(first, first + 10)]
        shard.call("append", "a", {"records": records})
    return shard


def answer(shard: Harness, ident: int) -> Reply | None:
    found = shard.replies.get(ident)
    return found if isinstance(found, Reply) else None


def finish(shard: Harness, ident: int) -> Reply:
    for _ in range(1000):
        if (found := answer(shard, ident)) is not None:
            return found
        shard.shard.deliver()
    raise AssertionError("never answered")


def test_others_are_served_while_the_index_is_made(shard: Harness) -> None:
    ident = shard.send("delete_records", "a", HALF)
    shard.shard.flush()
    assert answer(shard, ident) is None
    assert shard.shard.next_due == 0.0
    assert len(shard.everything("a")) == RECORDS
    assert shard.call("state", "a")["count"] == RECORDS
    assert b'"deleted":100' in finish(shard, ident).body
    assert shard.shard.next_due is None


def test_what_was_written_after_the_call_stays(shard: Harness) -> None:
    """The head at the call bounds the deletion."""
    ident = shard.send("delete_records", "a", HALF)
    shard.call("append", "a", {"records": [{"data": "new", "tag": "t0"}]})
    assert answer(shard, ident) is None
    finish(shard, ident)
    assert [r["data"] for r in shard.everything("a") if r["$tag"] == "t0"] == ["new"]


def test_deletions_that_wait_keep_their_order(shard: Harness) -> None:
    idents = [shard.send("delete_records", "a", {"match": ["tag", "Glob", "t*"], "before_seq": 11})]
    idents.append(shard.send("delete_records", "a", HALF))
    idents.append(shard.send("delete_records", "a", HALF))
    assert [finish(shard, ident).body.split(b",")[1] for ident in idents] == [
        b'"deleted":10',
        b'"deleted":95',
        b'"deleted":0',
    ]


def test_the_index_is_made_once(shard: Harness) -> None:
    finish(shard, shard.send("delete_records", "a", HALF))
    ident = shard.send("delete_records", "a", {"match": "t1"})
    shard.shard.commits.flush()
    assert answer(shard, ident) is not None


def test_tags_are_sorted_for_the_first_prefix_while_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_index, "RUN", 4)
    shard = Harness(clock=WorkingClock())
    shard.call("append", "a", {"records": [{"data": n, "tag": f"t{n % 20}"} for n in range(RECORDS)]})
    finish(shard, shard.send("delete_records", "a", {"match": "t0"}))
    ident = shard.send("delete_records", "a", {"match": ["tag", "Glob", "t1*"]})
    shard.shard.flush()
    assert answer(shard, ident) is None
    assert len(shard.everything("a")) == 190
    assert b'"deleted":110' in finish(shard, ident).body
    assert {r["$tag"] for r in shard.everything("a")} == {f"t{n}" for n in range(2, 10)}


@pytest.mark.parametrize("run", [1, 4, 1000])
def test_prefixes_find_tags_old_and_new(monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    """Records are appended, deleted and appended again in between."""
    monkeypatch.setattr(tag_index, "RUN", run)
    shard = Harness()
    for turn in range(4):
        records = [{"data": n, "tag": f"{chr(97 + n % 7)}{turn * n % 5}"} for n in range(70)]
        shard.call("append", "a", {"records": records})
        for prefix in ("b", "e1", "g4", "x"):
            before = shard.everything("a")
            shard.call("delete_records", "a", {"match": ["tag", "Glob", f"{prefix}*"]})
            assert shard.everything("a") == [r for r in before if not r["$tag"].startswith(prefix)]


def test_a_deletion_that_waited_survives_a_restart(shard: Harness) -> None:
    finish(shard, shard.send("delete_records", "a", HALF))
    again = shard.restarted()
    assert {r["$tag"] for r in again.everything("a")} == {"t1"}


def test_a_topic_that_is_deleted_meanwhile_is_not_found(shard: Harness) -> None:
    ident = shard.send("delete_records", "a", HALF)
    shard.call("delete_topic", "a")
    error = finish(shard, ident).error
    assert error is not None
    assert error.code == ErrorCode.TOPIC_NOT_FOUND


def test_seqs_that_no_record_has_are_no_work(shard: Harness) -> None:
    """After a stop of the machine, a topic continues far above its last record."""
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    shard.shard.commits.sync_now()
    again = shard.restarted(disk.after_crash("drop"))
    assert again.shard.directory.find("a").position.next_seq > 60_000
    again.call("append", "a", {"records": [{"data": "new", "tag": "t0"}]})
    ident = again.send("delete_records", "a", HALF)
    assert b'"deleted":101' in finish(again, ident).body


@pytest.mark.parametrize("at_once", [5, 1000])
def test_damage_is_found_before_anything_is_logged(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(tag_indexing, "AT_ONCE", at_once)
    disk = FaultDisk()
    shard = large(disk, cache_bytes=0)
    for _ in range(2):
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    path = next(path for path in disk.names if path.suffix == ".data")
    for place in range(64, len(disk.names[path].data), 8):
        disk.names[path].data[place] ^= 1
    before = shard.call("stats")["wal"]["frames_total"]
    error = finish(shard, shard.send("delete_records", "a", HALF)).error
    assert error is not None
    assert error.code == ErrorCode.NOT_READY
    assert str(path) not in error.message
    assert shard.call("stats")["wal"]["frames_total"] == before
    assert shard.append("b", 1)["count"] == 1


@pytest.mark.parametrize("match", ["t1", ["tag", "Glob", "t*"]], ids=["at once", "after sorting"])
def test_damage_since_the_index_was_made_is_found_before_anything_is_logged(
    monkeypatch: pytest.MonkeyPatch, match: object
) -> None:
    monkeypatch.setattr(tag_indexing, "AT_ONCE", 1)
    disk = FaultDisk()
    shard = large(disk, cache_bytes=0)
    for _ in range(2):
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    finish(shard, shard.send("delete_records", "a", {**HALF, "before_seq": 50}))
    path = next(path for path in disk.names if path.suffix == ".data")
    for place in range(64, len(disk.names[path].data), 8):
        disk.names[path].data[place] ^= 1
    shard.shard.checkpoints.inventory.parts.drop(path)
    before = shard.call("stats")["wal"]["frames_total"]
    error = finish(shard, shard.send("delete_records", "a", {"match": match})).error
    assert error is not None
    assert error.code == ErrorCode.NOT_READY
    assert shard.call("stats")["wal"]["frames_total"] == before
    assert not indivisible.broken
    assert shard.append("b", 1)["count"] == 1
    assert "a" in shard.restarted().shard.directory.visible
