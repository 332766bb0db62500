"""The scene: a gateway with real sockets and real shards, all in this process, and connections that send mutations.

Shards write to disks in memory and have a clock of the test. A request that waits is answered at once, because the
clock is then set to the end of its wait: so an answer that does not come never comes."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import trio

from gateway.contract.operation import Operation
from proto.ipc.message import Cancel, Message, Parked, Reply, Request
from proto.ipc.operations import Claim, Diff
from proto.ipc.operations import Operation as AnyOperation
from proto.ipc.transport import Group
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_WAIT_MS
from proto.model.names import shard_of
from tests.mutation.examples import LEASE, SESSION, Example
from tests.mutation.judge import Judge, logs_into, problem_of_answer, shown
from tests.support.gateway_stage import Answer, Client, stage
from tests.support.harness import Harness
from tests.support.real_shard import RealShard, start_real
from tests.support.routed import Net

A = TypeVar("A")

SHARDS = 2
TOGETHER = 48
"""Requests that are sent before the first answer is read."""
PATIENCE_S = 20.0
"""An answer takes a thousandth of this."""
LIMITS: dict[str, Any] = {"max_body_bytes": 1 << 20, "max_watch_sessions_per_key": 0, "max_tickets_per_key": 0}


class Neighbours:
    """The shards as the mover of one of them sees them."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def index_of(self, topic: str) -> int:
        return shard_of(topic, SHARDS)

    async def request(self, index: int, operation: AnyOperation[A], topic: str, body: bytes = b"") -> Reply[A]:
        return self._net.shards[index].reply(operation, topic, body)


class WatchedShard(RealShard):
    """Tells the judge of exceptions, answers their requests, and lets no read wait."""

    def __init__(self, endpoint: str, harness: Harness, judge: Judge) -> None:
        super().__init__(endpoint, harness)
        self._judge = judge
        self._parked: set[int] = set()
        self._moving = trio.Event()

    def _handle(self, group: Group) -> None:
        for self._peer, message in ((peer, message) for peer, packet in group for message in packet.messages):
            if isinstance(message, Request):
                message.deadline_ns = 0  # it is on the gateway's clock, which the shard's runs ahead of
                self._take(message)
            elif isinstance(message, Cancel):
                self._parked.discard(message.id)
                self._guarded(self.harness.shard.cancel, "gateway", message.id)
        self._guarded(self.settle)
        while self._parked:
            waiting = len(self._parked)
            self.harness.clock.advance(MAX_WAIT_MS + 1)
            self._guarded(self.settle)
            if len(self._parked) >= waiting:
                self._judge.tell("a read waits longer than it may", sorted(self._parked))
                self._parked.clear()

        if len(self.harness.shard.mover):
            self._moving.set()

    async def move(self, neighbours: Neighbours) -> None:
        """Send the letters of the queues, and end the redrives, without the pauses of `Mover.run`."""
        while True:
            await self._moving.wait()
            self._moving = trio.Event()
            try:
                progress = True
                while progress:
                    progress = await self.harness.shard.mover.carry(neighbours)
                    self.settle()
            except Exception:
                self._judge.log.append(traceback.format_exc())

    def _take(self, request: Request) -> None:
        waits = isinstance(request.options, Diff | Claim)

        def respond(message: Message) -> None:
            if waits and isinstance(message, Parked):
                self._parked.add(message.id)
            elif isinstance(message, Reply):
                self._parked.discard(message.id)
            self.send(message)

        try:
            self.harness.shard.handle(request, "gateway", respond)
        except Exception:
            sent = shown((request.op, request.topic, request.body))
            self._judge.log.append(f"a shard got {sent}\n{traceback.format_exc()}")
            self.send(Reply(request.id, error=TopicsError(ErrorCode.INTERNAL, "the shard would have ended")))

    def _guarded(self, do: Any, *args: Any) -> None:
        try:
            do(*args)
        except Exception:
            self._judge.log.append(traceback.format_exc())


class Place(Protocol):
    """Where requests go: a staged gateway, or a service."""

    def client(self) -> AbstractAsyncContextManager[Client]: ...


