"""Links: the connections of one process to all shards. The gateway has links to them; a shard has links to the others.

A shard that another machine holds is reached by a link to that one (`proto.ipc.remote_link`), if the machines of the
service hear each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import trio

from proto.ipc.control import HELD_ELSEWHERE, Cluster, ShardState
from proto.ipc.link import SILENT_S, Link, Read
from proto.ipc.message import Reply, Request, Status
from proto.ipc.remote_link import RemoteLink
from proto.ipc.suspects import Suspects
from proto.ipc.transport import MessageSocket
from proto.model.errors import not_ready

_SWEEP_S = 1.0
AGAIN_S = 0.5
"""Pause after a lost link to another machine."""
_STARTING = frozenset({"down", "open", "replay", "derive"})
_FOLLOWING = HELD_ELSEWHERE | {"down", "failed"}
"""Phases in which another machine may hold the shard."""


class Links:
    """One link to each shard that is in one of `phases`. `update` follows the supervisor's reports, `run` serves them.

    `opened` is called with each new link once it accepts requests. `heard` is called for every packet from the current
    incarnation of a shard, with the shard's status and the replies, before they are delivered. `read` reads the
    sockets. `name` is the asker's (`proto.ipc.askers`). Without `cluster` no other machine is asked.
    """

    def __init__(
        self,
        shards: int,
        timeout_s: float,
        phases: Iterable[str] = ("ready",),
        opened: Callable[[Link], object] = lambda link: None,
        heard: Callable[[Link, Status, list[Reply]], object] = lambda link, status, replies: None,
        *,
        probing: bool = False,
        read: Read = MessageSocket.read,
        name: str = "",
        cluster: Cluster | None = None,
    ) -> None:
        self.read = read
        self.name = name
        self.cluster = cluster
        self.states = [ShardState(index) for index in range(shards)]
        self.timeout_s = timeout_s
        self.ids: Iterator[int] = count(1)
        self.suspects = Suspects()
        self.unknown: dict[int, list[Request]] = {}
        """Requests that were sent by the last link to a shard of another machine, which was lost. By shard."""
        self.closing = False
        """True once `end_parked` was called: no request may stay parked."""
        self._opened = opened
        self.on_update: Callable[[], object] = lambda: None
        """Called after each `update`, and when a link to another machine is there or lost."""
        self._heard = heard
        self._probing = probing
        self._phases = frozenset(phases)
        self._links: list[Link | None] = [None] * shards
        self.updated = trio.Event()
        """Set, and replaced, whenever `on_update` is called."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.update(self.states)
            task_status.started()
            try:
                tick_s, last = min(_SWEEP_S, self.timeout_s / 4), time.monotonic()
                while True:
                    await trio.sleep(tick_s)
                    now = time.monotonic()
                    for link in self.open():
                        link.sweep(now)
                        if self._probing or isinstance(link, RemoteLink):
                            link.look(min(now - last, 2 * tick_s))
                    last = now
            finally:
                self._nursery = None

    def update(self, states: list[ShardState]) -> None:
        """Apply the states that the supervisor reports. A shard with a new endpoint gets a new link. The waiters of the
        old link fail, because no answer can reach them any more; those of a link to another machine when that is so."""
        for state in states:
            self.states[state.index] = state
            link = self._links[state.index]
            if link is not None:
                if link.serves(state, self._phases):
                    link.state = state
                    continue
                self._links[state.index] = None
                if isinstance(link, RemoteLink):
                    link.retire()
                else:
                    link.fail(state.in_hand)
            self._open(state)
        self._news()

    def _news(self) -> None:
        self.updated.set()
        self.updated = trio.Event()
        self.on_update()

    def _open(self, state: ShardState) -> None:
        if self._nursery is None:
            return
        if state.phase in self._phases:
            link = Link(self, state)
            self._nursery.start_soon(link.run)
        elif self._is_remote(state):
            assert self.cluster is not None
            link = RemoteLink(self, state, self.cluster)
            self._nursery.start_soon(self._keep, link)
        else:
            return
        self._links[state.index] = link

    async def _keep(self, link: Link) -> None:
        """Run a link to another machine. If it is lost, make the next one after a pause."""
        await link.run()
        index = link.state.index
        if link is self._links[index]:
            self._links[index] = None
            self._news()
            await trio.sleep(AGAIN_S)
            if self._links[index] is None:
                self._open(self.states[index])

    def opened(self, link: Link) -> None:
        self._opened(link)
        if link.up:
            self._news()

    def ended(self) -> None:
        """A shard takes no more requests by its link."""
        self._news()

    def heard(self, link: Link, status: Status, replies: list[Reply]) -> None:
        if link is self._links[link.state.index]:
            self._heard(link, status, replies)

    def open(self) -> Iterator[Link]:
        """The existing links."""
        return (link for link in self._links if link is not None)

    def current(self, index: int) -> Link | None:
        """The link to a shard in any phase, or None."""
        return self._links[index]

    def reaches(self, index: int) -> bool:
        """Whether another machine holds the shard, and is reached."""
        link = self._links[index]
        return link is not None and link.up and not link.ended

    def elsewhere(self, index: int) -> bool:
        """Whether another machine holds the shard, or none does."""
        state = self.states[index]
        return self.reaches(index) or state.phase in HELD_ELSEWHERE or self._is_remote(state)

    def unheld(self, index: int) -> bool:
        """Whether no machine is known to hold the shard: it is given away or claimed, or the process here that is to
        know its holder is being started. Without such a process, the machine that is not reached may hold it no more.
        """
        state, link = self.states[index], self._links[index]
        if link is not None and link.ended:
            return True
        if self.cluster is None or self.reaches(index):
            return False
        away = state.phase in _STARTING or state.phase == "stopping" or (state.phase == "standby" and not state.holder)
        return state.phase == "elsewhere" or (away and not self._is_remote(state))

    def returns(self, index: int) -> bool:
        """Whether the shard is being started here, its next holder is not known yet, or the link to that one is being
        made."""
        if self.reaches(index):
            return False
        state = self.states[index]
        return state.phase in _STARTING or self._is_remote(state) or self.unheld(index)

    def life(self, index: int) -> int | str:
        """A name of the process that holds the shard, which no other one has: its incarnation if it is of this machine,
        else its key."""
        link = self._links[index]
        return link.life if link is not None else self.states[index].holder_key or self.states[index].incarnation

    def _is_remote(self, state: ShardState) -> bool:
        # A process that follows the shard may be away: the holder that it named last is asked all the same.
        return self.cluster is not None and state.phase in _FOLLOWING and state.holder_key != ""

    def to(self, index: int) -> Link:
        """The link to a shard that accepts requests. Raises `503 not_ready` if the shard is not serving, or silent."""
        link = self._links[index]
        state = self.states[index]
        if link is None or not (link.up or state.phase in self._phases):
            raise not_ready(
                f"shard {index} cannot start, and is tried again now and then; the service's log says why"
                if state.phase == "failed"
                else f"this machine is a standby: {state.holder} holds shard {index}"
                if state.phase in HELD_ELSEWHERE and state.holder
                else f"no machine holds shard {index} at the moment; retry shortly"
                if state.phase in HELD_ELSEWHERE and self.unheld(index)
                else f"shard {index} is not serving yet (phase {state.phase}); retry shortly",
                shard=index,
                phase=state.phase,
                replay_progress=self.progress,
                outcome="not_done",
            )
        if link.silent_s >= SILENT_S:
            raise not_ready(
                f"shard {index} has not answered for {link.silent_s:.0f} s and gets no more requests until it does; "
                "this one was not carried out",
                shard=index,
                phase=state.phase,
                outcome="not_done",
            )
        return link

    @property
    def progress(self) -> float:
        """Completed fraction of the boot, 0.0–1.0, weighted by the bytes each shard has to read."""
        weights = [max(state.total_bytes, 1) for state in self.states]
        done = sum(w * s.progress for w, s in zip(weights, self.states, strict=True))
        return round(done / sum(weights), 4) if weights else 1.0

    def end_parked(self) -> None:
        """End every parked request with `503 shutting_down`, and every one that parks from now on."""
        self.closing = True
        for link in self.open():
            link.end_parked()
