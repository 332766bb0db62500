"""The client of the shards: which of them serve, and requests to one or all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import trio

from gateway.http.messages import ClientGone
from gateway.shards.moves import Moves
from proto.ipc.control import HELD_ELSEWHERE, Cluster, ShardState
from proto.ipc.link import ANSWERS_S, Link, Pending, Read
from proto.ipc.links import Links
from proto.ipc.message import Reply, Status
from proto.ipc.operations import Operation, Stats
from proto.ipc.transport import MessageSocket
from proto.model.errors import TopicsError, is_passing
from proto.model.names import shard_of
from proto.process.driven import in_task

A = TypeVar("A")


class Shards:
    """All shards. `run` serves the links. A shard is not `serving` until its link has received a reply from it."""

    def __init__(
        self,
        shards: int,
        request_timeout_ms: int,
        read: Read = MessageSocket.read,
        name: str = "",
        cluster: Cluster | None = None,
    ) -> None:
        self.machine = "" if cluster is None else cluster.member
        """The name of this machine, if the service has several."""
        self.machines = [] if cluster is None else cluster.known
        """All machines that the service has, or had."""
        self.counters = [(0, 0, 0)] * shards
        self.quarantined = [0] * shards
        """Topics that each shard has quarantined because their files cannot be read."""
        self.disk_full = [False] * shards
        """For each shard, whether its latest packet said that its disk is nearly full."""
        self.silent = [False] * shards
        """For each shard, whether its latest packet said that it may not answer."""
        self.bucket_damaged = [0] * shards
        """Objects of each shard's bucket that are known to be damaged or missing."""
        self.links = Links(
            shards,
            request_timeout_ms / 1000,
            opened=_greet,
            heard=self._heard_from,
            probing=True,
            read=read,
            name=name,
            cluster=cluster,
        )
        self._heard: list[Link | None] = [None] * shards
        self._elsewhere = [b""] * shards
        self._moves = Moves(self.links)
        self.links.on_update = self._moves.look
        self.complete = trio.Event()
        """Set once all shards, except those that cannot start, have served at the same time."""
        self.run = self.links.run
        self.end_parked = self.links.end_parked
        self.elsewhere = self.links.elsewhere

    def update(self, states: list[ShardState]) -> None:
        """Take over the states that the supervisor sent."""
        self.links.update(states)
        for state in states:
            holder = state.holder if state.phase in HELD_ELSEWHERE else ""
            is_url = holder.isascii() and holder.isprintable() and "://" in holder
            self._elsewhere[state.index] = holder.encode() if is_url else b""
        self._look_whether_complete()

    def _look_whether_complete(self) -> None:
        serving = [state.index for state in self.states if self.serving(state.index)]
        if serving and all(state.index in serving or state.phase == "failed" for state in self.states):
            self.complete.set()

    @property
    def states(self) -> list[ShardState]:
        return self.links.states

    def _heard_from(self, link: Link, status: Status, replies: list[Reply]) -> None:
        index = link.state.index
        self.counters[index] = (status.topics, status.records, status.bytes)
        self.quarantined[index] = status.quarantined
        self.disk_full[index] = status.disk_full
        self.silent[index] = status.silent
        self.bucket_damaged[index] = status.bucket_damaged
        if link is not self._heard[index]:
            self._heard[index] = link
            self._look_whether_complete()
            self._moves.heard(index)
            self._moves.look()

    def holder(self, index: int) -> str:
        """Where clients reach the machine that holds a shard, if the service has several; "" if it is not known."""
        state = self.states[index]
        if state.phase in HELD_ELSEWHERE or state.phase == "open":
            return state.holder
        own = next((each.address for each in self.machines if each.name == self.machine), "")
        return own if state.phase == "ready" else ""

    def holder_elsewhere(self, topic: str) -> bytes:
        """Where clients reach the machine that holds a topic, if it is another one that is known; else nothing."""
        return self._elsewhere[self.index_of(topic)]

    def serving(self, index: int) -> bool:
        link = self.links.current(index)
        return link is not None and link is self._heard[index] and (link.up or self.states[index].phase == "ready")

    def answering(self, index: int) -> bool:
        """Whether the shard serves and has left no request unanswered for `ANSWERS_S`."""
        link = self.links.current(index)
        return self.serving(index) and (link is None or link.silent_s < ANSWERS_S)

    @property
    def ready(self) -> bool:
        return all(map(self.answering, range(len(self.states))))

    @property
    def partly_ready(self) -> bool:
        """Whether clients may use this machine though shards are away, as no other machine reaches these better: it is
        one of several, has reached all shards, and reaches any now."""
        reached = (self.answering(index) and not self.silent[index] for index in range(len(self.states)))
        return self.links.cluster is not None and self.complete.is_set() and any(reached)

    @property
    def counted(self) -> list[tuple[int, int, int]]:
        """`counters` of the shards that this machine holds, and 0 for the others."""
        return [(0, 0, 0) if self.elsewhere(index) else each for index, each in enumerate(self.counters)]

    def index_of(self, topic: str) -> int:
        """The shard that owns a topic."""
        return shard_of(topic, len(self.states))

    def returns(self, index: int) -> bool:
        """Whether a shard that has served is being started again or moves."""
        return self._moves.away(index)

    async def returned(self, index: int) -> None:
        """Wait, as long as `gateway.shards.moves` says, until a shard that returns serves. A request that was not sent
        may wait for it."""
        await in_task()
        await self._moves.over(index, trio.current_time())

    def ask(self, index: int, operation: Operation[A], topic: str = "", body: bytes = b"") -> Pending[A]:
        """Send a request to a shard without waiting. The caller must `wait` for the result or `abandon` it. Raises
        `503`."""
        return self.links.to(index).ask(operation, topic, body)

    async def ask_all(self, operation: Operation[A]) -> list[Reply[A]]:
        """Send a request to every shard and return the replies, as `ask_each`."""
        return await self.ask_each(dict.fromkeys(range(len(self.states)), operation))

    async def ask_each(self, operations: Mapping[int, Operation[A]]) -> list[Reply[A]]:
        """Send each shard its request and return the replies, in the same order. Waits for shards that return. Raises
        `503` unless all serve then, and the error of a reply."""
        pending: list[Pending[A]] = []
        for index in operations:
            if self.returns(index):
                await self.returned(index)
        try:
            for index, operation in operations.items():
                pending.append(self.ask(index, operation))
            replies = [await each.reply() for each in pending]
        except BaseException:
            for each in pending:
                each.abandon()
            raise
        for at, (index, operation) in enumerate(operations.items()):
            if is_passing(replies[at].error, index):
                self._moves.refused(index)
                replies[at] = await self.ask_one(index, operation)
        return [reply.checked() for reply in replies]

    async def ask_serving(self, operation: Operation[A], replies: dict[int, Reply[A]], *, here: bool = False) -> None:
        """Send a request to every shard that serves, and put the replies into `replies`, by shard. A shard that stops
        serving meanwhile has none. `here`: only to those that this machine holds."""
        pending: list[tuple[int, Pending[A]]] = []
        try:
            for index in range(len(self.states)):
                if self.serving(index) and not (here and self.elsewhere(index)):
                    with contextlib.suppress(TopicsError):  # it has been silent for long
                        pending.append((index, self.ask(index, operation)))
            for index, each in pending:
                with contextlib.suppress(TopicsError):
                    replies[index] = await each.reply()
        finally:
            for _, each in pending:
                each.abandon()

    async def call(
        self,
        operation: Operation[A],
        topic: str,
        body: bytes = b"",
        gone: Callable[[], Awaitable[None]] | None = None,
        parked: Callable[[], None] | None = None,
    ) -> Reply[A]:
        """Ask the topic's shard and return its reply, which may hold an error.

        `gone` returns when the client leaves. It runs only while the shard has the request parked; `parked` is called
        before that. Waits for a shard that returns, and sends what was not carried out again. Raises `503` when the
        shard does not serve, vanishes or stays silent, and `ClientGone`.

        With `parked`, a request that was parked and then refused by a shard that moves is not sent again: the reply has
        that error when the shard serves elsewhere.
        """
        return await self.ask_one(self.index_of(topic), operation, topic, body, gone, parked)

    async def ask_one(
        self,
        index: int,
        operation: Operation[A],
        topic: str = "",
        body: bytes = b"",
        gone: Callable[[], Awaitable[None]] | None = None,
        parked: Callable[[], None] | None = None,
    ) -> Reply[A]:
        """As `call`, of any shard."""
        moves, since = self._moves, 0.0
        while True:
            if moves.away(index):
                await in_task()
                since = since or trio.current_time()
                await moves.over(index, since)
            pending = self.links.to(index).ask(operation, topic, body)
            was_parked = False
            try:
                outcome = await pending.wait()
                if isinstance(outcome, Reply):
                    reply = outcome
                else:
                    was_parked = True
                    await in_task()
                    if parked is not None:
                        parked()
                    reply = await pending.reply() if gone is None else await self._watched(pending, gone)
            except BaseException as error:
                pending.abandon()
                replaced = pending.link is not self.links.current(index)
                if isinstance(error, TopicsError) and _unsent(error) and (replaced or moves.away(index)):
                    since = since or trio.current_time()
                    if moves.patient(index, since):
                        continue
                raise
            if not is_passing(reply.error, index):
                moves.taken(index)
                return reply
            await in_task()
            since = since or trio.current_time()
            if pending.link is self.links.current(index):  # else there is another one already
                moves.refused(index)
            if was_parked and parked is not None:
                await moves.over(index, since)
                return reply
            if not moves.patient(index, since):
                return reply

    async def _watched(self, pending: Pending[A], gone: Callable[[], Awaitable[None]]) -> Reply[A]:
        reply: Reply[A] | TopicsError | None = None
        left = False
        async with trio.open_nursery() as nursery:

            async def until_gone() -> None:
                nonlocal left
                await gone()
                left = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_gone)
            try:
                reply = await pending.reply()
            except TopicsError as error:
                reply = error  # raised later, because the nursery would wrap it in a group
            nursery.cancel_scope.cancel()
        if left:
            if reply is not None:  # the client left as the reply came: its jobs must not stay leased
                pending.take_back()
            raise ClientGone
        assert reply is not None
        if isinstance(reply, TopicsError):
            raise reply
        return reply


def _unsent(error: TopicsError) -> bool:
    return error.detail is not None and error.detail.get("outcome") == "not_done"


def _greet(link: Link) -> None:
    # Any packet carries the status, and only a shard that has replied counts as serving. If it cannot be asked, the
    # answer to a ping will do: an error here would end all links.
    with contextlib.suppress(TopicsError):
        link.ask(Stats(), "", b"")
