"""Link: the connection to one incarnation of a shard, and the requests that wait for its replies.

`proto.ipc.links` has those to all shards.

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
from typing import TYPE_CHECKING, Any, Generic, Protocol

import structlog
import trio
from structlog.typing import FilteringBoundLogger

from proto.ipc.control import ShardState
from proto.ipc.message import Cancel, NoMore, Parked, Reply, Request, Status, Taken
from proto.ipc.operations import Operation, Ping
from proto.ipc.send_window import SMALL_BYTES, Window
from proto.ipc.suspects import Suspects
from proto.ipc.transport import Group, MessageSocket
from proto.model.errors import TopicsError, moving, not_ready, shutting_down
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
        """Stop waiting and cancel the request. A reply that nothing has taken yet counts as one that cannot be
        delivered. Does nothing once the reply was taken."""
        self._callback = None
        if isinstance(self._outcome, Reply):
            # It came after the wait was cancelled.
            self._outcome = None
            self.take_back()
        self.link.abandon(self)

    def take_back(self) -> None:
        """Cancel a request whose reply has come but cannot be delivered, so that the shard takes back what it gave."""
        self.link.cancel(self.id)


Read = Callable[[MessageSocket, Callable[[Group], object]], Awaitable[None]]
"""Passes the messages of a socket to a function until it is cancelled."""


class Owner(Protocol):
    """All links of a process: `proto.ipc.links`."""

    name: str
    timeout_s: float
    ids: Iterator[int]
    suspects: Suspects
    unknown: dict[int, list[Request]]
    closing: bool
    read: Read

    def opened(self, link: Link) -> object: ...

    def ended(self) -> object: ...

    def heard(self, link: Link, status: Status, replies: list[Reply]) -> None: ...


class Link:
    """The connection to one incarnation of one shard."""

    up = False
    """Whether it reaches a shard that another machine holds."""
    ended = False
    """Whether the shard was given away, and gets no more requests by this link."""

    def __init__(self, owner: Owner, state: ShardState) -> None:
        self.state = state
        self.waiting: dict[int, Pending] = {}
        self.scope = trio.CancelScope()
        self._owner = owner
        self._socket = self._made_socket()
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
        self._ahead_ns = 0
        """By how much the shard's CLOCK_MONOTONIC is ahead of this machine's."""

    @property
    def life(self) -> int | str:
        """As `proto.ipc.links.Links.life`."""
        return self.state.incarnation

    def _made_socket(self) -> MessageSocket:
        return MessageSocket.dealer(self.state.endpoint, self._owner.name)

    def serves(self, state: ShardState, phases: frozenset[str]) -> bool:
        """Whether this link is the one for a shard in this state."""
        return self.state.endpoint == state.endpoint and (state.phase in phases or state.phase == "stopping")

    def ask(self, operation: Operation[A], topic: str, body: bytes, deadline_ns: int = 0) -> Pending[A]:
        """Send a request. `deadline_ns` is an earlier deadline that it has, 0 for none."""
        if self._owner.suspects:
            self._owner.suspects.check(self.state.index, operation, topic, body)
        ident = next(self._owner.ids)
        timeout_s = self._owner.timeout_s
        now = time.monotonic()
        own_ns = int((now + timeout_s - min(timeout_s / 5, _GRACE_S)) * 1e9)
        until_ns = max(min(deadline_ns or own_ns, own_ns) + self._ahead_ns, 1)
        request = Request(ident, operation, topic, body, trace.current(), until_ns)
        pending: Pending[A] = Pending(self, request, now + timeout_s)
        if self.ended:
            pending.resolve(Reply(ident, error=moving(self.state.index)))
            return pending
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
            if packet.status.given and not self.ended:
                self._stop_asking()
            for message in packet.messages:
                if isinstance(message, Reply):
                    self._end(message)
                elif isinstance(message, Parked):
                    self._park(message)
        self._tell_taken()
        self._hand_over_more()

    def _stop_asking(self) -> None:
        """The shard is given away: send no more requests, and say so when what was sent has been read. The answer to a
        ping shows that: refusals of what came before it have arrived, too. Requests that wait for their window, and
        later ones, are refused here, as the shard would."""
        ping = Request(next(self._owner.ids), Ping())
        read = self.waiting[ping.id] = Pending(self, ping, time.monotonic() + self._owner.timeout_s)
        read.then(self._say_no_more)
        self._socket.send(ping)
        self._take_no_more()

    def _take_no_more(self) -> None:
        self.ended = True
        self._owner.ended()
        unsent, self._queue = self._queue, {}
        for ident in unsent:
            pending = self.waiting.pop(ident, None)
            if pending is not None:
                pending.resolve(Reply(ident, error=moving(self.state.index)))

    def _say_no_more(self, outcome: Outcome) -> None:
        if isinstance(outcome, Reply):
            self._socket.send(NoMore())

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
                self._give_up(pending, "does not take its requests in time; this one never reached it", "not_done")
                continue
            _log.warning("shard_silent", shard=self.state.index, request=pending.id)
            self._give_up(
                pending,
                "has not answered in time; the request may have taken effect, and will not any more if it has not",
                "unknown",
            )

    def _give_up(self, pending: Pending, why: str, outcome: str) -> None:
        """End a request with `503`. `why` follows the number of the shard."""
        index = self.state.index
        pending.resolve(not_ready(f"shard {index} {why}", shard=index, outcome=outcome))

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
        unsent, self._queue = self._queue, {}
        self.scope.cancel()
        waiting, self.waiting = self.waiting, {}
        for pending in waiting.values():
            if pending.id in unsent:
                self._give_up(pending, "went away before the request was sent", "not_done")
            else:
                why = "went away before it answered; the request may have taken effect"
                self._give_up(pending, why, "unknown")