class Scene:
    def __init__(self, place: Place, judge: Judge, secret: str = "") -> None:
        self.place = place
        self.judge = judge
        self.secret = secret

    def request(
        self, method: str, target: bytes, body: bytes | None = None, headers: Mapping[bytes, bytes] | None = None
    ) -> bytes:
        """The bytes of a request. A header of `headers` replaces one of the same name."""
        lines = {b"Host": b"localhost"}
        if self.secret:
            lines[b"Authorization"] = b"Bearer " + self.secret.encode()
        if body is not None:
            lines |= {b"Content-Type": b"application/json", b"Content-Length": b"%d" % len(body)}
        lines |= headers or {}
        head = b"".join(b"%b: %b\r\n" % line for line in lines.items())
        return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), target, head, body or b"")

    def without_key(self, raw: bytes) -> bytes:
        return raw.replace(b"Authorization: Bearer %b\r\n" % self.secret.encode(), b"")

    async def answers(self, requests: Sequence[bytes], *, end: bool = False) -> list[Answer]:
        """Send requests at once on one connection and return their answers; fewer, if it ended early. With `end`, the
        connection has no more input behind them."""
        found: list[Answer] = []
        async with self.place.client() as client:
            try:
                with trio.move_on_after(PATIENCE_S):
                    await client.send(b"".join(requests))
                    if end:
                        await client.stream.send_eof()
                    while len(found) < len(requests):
                        answer = await client.receive(head_only=requests[len(found)].startswith(b"HEAD "))
                        found += [answer] if answer.status != 100 else []
            except (AssertionError, ValueError, IndexError, trio.BrokenResourceError):
                pass  # the answers that are missing are told
        return found

    async def prepare(self, example: Example) -> tuple[bytes, bytes]:
        """Send what comes before an example. Returns the lease and the session that it got."""
        raws = [
            self.request(method, path.encode(), None if body is None else json.dumps(body).encode())
            for method, path, body in example.before
        ]
        if not raws:
            return b"", b""
        found = await self.answers(raws)
        refused = [(raw, answer.raw) for raw, answer in zip(raws, found, strict=False) if answer.status >= 300]
        assert not refused, f"what an example needs is refused, because of an input before it: {shown(refused)}"
        assert len(found) == len(raws), f"no answer to {shown(raws[len(found)])}"
        lease = session = b""
        for answer in found:
            for each in answer.json.get("claimed", [])[:1]:
                lease = each["lease_id"].encode()
                assert len(lease) == len(LEASE)
            session = answer.json.get("wid", "").encode() or session
        return lease, session

    async def sent(
        self,
        operation: Operation,
        example: Example,
        made: Iterable[bytes],
        write: Callable[[bytes, bytes], bytes],
        *,
        end: bool = False,
    ) -> None:
        """Send mutations of an example, many at a time. `write` makes the bytes of a request from a mutation and the
        session. An answer without an end is not waited for: those of streams go one by one."""
        together = 1 if end or operation.streams else TOGETHER
        mutations = iter(made)
        while batch := list(islice(mutations, together)):
            lease, session = await self.prepare(example)
            raws = [write(each, session).replace(LEASE.encode(), lease) for each in batch]
            while raws:
                found = await self.answers(raws, end=end)
                for raw, answer in zip(raws, found, strict=False):
                    self.look(operation, raw, answer)
                if not found:
                    self.judge.tried += 1
                    self.judge.tell(f"{operation.name}: no answer came", raws[0])
                # What follows an input that ended the connection is sent on another one.
                del raws[: max(len(found), 1)]

    def look(self, operation: Operation, sent: bytes, answer: Answer) -> None:
        judge = self.judge
        judge.tried += 1
        judge.statuses[answer.status] = judge.statuses.get(answer.status, 0) + 1
        bare = operation.streams or operation.name == "metrics" or sent.startswith((b"HEAD ", b"OPTIONS "))
        bare = bare or not sent.partition(b" ")[2].startswith(b"/v0/")  # a page, after an edit
        problem = problem_of_answer(answer.status, answer.headers, answer.raw, streamed=bare)
        if problem:
            judge.tell(f"{operation.name}: {problem}", sent, (answer.status, answer.raw))

    def settle(self, net: Net) -> None:
        """Copy what routers have to copy, make a checkpoint, and open every shard again from its files."""
        try:
            net.settle()
            for harness in net.shards:
                harness.shard.maintain()
                harness.shard.checkpoint_now()
                before = harness.shard.directory.counters()
                assert harness.restarted().shard.directory.counters() == before, (
                    "a start finds other topics than there were"
                )
        except Exception:
            self.judge.log.append(traceback.format_exc())
            self.judge.tell("what was accepted cannot be copied, kept or read back", "")


def target_of(operation: Operation, example: Example, session: bytes = b"") -> bytes:
    """The target of an example's request."""
    path = operation.path.encode()
    for value in example.values:
        begin, end = path.index(b"{"), path.index(b"}")
        path = path[:begin] + value.encode().replace(SESSION.encode(), session) + path[end + 1 :]
    return path + b"?" * bool(example.query) + example.query.encode()


@asynccontextmanager
async def scene(judge: Judge, *, secret: str = "", within_s: float = 300, **options: Any) -> AsyncIterator[Scene]:
    net = Net(SHARDS, **LIMITS)
    with logs_into(judge):
        async with stage(shards=SHARDS, within_s=within_s, **LIMITS, **options) as there:
            for index, harness in enumerate(net.shards):
                shard = await start_real(there, harness, index=index, make=partial(WatchedShard, judge=judge))
                assert isinstance(shard, WatchedShard)
                there.nursery.start_soon(shard.move, Neighbours(net))
            made = Scene(there, judge, secret)
            try:
                yield made
            except Exception:
                judge.end()  # what was logged before tells why
                raise
            made.settle(net)
    judge.end()
