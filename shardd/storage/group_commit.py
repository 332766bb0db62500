"""Group commit: changes staged together are written together, and changes that wait for a sync share one.

    staged ──write──► written ──(no need to wait)──► committed
       │                 │
       │                 └──(requires sync)── sync ─► committed
       └──write fails──► undone  ◄──── sync fails

An operation changes the shard's *assigned* state (next seq, names that will exist) when it stages, and its *visible*
state when it commits. `undo` takes the assigned state back; undos run newest first. While a change of a topic waits for
a sync, further changes of the topic must require one too. So commits on one topic keep their order. The caller sees to
that (`sync_required_no`).

With `await_bucket`, synced is not enough: a change that requires a sync commits only when its frame is in the bucket
too (`shipped`). `safe_no` is the last frame of which that is true, `synced_no` the last one on the device. A frame that
is synced and not shipped is never given up: its change stays open until the bucket has it or the process ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from contextlib import suppress

import trio

from proto.format.frame import KIND_AT, Kind
from proto.model.errors import ErrorCode, TopicsError
from shardd.clock import Clock
from shardd.storage.change import Change, Timing
from shardd.storage.disk import is_full
from shardd.storage.indivisible import Undone, indivisible, strictly_indivisible
from shardd.storage.log_events import LogEvents
from shardd.storage.sync_thread import SyncThread
from shardd.storage.wal import SyncJob, Wal, WalError

REST = 4
"""A sync that no change waits for begins this many times the last sync's duration after it: a fifth of the time."""
SYNC_BOUNDS_US = (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)


