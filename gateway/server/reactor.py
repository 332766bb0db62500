"""The reactor: one epoll set for all connections, and the coroutines that serve them.

A task per connection costs more than most requests. So trio's wait itself calls the reactor when the epoll set
becomes readable (`proto.process.waiting`). The reactor then takes a *turn* of plain calls. Each of its rounds polls
the set without waiting and resumes each connection that is ready, once. A turn ends when a round finds nothing, or
after `ROUNDS` of them. Then each shard gets one packet with all that the turn has for it: the more there is to do,
the larger the packets.

A connection is served by one coroutine (`proto.process.driven`). The reactor drives it through these states:

    state      it waits for               what happens          then
    QUEUED     its turn                   its turn comes        RUNNING
    RUNNING    nothing: it runs now       it wants input        READING
                                          it wants room         WRITING
                                          it waits for a reply  ASKING
                                          it wants a turn       QUEUED
                                          it wants a task       CARRIED
                                          another follows it    QUEUED
                                          it ends               OVER
    READING    input                      input                 RUNNING
    WRITING    room to send               room                  RUNNING
    ASKING     a shard's reply            the reply             QUEUED
    CARRIED    what its task waits for    it wants its driver   QUEUED
                                          another follows it    QUEUED
                                          it ends               OVER
    QUEUED, READING, WRITING and ASKING   it is to be stopped   QUEUED
                                          the server ends       OVER
    OVER       nothing

Whatever may come from outside a turn (a reply, a stop, a task that returns its coroutine) goes through `_queue`, the
only place that appends to the queue. It wakes the reactor if that sleeps, and the reactor never sleeps while the queue
has entries: so no connection that could run is forgotten.

The epoll set is level-triggered. A socket stays registered for input between requests. An event that its connection
does not wait for removes the socket from the set until the connection waits again: a client that sends ahead costs one
system call, not a turn after turn.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from enum import IntEnum, auto
from typing import Protocol

import structlog
import trio
from structlog.typing import FilteringBoundLogger

from proto.ipc.transport import Group, MessageSocket
from proto.process import waiting
from proto.process.driven import Driven, Want, carried, drive

MOST_EVENTS = 256
"""Sockets handled in one round."""
ROUNDS = 4
"""The most rounds of a turn, after which its packets leave and trio's tasks run."""

_log: FilteringBoundLogger = structlog.get_logger()


class DriveState(IntEnum):
    QUEUED = auto()
    RUNNING = auto()
    READING = auto()
    WRITING = auto()
    ASKING = auto()
    CARRIED = auto()
    OVER = auto()


class DriveEvent(IntEnum):
    TURN = auto()
    WANTS_INPUT = auto()
    WANTS_ROOM = auto()
    WAITS_FOR_REPLY = auto()
    WANTS_TURN = auto()
    WANTS_TASK = auto()
    ENDS = auto()
    INPUT = auto()
    ROOM = auto()
    REPLY = auto()
    WANTS_DRIVER = auto()
    GOES_ON = auto()
    STOP = auto()
    CLOSE = auto()


_FROM_OUTSIDE = {DriveEvent.STOP: DriveState.QUEUED, DriveEvent.CLOSE: DriveState.OVER}
MOVES: dict[DriveState, dict[DriveEvent, DriveState]] = {
    DriveState.QUEUED: {DriveEvent.TURN: DriveState.RUNNING, **_FROM_OUTSIDE},
    DriveState.RUNNING: {
        DriveEvent.WANTS_INPUT: DriveState.READING,
        DriveEvent.WANTS_ROOM: DriveState.WRITING,
        DriveEvent.WAITS_FOR_REPLY: DriveState.ASKING,
        DriveEvent.WANTS_TURN: DriveState.QUEUED,
        DriveEvent.WANTS_TASK: DriveState.CARRIED,
        DriveEvent.GOES_ON: DriveState.QUEUED,
        DriveEvent.ENDS: DriveState.OVER,
    },
    DriveState.READING: {DriveEvent.INPUT: DriveState.RUNNING, **_FROM_OUTSIDE},
    DriveState.WRITING: {DriveEvent.ROOM: DriveState.RUNNING, **_FROM_OUTSIDE},
    DriveState.ASKING: {DriveEvent.REPLY: DriveState.QUEUED, **_FROM_OUTSIDE},
    DriveState.CARRIED: {
        DriveEvent.WANTS_DRIVER: DriveState.QUEUED,
        DriveEvent.GOES_ON: DriveState.QUEUED,
        DriveEvent.ENDS: DriveState.OVER,
    },
    DriveState.OVER: {},
}
_AWAITED = {DriveState.READING: DriveEvent.INPUT, DriveState.WRITING: DriveEvent.ROOM}


