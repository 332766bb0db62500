"""The room tasks: messages between this shard's allowance and the treasurer, and between the treasurer and all shards.

    ask       while something here waits for room: sends the treasurer what the limit lacks, and looks at what waits
    divide    where the treasurer is: sends its orders, each in a task of its own, and takes in the reports

The treasurer is in the first shard that can start, by the supervisor's report. When another shard becomes the first
one, this one stops sending orders; what the last ones still do is settled by their epoch (`shardd.changes.treasurer`).
Where each shard has a holder of its own, machines may see different shards fail: the treasurer is with the holder of
shard 0, and nowhere while there is none.

A service with one shard has no treasurer and sends nothing.
"""

from __future__ import annotations

from math import inf

import trio

from proto.ipc.control import ShardState
from proto.ipc.operations import Room, RoomOrder, RoomWant
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from shardd.changes.treasurer import Treasurer
from shardd.process.peers import Peers
from shardd.shard import Shard

ASK_AGAIN_S = 0.25
"""Seconds between two wants, if no order follows the first one."""
ORDER_AGAIN_S = 0.05
"""Seconds before another order to a shard that did not answer the last one."""


class RoomTasks:
    def __init__(self, shard: Shard, peers: Peers, limits: Limits) -> None:
        self._shard = shard
        self._peers = peers
        self._cap = Room(limits.max_topics, limits.max_total_bytes)
        self._allowance = shard.allowance
        self._treasurer: Treasurer | None = None
        self._acting = False
        self._nursery: trio.Nursery | None = None
        peers.updated = self._due_now

    async def run(self) -> None:
        """Exchange messages until cancelled."""
        if not self._cap.topics and not self._cap.bytes:
            return
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._ask)
            if len(self._peers.states) > 1:
                nursery.start_soon(self._divide)

    async def _ask(self) -> None:
        allowance = self._allowance
        while True:
            await allowance.news.wait()
            while allowance.unsettled:
                allowance.news = trio.Event()
                with trio.move_on_after(min(ASK_AGAIN_S, allowance.pause_s(self._shard.monotonic()))):
                    await self._ask_once()
                    await allowance.news.wait()
                allowance.tick(self._shard.monotonic())
                self._shard.flush()
            allowance.news = trio.Event()

    async def _ask_once(self) -> None:
        allowance = self._allowance
        want = allowance.wish()
        if want is None:
            return
        asked = RoomWant(self._peers.index, allowance.report.at, allowance.report.limit, want, self._peers.epoch)
        try:
            await self._peers.request(treasurer_of(self._peers.states, self._peers.term), asked, "")
        except TopicsError:
            await trio.sleep(ORDER_AGAIN_S)

    # The treasurer

    def _due_now(self) -> None:
        """The treasurer may have orders."""
        self._allowance.wanting.set()

    async def _divide(self) -> None:
        assert self._nursery is not None
        while True:
            self._allowance.wanting = trio.Event()
            serving, treasurer = not self._shard.staging.silent, self._appointed()
            wants, self._allowance.wants = self._allowance.wants, []
            self._allowance.divides = 0 if treasurer is None else len(treasurer.accounts)
            if treasurer is not None:
                for want in wants:
                    treasurer.wanted(want, self._shard.monotonic())
                for index, order in treasurer.orders(self._shard.monotonic(), serving=serving):
                    self._nursery.start_soon(self._send, treasurer, index, order)
            with trio.move_on_after(inf if serving else ASK_AGAIN_S):
                await self._allowance.wanting.wait()

    def _appointed(self) -> Treasurer | None:
        """The treasurer, if it is here, with what is known of the shards."""
        peers, states = self._peers, self._peers.states
        before, self._acting = self._acting, treasurer_of(states, peers.term) == peers.index
        if not self._acting:
            return None
        if not before:
            epoch = epoch_of(states, peers.index, peers.term)
            if self._treasurer is None or epoch > self._treasurer.epoch:
                self._treasurer = Treasurer(self._cap, len(states), epoch)
        assert self._treasurer is not None
        for index in range(len(states)):
            self._treasurer.seen(index, peers.life(index), here=peers.ready(index), failed=peers.lost(index))
        return self._treasurer

    async def _send(self, treasurer: Treasurer, index: int, order: RoomOrder) -> None:
        report = None
        try:
            report = (await self._peers.request(index, order, "")).extra
        except TopicsError:
            pass  # it may have been obeyed
        if report is None or report.at != order.at:
            await trio.sleep(ORDER_AGAIN_S)
        if report is None:
            treasurer.lost(index, order)
        elif not treasurer.reported(index, order, report) and report.at > order.at:
            self._acting = False  # there was a later epoch: begin another, by the latest report
        self._due_now()


def treasurer_of(states: list[ShardState], term: int = 0) -> int:
    """The shard whose treasurer divides the caps. `term` is that of the asking shard where each has a holder of its
    own, else 0."""
    return 0 if term else next((state.index for state in states if state.phase != "failed"), 0)


def epoch_of(states: list[ShardState], index: int, term: int = 0) -> tuple[int, int, int]:
    """The epoch of a treasurer that begins now."""
    if term:
        return term, 0, index
    return sum(state.term for state in states), sum(state.incarnation for state in states), index
