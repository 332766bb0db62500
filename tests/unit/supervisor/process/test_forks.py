"""The fork server: real processes, forked by a server that has imported a small module of this folder's support."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from proto.process.fork_server import Fork
from supervisor.process import forks
from supervisor.process.forks import Forked, ForkServer
from tests.support import forked_child
from tests.support.machine import ROOT

DEADLINE_S = 20
CHILD = forked_child.__name__


@asynccontextmanager
async def serving(module: str = CHILD) -> AsyncIterator[ForkServer]:
    server = ForkServer({**os.environ, "PYTHONPATH": str(ROOT)}, [module])
    server.start()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.keep)
            yield server
            nursery.cancel_scope.cancel()


class Told:
    """A child, and the other ends of its two pipes."""

    def __init__(self, child: Forked, told: int, ends: int) -> None:
        self.child = child
        self._told = told
        self._ends = ends

    async def says(self) -> str:
        await trio.lowlevel.wait_readable(self._told)
        return os.read(self._told, 65536).decode()

    def end(self) -> int:
        """Let the child end. Returns its status."""
        os.close(self._ends)
        status = self.child.wait()
        os.close(self._told)
        return status


async def born(server: ForkServer, title: str = "a child", **environment: str) -> Told:
    told, tell = os.pipe()
    end, ends = os.pipe()
    try:
        numbers = {"TELL": str(tell), "END": str(end)}
        return Told(await server.fork(CHILD, title, {**environment, **numbers}, (end, tell)), told, ends)
    finally:
        os.close(tell)
        os.close(end)


async def test_a_forked_child_is_the_supervisors_and_has_its_descriptors_environment_and_name() -> None:
    async with serving() as server:
        child = await born(server, "shard-07", ONLY="this")
        assert (await child.says()).split("\n") == [
            f"parent {os.getpid()}",
            "environment END,ONLY,TELL",
            "descriptors 0,1,2,END,TELL",
            "shard-07",
        ]
        assert child.child.poll() is None
        assert child.end() == 0


@pytest.mark.parametrize(("environment", "status"), [({"STATUS": "9"}, 9), ({"SIGNAL": "9"}, -9)])
async def test_the_status_of_a_forked_child_is_its_own(environment: Mapping[str, str], status: int) -> None:
    async with serving() as server:
        child = await born(server, **environment)
        await child.says()
        assert child.end() == status
        assert child.child.poll() == status
        child.child.kill()  # its number may be another process's now


async def test_signals_that_the_supervisor_obeys_end_no_child_if_they_reach_the_whole_group() -> None:
    async with serving() as server:
        child = await born(server)
        await child.says()
        assert server.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(child.child.pid, number)
            os.kill(server.pid, number)
        assert (await born(server)).end() == 0
        assert child.end() == 0


async def test_descriptors_keep_their_numbers_whatever_numbers_the_server_gets_them_with() -> None:
    async with serving() as server:
        told, tell = os.pipe()
        end, ends = os.pipe()
        for first, second in ((4, 5), (5, 4), (6, 3), (3, 200)):
            numbers = {first: end, second: tell}
            for number, descriptor in numbers.items():
                numbers[number] = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 300)
            packet = msgspec.msgpack.encode(
                Fork(CHILD, "a child", {"TELL": str(second), "END": str(first)}, [first, second])
            )
            pid = await server._ask(packet, list(numbers.values()))
            await trio.lowlevel.wait_readable(told)
            assert "descriptors 0,1,2,END,TELL" in os.read(told, 65536).decode()
            os.write(ends, b"1")
            assert Forked(pid).wait() == 0
            for descriptor in numbers.values():
                os.close(descriptor)
        for each in (told, tell, end, ends):
            os.close(each)


async def test_the_death_of_the_server_harms_no_child_and_another_one_forks() -> None:
    async with serving() as server:
        first = await born(server)
        await first.says()
        before = server.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        second = await _until_forked(server)
        assert server.pid not in (before, None)
        assert first.child.poll() is None
        await second.says()
        assert (first.end(), second.end()) == (0, 0)


async def test_a_server_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        await (await born(server)).says()
        monkeypatch.setattr(forks, "ANSWER_S", 0.1)
        before = server.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        with pytest.raises(OSError, match="no answer"):
            await born(server)
        monkeypatch.undo()
        assert (await _until_forked(server)).end() == 0
        assert server.pid != before


async def test_an_environment_that_is_too_large_is_refused_and_the_server_lives() -> None:
    async with serving() as server:
        before = server.pid
        with pytest.raises(OSError, match="too large") as caught:
            await born(server, LARGE="x" * forks.MAX_BYTES)
        assert caught.value.errno == errno.E2BIG
        assert (await born(server)).end() == 0
        assert server.pid == before


async def test_a_server_that_cannot_import_what_children_run_is_an_error_of_each_fork(capfd: Any) -> None:
    async with serving("no_such_module_here") as server:
        with pytest.raises(OSError, match="fork server"):
            await born(server)
    assert "no_such_module_here" in capfd.readouterr().err


async def test_a_cancelled_fork_leaves_no_answer_for_the_next() -> None:
    async with serving() as server:
        with trio.CancelScope() as scope:
            scope.cancel()
            await born(server)
        child = await _until_forked(server)
        assert f"parent {os.getpid()}" in await child.says()
        assert child.end() == 0


async def _until_forked(server: ForkServer) -> Told:
    while True:
        try:
            return await born(server)
        except OSError:
            await trio.sleep(0.01)