class Commits:
    def __init__(self, wal: Wal, clock: Clock, events: LogEvents, *, window_ms: float) -> None:
        self._wal = wal
        self.events = events
        self._logged = events.logged
        self._clock = clock
        self._window = window_ms / 1000
        self._widening = 0.0
        self._staged_requiring_sync = 0
        self._staged: list[Change] = []
        self.staged_total = 0
        """Number of changes staged so far."""
        self._waiting: deque[Change] = deque()
        self._work = trio.Event()
        self._urgent = trio.Event()
        self._under_way: trio.Event | None = None
        """Set when the sync that is under way in the thread has ended."""
        self._urged = False
        self._last_sync = 0.0
        self._rested_at = 0.0
        self._shipped_no: int | None = None
        self._rescue = (0, 0)
        """The last frame before those that a rescue wrote to a new file, and the last one of them."""
        self._round: int | None = None
        """The last frame that was visible when a round of syncs began, until that one is safe."""
        self.depth_peak = 0
        self.sync_counts = [0] * (len(SYNC_BOUNDS_US) + 1)
        self.sync_sum_us = 0.0

    @property
    def synced_no(self) -> int:
        return self._wal.synced_no

    @property
    def safe_no(self) -> int:
        """The last frame that changes need not wait for any more."""
        if self._shipped_no is None:
            return self._wal.synced_no
        before, last = self._rescue
        # The frames of a rescue have new numbers, and changes know the old ones: they are safe together.
        return self._shipped_no if self._shipped_no >= last else min(self._shipped_no, before)

    @property
    def everything_safe(self) -> bool:
        """True if no frame that was written is missing on the device or in the bucket."""
        return not self._wal.dirty and self.safe_no >= self._wal.synced_no

    def await_bucket(self, shipped_no: int) -> None:
        """From now on, changes that require a sync wait for the bucket too, which has the frames up to `shipped_no`."""
        self._shipped_no = shipped_no

    def shipped(self, upto_no: int) -> None:
        """Commit the changes that wait for frames up to `upto_no`, which the bucket has now."""
        assert self._shipped_no is not None
        self._shipped_no = max(self._shipped_no, upto_no)
        self._commit_safe(self._clock.monotonic())
        self._end_round()
        self.events.synced()

    @property
    def depth(self) -> int:
        """Number of changes that wait for a sync, including staged ones."""
        return len(self._waiting) + self._staged_requiring_sync

    @property
    def oldest_wait_s(self) -> float:
        """Seconds for which the oldest written change has been waiting for a sync."""
        return self._clock.monotonic() - self._waiting[0].written_at if self._waiting else 0.0

    def urge(self) -> None:
        """Sync the written frames without waiting for the window, because a reader waits for it."""
        if not self._urged:
            self._urged = True
            self._urgent.set()

    def widen(self, seconds: float) -> None:
        """Wait `seconds` longer before each sync, also for changes that wait for it, so that more share one."""
        self._widening = seconds

    def stage(self, change: Change) -> None:
        """Stage one change. Exactly one of its `commit` and `undo` is called, `commit` in stage order. Raises
        `Undone`; the change is staged then, without a frame, and `take_back` must be called."""
        self._staged.append(change)
        self.staged_total += 1
        self._staged_requiring_sync += change.requires_sync
        if not change.logged:
            change.number = self._wal.next_no - 1
            return
        try:
            change.number, frame = self._wal.stage(change.encode)
        except Exception as error:
            raise Undone(f"{type(change).__name__} has no frame") from error
        if frame.head[KIND_AT] != Kind.BATCH:
            self._logged(frame)

    def take_back(self, mark: int, error: TopicsError) -> None:
        """Undo the changes staged since `staged_total` was `mark`, as if they had not been staged. Those among them
        that were written meanwhile stay."""
        kept = max(len(self._staged) - (self.staged_total - mark), 0)
        taken = self._staged[kept:]
        del self._staged[kept:]
        self._staged_requiring_sync -= sum(change.requires_sync for change in taken)
        self._wal.unstage(sum(change.logged and change.number > 0 for change in taken))
        _undo_all(taken, error)

    def flush(self) -> None:
        """Write the staged frames, then commit the changes that require no sync. The others wait for `run`. If the
        write fails, all are undone."""
        if self._staged:
            with indivisible:
                self._flush()

    def _flush(self) -> None:
        staged, self._staged = self._staged, []
        self._staged_requiring_sync = 0
        start = self._clock.monotonic()
        try:
            self._wal.flush()
        except WalError as error:
            _undo_all(staged, self._failure(error))
            return
        now = self._clock.monotonic()
        write_ms = round((now - start) * 1000, 3)
        timing, safe_no = Timing(write_ms), self.safe_no
        in_vain: list[Change] = []
        with strictly_indivisible:
            for change in staged:
                # One without a frame may be safe already. No sync would follow, since its topic may have waited for a
                # frame that was not written.
                if not change.requires_sync or change.number <= safe_no:
                    change.commit(timing)
                elif change.number > self._wal.synced_no and not self._wal.syncable:
                    in_vain.append(change)
                else:
                    assert not self._waiting or self._waiting[-1].number <= change.number, "commits are in log order"
                    change.written_at, change.write_ms = now, write_ms
                    self._waiting.append(change)
        if in_vain:
            _undo_all(in_vain, self._failure(WalError("no sync of the write-ahead log will follow")))
        self.depth_peak = max(self.depth_peak, len(self._waiting))
        self._work.set()
        if self._sync_awaited:
            self._urgent.set()

    def _failure(self, error: WalError) -> TopicsError:
        if self._wal.read_only is None and error.cause is not None and is_full(error.cause):
            return self.events.out_of_room()
        if self._wal.read_only is None:
            message, reason = "nothing was written. Free space or mend the disk, then try again", "write_failed"
        else:
            message = "the shard is read-only until it is restarted, and the change may be there then"
            reason = "read_only"
        return TopicsError(ErrorCode.NOT_READY, f"{error}; {message}", {"reason": reason}, retry_after_ms=1000)

    @property
    def _sync_awaited(self) -> bool:
        """Whether a change waits for a sync, and not only for the bucket."""
        return bool(self._waiting) and self._waiting[-1].number > self._wal.synced_no

    async def run(self) -> None:
        """Sync until cancelled: at once if a change waits for it, else after a pause.

        The pause lasts for the group-commit window, unless a reader waits (`urge`), and at least until four times the
        last sync's duration has passed since that sync. So these syncs take at most a fifth of a busy shard's time.
        Under pressure the window is wider, also for changes that wait.
        """
        with SyncThread() as thread:
            while True:
                await self._work.wait()
                await self._pause(trio.current_time() + self._window + self._widening)
                if self._sync_awaited and self._widening:
                    await trio.sleep(self._widening)
                self._work = trio.Event()
                self._urgent = trio.Event()
                self._urged = False
                if self._wal.syncable:
                    await self._sync(thread)

    async def _pause(self, window_ends: float) -> None:
        while not self._sync_awaited:
            due = self._rested_at if self._urged else max(window_ends, self._rested_at)
            if trio.current_time() >= due:
                return
            self._urgent = trio.Event()
            with trio.move_on_at(due):
                await self._urgent.wait()

    async def _sync(self, thread: SyncThread) -> None:
        job = self._wal.begin_sync()
        ended = self._under_way = trio.Event()
        self._begin_round()
        start = self._clock.monotonic()
        error: OSError | None = None
        try:
            await thread.run(job.run)
        except OSError as caught:
            error = caught
        self._under_way = None
        self._finish(job, start, error)
        ended.set()
        self._rested_at = trio.current_time() + REST * self._last_sync
        if self._wal.dirty:
            self._work.set()
            if self._sync_awaited:
                self._urgent.set()

    async def idle(self) -> None:
        """Return when no sync is under way. None begins before the caller awaits something, so it may `sync_now`."""
        while self._under_way is not None:
            await self._under_way.wait()

    def sync_now(self) -> None:
        """Write and sync in this thread. Blocks. For callers without an event loop, for the stop, and after `idle`: two
        syncs at once would end in any order."""
        self.flush()
        if self._wal.syncable:
            job = self._wal.begin_sync()
            self._begin_round()
            start = self._clock.monotonic()
            error: OSError | None = None
            try:
                job.run()
            except OSError as caught:
                error = caught
            self._finish(job, start, error)

    def _finish(self, job: SyncJob, start: float, error: OSError | None) -> None:
        now = self._clock.monotonic()
        self._last_sync = now - start
        if error is None:
            try:
                self._wal.end_sync(job)
            except OSError as caught:
                error = caught
            us = self._last_sync * 1e6
            self.sync_counts[bisect_left(SYNC_BOUNDS_US, us)] += 1
            self.sync_sum_us += us
            self._commit_safe(now)
            self._end_round()
        elif self._round is not None:
            self._round = None
            self.events.sync_ended(False)
        if error is not None:
            self._failed(error)
        if not self._wal.dirty:
            # All visible changes are synced now, if need be after they were written to a new file.
            self._begin_round()
            self._end_round()
        self.events.synced()

    def _begin_round(self) -> None:
        """Note what is visible, unless an earlier round is not over."""
        if self._round is None:
            self._round = self._wal.written_no
            self.events.sync_begins()

    def _end_round(self) -> None:
        if self._round is not None and self.safe_no >= self._round:
            self._round = None
            self.events.sync_ended(True)
            if self._shipped_no is not None and not self.everything_safe:
                self._begin_round()

    def _commit_safe(self, now: float) -> None:
        safe_no = self.safe_no
        with strictly_indivisible:
            while self._waiting and self._waiting[0].number <= safe_no:
                change = self._waiting.popleft()
                change.commit(Timing(change.write_ms, round((now - change.written_at) * 1000, 3)))

    def _failed(self, error: OSError) -> None:
        synced_no = self._wal.synced_no
        given_up = [change for change in self._waiting if change.number > synced_no]
        self._waiting = deque(change for change in self._waiting if change.number <= synced_no)
        # One without a frame has the number of another change's frame, which may be acknowledged.
        numbers = {change.number for change in given_up if change.logged}
        with suppress(WalError):  # the log is read-only then: every later write raises the reason
            self._wal.rescue(lambda number: number not in numbers)
            self._rescue = (synced_no, self._wal.synced_no)
        _undo_all(given_up, self._failure(WalError("a sync of the write-ahead log failed", error)))


def _undo_all(changes: list[Change], error: TopicsError) -> None:
    for change in reversed(changes):
        change.undo(error)
