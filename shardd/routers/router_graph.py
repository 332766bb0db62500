"""The router graph: the routers of all shards, as the registrar knows them (`shardd.routers.registrar`).

It is read from the shards at the first use, and again after a shard has been restarted, after a change has ended in an
unknown state, and before a router is refused because of others. A request that changes a router has the turn, so what
is known changes only with the turn. Only a router whose source is gone is removed by its shard itself. If two have one
name, because a change was interrupted, the reading deletes the older one.

A reading also ends the changes before it, of this registrar and of an earlier one, that may still be on their way:

    in a socket, or waiting for a checkpoint    refused, because they rest on an earlier reading
    staged, and waiting for a sync              waited for, before the shard answers
    made                                        in the answer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from proto.ipc.message import Reply
from proto.ipc.operations import Operation, Reading, RouterDelete, RouterGraph
from proto.model.errors import ErrorCode, TopicsError, is_passing, not_ready
from proto.model.router import RouterConfig, from_map

A = TypeVar("A")

ASK_AGAIN_S = 0.1
"""Seconds between two requests to a shard that moves."""
UNCERTAIN = (ErrorCode.NOT_READY, ErrorCode.INTERNAL)
"""Errors after which a change may or may not have been made."""


class Asking(Protocol):
    """All shards, this one included: see `shardd.process.peers`."""

    @property
    def lives(self) -> tuple[int | str, ...]: ...

    @property
    def epoch(self) -> int: ...

    def index_of(self, topic: str) -> int: ...

    async def returned(self, index: int) -> None: ...

    async def request(
        self, index: int, operation: Operation[A], topic: str, body: bytes = b"", deadline_ns: int = 0
    ) -> Reply[A]: ...


@dataclass(frozen=True, slots=True)
class Known:
    config: RouterConfig
    made_ms: int


class Graph:
    def __init__(self, peers: Asking, timeout_s: float) -> None:
        """`timeout_s` is the longest time that a shard may take to answer, this one too."""
        self._peers = peers
        self._timeout_s = timeout_s
        self.turn = trio.Lock()
        """Held by the request that changes a router."""
        self._known: dict[str, Known] | None = None
        """None: it has to be read. Only a request with the turn sets or changes it; any may forget it."""
        self._seen: dict[str, Known] = {}
        """The graph when all shards were last read."""
        self._lives: tuple[int | str, ...] = ()
        self.reading: Reading = (0, 0)
        """The last reading. A change of a router names the one that it rests on, and a shard that was asked for a later
        one refuses it. So no change of an earlier time that waits somewhere contradicts what is known."""
        self.index_of = peers.index_of

    def forget(self) -> None:
        """Have the graph read again before the next change."""
        self._known = None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A change is made inside. If it ends in an unknown state, the graph is read again."""
        try:
            yield
        except BaseException as error:
            if not is_certain(error):
                self.forget()
            raise

    # Reading

    async def whole(self) -> dict[str, Known]:
        """Return all routers by name. Call it with the turn. Raises `503` unless every shard serves."""
        known, absent = await self._read()
        if absent is not None:
            raise absent
        return known

    async def known(self) -> dict[str, Known]:
        """As `whole`, but the routers of a shard that does not serve are those last seen. Call it with the turn."""
        return (await self._read())[0]

    async def glance(self) -> dict[str, Known]:
        """As `known`, without a wait for the turn. The routers may change meanwhile."""
        if self._known is not None and self._peers.lives == self._lives:
            return self._known
        if self.turn.locked():
            return (await self._gather(None))[0]
        async with self.turn:
            return await self.known()

    async def _read(self) -> tuple[dict[str, Known], TopicsError | None]:
        """Return the routers, and the error of a shard that does not serve."""
        lives = self._peers.lives
        if self._known is not None and lives == self._lives:
            return self._known, None
        self.reading = self._peers.epoch, self.reading[1] + 1
        known, older, absent = await self._gather(self.reading)
        if absent is None:
            for name, config in older:
                await self.ask(config.dest, RouterDelete(name, self.reading))
            self._known, self._seen, self._lives = known, known, lives
        else:
            self.forget()
        return known, absent

    async def _gather(
        self, reading: Reading | None
    ) -> tuple[dict[str, Known], list[tuple[str, RouterConfig]], TopicsError | None]:
        """Ask all shards for their routers. Returns these by name; of two with one name, the older one apart; and the
        error of a shard that does not serve. None: a look, which ends no change."""
        known: dict[str, Known] = {}
        older: list[tuple[str, RouterConfig]] = []
        absent: TopicsError | None = None
        for index, reply in enumerate(await self.ask_each(range(len(self._peers.lives)), RouterGraph(reading))):
            if isinstance(reply, Reply):
                rows = () if reply.extra is None else reply.extra.routers
                found = [(name, Known(from_map(fields), made_ms)) for name, fields, made_ms in rows]
            elif reply.code is ErrorCode.NOT_READY:
                absent = reply
                seen = self._seen.items()
                found = [(name, each) for name, each in seen if self.index_of(each.config.dest) == index]
            else:
                raise reply
            for name, each in found:
                other = known.get(name)
                if other is not None:
                    each, other = (other, each) if other.made_ms > each.made_ms else (each, other)
                    older.append((name, other.config))
                known[name] = each
        return known, older, absent

    # The shards

    async def ask(self, topic: str, operation: Operation[A], deadline_ns: int = 0) -> Reply[A]:
        """Ask the topic's shard. Returns its reply. Raises the error of the reply, and `503`."""
        return await self._ask(self.index_of(topic), operation, topic, deadline_ns)

    async def _ask(self, index: int, operation: Operation[A], topic: str, deadline_ns: int) -> Reply[A]:
        with trio.move_on_after(self._timeout_s):
            while True:
                await self._peers.returned(index)
                try:
                    return await self._peers.request(index, operation, topic, deadline_ns=deadline_ns)
                except TopicsError as error:
                    if not is_passing(error, index):
                        raise
                await trio.sleep(ASK_AGAIN_S)
        raise not_ready(
            f"shard {index} has not answered in time; the request may have taken effect", shard=index, outcome="unknown"
        )

    async def ask_each(
        self, indexes: Sequence[int], operation: Operation[A], deadline_ns: int = 0
    ) -> list[Reply[A] | TopicsError]:
        """Ask several shards at once. Returns the reply or the error of each."""
        outcomes: dict[int, Reply[A] | TopicsError] = {}

        async def ask(index: int) -> None:
            try:
                outcomes[index] = await self._ask(index, operation, "", deadline_ns)
            except TopicsError as error:
                outcomes[index] = error

        async with trio.open_nursery() as nursery:
            for index in indexes:
                nursery.start_soon(ask, index)
        return [outcomes[index] for index in indexes]


def is_certain(error: BaseException) -> bool:
    """Whether a change that ended with `error` was certainly not made."""
    return isinstance(error, TopicsError) and error.code not in UNCERTAIN
