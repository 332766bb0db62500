"""The stage: a gateway in this process, in front of scripted shards, with real sockets on both sides."""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from gateway.process import Gateway
from proto.ipc.control import Cluster, ShardState, Start
from proto.ipc.gateway_page import Page
from proto.ipc.message import Cancel, Message, Reply, Request, Status, Taken
from proto.ipc.operations import Stats
from proto.ipc.transport import Group, MessageSocket
from proto.model.keys import ALL_SCOPES, Key, Scope
from proto.model.limits import Limits
from proto.model.memory_shares import DEFAULT_BYTES, window
from tests.support.asked import answer

Script = Callable[[Request], list[Message]]


def echo(request: Request) -> list[Message]:
    """The script of a shard whose replies repeat the request."""
    content = {"op": request.op, "topic": request.topic, "body": request.body.decode()}
    return [Reply(request.id, json.dumps(content).encode())]


class FakeShard:
    """A scripted shard. It answers `stats` itself, unless the script is to do so."""

    def __init__(self, endpoint: str, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self._ops: dict[int, str] = {}
        self.cancelled: list[int] = []
        self.taken = 0
        """Bytes of replies that the gateway has reported as taken."""
        self.changed = trio.Condition()
        self.own_stats = True
        self.status = lambda: Status(3, 5, 8)
        self.window = window(DEFAULT_BYTES, 1)
        self._socket = MessageSocket.router(endpoint)
        self._socket.status = self._status
        self._peer = b""

    def _status(self) -> Status:
        return msgspec.structs.replace(self.status(), window=self.window)

    async def run(self) -> None:
        try:
            await self._socket.read(self._handle)
        finally:
            self._socket.close()

    def send(self, message: Message) -> None:
        if isinstance(message, Reply) and isinstance(message.extra, dict):
            message.extra = answer(self._ops[message.id], message.extra)
        self._socket.send(message, self._peer)

    def restate(self, most: int) -> None:
        """State another size of windows, in a packet without messages."""
        self.window = most
        self._socket.tell_status(self._peer)

    def _handle(self, group: Group) -> None:
        for self._peer, message in ((peer, message) for peer, packet in group for message in packet.messages):
            if isinstance(message, Cancel):
                self.cancelled.append(message.id)
            elif isinstance(message, Taken):
                self.taken += message.id
            elif isinstance(message, Request):
                if self.own_stats and message.op == "ping":
                    self.send(Reply(message.id))
                    continue
                if self.own_stats and message.options == Stats():
                    self.send(Reply(message.id))
                    continue
                self.requests.append(message)
                self._ops[message.id] = message.op
                for answer in self.script(message):
                    self.send(answer)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        """The canonical error's code; fails for a body of any other shape."""
        assert self.headers["content-type"] == "application/json"
        content = self.json
        assert set(content) <= {"error", "performance"}
        assert set(content["error"]) <= {"code", "message", "detail"}
        assert content["error"]["message"]
        return str(content["error"]["code"])


class Client:
    """One connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> None:
        data = bytes(await self.stream.receive_some(65536))
        assert data, f"connection ended after {self.buffer!r}"
        self.buffer += data

    async def receive(self, *, head_only: bool = False) -> Answer:
        while b"\r\n\r\n" not in self.buffer:
            await self._more()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = 0 if head_only else int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            await self._more()
        raw, self.buffer = self.buffer[:length], self.buffer[length:]
        return Answer(int(lines[0].split(" ")[1]), headers, raw)

    async def ask(
        self, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        lines = {"Host": "localhost"}
        if body is not None:
            lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines |= headers or {}
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        await self.send(head.encode() + (body or b""))
        return await self.receive(head_only=method == "HEAD")

    async def ended(self) -> bool:
        """Whether the server closes the connection without another byte."""
        return not self.buffer and await self.stream.receive_some(65536) == b""


@dataclass
class Stage:
    gateway: Gateway
    shards: list[FakeShard]
    states: list[ShardState]
    address: tuple[str, int]
    nursery: trio.Nursery
    directory: Path
    scopes: list[trio.CancelScope] = field(default_factory=list)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            yield Client(stream)

    async def start_shard(self, index: int, script: Script, incarnation: int = 1) -> None:
        """Start a new incarnation of a shard; return when the gateway has had a reply from it."""
        endpoint = f"ipc://{self.directory}/{index}-{incarnation}"
        shard = FakeShard(endpoint, script)
        shard.window = window(self.gateway.limits.memory_bytes, len(self.states))
        self.shards[index : index + 1] = [shard]
        self.nursery.start_soon(shard.run)
        self.states[index] = ShardState(index, "ready", endpoint, incarnation)
        self.gateway.shards.update(self.states)
        await until(lambda: self.gateway.shards.serving(index))

    def lose_shard(self, index: int) -> None:
        self.states[index] = ShardState(index)
        self.gateway.shards.update(self.states)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until a condition holds. Raises `TooSlowError` after 60 s, which a busy machine may need."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.001)


def key(secret: str, scopes: Scope = ALL_SCOPES, *prefixes: str) -> Key:
    return Key(hashlib.sha256(secret.encode()).digest(), scopes, prefixes)


@asynccontextmanager
async def stage(
    script: Script = echo,
    *,
    shards: int = 1,
    keys: Sequence[Key] | None = None,
    probe_auth: bool = False,
    cors_origins: Sequence[str] = (),
    within_s: float = 120,
    page: Page | None = None,
    index: int = 0,
    cluster: Cluster | None = None,
    **limits: Any,
) -> AsyncIterator[Stage]:
    """`page`, of three rows, makes it gateway `index` of two."""
    with tempfile.TemporaryDirectory(prefix="gw") as directory:
        listener = socket.create_server(("127.0.0.1", 0))
        with listener:
            gateway = Gateway(
                Start(
                    "gateway",
                    Limits(**limits),
                    shards=shards,
                    keys=None if keys is None else list(keys),
                    probe_auth=probe_auth,
                    cors_origins=list(cors_origins),
                    index=index,
                    gateways=1 if page is None else 2,
                    page_fd=-1 if page is None else page.descriptor,
                    cluster=cluster,
                    places=[] if page is None else page.places(each.digest for each in keys or ()),
                )
            )
            with trio.fail_after(within_s):
                async with trio.open_nursery() as nursery:
                    await nursery.start(gateway.reactor.run)
                    await nursery.start(gateway.shards.run)
                    await nursery.start(gateway.api.live.run)
                    await nursery.start(gateway.accept, listener)
                    states = [ShardState(index) for index in range(shards)]
                    made = Stage(gateway, [], states, listener.getsockname(), nursery, Path(directory))
                    for index in range(shards):
                        await made.start_shard(index, script)
                    yield made
                    nursery.cancel_scope.cancel()
