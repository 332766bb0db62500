"""Claims about the servers of protocols other than HTTP: limits, order, time limits, draining. The tests use a small
protocol of their own over real sockets."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.admission.body_budget import Budget
from gateway.admission.in_flight import Flight
from gateway.protocols.tcp_server import TcpServer
from proto.model.limits import Limits
from proto.wire.byte_parser import ProtocolError, Skip, Steps


class Lines:
    """The test's protocol: a byte gives the number of bytes that follow, and they are echoed. 255: ten bytes are
    skipped. 254: a fatal error."""

    name = "lines"

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self.gate = trio.Event()
        self.gate.set()
        self.carried_out: list[bytes] = []
        self.refused = 0

    def session(self) -> Lines:
        return self

    def read(self) -> Steps[bytes]:
        (size,) = yield 1
        if size == 254:
            raise ProtocolError("fatal", fatal=True)
        if size == 255:
            yield Skip(10)
            raise ProtocolError("passed over")
        if size == 253:
            return (yield 1 << 20)
        return (yield size)

    async def answer(self, command: bytes) -> bytes:
        if not self.gate.is_set():  # an answer that waits for nothing meets no checkpoint
            await self.gate.wait()
        self.carried_out.append(command)
        return command + b"\n"

    def refuse(self, message: str) -> bytes:
        self.refused += 1
        return b"! " + message.encode() + b"\n"


class Stage:
    def __init__(self, server: TcpServer, lines: Lines, flight: Flight, address: tuple[str, int]) -> None:
        self.server, self.lines, self.flight, self.address = server, lines, flight, address

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)

    async def settled(self, connections: int) -> None:
        with trio.fail_after(60):
            while len(self.server.connections) != connections:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.001)


@asynccontextmanager
async def stage(budget: Budget | None = None, **limits: int) -> AsyncIterator[Stage]:
    flight, lines = Flight(), Lines()
    server = TcpServer(lines, Limits(**limits), flight, budget or Budget())
    with socket.create_server(("127.0.0.1", 0)) as listener, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, [listener])
            yield Stage(server, lines, flight, listener.getsockname())
            nursery.cancel_scope.cancel()


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


async def test_commands_are_answered_in_order_however_they_are_cut() -> None:
    async with stage() as s, await s.connect() as client:
        await client.send_all(b"\x01a\x02bc\x00\x03d")
        assert await receive(client, 6) == b"a\nbc\n\n"
        await client.send_all(b"ef")
        assert await receive(client, 4) == b"def\n"


async def test_what_is_refused_is_passed_over_and_what_is_fatal_ends_the_connection() -> None:
    async with stage() as s, await s.connect() as client:
        await client.send_all(b"\xff12345")
        await client.send_all(b"67890\x01a")
        assert await receive(client, 16) == b"! passed over\na\n"
        await client.send_all(b"\xfe\x01a")
        assert await receive(client, 100) == b"! fatal\n"
        assert s.lines.carried_out == [b"a"]


@pytest.mark.parametrize(("command", "answer"), [(b"\xff1234567890", b"! passed over\n"), (b"\x00", b"\n")])
async def test_commands_that_arrive_together_let_others_run_in_between(command: bytes, answer: bytes) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with stage() as s, await s.connect() as client, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await client.send_all(command * 2000)
        assert await receive(client, 2000 * len(answer)) == answer * 2000
        assert turns >= 1000
        nursery.cancel_scope.cancel()


async def test_a_drain_between_commands_that_arrived_together_loses_no_answer() -> None:
    for _ in range(20):  # the order of tasks is random
        async with stage() as s, await s.connect() as client:
            await client.send_all(b"\xff1234567890" * 2000)
            while not s.lines.refused:
                await trio.lowlevel.checkpoint()
            s.flight.drain()
            s.server.drain()
            await s.flight.landed()
            with trio.move_on_after(0) as waits:
                await s.flight.closed()
            assert waits.cancelled_caught, "the end of the process would reset the connection"
            answers = await receive(client, 1 << 20)
            assert answers == b"! passed over\n" * s.lines.refused
            assert s.lines.refused < 2000


async def test_an_idle_client_is_let_go_and_a_busy_one_is_not() -> None:
    async with stage(protocol_idle_timeout_ms=100) as s, await s.connect() as idle, await s.connect() as busy:
        s.lines.gate = trio.Event()
        await busy.send_all(b"\x01a")
        assert await receive(idle, 1) == b""
        await s.settled(1)
        s.lines.gate.set()
        assert await receive(busy, 2) == b"a\n"


async def test_a_command_that_does_not_come_to_its_end_is_not_waited_for() -> None:
    async with stage(body_timeout_ms=100) as s, await s.connect() as client:
        await client.send_all(b"\x05abc")
        assert await receive(client, 1) == b""
        assert s.lines.carried_out == []


async def test_a_client_that_does_not_read_is_let_go() -> None:
    async with stage(body_timeout_ms=100) as s, await s.connect() as client:

        async def flood() -> None:
            while True:
                await client.send_all((b"\x7f" + bytes(127)) * 1000)

        with pytest.raises(trio.BrokenResourceError):
            await flood()
        await s.settled(0)


async def test_at_the_cap_whoever_waits_longest_makes_room() -> None:
    async with stage(protocol_max_connections=2) as s, await s.connect() as first, await s.connect() as second:
        for client in (first, second):
            await client.send_all(b"\x01a")
            assert await receive(client, 2) == b"a\n"
        async with await s.connect() as third:
            await third.send_all(b"\x01c")
            assert await receive(third, 2) == b"c\n"
            assert await receive(first, 1) == b""
            await second.send_all(b"\x01b")
            assert await receive(second, 2) == b"b\n"


async def test_at_the_cap_nobody_at_work_is_disturbed() -> None:
    async with stage(protocol_max_connections=1) as s, await s.connect() as first:
        s.lines.gate = trio.Event()
        await first.send_all(b"\x01a")
        with trio.fail_after(60):
            while not s.flight.count:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.001)
        async with await s.connect() as second:
            await second.send_all(b"\x01b")
            with trio.move_on_after(0.3) as waited:
                await receive(second, 2)
            assert waited.cancelled_caught
            s.lines.gate.set()
            assert await receive(first, 2) == b"a\n"
            assert await receive(second, 2) == b"b\n"


async def test_large_commands_wait_for_memory_or_are_refused() -> None:
    budget = Budget(1 << 20, 100)
    async with stage(budget) as s, await s.connect() as first, await s.connect() as second:
        await first.send_all(b"\xfd" + bytes(1000))
        with trio.fail_after(60):
            while not budget.used:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.001)
        await second.send_all(b"\xfd" + bytes(1000))
        assert (await receive(second, 1000)).startswith(b"! too many bytes")
        await first.send_all(bytes((1 << 20) - 1000))
        assert len(await receive(first, (1 << 20) + 1)) == (1 << 20) + 1
        assert budget.used == 0


async def test_a_drain_finishes_what_is_in_flight_and_ends_who_waits() -> None:
    async with stage() as s, await s.connect() as idle, await s.connect() as busy:
        await s.settled(2)
        s.lines.gate = trio.Event()
        await busy.send_all(b"\x01a\x01b")
        with trio.fail_after(60):
            while not s.flight.count:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.001)
        s.flight.drain()
        s.server.drain()
        assert await receive(idle, 1) == b""
        s.lines.gate.set()
        assert await receive(busy, 10) == b"a\n", "the next command was begun, or the answer is missing"
        await s.flight.landed()
        assert s.lines.carried_out == [b"a"]


async def test_connections_that_are_to_end_when_idle_are_served_first_if_a_command_has_arrived() -> None:
    async with stage() as s, await s.connect() as asking, await s.connect() as idle:
        await asking.send_all(b"\x01a")
        assert await receive(asking, 2) == b"a\n"
        await s.settled(2)
        s.server.end_idle(0)
        # The command is in the socket, and nothing has read it when the time is over.
        os.write(asking.socket.fileno(), b"\x01b")
        s.server.sweep(1)
        assert await receive(asking, 2) == b"b\n"
        assert await receive(idle, 1) == b""
