"""Claims about group commit: when changes are visible, and which requests a failing disk affects."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode
from shardd.storage import sync_thread
from shardd.storage.change import Change, Timing
from shardd.storage.errors import SegmentError
from shardd.storage.indivisible import indivisible
from tests.support.fault_disk import FaultFile
from tests.support.harness import Harness

FSYNC = {"durability": "fsync"}
EIO = OSError(5, "Input/output error")
ENOSPC = OSError(28, "No space left on device")


@pytest.fixture
def shard() -> Harness:
    harness = Harness()
    harness.call("configure", "safe", FSYNC)
    harness.call("configure", "fast")
    return harness


def test_an_fsync_write_is_neither_acked_nor_visible_before_its_sync(shard: Harness) -> None:
    ident = shard.send("append", "safe", {"records": [{"data": 1}]})
    shard.shard.flush()
    assert ident not in shard.replies
    assert shard.diff("safe")["head_seq"] == 0
    shard.shard.commits.sync_now()
    assert isinstance(shard.replies[ident], Reply)
    assert shard.diff("safe")["head_seq"] == 1


def test_a_disk_write_is_acked_once_the_kernel_has_it(shard: Harness) -> None:
    ident = shard.send("append", "fast", {"records": [{"data": 1}]})
    assert ident not in shard.replies
    shard.shard.flush()
    assert isinstance(shard.replies[ident], Reply)
    after = shard.restarted(shard.disk.after_crash("process"))  # type: ignore[attr-defined]
    assert len(after.everything("fast")) == 1


def test_one_sync_serves_every_write_that_waits(shard: Harness) -> None:
    syncs = sum(1 for what, _ in shard.disk.calls if what == "sync")  # type: ignore[attr-defined]
    idents = [shard.send("append", "safe", {"records": [{"data": i}]}) for i in range(50)]
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert all(isinstance(shard.replies[i], Reply) for i in idents)
    assert sum(1 for what, _ in shard.disk.calls if what == "sync") == syncs + 1  # type: ignore[attr-defined]
    assert sum(1 for what, _ in shard.disk.calls if what == "write") == 3  # type: ignore[attr-defined]


def test_a_write_behind_a_waiting_one_waits_too(shard: Harness) -> None:
    """A change of the topic to a faster class does not let a later record overtake an earlier one."""
    first = shard.send("append", "safe", {"records": [{"data": 1}]})
    shard.send("configure", "safe", {"durability": "disk"})
    second = shard.send("append", "safe", {"records": [{"data": 2}]})
    shard.shard.flush()
    assert first not in shard.replies
    assert second not in shard.replies
    shard.shard.commits.sync_now()
    assert [r["data"] for r in shard.everything("safe")] == [1, 2]


@pytest.mark.parametrize("error", [EIO, ENOSPC])
def test_a_failed_write_fails_its_senders_and_leaves_no_trace(shard: Harness, error: OSError) -> None:
    shard.append("fast", "before")
    shard.disk.fail["write"] = error  # type: ignore[attr-defined]
    for topic in ("fast", "safe", "new"):
        reply = shard.reply("append", topic, {"records": [{"data": "lost"}]})
        assert reply.error is not None
        assert reply.error.code == (ErrorCode.THROTTLED if error.errno == ENOSPC.errno else ErrorCode.NOT_READY)
        assert reply.error.retry_after_ms
    assert shard.call("list", page_size=10, prefix="new") == []
    del shard.disk.fail["write"]  # type: ignore[attr-defined]
    assert shard.append("fast", "after")["first_seq"] == 2
    assert [r["data"] for r in shard.restarted().everything("fast")] == ["before", "after"]


def test_a_topic_whose_deletion_is_not_written_is_not_called_absent(shard: Harness) -> None:
    shard.append("fast", 1)
    shard.disk.fail["write"] = EIO  # type: ignore[attr-defined]
    idents = [shard.send("delete_topic", "fast") for _ in range(2)]
    shard.shard.flush()
    assert [getattr(shard.replies[ident], "error", None) is None for ident in idents] == [False, False]
    del shard.disk.fail["write"]  # type: ignore[attr-defined]
    assert [record["data"] for record in shard.everything("fast")] == [1]


def test_a_short_write_is_a_failed_write(shard: Harness) -> None:
    shard.append("fast", "before")
    shard.disk.faults[len(shard.disk.calls)] = 40  # type: ignore[attr-defined]
    assert shard.reply("append", "fast", {"records": [{"data": "lost"}]}).error is not None
    shard.append("fast", "after")
    assert [r["data"] for r in shard.restarted().everything("fast")] == ["before", "after"]


def test_a_failed_write_that_cannot_be_cut_back_makes_the_shard_read_only(shard: Harness) -> None:
    shard.append("fast", "before")
    shard.disk.faults[len(shard.disk.calls)] = 40  # type: ignore[attr-defined]
    shard.disk.fail["truncate"] = EIO  # type: ignore[attr-defined]
    assert shard.reply("append", "fast", {"records": [{"data": "lost"}]}).error is not None
    shard.disk.fail.clear()  # type: ignore[attr-defined]
    reply = shard.reply("append", "fast", {"records": [{"data": "refused"}]})
    assert reply.error is not None
    assert reply.error.detail == {"reason": "read_only"}
    assert shard.call("stats")["wal"]["read_only"] == 1
    assert [r["data"] for r in shard.everything("fast")] == ["before"]
    assert [r["data"] for r in shard.restarted().everything("fast")] == ["before"]


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
@pytest.mark.parametrize("again", [None, EIO])
def test_a_write_that_waits_is_answered_also_if_a_later_one_makes_the_shard_read_only(
    shard: Harness, survival: str, again: OSError | None
) -> None:
    """The log has part of the later one behind it, which a start cuts off."""
    waiting = shard.send("append", "safe", {"records": [{"data": "waits"}]})
    shard.append("fast", "acked")
    shard.disk.faults[len(shard.disk.calls)] = 40  # type: ignore[attr-defined]
    shard.disk.fail["truncate"] = EIO  # type: ignore[attr-defined]
    assert shard.reply("append", "fast", {"records": [{"data": "lost"}]}).error is not None
    shard.disk.fail.clear()  # type: ignore[attr-defined]
    assert waiting not in shard.replies
    if again is not None:
        shard.disk.faults[len(shard.disk.calls)] = again  # type: ignore[attr-defined]
    shard.shard.commits.sync_now()
    assert (getattr(shard.replies[waiting], "error", None) is None) is (again is None)
    assert shard.call("stats")["wal"]["read_only"] == 1
    for seed in range(8):
        found = shard.restarted(shard.disk.after_crash(survival, seed))  # type: ignore[attr-defined]
        assert [r["data"] for r in found.everything("fast")] == ["acked"]
        assert [r["data"] for r in found.everything("safe")] == (["waits"] if again is None else [])


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_failed_sync_fails_those_who_waited_and_keeps_what_was_acked(shard: Harness, survival: str) -> None:
    shard.append("safe", "old")
    waiting = shard.send("append", "safe", {"records": [{"data": "given up"}]})
    shard.append("fast", "acked")
    also = shard.send("append", "safe", {"records": [{"data": "given up too"}]})
    shard.shard.flush()
    shard.disk.faults[len(shard.disk.calls)] = EIO  # type: ignore[attr-defined]
    shard.shard.commits.sync_now()
    for ident in (waiting, also):
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert reply.error is not None
        assert reply.error.code == ErrorCode.NOT_READY
    assert shard.append("safe", "new")["first_seq"] == 2
    for seed in range(8):
        disk = shard.disk.after_crash(survival, seed)  # type: ignore[attr-defined]
        again = shard.restarted(disk)
        assert [r["data"] for r in again.everything("safe")] == ["old", "new"]
        assert [r["data"] for r in again.everything("fast")] == ["acked"]


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_change_without_a_frame_that_is_given_up_takes_no_other_frame_with_it(shard: Harness, survival: str) -> None:
    shard.call("configure", "brief", {"durability": "ephemeral"})
    waiting = [shard.send("append", "brief", {"records": [{"data": 1}]})]
    shard.append("fast", "acked")
    waiting.append(shard.send("append", "brief", {"records": [{"data": 2}]}))
    shard.shard.flush()
    shard.disk.faults[len(shard.disk.calls)] = EIO  # type: ignore[attr-defined]
    shard.shard.commits.sync_now()
    assert all(getattr(shard.replies[ident], "error", None) is not None for ident in waiting)
    shard.append("fast", "more")
    shard.shard.commits.sync_now()
    for seed in range(8):
        again = shard.restarted(shard.disk.after_crash(survival, seed))  # type: ignore[attr-defined]
        assert [r["data"] for r in again.everything("fast")] == ["acked", "more"]


def test_a_sync_that_keeps_failing_makes_the_shard_read_only(shard: Harness) -> None:
    shard.append("fast", "acked")
    shard.disk.fail["sync"] = EIO  # type: ignore[attr-defined]
    assert shard.reply("append", "safe", {"records": [{"data": 1}]}).error is not None
    shard.disk.fail.clear()  # type: ignore[attr-defined]
    reply = shard.reply("append", "fast", {"records": [{"data": 1}]})
    assert reply.error is not None
    assert reply.error.detail == {"reason": "read_only"}
    assert [r["data"] for r in shard.everything("fast")] == ["acked"]
    assert [r["data"] for r in shard.restarted().everything("fast")] == ["acked"]


def test_where_no_sync_will_follow_a_change_that_would_wait_for_one_is_refused(shard: Harness) -> None:
    for topic in ("brief", "other"):
        shard.append(topic, 1, config={"durability": "ephemeral"})
    shard.disk.fail["sync"] = EIO  # type: ignore[attr-defined]
    assert shard.reply("configure", "brief", {"cap_records": 10}).error is not None
    shard.disk.fail.clear()  # type: ignore[attr-defined]
    idents = [shard.send("append", "brief", {"records": [{"data": data}]}) for data in ("refused", "too")]
    shard.append("other", 2)
    for ident in idents:
        error = getattr(shard.replies[ident], "error", None)
        assert error is not None
        assert error.detail == {"reason": "read_only"}
    assert shard.call("state", "brief")["config"]["cap_records"] != 10
    assert [r["data"] for r in shard.everything("brief")] == [1]
    assert [r["data"] for r in shard.everything("other")] == [1, 2]


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_what_failed_syncs_left_with_the_kernel_is_written_again_by_the_next_process(
    shard: Harness, survival: str
) -> None:
    """The kernel shows it and takes it for written: a sync alone would succeed, and a stop of the machine take it."""
    shard.append("safe", "old")
    shard.append("fast", "acked")
    shard.disk.fail["sync"] = EIO  # type: ignore[attr-defined]
    shard.send("append", "safe", {"records": [{"data": "perhaps"}]})
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert shard.call("stats")["wal"]["read_only"] == 1
    again = shard.restarted(shard.disk.after_crash("process"))  # type: ignore[attr-defined]
    assert [r["data"] for r in again.everything("fast")] == ["acked"]
    shown = [r["data"] for r in again.everything("safe")]
    again.append("safe", "new")
    for seed in range(8):
        found = shard.restarted(again.disk.after_crash(survival, seed))  # type: ignore[attr-defined]
        assert [r["data"] for r in found.everything("fast")] == ["acked"]
        assert [r["data"] for r in found.everything("safe")] == [*shown, "new"]


def test_the_log_rotates_and_reads_back_over_all_files() -> None:
    shard = Harness(wal_segment_bytes=4096)
    for i in range(300):
        shard.append("a", i)
        if i % 7 == 0:
            shard.shard.commits.sync_now()
    assert len(shard.disk.list(shard.path / "wal")) > 5
    assert [r["data"] for r in shard.restarted().everything("a")] == list(range(300))


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_failed_sync_right_after_a_rotation_loses_nothing_acked(survival: str) -> None:
    """Acked records are found once and in order, however full the files are when syncs fail."""
    for failing in range(12):
        shard = Harness(wal_segment_bytes=4096)
        shard.call("configure", "fast")
        acked = []
        for i in range(40):
            shard.append("fast", f"{i}" + "x" * 300)
            acked.append(i)
            if i % 3 == 0:
                if i // 3 == failing:
                    shard.disk.faults[len(shard.disk.calls)] = EIO  # type: ignore[attr-defined]
                shard.shard.commits.sync_now()
        disk = shard.disk.after_crash(survival)  # type: ignore[attr-defined]
        found = [int(str(r["data"]).rstrip("x")) for r in shard.restarted(disk).everything("fast")]
        assert found == acked[: len(found)]
        assert len(found) == 40 or survival != "process"


class _Failing(Change, eq=False):
    def commit(self, timing: Timing) -> None:
        raise SegmentError("a file cannot be read")


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_of_any_kind_while_changes_become_visible_ends_the_process(
    shard: Harness, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(indivisible, "broken", False)
    shard.send("append", "safe", {"records": [{"data": 1}]})
    commits = shard.shard.commits
    commits.stage(_Failing(requires_sync=waits))
    if waits:
        commits.flush()
    with pytest.raises(SegmentError):
        commits.sync_now()
    assert indivisible.broken


SYNC_S = 0.01


@asynccontextmanager
async def syncing(shard: Harness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Run the group commit of a shard on a device whose syncs take `SYNC_S`."""

    def sync(file: FaultFile, sync: Callable[[FaultFile], None] = FaultFile.sync) -> None:
        shard.clock.advance(round(SYNC_S * 1000))
        sync(file)

    monkeypatch.setattr(sync_thread, "PATIENCE_S", 60.0)  # the mocked clock would jump while the loop sleeps
    async with trio.open_nursery() as nursery:
        shard.append("fast", "first")
        shard.shard.commits.sync_now()
        monkeypatch.setattr(FaultFile, "sync", sync)
        nursery.start_soon(shard.shard.commits.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def when_synced(shard: Harness) -> float:
    """The time until the next sync has ended."""
    began = trio.current_time()
    commits, ended = shard.shard.commits, trio.Event()
    after_sync = commits.events.synced

    def synced() -> None:
        after_sync()
        ended.set()

    commits.events.synced = synced  # type: ignore[method-assign]
    await ended.wait()
    commits.events.synced = after_sync  # type: ignore[method-assign]
    return trio.current_time() - began


@pytest.fixture
def slow_window() -> Harness:
    return Harness(wal_sync_window_ms=500)


def _pull(shard: Harness, after: int) -> int:
    return shard.send("pull", "fast", epoch=shard.shard.directory.visible["fast"].epoch, after=after, wait=True)


async def test_records_without_a_waiting_reader_are_synced_after_the_window(
    slow_window: Harness, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with syncing(slow_window, monkeypatch):
        slow_window.append("fast", "x")
        assert 0.45 < await when_synced(slow_window) < 0.55


@pytest.mark.parametrize("parked_before", [True, False])
async def test_a_parked_pull_is_answered_without_waiting_for_the_window(
    slow_window: Harness, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, parked_before: bool
) -> None:
    async with syncing(slow_window, monkeypatch):
        if parked_before:
            ident = _pull(slow_window, 1)
        slow_window.append("fast", "x")
        if not parked_before:
            ident = _pull(slow_window, 1)
        assert await when_synced(slow_window) < 0.05
        assert isinstance(slow_window.replies[ident], Reply)


async def test_a_strong_read_is_answered_without_waiting_for_the_window(
    slow_window: Harness, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with syncing(slow_window, monkeypatch):
        fields = {"tags": True, "meta": True, "data": True, "nodes": (), "limit": 10, "budget": 1000, "touch": True}
        epoch = slow_window.shard.directory.visible["fast"].epoch
        ident = slow_window.send("feed", "fast", from_seq=1, epoch=epoch, strong=True, wait_ms=9000, **fields)
        slow_window.append("fast", "x")
        assert await when_synced(slow_window) < 0.05
        slow_window.shard.deliver()
        assert isinstance(slow_window.replies[ident], Reply)


async def test_syncs_for_readers_take_at_most_a_fifth_of_the_time(
    slow_window: Harness, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with syncing(slow_window, monkeypatch):
        for number in range(1, 5):
            ident = _pull(slow_window, number)
            slow_window.append("fast", "x")
            took = await when_synced(slow_window)
            assert isinstance(slow_window.replies[ident], Reply)
            if number > 1:
                assert 3.5 * SYNC_S < took < 5 * SYNC_S


async def test_who_waits_until_no_sync_is_under_way_may_sync_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two syncs at once would end in any order, and what is synced would go back."""
    shard, may_end, begun = Harness(), threading.Event(), threading.Event()
    commits, whole, told = shard.shard.commits, FaultFile.sync, []
    shard.append("fast", "first", config={"durability": "fsync"})
    commits.sync_now()

    def sync(self: FaultFile) -> None:
        whole(self)
        begun.set()
        assert may_end.wait(60)

    async def idle() -> None:
        await commits.idle()
        told.append(commits.synced_no)

    monkeypatch.setattr(FaultFile, "sync", sync)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        shard.send("append", "fast", {"records": [{"data": 1}]})
        shard.shard.flush()
        written = commits.synced_no + 1
        await trio.to_thread.run_sync(begun.wait, 60)
        nursery.start_soon(idle)
        await wait_all_tasks_blocked()
        assert told == []
        may_end.set()
        while not told:
            await trio.lowlevel.checkpoint()
        assert told[0] >= written
        nursery.cancel_scope.cancel()
