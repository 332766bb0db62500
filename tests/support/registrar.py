"""The registrar of shards without processes: its steps are calls, which a test can delay, fail or stop at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import trio

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import NAMES, Operation, RegistrarDelete, RegistrarDeleteTopic, RegistrarGet, RegistrarPut
from proto.model.errors import not_ready
from proto.model.names import shard_of
from tests.support.fault_disk import Survival
from tests.support.harness import Harness
from tests.support.routed import Net

A = TypeVar("A")
When = Literal["before", "after"]


class Step(NamedTuple):
    shard: int
    op: str
    topic: str
    deadline_ns: int
    operation: Operation[Any]


class Others:
    """All shards, as the registrar sees them. A request is written, synced and, if it waits for one, saved by a
    checkpoint at once."""

    def __init__(self, shards: Callable[[], Sequence[Harness]], incarnation: int = 1) -> None:
        self._shards = shards
        self.epoch = incarnation
        self._ids = count(1)
        self._met: list[Harness] = []
        self.away: set[int] = set()
        """Shards that do not serve."""
        self.steps: list[Step] = []
        self.meet: Callable[[Step, When], Awaitable[None]] | None = None
        """Called before and after each step is carried out. Its exception is what the registrar gets."""
        self.saving = True
        """Whether checkpoints are made."""

    @property
    def ops(self) -> list[str]:
        return [step.op for step in self.steps]

    @property
    def lives(self) -> tuple[str, ...]:
        shards = self._shards()
        self._met += [each for each in shards if each not in self._met]
        return tuple("" if index in self.away else str(self._met.index(each)) for index, each in enumerate(shards))

    def index_of(self, topic: str) -> int:
        return shard_of(topic, len(self._shards()))

    async def returned(self, index: int) -> None:
        pass

    async def request(
        self, index: int, operation: Operation[A], topic: str, body: bytes = b"", deadline_ns: int = 0
    ) -> Reply[A]:
        step = Step(index, NAMES[type(operation)], topic, deadline_ns, operation)
        self.steps.append(step)
        if self.meet is not None:
            await self.meet(step, "before")
        if index in self.away:
            raise not_ready(f"shard {index} is away", shard=index, outcome="not_done")
        reply = await self._carried_out(index, Request(next(self._ids), operation, topic, body, "", deadline_ns))
        if self.meet is not None:
            await self.meet(step, "after")
        if reply.error is not None:
            raise reply.error
        return reply

    async def _carried_out(self, index: int, request: Request) -> Reply[Any]:
        shard = self._shards()[index].shard
        replies: list[Reply[Any]] = []
        answered = trio.Event()

        def respond(message: Message) -> None:
            if isinstance(message, Reply):
                replies.append(message)
                answered.set()

        shard.handle(request, "registrar", respond)
        shard.flush()
        shard.commits.sync_now()
        if self.saving and shard.control.due:
            shard.checkpoint_now()
            shard.commits.sync_now()
        await answered.wait()
        return replies[0]


class Registry:
    """Shard 0 of a net as its gateways see it."""

    def __init__(self, net: Net, nursery: trio.Nursery) -> None:
        self.net = net
        self.others = Others(lambda: net.shards)
        self._nursery = nursery
        self._ids = count(1)
        self._life = trio.CancelScope()

    async def begin(self) -> None:
        self._life = trio.CancelScope()
        await self._nursery.start(self._run, self._life)

    async def _run(self, life: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        with life:
            await self.net.shards[0].shard.registrar.run(self.others, task_status=task_status)

    async def dies(self, which: Sequence[int] = (0,), survival: Survival = "drop") -> None:
        """Processes are killed, shard 0 among them, and their successors serve."""
        self._life.cancel()
        self.others = Others(lambda: self.net.shards, self.others.epoch + 1)
        self.net.crash([*which], survival)
        await self.begin()

    async def ask(
        self,
        operation: Operation[Any],
        topic: str = "",
        body: bytes = b"",
        *,
        ident: int = 0,
        caller: str = "gateway",
        deadline_s: float = 0,
    ) -> Reply[Any]:
        """Send a request, and wait for its reply."""
        replies: list[Reply[Any]] = []
        answered = trio.Event()

        def respond(message: Message) -> None:
            assert isinstance(message, Reply)
            assert not replies, "answered twice"
            replies.append(message)
            answered.set()

        request = Request(ident or -next(self._ids), operation, topic, body, deadline_ns=int(deadline_s * 1e9))
        self.net.shards[0].shard.handle(request, caller, respond)
        await answered.wait()
        return replies[0]

    async def call(self, operation: Operation[Any], topic: str = "", body: bytes = b"", **more: Any) -> Any:
        """As `ask`. Returns the decoded body. Raises the error of the reply."""
        reply = await self.ask(operation, topic, body, **more)
        if reply.error is not None:
            raise reply.error
        return msgspec.json.decode(reply.body)

    async def put(self, name: str, prefixes: tuple[str, ...] = (), **fields: Any) -> Any:
        return await self.call(RegistrarPut(b"", prefixes, name), body=msgspec.json.encode(fields))

    async def get(self, name: str, prefixes: tuple[str, ...] = ()) -> Any:
        return await self.call(RegistrarGet(b"", prefixes, name))

    async def delete(self, name: str, prefixes: tuple[str, ...] = ()) -> Any:
        return await self.call(RegistrarDelete(b"", prefixes, name))

    async def delete_topic(self, topic: str, prefixes: tuple[str, ...] = (), *, if_empty: bool = False) -> Any:
        return await self.call(RegistrarDeleteTopic(b"", prefixes, if_empty), topic)

    def routers(self) -> dict[str, tuple[str, str]]:
        """Source and destination of each router in all shards, by name. Fails if two have one name."""
        rows = [row for each in self.net.shards for row in each.call("router_graph")["routers"]]
        found = {name: (config["source"], config["dest"]) for name, config, _ in rows}
        assert len(found) == len(rows), f"two of a name: {rows}"
        return found


@asynccontextmanager
async def registry(net: Net) -> AsyncIterator[Registry]:
    """Have shard 0 of a net be the registrar."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            made = Registry(net, nursery)
            await made.begin()
            yield made
            nursery.cancel_scope.cancel()