class Stopped(BaseException):
    """Raised in a driven coroutine that is to end, as trio raises `Cancelled` in a task."""


class Served(Protocol):
    """A connection as the reactor sees it."""

    async def run(self) -> None:
        """Serve the connection. Handles all errors but `Stopped` and cancellation."""

    def following(self) -> Driven | None:
        """The coroutine to run after `run` or an earlier one; None at the end."""

    def close(self) -> None:
        """Close the connection's socket."""


class Drive:
    """One connection's coroutine and its state."""

    __slots__ = (
        "_context",
        "_coroutine",
        "_ended",
        "_error",
        "_mask",
        "_nursery",
        "_raw",
        "_reactor",
        "_scope",
        "_served",
        "state",
    )

    def __init__(
        self,
        reactor: Reactor,
        raw: socket.socket,
        served: Served,
        nursery: trio.Nursery,
        ended: Callable[[], object],
    ) -> None:
        """Serve a connection; call `ended` when its socket is closed. Tasks that carry the coroutine run in
        `nursery`."""
        self.state = DriveState.QUEUED
        self._reactor = reactor
        self._nursery = nursery
        self._raw = raw
        self._served = served
        self._ended = ended
        self._coroutine: Driven = served.run()
        self._context: Context = copy_context()
        """Holds the trace of the current request, as a task's context would."""
        self._error: Stopped | None = None
        """The exception that the coroutine gets when it is resumed next."""
        self._mask = 0
        """The events that the epoll set reports; 0 while the socket is not in the set."""
        self._scope: trio.CancelScope | None = None
        reactor.queue(self)

    def _move(self, event: DriveEvent) -> None:
        self.state = MOVES[self.state][event]

    def on_events(self, _: int) -> None:
        event = _AWAITED.get(self.state)
        if event is None:
            self._unwatch()
            return
        self._move(event)
        self._run()

    def on_turn(self) -> None:
        if self.state is DriveState.QUEUED:
            self._move(DriveEvent.TURN)
            self._run()

    def _on_reply(self) -> None:
        self._move(DriveEvent.REPLY)
        self._reactor.queue(self)

    def stop(self) -> None:
        """End the coroutine: with `Stopped`, or in a task by cancellation. Later code of the coroutine still runs."""
        if self.state is DriveState.CARRIED:
            if self._scope is not None:
                self._scope.cancel()
            else:
                self._error = Stopped()
            return
        if self.state is DriveState.OVER:
            return
        queued = self.state is DriveState.QUEUED
        self._error = Stopped()
        self._move(DriveEvent.STOP)
        if not queued:
            self._reactor.queue(self)

    def _run(self) -> None:
        error, self._error = self._error, None
        try:
            trap = self._context.run(drive, self._coroutine, error)
        except (StopIteration, Stopped):
            self._follow()
            return
        if trap is Want.INPUT:
            self._move(DriveEvent.WANTS_INPUT)
            if self._mask != select.EPOLLIN:
                self._watch(select.EPOLLIN)
        elif not isinstance(trap, Want):
            self._move(DriveEvent.WAITS_FOR_REPLY)
            trap.wakes(self._on_reply)
        elif trap is Want.ROOM:
            self._move(DriveEvent.WANTS_ROOM)
            if self._mask != select.EPOLLOUT:
                self._watch(select.EPOLLOUT)
        elif trap is Want.TURN:
            self._move(DriveEvent.WANTS_TURN)
            self._reactor.queue(self)
        else:
            assert trap is Want.TASK, trap
            self._move(DriveEvent.WANTS_TASK)
            self._unwatch()
            self._context.run(self._nursery.start_soon, self._carry)

    def _follow(self) -> None:
        """Begin the connection's next coroutine, or end."""
        following = self._served.following()
        if following is None:
            self._end()
            return
        self._coroutine = following
        self._move(DriveEvent.GOES_ON)
        self._reactor.queue(self)

    async def _carry(self) -> None:
        """Run the coroutine inside this task until it ends or wants its driver again."""
        back = False
        try:
            with trio.CancelScope() as self._scope:
                if self._error is not None:
                    self._scope.cancel()
                back = await carried(self._coroutine)
        except BaseException:
            self._end()
            raise
        self._error = Stopped() if back and self._scope.cancel_called else None
        self._scope = None
        if not back:
            self._follow()
            return
        self._context = copy_context()
        self._move(DriveEvent.WANTS_DRIVER)
        self._reactor.queue(self)

    def _watch(self, mask: int) -> None:
        try:
            if self._mask:
                self._reactor.epoll.modify(self._raw, mask)
            else:
                self._reactor.watch(self._raw.fileno(), mask, self.on_events)
        except OSError as error:  # the kernel limits the sockets that a user's sets may have
            _log.warning("connection_not_watched", error=str(error))
            self.close()
        else:
            self._mask = mask

    def _unwatch(self) -> None:
        if self._mask:
            self._reactor.unwatch(self._raw.fileno())
            self._mask = 0

    def _end(self, event: DriveEvent = DriveEvent.ENDS) -> None:
        self._unwatch()
        self._move(event)
        self._served.close()
        self._ended()

    def close(self) -> None:
        """End the coroutine at once, because the server ends. A task ends its coroutine itself."""
        if self.state not in (DriveState.CARRIED, DriveState.OVER):
            self._context.run(self._coroutine.close)
            self._end(DriveEvent.CLOSE)


