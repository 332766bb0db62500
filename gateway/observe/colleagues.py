"""Colleagues: the figures of the other gateways, which the supervisor has. See `proto.ipc.gateway_figures`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from proto.ipc.control import FiguresWanted, OtherFigures
from proto.ipc.gateway_figures import GatewayFigures
from proto.process.driven import in_task

PATIENCE_S = 1.0
"""Longest wait for the supervisor. After it, the figures of its last answer count."""


class Colleagues:
    """`own` makes this gateway's figures. A single gateway has no colleagues; one of several has `run`."""

    def __init__(self, own: Callable[[], GatewayFigures]) -> None:
        self.own = own
        self.several = False
        self._asked = FiguresWanted(0, GatewayFigures())
        self._wanted = trio.Event()
        self._latest = OtherFigures(0, GatewayFigures())
        self._answered = trio.Event()

    async def run(
        self,
        send: Callable[[FiguresWanted], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Pass the questions on until cancelled. No scrape sends them itself: one that ends early would leave half a
        message."""
        self.several = True
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the supervisor is gone
                await send(self._asked)

    async def ask(self) -> tuple[GatewayFigures, GatewayFigures]:
        """This gateway's figures, and those of the others."""
        own = self.own()
        if self.several:
            await in_task()
            self._asked = FiguresWanted(self._asked.number + 1, own)
            number = self._asked.number
            self._wanted.set()
            with trio.move_on_after(PATIENCE_S):
                while self._latest.number < number:
                    await self._answered.wait()
        return own, self._latest.figures

    def heard(self, message: OtherFigures) -> None:
        self._latest = message
        self._answered.set()
        self._answered = trio.Event()
