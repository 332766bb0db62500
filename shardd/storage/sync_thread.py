"""The sync thread: runs the blocking syncs of one shard, one at a time.

A sync is handed over and back through two locks. The event loop waits for a quick device in place, because going back
to sleep costs more than the sync. The wait is bounded: after `PATIENCE_S` the loop serves other tasks, and the thread
wakes it when the sync has ended. The loop waits in place only while recent syncs were quick (`QUICK_S`). So a slow
device delays the loop by `PATIENCE_S` once, and a device that hangs never stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from time import monotonic

import trio

QUICK_S = 0.0004
"""The loop waits in place while recent syncs took less than this."""
PATIENCE_S = 0.0006
"""The longest that the loop waits in place."""
DECAY = 0.9
"""A sync's duration counts this much with each later sync, unless a later one took longer."""


class SyncThread:
    """`with SyncThread() as thread: await thread.run(job)`. Use it from one task of a trio loop."""

    def __init__(self) -> None:
        self._asked, self._ended = Lock(), Lock()
        self._asked.acquire()
        self._ended.acquire()
        self._job: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._took = self._recent = 0.0
        self._wake: Callable[[], None] | None = None
        self._thread = Thread(target=self._work, name="sync", daemon=True)

    def __enter__(self) -> SyncThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._job = None
        self._asked.release()
        self._thread.join()

    async def run(self, job: Callable[[], None]) -> None:
        """Run `job` in the thread and wait for its end, also when cancelled. Raises what it raises."""
        self._job = job
        self._asked.release()
        in_place = self._recent < QUICK_S
        if not (in_place and self._ended.acquire(timeout=PATIENCE_S)):
            await self._sleep()
        self._recent = max(self._took, DECAY * self._recent)
        if self._error is not None:
            raise self._error

    async def _sleep(self) -> None:
        token, ended = trio.lowlevel.current_trio_token(), trio.Event()
        # The thread releases `_ended` before it looks at `_wake`, so one of the two sees the other.
        self._wake = lambda: token.run_sync_soon(ended.set)
        if not self._ended.acquire(blocking=False):
            with trio.CancelScope(shield=True):
                await ended.wait()
            self._ended.acquire()
        self._wake = None

    def _work(self) -> None:
        while True:
            self._asked.acquire()
            if self._job is None:
                return
            began = monotonic()
            try:
                self._job()
                self._error = None
            except Exception as error:
                self._error = error
            self._took = monotonic() - began
            self._ended.release()
            if (wake := self._wake) is not None:
                wake()