class Reader:
    """A socket to a shard, which has its turn whenever it may have messages."""

    __slots__ = ("_handle", "_queued", "_reactor", "ended", "source")

    def __init__(self, reactor: Reactor, source: MessageSocket, handle: Callable[[Group], object]) -> None:
        self.source = source
        self._reactor = reactor
        self._handle = handle
        self._queued = False
        self.ended = False
        """Whether the socket may be closed. The queue may still have the reader then."""

    def wake(self) -> None:
        if not self._queued:
            self._queued = True
            self._reactor.queue(self)

    def on_turn(self) -> None:
        self._queued = False
        if not self.ended:
            self.on_events()

    def on_events(self, _: int = 0) -> None:
        if group := self.source.take():
            self._handle(group)


class Turning(Protocol):
    def on_turn(self) -> None: ...


class Reactor:
    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._queue: deque[Turning] = deque()
        self._readers: list[Reader] = []
        waiter = waiting.current()
        assert waiter is not None
        self._waiter = waiter
        self._asleep = False
        """Whether the next entry of the queue has to ask for a turn."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take turns until cancelled."""
        task_status.started()
        await waiting.serve(self.epoll.fileno(), self._turn)

    async def read(self, source: MessageSocket, handle: Callable[[Group], object]) -> None:
        """Call `handle` in the turns of the reactor with the messages of a socket to a shard, until cancelled."""
        reader = Reader(self, source, handle)
        source.on_input = reader.wake
        self._readers.append(reader)
        self.watch(source.descriptor, select.EPOLLIN, reader.on_events)
        reader.wake()
        try:
            await trio.sleep_forever()
        finally:
            reader.ended = True
            source.on_input = lambda: None
            self._readers.remove(reader)
            self.unwatch(source.descriptor)

    def queue(self, each: Turning) -> None:
        """Have the next turn, or the rest of this one, call `each.on_turn`."""
        self._queue.append(each)
        if self._asleep:
            self._asleep = False
            self._waiter.again(self.epoll.fileno())

    def watch(self, descriptor: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler` in each round in which `descriptor` is ready."""
        self.epoll.register(descriptor, mask)
        self._handlers[descriptor] = handler

    def unwatch(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self.epoll.unregister(descriptor)

    def _turn(self) -> bool:
        """Take a turn. Returns True if there is more to do."""
        self._asleep = False
        for _ in range(ROUNDS):
            if not self._round():
                break
        for reader in self._readers:
            if reader.source.flush():
                reader.wake()
        self._asleep = not self._queue
        return not self._asleep

    def _round(self) -> bool:
        """Resume what is ready, once. Returns False if nothing was."""
        ready = self.epoll.poll(0, MOST_EVENTS)
        handlers, queue = self._handlers, self._queue
        for descriptor, events in ready:
            handler = handlers.get(descriptor)
            if handler is not None:  # an earlier handler of this round may have removed it
                handler(events)
        queued = len(queue)
        for _ in range(queued):
            queue.popleft().on_turn()
        return bool(ready) or queued > 0
