"""A gateway process that is started beside others accepts connections once it reaches all shards; a single one at
once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    Complete,
    Control,
    Drain,
    Drained,
    FiguresWanted,
    Ping,
    Pong,
    Ready,
    Retire,
    Shards,
    ShardState,
    Start,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.ipc.gateway_page import Column, Page, Row
from proto.model.limits import Limits
from tests.support.gateway_stage import FakeShard, echo, until

DEADLINE_S = 60


class Started:
    """A gateway process, the second of two or the only one. The test is its supervisor."""

    def __init__(
        self, link: ControlLink, process: subprocess.Popen[bytes], page: Page, address: tuple[str, int]
    ) -> None:
        self.link = link
        self.process = process
        self.row = Row(page.descriptor, 3, 0)
        self.address = address

    async def next(self) -> Control | None:
        """The next message that is no question for figures, which comes at any time."""
        while isinstance(message := await self.link.receive(), FiguresWanted):
            pass
        return message

    async def ask(self, path: str) -> bytes:
        """The beginning of the answer to a request on a connection of its own."""
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            await stream.send_all(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
            return bytes(await stream.receive_some())

    @property
    def accepts(self) -> bool:
        return self.row.sum(Column.ACCEPTING) == 1


@asynccontextmanager
async def started(state: ShardState, gateways: int = 2) -> AsyncIterator[Started]:
    ours, theirs = socket.socketpair()
    page = Page(3)
    listener = socket.create_server(("127.0.0.1", 0))
    descriptors = (theirs.fileno(), listener.fileno(), page.descriptor)
    process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [sys.executable, "-c", "from gateway.process import run; run()"],
        env={**os.environ, CONTROL_FD_VARIABLE: str(theirs.fileno())},
        pass_fds=descriptors,
    )
    link = ControlLink(ours)
    try:
        theirs.close()
        with trio.fail_after(DEADLINE_S):
            await link.send(
                Start(
                    "gateway",
                    Limits(),
                    index=gateways - 1,
                    incarnation=1,
                    shards=1,
                    states=[state],
                    listen_fd=listener.fileno(),
                    gateways=gateways,
                    others_serve=gateways > 1,
                    page_fd=page.descriptor if gateways > 1 else -1,
                )
            )
            yield Started(link, process, page, listener.getsockname())
    finally:
        process.kill()
        process.wait()
        await link.aclose()
        listener.close()
        page.close()


async def test_it_hears_of_the_shards_while_it_waits_for_them(tmp_path: Path) -> None:
    async with started(ShardState(0, "replay")) as gateway, trio.open_nursery() as nursery:
        await gateway.link.send(Ping())
        assert isinstance(await gateway.next(), Pong)
        assert not gateway.accepts
        shard = FakeShard(f"ipc://{tmp_path}/0", echo)
        nursery.start_soon(shard.run)
        await gateway.link.send(Shards([ShardState(0, "ready", f"ipc://{tmp_path}/0", 1)]))
        assert [await gateway.next(), await gateway.next()] == [Ready(), Complete()]
        assert gateway.accepts
        assert (await gateway.ask("/v0/ready")).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def test_it_ends_while_it_waits_if_the_service_ends() -> None:
    async with started(ShardState(0, "replay")) as gateway:
        await gateway.link.send(Stop())
        assert await gateway.next() is None
        assert gateway.process.wait(DEADLINE_S) == 0
        assert not gateway.accepts


async def test_one_that_a_roll_gives_up_while_it_waits_serves_no_more_and_ends_in_order(tmp_path: Path) -> None:
    async with started(ShardState(0, "replay")) as gateway, trio.open_nursery() as nursery:
        await gateway.link.send(Retire())
        assert isinstance(await gateway.next(), Pong)
        assert await gateway.next() == Drained()
        shard = FakeShard(f"ipc://{tmp_path}/0", echo)
        shard.own_stats = False
        nursery.start_soon(shard.run)
        await gateway.link.send(Shards([ShardState(0, "ready", f"ipc://{tmp_path}/0", 1)]))
        await until(lambda: bool(shard.requests))
        await gateway.link.send(Ping())
        assert isinstance(await gateway.next(), Pong)
        assert not gateway.accepts
        await gateway.link.send(Stop())
        assert await gateway.next() is None
        assert gateway.process.wait(DEADLINE_S) == 0
        nursery.cancel_scope.cancel()


async def test_a_single_one_accepts_at_once_and_sends_its_figures() -> None:
    async with started(ShardState(0, "replay"), gateways=1) as gateway:
        assert await gateway.link.receive() == Ready()
        assert (await gateway.ask("/v0/health")).startswith(b"HTTP/1.1 200")
        assert (await gateway.ask("/v0/ready")).startswith(b"HTTP/1.1 503")
        await gateway.link.send(Ping())
        pong = await gateway.next()
        assert isinstance(pong, Pong)
        assert pong.figures is not None
        assert {operation for operation, _, _ in pong.figures.requests} == {"health", "ready"}
        await gateway.link.send(Drain())
        assert [type(await gateway.next()), await gateway.next()] == [Pong, Drained()]
        await gateway.link.send(Stop())
        assert await gateway.next() is None
        assert gateway.process.wait(DEADLINE_S) == 0


async def test_a_single_one_ends_in_order_if_the_service_ends_as_it_starts() -> None:
    async with started(ShardState(0, "replay"), gateways=1) as gateway:
        await gateway.link.send(Stop())
        while await gateway.link.receive() is not None:
            pass
        assert gateway.process.wait(DEADLINE_S) == 0


@pytest.mark.slow
async def test_it_accepts_without_the_shards_after_a_while() -> None:
    async with started(ShardState(0, "replay")) as gateway:
        assert await gateway.next() == Ready()
        assert gateway.accepts
