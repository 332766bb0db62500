"""A sink in memory: it keeps what it gets, each part when the test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from shardd.replication.log_reader import Frames
from shardd.replication.messages import Kind, Part, Position


class Kept:
    def __init__(self, upto_no: int = 0) -> None:
        self.taken: Callable[[Part, Frames], None] = lambda part, frames: None
        self.over = trio.Event()
        self.position = Position(1, upto_no)
        self.parts: list[Frames] = []
        self.waits = trio.Event()
        """Set when a part is offered."""
        self.may = trio.Event()
        """A part that is offered is kept when the test has set it."""
        self.begun_at = -1
        self._nursery: trio.Nursery | None = None
        self._arrived = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await self.over.wait()
            self._arrived.set()
            self._nursery.cancel_scope.cancel()

    def begin(self, upto_no: int, ship: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        if not self.over.is_set():
            self.begun_at = upto_no
            self.position = Position(self.position.part, upto_no)
            self._nursery.start_soon(ship)

    async def put(self, frames: Frames) -> None:
        self.waits.set()
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self.over.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self.may.wait()
            nursery.cancel_scope.cancel()
        if self.over.is_set():
            return
        self.position = Position(self.position.part + 1, frames.last_no)
        self.parts.append(frames)
        part = Part(self.position.part, Kind.FRAMES, 1, "", frames.first_no, frames.last_no)
        self.taken(part, frames)
        self._arrived.set()
        self._arrived = trio.Event()

    async def arrived(self) -> None:
        if not self.over.is_set():
            await self._arrived.wait()

    async def finish(self, caught_up: Callable[[], Awaitable[None]]) -> None:
        await caught_up()
        self.over.set()
