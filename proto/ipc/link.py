"""Links: the connection to each incarnation of a shard, and the requests that wait for its replies.

The gateway has links to all shards; a shard has links to the others.

**Deadlines.** A link abandons a request that is not answered within `timeout_s`. The deadline sent with the request is
earlier, by a fifth of `timeout_s` or five seconds, whichever is less. A shard starts no request past its deadline. The
error's `outcome` says what is known:

    not_done    the request never reached a shard able to execute it, or the shard found it past its deadline
    unknown     the request was sent and no answer came: it may have been executed, and is not started any more

**Silence.** With `probing`, a link that received nothing for a tick sends a `ping`. From then on it counts silence in
ticks of this process, so that a pause of the asking process is not taken for one of the shard. A shard silent for
`SILENT_S` receives no further requests until it answers.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic

import structlog
import trio
from structlog.typing import FilteringBoundLogger

from proto.ipc.control import ShardState
from proto.ipc.message import Cancel, Parked, Reply, Request, Status, Taken
from proto.ipc.operations import Operation, Ping
from proto.ipc.send_window import SMALL_BYTES, Window
from proto.ipc.suspects import Suspects
from proto.ipc.transport import Group, MessageSocket
from proto.model.errors import TopicsError, not_ready, shutting_down
from proto.model.limits import MAX_WAIT_MS
from proto.process import driven, trace
from proto.process.faults import faults

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    A = TypeVar("A")

_log: FilteringBoundLogger = structlog.get_logger()
Outcome = Reply[A] | Parked | TopicsError

_SWEEP_S = 1.0
ANSWERS_S = 3.0
"""A shard that has been silent for longer does not count as answering."""
SILENT_S = 10.0
_GRACE_S = 5.0


class Pending(Generic[A]):
    """Request in flight. Its outcome is a `Reply` or a local `TopicsError`; one `Parked` may precede it."""

    __slots__ = ("_callback", "_outcome", "deadline", "id", "link", "parked", "request")

    def __init__(self, link: Link, request: Request, deadline: float) -> None:
        self.link = link
        self.request = request
        self.id = request.id
        self.deadline = deadline
        self.parked = False
        self._outcome: Outcome[A] | None = None
        """The latest outcome, if it was not taken yet."""
        self._callback: Callable[[Outcome[A]], object] | None = None

    def then(self, callback: Callable[[Outcome[A]], object]) -> None:
        """Call `callback` with each outcome, in the turn in which it arrives: with `Parked` if the request is parked,
        and last with the `Reply` or the error. Calls it at once if an outcome is there. No call follows `abandon`. The
        callback must not block; it may ask, abandon and cancel. For one that waits, use `wait` instead."""
        self._callback = callback
        if self._outcome is not None:
            outcome, self._outcome = self._outcome, None
            callback(outcome)

    def resolve(self, outcome: Outcome[A]) -> None:
        if self._callback is None:
            # A later outcome replaces one that was not taken yet: the Reply replaces the Parked before it.
            self._outcome = outcome
            return
        try:
            self._callback(outcome)
        except Exception:
            # The other outcomes that arrived in this turn must still be delivered.
            faults.failed("outcome")

    def wakes(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when the next outcome has arrived; `wait` then returns it at once."""

        def resume(outcome: Outcome[A]) -> None:
            self._callback, self._outcome = None, outcome
            wake()

        self._callback = resume

    async def wait(self) -> Reply[A] | Parked:
        """Wait for the next outcome. Raises `503` when the shard dies or stays silent."""
        if self._outcome is None:
            if driven.driven():
                await driven.outcome(self)
            else:
                self.wakes(partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
                await trio.lowlevel.wait_task_rescheduled(self._abort)
        outcome = self._outcome
        self._outcome = None
        assert outcome is not None
        if isinstance(outcome, TopicsError):
            try:
                raise outcome
            finally:
                del outcome  # or else it holds all frames of its traceback until the garbage collector runs
        return outcome

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._callback = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def reply(self) -> Reply[A]:
        outcome = await self.wait()
        while isinstance(outcome, Parked):
            outcome = await self.wait()
        return outcome

    def abandon(self) -> None:
        """Stop waiting and cancel the request. Does nothing once the reply has come."""
        self._callback = None
        self.link.abandon(self)

    def take_back(self) -> None:
        """Cancel a request whose reply has come but cannot be delivered, so that the shard takes back what it gave."""
        self.link.cancel(self.id)


class Link:
    """The connection to one incarnation of one shard."""

    def __init__(self, owner: Links, state: ShardState) -> None:
        self.state = state
        self.waiting: dict[int, Pending] = {}
        self.scope = trio.CancelScope()
        self._owner = owner
        self._socket = MessageSocket.dealer(state.endpoint, owner.name)
        self._closed = False
        self._window = Window()
        self._queue: dict[int, Request] = {}
        """Requests that do not fit into the window yet, in order."""
        self._taken = 0
        """Bytes of received replies not yet reported to the shard."""
        self._heard = True
        self._probed = False
        self.silent_s = 0.0
        """Seconds without an answer since the link sent a ping."""

    def ask(self, operation: Operation[A], topic: str, body: bytes, deadline_ns: int = 0) -> Pending[A]:
        """Send a request. `deadline_ns` is an earlier deadline that it has, 0 for none."""
        if self._owner.suspects:
            self._owner.suspects.check(self.state.index, operation, topic, body)
        ident = next(self._owner.ids)
        timeout_s = self._owner.timeout_s
        now = time.monotonic()
        own_ns = int((now + timeout_s - min(timeout_s / 5, _GRACE_S)) * 1e9)
        request = Request(ident, operation, topic, body, trace.current(), min(deadline_ns or own_ns, own_ns))
        pending: Pending[A] = Pending(self, request, now + timeout_s)
        if self._queue or not self._window.fits(len(body)):
            self._queue[ident] = request
        else:
            self._hand_over(request)
        self.waiting[ident] = pending
        return pending

    def _hand_over(self, request: Request) -> None:
        self._socket.send(request)
        self._window.sent(request.id, len(request.body))

    def _hand_over_more(self) -> None:
        while self._queue:
            request = next(iter(self._queue.values()))
            if not self._window.fits(len(request.body)):
                return
            del self._queue[request.id]
            try:
                self._hand_over(request)
            except Exception:
                error = faults.failed(request.op, outcome="not_done")
                pending = self.waiting.pop(request.id, None)
                if pending is not None:
                    pending.resolve(error)

    def _tell_taken(self) -> None:
        if self._taken * 8 >= self._window.most:
            self._socket.send(Taken(self._taken))
            self._taken = 0

    def look(self, elapsed_s: float) -> None:
        """End a tick of `elapsed_s`: count silence, or send a ping if nothing was received."""
        if self._heard:
            self._heard = self._probed = False
            self.silent_s = 0.0
        elif self._probed:
            self.silent_s += elapsed_s
        else:
            self._probed = True
            self._socket.send(Request(next(self._owner.ids), Ping()))

    def abandon(self, pending: Pending) -> None:
        if self.waiting.pop(pending.id, None) is not None:
            self.cancel(pending.id)

    def cancel(self, ident: int) -> None:
        if self._queue.pop(ident, None) is not None:
            self._hand_over_more()
        elif not self._closed:
            self._window.given_up(ident)
            self._socket.send(Cancel(ident))

    async def run(self) -> None:
        try:
            with self.scope:
                self._owner.opened(self)
                await self._owner.read(self._socket, self._take)
        finally:
            # The reader must have left its wait: its descriptor must not be closed while trio watches it.
            self.fail()
            self._socket.close()

    def _take(self, group: Group) -> None:
        self._heard, self.silent_s = True, 0.0
        for _, packet in group:
            replies = [message for message in packet.messages if isinstance(message, Reply)]
            if packet.status.window:
                self._window.most = packet.status.window
            self._owner.heard(self, packet.status, replies)
            for message in packet.messages:
                if isinstance(message, Reply):
                    self._end(message)
                elif isinstance(message, Parked):
                    self._park(message)
        self._tell_taken()
        self._hand_over_more()

    def _end(self, reply: Reply) -> None:
        self._taken += len(reply.body) if len(reply.body) > SMALL_BYTES else 0
        self._window.answered(reply.id)
        pending = self.waiting.pop(reply.id, None)
        if pending is not None:
            pending.resolve(reply)

    def _park(self, parked: Parked) -> None:
        pending = self.waiting.get(parked.id)
        if pending is None:
            return
        self._window.answered(parked.id)
        if self._owner.closing:
            self.abandon(pending)
            pending.resolve(shutting_down())
            return
        pending.parked = True
        pending.deadline = time.monotonic() + MAX_WAIT_MS / 1000 + self._owner.timeout_s
        pending.resolve(parked)

    def sweep(self, now: float) -> None:
        """Fail the requests whose local deadline has passed."""
        for pending in [p for p in self.waiting.values() if p.deadline <= now]:
            unsent = pending.id in self._queue
            self.abandon(pending)
            if unsent:
                pending.resolve(
                    not_ready(
                        f"shard {self.state.index} does not take its requests in time; this one never reached it",
                        shard=self.state.index,
                        outcome="not_done",
                    )
                )
                continue
            _log.warning("shard_silent", shard=self.state.index, request=pending.id)
            pending.resolve(
                not_ready(
                    f"shard {self.state.index} has not answered in time; the request may have taken effect, and will "
                    "not any more if it has not",
                    shard=self.state.index,
                    outcome="unknown",
                )
            )

    def end_parked(self) -> None:
        for pending in [p for p in self.waiting.values() if p.parked]:
            self.abandon(pending)
            pending.resolve(shutting_down())

    def fail(self, in_hand: Iterable[Sequence[int]] = ()) -> None:
        """Fail every waiter and end `run`. Idempotent. `in_hand` are the marks of the requests that the shard died
        over."""
        sent = [(self.waiting.get(ident), deadline_ns) for ident, deadline_ns in in_hand]
        died_over = [p.request for p, deadline_ns in sent if p is not None and p.request.deadline_ns == deadline_ns]
        self._owner.suspects.died(self.state.index, self.state.incarnation, died_over)
        self._closed = True
        self._queue.clear()
        self.scope.cancel()
        waiting, self.waiting = self.waiting, {}
        for pending in waiting.values():
            pending.resolve(
                not_ready(
                    f"shard {self.state.index} went away before it answered; the request may have taken effect",
                    shard=self.state.index,
                    outcome="unknown",
                )
            )


Read = Callable[[MessageSocket, Callable[[Group], object]], Awaitable[None]]
"""Passes the messages of a socket to a function until it is cancelled."""


class Links:
    """One link to each shard that is in one of `phases`. `update` follows the supervisor's reports, `run` serves them.

    `opened` is called with each new link once it accepts requests. `heard` is called for every packet from the current
    incarnation of a shard, with the shard's status and the replies, before they are delivered. `read` reads the
    sockets. `name` is the asker's (`proto.ipc.askers`).
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
    ) -> None:
        self.read = read
        self.name = name
        self.states = [ShardState(index) for index in range(shards)]
        self.timeout_s = timeout_s
        self.ids: Iterator[int] = count(1)
        self.suspects = Suspects()
        self.closing = False
        """True once `end_parked` was called: no request may stay parked."""
        self.opened = opened
        self.on_update: Callable[[], object] = lambda: None
        """Called after each `update`."""
        self._heard = heard
        self._probing = probing
        self._phases = frozenset(phases)
        self._links: list[Link | None] = [None] * shards
        self.updated = trio.Event()
        """Set, and replaced, at every report of the supervisor."""
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
                        if self._probing:
                            link.look(min(now - last, 2 * tick_s))
                    last = now
            finally:
                self._nursery = None

    def update(self, states: list[ShardState]) -> None:
        """Apply the states that the supervisor reports. A shard with a new endpoint gets a new link. The waiters of the
        old link fail, because no answer can reach them any more."""
        for state in states:
            self.states[state.index] = state
            link = self._links[state.index]
            if link is not None:
                if link.state.endpoint == state.endpoint and (state.phase in self._phases or state.phase == "stopping"):
                    link.state = state
                    continue
                self._links[state.index] = None
                link.fail(state.in_hand)
            if state.phase in self._phases and self._nursery is not None:
                fresh = self._links[state.index] = Link(self, state)
                self._nursery.start_soon(fresh.run)
        self.updated.set()
        self.updated = trio.Event()
        self.on_update()

    def heard(self, link: Link, status: Status, replies: list[Reply]) -> None:
        if link is self._links[link.state.index]:
            self._heard(link, status, replies)

    def open(self) -> Iterator[Link]:
        """The existing links."""
        return (link for link in self._links if link is not None)

    def current(self, index: int) -> Link | None:
        """The link to a shard in any phase, or None."""
        return self._links[index]

    def to(self, index: int) -> Link:
        """The link to a shard that accepts requests. Raises `503 not_ready` if the shard is not serving, or silent."""
        link = self._links[index]
        state = self.states[index]
        if link is None or state.phase not in self._phases:
            raise not_ready(
                f"shard {index} cannot start, and is tried again now and then; the service's log says why"
                if state.phase == "failed"
                else f"this machine is a standby: {state.holder} holds shard {index}"
                if state.phase == "standby" and state.holder
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
