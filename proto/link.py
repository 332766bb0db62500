"""Asking shards: the connection to each incarnation of a shard, and the requests that wait for its replies.

The gateway asks all shards; a shard asks the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import structlog
import trio

from proto import trace
from proto.control import ShardState
from proto.errors import TopicsError, not_ready, shutting_down
from proto.limits import MAX_WAIT_MS
from proto.message import Cancel, Parked, Reply, Request, decode
from proto.transport import MessageSocket

_log: Any = structlog.get_logger()


_SWEEP_S = 1.0


class Pending:
    """One request on its way. Its outcome is a `Reply`, or an error of ours; before it, `Parked` may come once."""

    __slots__ = ("_outcome", "_task", "deadline", "id", "link", "parked")

    def __init__(self, link: Link, ident: int, deadline: float) -> None:
        self.link = link
        self.id = ident
        self.deadline = deadline
        self.parked = False
        self._outcome: Reply | Parked | TopicsError | None = None
        self._task: trio.lowlevel.Task | None = None

    def resolve(self, outcome: Reply | Parked | TopicsError) -> None:
        # An outcome nobody has taken yet gives way to a later one: Parked to the Reply that follows it.
        self._outcome = outcome
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def wait(self) -> Reply | Parked:
        """The next outcome. Raises `503` when the shard vanishes or stays silent."""
        if self._outcome is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        outcome = self._outcome
        self._outcome = None
        assert outcome is not None
        if isinstance(outcome, TopicsError):
            raise outcome
        return outcome

    async def reply(self) -> Reply:
        outcome = await self.wait()
        while isinstance(outcome, Parked):
            outcome = await self.wait()
        return outcome

    def abandon(self) -> None:
        """Nobody waits for this any more. Does nothing once the reply has come."""
        self.link.abandon(self)


class Link:
    """The connection to one incarnation of one shard."""

    def __init__(self, owner: Links, state: ShardState) -> None:
        self.state = state
        self.waiting: dict[int, Pending] = {}
        self.scope = trio.CancelScope()
        self.first_id = 0
        """Of its requests; those of an earlier incarnation of the shard have smaller ones."""
        self._owner = owner
        self._socket = MessageSocket.dealer(state.endpoint)
        self._closed = False

    def ask(self, op: str, topic: str, options: dict[str, Any], body: bytes) -> Pending:
        ident = next(self._owner.ids)
        self.first_id = self.first_id or ident
        pending = Pending(self, ident, time.monotonic() + self._owner.timeout_s)
        self.waiting[ident] = pending
        self._socket.send(Request(ident, op, topic, options, body, trace.current()).encode())
        return pending

    def abandon(self, pending: Pending) -> None:
        if self.waiting.pop(pending.id, None) is not None and not self._closed:
            self._socket.send(Cancel(pending.id).encode())

    async def run(self) -> None:
        try:
            with self.scope:
                self._owner.opened(self)
                await self._socket.read(self._take)
        finally:
            # Not before the reader is out of its wait: its descriptor must not be closed under it.
            self.fail()
            self._socket.close()

    def _take(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            try:
                message = decode(frames)
            except Exception as error:
                # One broken message must not take the other requests with it; its own request times out.
                _log.error("shard_message_unreadable", shard=self.state.index, error=repr(error))
                continue
            if isinstance(message, Reply):
                self._owner.heard(self, message)
                pending = self.waiting.pop(message.id, None)
                if pending is not None:
                    pending.resolve(message)
            elif isinstance(message, Parked) and (pending := self.waiting.get(message.id)) is not None:
                if self._owner.closing:
                    self.abandon(pending)
                    pending.resolve(shutting_down())
                    continue
                pending.parked = True
                pending.deadline = time.monotonic() + MAX_WAIT_MS / 1000 + self._owner.timeout_s
                pending.resolve(message)

    def sweep(self, now: float) -> None:
        """Give up on what has waited too long."""
        for pending in [p for p in self.waiting.values() if p.deadline <= now]:
            self.abandon(pending)
            _log.warning("shard_silent", shard=self.state.index, request=pending.id)
            pending.resolve(
                not_ready(
                    f"shard {self.state.index} has not answered in time; the request may have taken effect",
                    shard=self.state.index,
                )
            )

    def end_parked(self) -> None:
        for pending in [p for p in self.waiting.values() if p.parked]:
            self.abandon(pending)
            pending.resolve(shutting_down())

    def fail(self) -> None:
        """Fail every waiter and end `run`; harmless a second time."""
        self._closed = True
        self.scope.cancel()
        waiting, self.waiting = self.waiting, {}
        for pending in waiting.values():
            pending.resolve(
                not_ready(
                    f"shard {self.state.index} went away before it answered; the request may have taken effect",
                    shard=self.state.index,
                )
            )


class Links:
    """A link to each shard in one of `phases`, kept up with what the supervisor says of them. `run` serves them.

    `opened` is called with each new link once it can be asked, `heard` with every reply that comes from the present
    incarnation of a shard, before whoever waits for it.
    """

    def __init__(
        self,
        shards: int,
        timeout_s: float,
        phases: Iterable[str] = ("ready",),
        opened: Callable[[Link], object] = lambda link: None,
        heard: Callable[[Link, Reply], object] = lambda link, reply: None,
    ) -> None:
        self.states = [ShardState(index) for index in range(shards)]
        self.timeout_s = timeout_s
        self.ids: Iterator[int] = count(1)
        self.closing = False
        """Nothing may stay parked any more."""
        self.opened = opened
        self._heard = heard
        self._phases = frozenset(phases)
        self._links: list[Link | None] = [None] * shards
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.update(self.states)
            task_status.started()
            try:
                while True:
                    await trio.sleep(min(_SWEEP_S, self.timeout_s / 4))
                    now = time.monotonic()
                    for link in self.open():
                        link.sweep(now)
            finally:
                self._nursery = None

    def update(self, states: list[ShardState]) -> None:
        """Take over what the supervisor says. A shard with a new endpoint gets a new link; the waiters of the old one
        fail, for no answer can reach them any more."""
        for state in states:
            self.states[state.index] = state
            link = self._links[state.index]
            if link is not None:
                if link.state.endpoint == state.endpoint and (state.phase in self._phases or state.phase == "stopping"):
                    link.state = state
                    continue
                self._links[state.index] = None
                link.fail()
            if state.phase in self._phases and self._nursery is not None:
                fresh = self._links[state.index] = Link(self, state)
                self._nursery.start_soon(fresh.run)

    def heard(self, link: Link, reply: Reply) -> None:
        if link is self._links[link.state.index]:
            self._heard(link, reply)

    def open(self) -> Iterator[Link]:
        """The links there are."""
        return (link for link in self._links if link is not None)

    def current(self, index: int) -> Link | None:
        """The link to a shard, whatever its phase."""
        return self._links[index]

    def to(self, index: int) -> Link:
        """The link to a shard that can be asked. Raises `503`."""
        link = self._links[index]
        state = self.states[index]
        if link is None or state.phase not in self._phases:
            raise not_ready(
                f"shard {index} is not serving yet (phase {state.phase}); retry shortly",
                shard=index,
                phase=state.phase,
                replay_progress=self.progress,
            )
        return link

    @property
    def progress(self) -> float:
        """Share of the boot that is done, 0.0–1.0, weighted by what each shard has to read."""
        weights = [max(state.total_bytes, 1) for state in self.states]
        done = sum(w * s.progress for w, s in zip(weights, self.states, strict=True))
        return round(done / sum(weights), 4) if weights else 1.0

    def end_parked(self) -> None:
        """From now on nothing is parked: what waits ends with `503 shutting_down`."""
        self.closing = True
        for link in self.open():
            link.end_parked()
