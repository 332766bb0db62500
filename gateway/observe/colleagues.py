"""Colleagues: what the other gateways have counted, and heard of shards. See `proto.ipc.gateway_figures`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

import trio
from msgspec.structs import replace

from proto.ipc.control import FiguresWanted, OtherFigures
from proto.ipc.figures import ShardFigures
from proto.ipc.gateway_figures import Accounts, GatewayFigures
from proto.process.driven import in_task

PATIENCE_S = 5.0
"""Longest wait for the supervisor. After it, the figures of its last answer count."""


class Colleagues:
    """`own` makes this gateway's figures."""

    def __init__(self, own: Callable[[], GatewayFigures]) -> None:
        self.own = own
        self.asks = False
        """Whether there is a supervisor to ask. A question that comes before `run` waits for it: answered without the
        others, and those before this gateway, it would show counters that have fallen."""
        self.shards: dict[int, ShardFigures] = {}
        """Of those that were missing at a scrape: what they answered last, to any gateway."""
        self._accounts = Accounts()
        self._asked = FiguresWanted(0, GatewayFigures())
        self._wanted = trio.Event()
        self._latest = OtherFigures(0, GatewayFigures())
        self._answered = trio.lowlevel.ParkingLot()

    async def run(self, send: Callable[[FiguresWanted], Awaitable[None]]) -> None:
        """Pass the questions on until cancelled. No scrape sends them itself: one that ends early would leave half a
        message."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            # Counted now: a ping may have been answered since the scrape, and its figures must stay the older ones.
            question = replace(self._asked, figures=self.own())
            self._asked = FiguresWanted(question.number, question.figures)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the supervisor is gone
                await send(question)

    async def ask(
        self, answered: Mapping[int, ShardFigures] = MappingProxyType({}), missing: Iterable[int] = ()
    ) -> tuple[GatewayFigures, GatewayFigures]:
        """This gateway's figures, and those of the others. `answered` is what shards have answered to the scrape, and
        `missing` are the shards that have not: `shards` has theirs afterwards."""
        own = self.own()
        self._accounts.answered(answered)
        if self.asks:
            await in_task()
            number, earlier = self._asked.number + 1, self._asked
            # A question that was not sent yet is part of this one.
            self._asked = FiguresWanted(number, own, {**earlier.shards, **answered}, [*{*earlier.missing, *missing}])
            self._wanted.set()
            with trio.move_on_after(PATIENCE_S):
                while self._latest.number < number:
                    await self._answered.park()
        return own, self._latest.figures

    @property
    def counted(self) -> dict[str, float]:
        """What all shards had counted at the last question, see `ShardFigures.counters`: as the supervisor knows, or
        before its first answer, as they have answered to this gateway."""
        return self._latest.counted or self._accounts.counted()

    def heard(self, message: OtherFigures) -> None:
        self._latest = message
        self.shards |= message.shards
        self._answered.unpark_all()
