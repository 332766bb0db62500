"""A scripted shard on another machine, and a cable to it that can be cut."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from proto.ipc.control import Cluster, ShardState
from proto.ipc.links import Links
from proto.ipc.message import NoMore, Parked, Reply, Request, Status
from proto.ipc.operations import Ping
from proto.ipc.remote import KeyPair, RemoteRouter
from proto.ipc.transport import Group
from tests.support.relay import Relay

OURS = KeyPair.new()
CLUSTER = Cluster("mA", OURS.public, OURS.secret)


class Cable(Relay):
    """The way to a holder."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.end: Any = type("End", (), {"host": "127.0.0.1", "port": port})
        self.whole = True
        """Whether a new connection is made."""
        self.mute = False
        """Whether bytes are lost."""

    def target(self) -> Any:
        return self.end if self.whole else None

    def passed(self, data: bytes, sink: socket.socket, *, back: bool) -> bool:
        if not self.mute:
            sink.sendall(data)
        return True


class Holder:
    """It answers pings, and keeps other requests. Its clock is `ahead_s` ahead of ours."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.keys = KeyPair.new()
        self.router = RemoteRouter("127.0.0.1:0", self.keys, 1 << 20)
        self.router.allow({OURS.public: "mA"})
        self.ahead_s = ahead_s
        self.silent = False
        self.given = False
        self.counted = (0, 0, 0)
        self.died_over: tuple[tuple[int, int], ...] = ()
        self.router.status = self._status
        self.requests: list[tuple[bytes, Request]] = []
        self.no_more: list[bytes] = []
        """The links that have said so."""
        self.names: list[bytes] = []
        """Of the links that were heard, in order."""
        self.cable = Cable(self.router.port)
        self.cable.start()

    def _status(self) -> Status:
        return Status(
            *self.counted, silent=self.silent, given=self.given, clock_ns=self.now_ns(), died_over=self.died_over
        )

    def now_ns(self) -> int:
        return time.monotonic_ns() + int(self.ahead_s * 1e9)

    def state(self, index: int = 0) -> ShardState:
        """As a standby reports it."""
        endpoint = f"tcp://127.0.0.1:{self.cable.port}"
        return ShardState(
            index, "standby", "ipc://own", 1, holder="http://b", holder_at=endpoint, holder_key=self.keys.public
        )

    def answer(self, request: Request) -> Reply[Any] | Parked | None:
        return Reply(request.id) if isinstance(request.options, Ping) else None

    def take(self, group: Group) -> None:
        for peer, packet in group:
            if peer not in self.names:
                self.names.append(peer)
            for message in packet.messages:
                if isinstance(message, NoMore):
                    self.no_more.append(peer)
                if not isinstance(message, Request):
                    continue
                if reply := self.answer(message):
                    self.router.send(reply, peer)
                else:
                    self.requests.append((peer, message))

    def give(self) -> None:
        """Say that the shard is given away."""
        self.given = True
        for name in self.names:
            self.router.tell_status(name)


@asynccontextmanager
async def holder(ahead_s: float = 0.0) -> AsyncIterator[Holder]:
    made = Holder(ahead_s)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.router.read, made.take)
            yield made
            nursery.cancel_scope.cancel()
    finally:
        made.cable.close()
        made.cable.end_all()
        made.router.close()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.001)


def reaches(links: Links) -> bool:
    link = links.current(0)
    return link is not None and link.up


@asynccontextmanager
async def asker(there: Holder, cluster: Cluster | None = CLUSTER, name: str = "g0.1") -> AsyncIterator[Links]:
    """Links to a shard that another machine holds."""
    links = Links(1, 60.0, name=name, cluster=cluster)
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        links.update([there.state()])
        yield links
        nursery.cancel_scope.cancel()
