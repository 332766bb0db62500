"""Claims about the reactor: the states of a connection, turns, tasks in between, and that nothing is forgotten."""

from __future__ import annotations

import re
import select
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gateway.server import reactor as module
from gateway.server.reactor import MOVES, Drive, DriveEvent, DriveState, Reactor, Stopped
from proto.ipc import operations
from proto.ipc.message import Message, Parked, Reply, Request
from proto.process import trace
from proto.process.driven import Driven, driven, in_driver, in_task, outcome, readable, turn, writable
from tests.support.gateway_stage import stage, until

Script = Callable[["Served"], Coroutine[Any, Any, None]]


@dataclass
class Served:
    """A scripted connection."""

    script: Script
    raw: socket.socket
    peer: socket.socket
    seen: list[Any] = field(default_factory=list)
    after: list[Script] = field(default_factory=list)
    closed: bool = False
    drive: Drive = field(init=False)

    async def run(self) -> None:
        await self.script(self)

    def following(self) -> Driven | None:
        return self.after.pop()(self) if self.after else None

    def close(self) -> None:
        self.closed = True
        self.raw.close()


class Later:
    """An outcome that a test brings about."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    def wakes(self, wake: Callable[[], None]) -> None:
        self.wake = wake


@dataclass
class Bench:
    reactor: Reactor
    nursery: trio.Nursery
    made: list[Served] = field(default_factory=list)

    def serve(self, script: Script, *after: Script) -> Served:
        raw, peer = socket.socketpair()
        raw.setblocking(False)
        peer.setblocking(False)
        served = Served(script, raw, peer, after=list(after))
        served.drive = Drive(self.reactor, raw, served, self.nursery, lambda: None)
        self.made.append(served)
        return served


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            reactor = Reactor()
            await nursery.start(reactor.run)
            made = Bench(reactor, nursery)
            yield made
            for served in made.made:
                served.drive.close()
                served.peer.close()
            nursery.cancel_scope.cancel()


def test_the_table_of_states_is_the_one_in_the_docstring() -> None:
    table = (module.__doc__ or "").partition("    state ")[2].partition("\n\n")[0].splitlines()[1:]
    told: dict[DriveState, list[DriveState]] = {state: [] for state in DriveState}
    states: list[DriveState] = []
    for line in table:
        names = re.findall(r"\b[A-Z]{4,}\b", line)
        if re.match(r" {4}[A-Z]", line):
            states = [DriveState[name] for name in (names[:-1] if len(names) > 1 else names)]
        if len(names) > 1 or not re.match(r" {4}[A-Z]", line):
            for state in states:
                told[state].append(DriveState[names[-1]])
    for state, moves in MOVES.items():
        assert sorted(told[state]) == sorted(moves.values()), state


def test_each_state_can_be_reached_and_left_but_the_last() -> None:
    reached = {after for moves in MOVES.values() for after in moves.values()} | {DriveState.QUEUED}
    assert reached == set(DriveState)
    assert [state for state, moves in MOVES.items() if not moves] == [DriveState.OVER]
    assert {event for moves in MOVES.values() for event in moves} == set(DriveEvent)


async def test_input_and_room_resume_a_connection() -> None:
    async def script(served: Served) -> None:
        await readable(served.raw)
        served.seen.append(served.raw.recv(10))
        await writable(served.raw)
        served.raw.send(b"answer")
        served.seen.append(driven())

    async with bench() as there:
        served = there.serve(script)
        await until(lambda: served.drive.state is DriveState.READING)
        served.peer.send(b"question")
        await until(lambda: served.closed)
        assert served.seen == [b"question", True]
        assert served.peer.recv(10) == b"answer"
        assert served.drive.state is DriveState.OVER


async def test_a_reply_wakes_a_sleeping_reactor() -> None:
    later = Later()

    async def script(served: Served) -> None:
        await outcome(later)
        served.seen.append("reply")

    async with bench() as there:
        served = there.serve(script)
        await until(lambda: served.drive.state is DriveState.ASKING)
        await trio.testing.wait_all_tasks_blocked()
        assert later.wake is not None
        later.wake()
        await until(lambda: served.closed)
        assert served.seen == ["reply"]


async def test_bytes_sent_ahead_cost_no_turns() -> None:
    later = Later()

    async def script(served: Served) -> None:
        await readable(served.raw)
        served.raw.recv(1)
        await outcome(later)
        await readable(served.raw)
        served.seen.append(served.raw.recv(10))

    async with bench() as there:
        served = there.serve(script)
        served.peer.send(b"1")
        await until(lambda: served.drive.state is DriveState.ASKING)
        served.peer.send(b"ahead")
        await until(lambda: served.drive._mask == 0)
        await trio.testing.wait_all_tasks_blocked()  # the set is quiet, although there is input
        assert not select.select([there.reactor.epoll], [], [], 0)[0]
        assert later.wake is not None
        later.wake()
        await until(lambda: served.closed)
        assert served.seen == [b"ahead"]


async def test_a_socket_that_the_kernel_does_not_watch_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(served: Served) -> None:
        try:
            await readable(served.raw)
        finally:
            served.seen.append("ended")

    def full(*_: object) -> None:
        raise OSError("no space left")

    async with bench() as there:
        other = there.serve(script)
        await until(lambda: other.drive.state is DriveState.READING)
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(there.reactor, "watch", full)
            served = there.serve(script)
            await until(lambda: served.closed)
        assert served.seen == ["ended"]
        assert [line["event"] for line in logs] == ["connection_not_watched"]
        other.peer.send(b"x")
        await until(lambda: other.closed)


async def test_a_connection_that_never_waits_lets_others_have_their_turns() -> None:
    async def endless(served: Served) -> None:
        while True:
            await turn()

    async def script(served: Served) -> None:
        await readable(served.raw)

    async with bench() as there:
        there.serve(endless)
        served = there.serve(script)
        served.peer.send(b"x")
        await until(lambda: served.closed)


class Turns:
    """A socket to a shard that counts the turns of its reactor: each ends with a flush."""

    def __init__(self) -> None:
        self.count = 0

    def flush(self) -> bool:
        self.count += 1
        return False


async def test_what_becomes_ready_in_a_turn_belongs_to_it() -> None:
    turns: Any = Turns()

    async def script(served: Served) -> None:
        await readable(served.raw)
        served.seen.append(turns.count)
        others = there.made[there.made.index(served) + 1 :]
        for other in others[:1]:
            other.peer.send(b"x")

    async with bench() as there:
        there.reactor._readers.append(module.Reader(there.reactor, turns, lambda group: None))
        for _ in range(module.ROUNDS + 1):
            there.serve(script)
        await until(lambda: all(served.drive.state is DriveState.READING for served in there.made))
        there.made[0].peer.send(b"x")
        await until(lambda: all(served.closed for served in there.made))
        first, *others, last = [served.seen[0] for served in there.made]
        assert others == [first] * (module.ROUNDS - 1)
        assert last > first, "a turn is bounded"


async def test_a_task_carries_a_connection_only_while_it_needs_one() -> None:
    async def script(served: Served) -> None:
        trace.begin("one")
        await in_task()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
        served.seen += [driven(), trace.current()]
        trace.begin("two")
        await in_driver()
        served.seen += [driven(), trace.current()]
        await readable(served.raw)

    async with bench() as there:
        served = there.serve(script)
        await until(lambda: served.drive.state is DriveState.READING)
        assert served.seen == [False, "one", True, "two"]
        assert len(there.nursery.child_tasks) == 1
        assert trace.current() == ""


@pytest.mark.parametrize("place", ["input", "room", "reply", "task"])
async def test_a_stopped_connection_ends_and_what_follows_runs(place: str) -> None:
    later = Later()

    async def script(served: Served) -> None:
        try:
            if place == "input":
                await readable(served.raw)
            elif place == "room":
                while served.raw.send(b"x" * 100_000) == 100_000:
                    pass
                await writable(served.raw)
            elif place == "reply":
                await outcome(later)
            else:
                await in_task()
                await trio.sleep_forever()
        except (Stopped, trio.Cancelled):
            served.seen.append("stopped")
            raise

    async def follow(served: Served) -> None:
        served.seen.append("followed")

    waits = {
        "input": DriveState.READING,
        "room": DriveState.WRITING,
        "reply": DriveState.ASKING,
        "task": DriveState.CARRIED,
    }
    async with bench() as there:
        served = there.serve(script, follow)
        await until(lambda: served.drive.state is waits[place])
        served.drive.stop()
        await until(lambda: served.closed)
        assert served.seen == ["stopped", "followed"]


async def test_a_connection_is_stopped_before_its_task_has_begun() -> None:
    async def script(served: Served) -> None:
        await in_task()
        served.seen.append("task")
        await trio.sleep_forever()

    async with bench() as there:
        served = there.serve(script)
        served.drive.on_turn()
        assert served.drive.state is DriveState.CARRIED
        served.drive.stop()
        await until(lambda: served.closed)


async def test_every_operation_is_served_without_a_forbidden_wait() -> None:
    """A driven coroutine that awaits trio is answered 500; see `test_driven`."""
    body = b'{"from_seq":0}'

    def script(request: Request) -> list[Message]:
        if request.op in ("list_topics", "cursor_list", "router_list"):
            return [Reply(request.id, b"[]", extra={"names": [], "more": False})]
        if request.op == "diff":
            return [Parked(request.id), Reply(request.id, b"{}")]
        return [Reply(request.id, b"{}")]

    targets = [
        ("POST", "/v0/topics/a", body),
        ("POST", "/v0/topics/a/diff", body),
        ("GET", "/v0/topics/a", None),
        ("PUT", "/v0/topics/a", None),
        ("DELETE", "/v0/topics/a", None),
        ("POST", "/v0/topics/a/delete", body),
        ("GET", "/v0/topics", None),
        ("GET", "/v0/topics/a/cursors", None),
        ("GET", "/v0/routers", None),
        ("GET", "/v0/health", None),
        ("GET", "/v0/ready", None),
        ("GET", "/v0/metrics", None),
        ("GET", "/v0/openapi.json", None),
        ("POST", "/v0/tickets", b'{"path":"/v0/ws"}'),
    ]
    async with stage(script) as there, there.client() as client:
        for _ in range(2):
            for method, target, data in targets:
                for coding in ("identity", "gzip"):
                    answer = await client.ask(method, target, data, {"Accept-Encoding": coding})
                    assert answer.status < 500, (method, target, answer.raw)


class Source:
    """A socket to a shard whose descriptor never tells of messages, as after a send that consumed the edge."""

    def __init__(self) -> None:
        self._quiet, self._other = socket.socketpair()
        self.groups: list[Any] = []
        self.on_input: Callable[[], object] = lambda: None

    @property
    def descriptor(self) -> int:
        return self._quiet.fileno()

    def take(self) -> list[Any]:
        return self.groups.pop(0) if self.groups else []

    def flush(self) -> bool:
        return bool(self.groups)

    def close(self) -> None:
        self._quiet.close()
        self._other.close()


async def test_messages_of_which_the_descriptor_does_not_tell_are_taken() -> None:
    source: Any = Source()
    heard: list[Any] = []
    async with bench() as there:
        there.nursery.start_soon(there.reactor.read, source, heard.append)
        await trio.testing.wait_all_tasks_blocked()
        source.groups = [["a"], ["b"], ["c"]]
        source.on_input()  # a flush outside of the reactor's turns found them
        await until(lambda: heard == [["a"], ["b"], ["c"]])
        await trio.testing.wait_all_tasks_blocked()

        async def script(served: Served) -> None:
            source.groups = [["d"]]  # they arrive while a turn runs: its end finds them

        there.serve(script)
        await until(lambda: heard[-1] == ["d"])
    source.close()


async def test_a_request_sent_outside_of_a_turn_is_answered() -> None:
    """The reactor sleeps when a task asks a shard: neither the request nor its reply may wait for another one."""
    async with stage() as there, there.client() as client:
        for _ in range(50):
            with trio.fail_after(60):
                assert (await there.gateway.shards.call(operations.StateGet(), "a")).error is None
                assert (await client.ask("GET", "/v0/topics/a")).status == 200


async def test_a_reader_that_ends_while_it_is_queued_takes_nothing_more() -> None:
    """A shard dies: its socket is closed before the turn in which its last messages would be taken."""
    source: Any = Source()
    taken: list[str] = []
    scope = trio.CancelScope()

    async with bench() as there:

        async def read() -> None:
            with scope:
                await there.reactor.read(source, lambda group: None)
            taken.clear()

        there.nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        source.take = lambda: taken.append("late")
        reader = there.reactor._readers[0]
        scope.cancel()
        await until(lambda: not there.reactor._readers)
        reader.on_turn()  # it was queued before
        assert taken == []
    source.close()
