"""Incarnation: one process of a child, from before its start to its end, and what it has reported of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio
from structlog.typing import FilteringBoundLogger

from proto.ipc.control import Control, ControlError, Start
from proto.ipc.control_link import ControlLink
from supervisor.process.forks import Forked

HANGUP_GRACE_S = 5.0
"""Time in which a child must exit after it closed its control socket or sent `Failed`."""


class Incarnation:
    """`process` is None before its start and after its end."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.process: Forked | None = None
        self.heard_at = 0.0
        """Time of its last message, or of its start; trio's clock, s."""
        self.spoken = False
        """Whether it has sent a message."""
        self.ready_at: float | None = None
        """Time of its first `Ready`."""
        self.complete = False
        """Whether it, a gateway, has reached every shard."""
        self.failure: str | None = None
        """What its `Failed` said."""
        self.drained = trio.Event()
        self.died = trio.Event()
        """Set when it has ended, once it was started."""
        self._log = log
        self._link: ControlLink | None = None

    async def run(
        self,
        link: ControlLink,
        start: Callable[[], Start],
        handle: Callable[[Control], None],
        ended: Callable[[], Awaitable[None]],
    ) -> None:
        """Send `Start` to the process, and hear it until `ended` returns."""
        try:
            async with trio.open_nursery() as nursery:
                heard = trio.Event()
                nursery.start_soon(self._hear, link, handle, heard)
                # Set before `Start` is sent: other senders queue after it on the link's lock, which `send` takes
                # before its first checkpoint.
                self._link = link
                await self.tell(start())
                await ended()
                # Last messages may still be in the socket. End-of-file follows, unless a grandchild holds the socket.
                with trio.move_on_after(1):
                    await heard.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._link = None

    async def _hear(self, link: ControlLink, handle: Callable[[Control], None], heard: trio.Event) -> None:
        try:
            while self.failure is None and (message := await link.receive()) is not None:
                self.heard_at = trio.current_time()
                self.spoken = True
                handle(message)
        except ControlError as error:
            self._log.error("child_speaks_nonsense", error=str(error))
            self.kill()
        heard.set()
        # No further message follows, so the child must exit; its exit cancels the nursery.
        await trio.sleep(HANGUP_GRACE_S)
        self._log.error("child_hung_up", action="killed")
        self.kill()

    async def tell(self, message: Control) -> None:
        """Send `message`, if the process is there."""
        if self._link is not None:
            # The process may be gone, which `run` notices by its exit.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._link.send(message)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
