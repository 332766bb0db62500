"""The server: a shard's socket, and the event loop that serves it.

The loop takes all messages that have arrived as one group, handles them, writes them to the log with one system call,
and answers them. The busier the shard, the larger the groups.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec
import structlog
import trio

from proto.ipc.askers import Census, machine_of
from proto.ipc.in_hand import InHand, Mark
from proto.ipc.message import Cancel, Message, NoMore, Reply, Request, Status, Taken
from proto.ipc.remote import RemoteRouter
from proto.ipc.transport import Group, MessageSocket
from proto.model.errors import MOVING, TopicsError, not_renewed
from proto.model.limits import Limits
from proto.model.memory_shares import window
from proto.process import trace
from proto.process.allocator import trim_heap
from proto.process.faults import faults
from proto.process.garbage_collector import search
from shardd.delivery.pressure import SAMPLE_INTERVAL
from shardd.process.reply_queue import Replies
from shardd.shard import Shard

CHECKPOINT_RETRY = 5.0
ROOM_RETRY = 1.0
"""Seconds between checkpoints that are made because the disk is nearly full."""
MAINTENANCE_INTERVAL = 10.0
"""Seconds."""
DIED_OVER_S = 60.0
"""For how long a shard tells other machines what its last process died over."""
DISMISS_S = 5.0
"""For so long at most the process of a shard that was given away waits for its askers."""
LATE_S = 2.0
"""It does not wait for one on another machine that has sent nothing for so long, not even a ping."""
LOOK_S = 0.1
"""Seconds between two looks for such askers."""
UNHEARD_S = 5.0
"""An asker on another machine that has sent nothing for so long is gone. It sends a ping each second."""
_Result = TypeVar("_Result")
_Respond = Callable[[Message], None]
log = structlog.get_logger()


class Server:
    def __init__(
        self,
        shard: Shard,
        socket: MessageSocket,
        limits: Limits,
        shards: int = 1,
        serving: Callable[[], bool] | None = None,
        in_hand: InHand | None = None,
        census: Census | None = None,
        remote: RemoteRouter | None = None,
        died_over: Sequence[Mark] = (),
    ) -> None:
        """One of `shards`. `serving` says at each moment whether requests may be answered; None: always. `remote` hears
        the askers of other machines, who hear what the last process of this shard `died_over`."""
        self._shard = shard
        self._in_hand = in_hand or InHand()
        self._memory_bytes, self._shards = limits.memory_bytes, shards
        self._interval = limits.checkpoint_interval_ms / 1000
        self._socket = socket
        socket.status = shard.status if serving is None else partial(_status_if, serving, shard.status)
        self._remote = remote
        if remote is not None:
            remote.status = self._remote_status
            self._died_over = tuple(died_over)
        send = self._send if remote is None else self._send_either
        if serving is not None:
            send = partial(_send_if, serving, send)
            shard.staging.serving = serving
        self._census = census or Census({})
        self._census.changed = self._reported
        self._responds: dict[bytes, _Respond] = {}
        """How to answer each asker."""
        self._replies = Replies(send, self._window(), time.monotonic, self._census.gone)
        self._deferred: dict[bytes, deque[Request]] = {}
        """Requests of askers whose reply window is full, in order."""
        self._dismissed: set[bytes] | None = None
        """Askers that send no more, once the shard is given away."""
        self._fewer = trio.Event()
        self._patience_s = limits.request_timeout_ms / 1000
        shard.window = self._replies.most
        shard.reads.full = self._replies.full
        self._earlier = trio.Event()
        self._enough = trio.Event()
        shard.control.wanted = self._want_checkpoint
        shard.scheduler.more = self._look_again

    def _window(self) -> int:
        return window(self._memory_bytes, self._shards, self._census.gateways)

    def _look_again(self) -> None:
        self._earlier.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shard.commits.run)
            nursery.start_soon(self._deliver)
            nursery.start_soon(self._checkpoint)
            nursery.start_soon(self._maintain)
            nursery.start_soon(self._sample)
            nursery.start_soon(self._socket.read, self._handle)
            if self._remote is not None:
                nursery.start_soon(self._remote.read, self._handle)
                nursery.start_soon(self._forget_lost, self._remote)
            task_status.started()

    def _send(self, message: Message, peer: bytes, socket: MessageSocket | None = None) -> int:
        """Send a message. If it is a reply that cannot be encoded, its asker gets `500`; its change was made. Returns
        the bytes of its body, as do all that send."""
        socket = socket or self._socket
        try:
            socket.send(message, peer)
        except Exception:
            socket.send(Reply(message.id, error=faults.failed("reply", outcome="unknown")), peer)
            return 0
        return len(message.body)

    def _send_either(self, message: Message, peer: bytes) -> int:
        return self._send(message, peer, self._socket_of(peer))

    def _socket_of(self, peer: bytes) -> MessageSocket:
        return self._remote if self._remote is not None and machine_of(peer) else self._socket

    def _handle(self, group: Group) -> None:
        for peer, packet in group:
            respond = self._responds.get(peer) or self._met(peer)
            if respond is None:
                continue
            for message in packet.messages:
                if isinstance(message, Request):
                    self._take(message, peer, respond)
                elif isinstance(message, Cancel):
                    self._cancel(message.id, peer, respond)
                elif isinstance(message, Taken):
                    self._taken(message.id, peer, respond)
                elif isinstance(message, NoMore):
                    self._sends_no_more(peer)
        self._settle()

    async def dismiss(self) -> None:
        """Tell all askers that the shard, which refuses requests, is given away, and wait until each has said that it
        sends no more. Then it knows that what it sent before was refused: nothing is lost with the socket. An asker
        that says nothing is waited for no longer than `DISMISS_S`, and one whose machine may be lost for less: until
        this process has ended, its machine does not follow the next holder."""
        self._dismissed = set()
        self._shard.given = True
        deferred, self._deferred = self._deferred, {}
        for peer, respond in self._responds.items():
            self._socket_of(peer).tell_status(peer)
            for each in deferred.get(peer, ()):
                self._take(each, peer, respond)
        with trio.move_on_after(DISMISS_S):
            while self._undismissed():
                self._fewer = trio.Event()
                with trio.move_on_after(LOOK_S):
                    await self._fewer.wait()
            return
        log.warning("askers_not_dismissed", askers=[peer.decode() for peer in self._undismissed()])

    def _undismissed(self) -> set[bytes]:
        late = set() if self._remote is None else self._remote.silent(LATE_S)
        return self._responds.keys() - (self._dismissed or set()) - late

    def _sends_no_more(self, peer: bytes) -> None:
        if self._dismissed is not None:
            self._dismissed.add(peer)
            self._fewer.set()
        elif machine_of(peer):
            self._census.lost(peer)
            self._reported()

    def _settle(self) -> None:
        """Write what requests staged, and answer them."""
        self._in_hand.end()
        self._shard.flush()
        self._in_hand.clear()

    def _taken(self, size: int, peer: bytes, respond: _Respond) -> None:
        """Continue with an asker that has taken `size` bytes, if it was full and no longer is."""
        if self._replies.taken(peer, size):
            for each in self._deferred.pop(peer, ()):
                self._take(each, peer, respond)
            self._shard.reads.window_free(peer)

    def _reported(self) -> None:
        """The supervisor has reported which askers are gone, and which gateways there are."""
        self._forget_gone()
        if self._window() != self._replies.most:
            self._divide()

    def _divide(self) -> None:
        """Use another size of windows from now on, and state it to each asker. See `proto.ipc.send_window`."""
        self._shard.window = self._replies.most = self._window()
        for peer, respond in self._responds.items():
            self._socket_of(peer).tell_status(peer)
            self._taken(0, peer, respond)
        self._settle()

    def _met(self, peer: bytes) -> _Respond | None:
        """How to answer an asker that sends for the first time. None if it is gone: what it left in the socket counts
        no more."""
        if self._census.gone(peer):
            if self._remote is not None and machine_of(peer):
                self._remote.tell_over(peer)  # it lives, and may ask again by another link
            return None
        if machine_of(peer):
            self._census.met(peer)
        respond = self._responds[peer] = partial(self._replies.send, peer)
        return respond

    def _forget_gone(self) -> None:
        """Drop what is kept for askers that are gone, and what they had asked for and not got."""
        gone = [peer for peer in self._responds if self._census.gone(peer)]
        for peer in gone:
            del self._responds[peer]
            deferred = self._deferred.pop(peer, ())
            self._replies.forget(peer)
            self._shard.forget(peer)
            log.info("asker_gone", asker=peer.decode(), deferred=len(deferred))
        if gone:
            self._shard.flush()
            self._fewer.set()

    def _remote_status(self) -> Status:
        return msgspec.structs.replace(self._socket.status(), clock_ns=time.monotonic_ns(), died_over=self._died_over)

    async def _forget_lost(self, remote: RemoteRouter) -> None:
        told_until = time.monotonic() + DIED_OVER_S
        while True:
            await trio.sleep(1)
            if time.monotonic() > told_until:
                self._died_over = ()
            lost = remote.forget_lost(UNHEARD_S)
            for peer in lost:
                self._census.lost(peer)
            if lost:
                self._reported()

    def _take(self, request: Request, peer: bytes, respond: _Respond) -> None:
        if self._dismissed is None and (peer in self._deferred or self._replies.full(peer)):
            self._deferred.setdefault(peer, deque()).append(request)
            return
        self._in_hand.take(request)
        if request.traceparent:
            self._handle_traced(request, peer, respond)
        else:
            self._shard.handle(request, peer, respond)

    def _cancel(self, ident: int, peer: bytes, respond: _Respond) -> None:
        """Cancel a request. A deferred one is answered: its bytes count in the send window of its asker until then."""
        deferred = self._deferred.get(peer, ())
        kept = deque(each for each in deferred if each.id != ident)
        if len(kept) < len(deferred):
            self._deferred[peer] = kept
            respond(Reply(ident))
        self._shard.cancel(peer, ident)

    def _handle_traced(self, request: Request, peer: bytes, respond: _Respond) -> None:
        trace.begin(request.traceparent)
        try:
            log.debug("request", op=request.op, id=request.id)
            self._shard.handle(request, peer, respond)
        finally:
            trace.begin("")

    async def _deliver(self) -> None:
        """Make deliveries that are due by time and not after a group of requests: parked reads whose wait is over,
        deliveries held back to gather records, and those that did not fit into one slice."""
        while True:
            self._earlier = trio.Event()
            due = self._shard.next_due
            with contextlib.ExitStack() as stack:
                if due is not None:
                    stack.enter_context(trio.move_on_after(max(due - self._shard.monotonic(), 0)))
                await self._earlier.wait()
            self._shard.deliver()

    async def _maintain(self) -> None:
        while True:
            await trio.sleep(MAINTENANCE_INTERVAL)
            self._shard.maintain()
            for peer in self._replies.forget_silent(self._patience_s):
                log.warning("asker_forgotten", deferred=len(self._deferred.pop(cast(bytes, peer), ())))
            await trio.to_thread.run_sync(trim_heap)

    def _want_checkpoint(self) -> None:
        self._enough.set()

    async def _sample(self) -> None:
        while True:
            due = trio.current_time() + SAMPLE_INTERVAL
            await trio.sleep_until(due)
            self._shard.sample(trio.current_time() - due)

    async def _checkpoint(self) -> None:
        """Make checkpoints until cancelled, when enough was logged or enough time has passed. A failed one is repeated
        after a pause."""
        shard = self._shard
        while True:
            with trio.move_on_after(self._interval):
                await self._enough.wait()
            self._enough = trio.Event()
            if not shard.control.worth:
                continue
            plan = await in_slices(shard.control.planning())
            start = time.monotonic()
            try:
                await trio.to_thread.run_sync(shard.checkpoints.writer.write, plan)
            except OSError as error:
                log.error("checkpoint_failed", reason=str(error))
                await _to_the_end(shard.control.ending(plan, error))
                await trio.sleep(ROOM_RETRY if shard.space.low else CHECKPOINT_RETRY)
                self._enough.set()
                continue
            await _to_the_end(shard.control.ending(plan))
            for path, problem in plan.not_moved:
                log.error("segment_not_moved", path=str(path), reason=str(problem))
            search(len(shard.directory.visible))
            await trio.to_thread.run_sync(trim_heap)
            log.info(
                "checkpoint_made",
                number=plan.number,
                bytes=plan.written_bytes,
                ms=round((time.monotonic() - start) * 1000),
            )
            if shard.control.may_free_space:
                await trio.sleep(ROOM_RETRY)
                self._enough.set()


def _send_if(serving: Callable[[], bool], send: Callable[[Message, bytes], int], message: Message, peer: bytes) -> int:
    """Send a reply if this machine may answer at this moment, else a refusal. What was refused because the shard moves,
    or may not answer, was not done in any case."""
    if isinstance(message, Reply) and not _undone(message.error) and not serving():
        message = Reply(message.id, error=not_renewed("unknown"))
    return send(message, peer)


def _undone(error: TopicsError | None) -> bool:
    detail = None if error is None else error.detail
    return detail is not None and (detail.get("reason") == MOVING or detail == not_renewed("not_done").detail)


def _status_if(serving: Callable[[], bool], status: Callable[[], Status]) -> Status:
    return status() if serving() else msgspec.structs.replace(status(), silent=True)


async def in_slices(slices: Generator[None, None, _Result]) -> _Result:
    """Run all slices, and let other tasks run in between. Returns the generator's result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _Result = end.value
            return result
        await trio.lowlevel.checkpoint()


async def _to_the_end(slices: Generator[None, None, None]) -> None:
    """Run all slices as `in_slices`, also when cancelled: they must be complete before the next checkpoint."""
    with trio.CancelScope(shield=True):
        await in_slices(slices)
