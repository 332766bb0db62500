"""Askers that are gone: what a shard keeps for them ends at once, and what others have stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from proto.ipc.askers import Census, linked
from proto.ipc.message import Message, NoMore, Packet, Parked, Reply, Request, Status, Taken
from proto.model.errors import moving
from proto.model.limits import Limits
from proto.model.memory_shares import SMALLEST_WINDOW
from shardd.process import server
from shardd.process.server import DIED_OVER_S, Server
from shardd.storage.indivisible import indivisible
from tests.support.asked import operation
from tests.support.harness import Harness
from tests.support.queues import claim, counters, queue, seqs

OLD, NEW, OTHER = b"g0.1", b"g0.2", b"s1.7"

FEED: dict[str, Any] = {
    "epoch": 0, "from_seq": 0, "wait_ms": 1000, "touch": True, "limit": 10, "budget": 1000, "nodes": (), "tags": True,
    "meta": True, "data": True, "strong": False,
}  # fmt: skip


class Socket:
    """Keeps what a server sends, by asker."""

    def __init__(self) -> None:
        self.sent: dict[bytes, list[Message]] = {}
        self.status: Callable[[], Status]
        self.told: list[bytes] = []
        """The askers that were sent the status."""

    def send(self, message: Message, peer: bytes) -> None:
        self.sent.setdefault(peer, []).append(message)

    def tell_status(self, peer: bytes) -> None:
        self.told.append(peer)


class Remote(Socket):
    """In place of a `RemoteRouter`."""

    def __init__(self) -> None:
        super().__init__()
        self.over: list[bytes] = []
        self.forget_lost: Callable[[float], list[bytes]] = lambda for_s: []
        self.silent: Callable[[float], set[bytes]] = lambda for_s: set()

    def tell_over(self, peer: bytes) -> None:
        self.over.append(peer)


class Scene:
    """A shard with its loop, without tasks."""

    def __init__(self, **config: Any) -> None:
        self.harness = Harness()
        queue(self.harness, **config)
        self.harness.append("log", "x" * 5000)
        self.shard = self.harness.shard
        self.census = Census({"g0": 1, "s1": 7})
        self.socket, self.remote = Socket(), Remote()
        limits = Limits(memory_bytes=16 * SMALLEST_WINDOW)
        self.server = Server(
            self.shard,
            self.socket,  # type: ignore[arg-type]
            limits,
            census=self.census,
            remote=self.remote,  # type: ignore[arg-type]
        )
        self._id = 0

    def ask(self, peer: bytes, op: str, topic: str, body: Any = None, **options: Any) -> int:
        self._id += 1
        raw = b"" if body is None else msgspec.json.encode(body)
        self.say(peer, Request(self._id, operation(op, options), topic, raw))
        return self._id

    def say(self, peer: bytes, message: Any) -> None:
        self.server._handle([(peer, Packet([message]))])
        self.shard.commits.sync_now()

    def stream(self, peer: bytes, name: str, most: int = 2) -> int:
        return self.ask(peer, "work_take", "q", stream=name, node="w", max=most, lease_ms=3_600_000)

    def replies(self, peer: bytes) -> list[int]:
        return [message.id for message in self.socket.sent.get(peer, ()) if isinstance(message, Reply)]

    def parked(self, peer: bytes) -> list[int]:
        return [message.id for message in self.socket.sent.get(peer, ()) if isinstance(message, Parked)]

    def loses_gateway(self) -> None:
        self.census.update({"g0": 2})
        self.shard.commits.sync_now()


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    yield
    indivisible.broken = False


def test_a_claim_of_an_asker_that_is_gone_takes_no_job() -> None:
    scene = Scene()
    theirs = scene.ask(OLD, "claim", "q", {"node": "w", "max": 9, "wait_ms": 20_000})
    ours = scene.ask(OTHER, "claim", "q", {"node": "v", "max": 1, "wait_ms": 20_000})
    assert scene.parked(OLD) == [theirs]
    scene.loses_gateway()
    scene.ask(NEW, "append", "q", {"records": [{"data": 1}, {"data": 2}]})
    assert scene.replies(OLD) == []
    assert scene.replies(OTHER) == [ours]
    (job,) = claim(scene.harness, "x")
    assert (job["$seq"], job["deliveries"]) == (2, 1)


@pytest.mark.parametrize("durable", [False, True])
def test_the_jobs_of_its_streams_are_claimable_at_once(durable: bool) -> None:
    scene = Scene(leases_durable=durable)
    scene.harness.append("q", *range(6))
    scene.stream(OLD, "a", 2)
    scene.stream(OLD, "b", 1)
    scene.stream(OLD, "b", 1)  # parked: it holds as many as it may
    scene.stream(OTHER, "c", 1)
    claimed = scene.ask(OLD, "claim", "q", {"node": "p", "max": 1})
    assert counters(scene.harness) == (1, 5)
    assert claimed in scene.replies(OLD)
    scene.loses_gateway()
    assert counters(scene.harness) == (4, 2), "a lease that was sent runs out, and that of another asker's stream"
    assert seqs(claim(scene.harness, "x")) == [1, 2, 3, 6]


def test_a_stream_that_was_closed_before_gives_nothing_back_twice() -> None:
    scene = Scene()
    scene.harness.append("q", 0)
    scene.stream(OLD, "a")
    scene.ask(OLD, "work_close", "q", stream="a")
    assert seqs(claim(scene.harness, "x")) == [1]
    scene.loses_gateway()
    assert counters(scene.harness) == (0, 1)


def test_a_queue_that_is_gone_or_new_keeps_nothing_of_the_end() -> None:
    scene = Scene()
    scene.harness.append("q", 0)
    scene.stream(OLD, "a")
    scene.harness.call("delete_topic", "q")
    queue(scene.harness)
    scene.harness.append("q", 0)
    assert seqs(claim(scene.harness, "x")) == [1]
    queue(scene.harness, "other")
    scene.ask(OLD, "work_take", "other", stream="b", node="w", max=1, lease_ms=None)
    scene.harness.call("delete_topic", "other")
    scene.loses_gateway()
    assert counters(scene.harness) == (0, 1)


def test_its_parked_reads_and_pulls_are_dropped_and_those_of_others_stay() -> None:
    scene = Scene()
    version = scene.shard.names._version
    epoch = scene.shard.directory.find("log").epoch
    for peer in (OLD, OTHER):
        scene.ask(peer, "diff", "log", {"from_seq": 1, "wait_ms": 20_000})
        scene.ask(peer, "feed", "log", **{**FEED, "from_seq": 1})
        scene.ask(peer, "pull", "log", epoch=epoch, after=1, wait=True)
        scene.ask(peer, "name_changes", "", since=version)
        assert len(scene.parked(peer)) == 4
    scene.loses_gateway()
    assert (len(scene.shard.reads), len(scene.shard.names)) == (2, 1)
    scene.harness.append("log", 1)
    scene.harness.append("new", 1)
    scene.shard.deliver()
    assert scene.replies(OLD) == []
    assert sorted(scene.replies(OTHER)) == scene.parked(OTHER)


def test_its_queued_replies_and_deferred_requests_are_dropped() -> None:
    scene = Scene()
    for _ in range(60):
        scene.ask(OLD, "diff", "log", {"from_seq": 0})
    sent = len(scene.replies(OLD))
    assert scene.server._replies.full(OLD)
    deferred = scene.ask(OLD, "append", "log", {"records": [{"data": 1}]})
    scene.loses_gateway()
    assert not scene.server._replies.full(OLD)
    scene.say(OLD, Taken(1 << 62))
    assert len(scene.replies(OLD)) == sent
    assert deferred not in scene.replies(OLD)
    assert scene.shard.directory.find("log").records.head_seq == 1
    assert not scene.server._deferred


async def test_a_shard_that_is_given_away_waits_for_those_that_still_ask() -> None:
    scene = Scene()
    scene.say(OLD, NoMore())  # too early: it means nothing
    for _ in range(60):
        scene.ask(OLD, "diff", "log", {"from_seq": 0})
    deferred = scene.ask(OLD, "append", "log", {"records": [{"data": 1}]})
    scene.ask(OTHER, "append", "q", {"records": [{"data": 1}]})
    scene.shard.move(moving(0))
    over = []

    async def dismiss() -> None:
        await scene.server.dismiss()
        over.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dismiss)
        await trio.testing.wait_all_tasks_blocked()
        assert scene.socket.told == [OLD, OTHER]
        assert scene.shard.status().given
        late, new = (scene.ask(each, "append", "q", {"records": [{"data": 2}]}) for each in (OTHER, b"g1.3"))
        scene.say(OTHER, NoMore())
        scene.say(b"g1.3", NoMore())
        await trio.testing.wait_all_tasks_blocked()
        assert not over
        scene.say(OLD, Taken(1 << 62))
        scene.say(OLD, NoMore())
        with trio.fail_after(10):
            while not over:
                await trio.lowlevel.checkpoint()
    replies = [each for sent in scene.socket.sent.values() for each in sent if isinstance(each, Reply)]
    assert {deferred, late, new} <= {each.id for each in replies if each.error}
    assert {each.id for each in replies} == set(range(1, new + 1)), "none of them is left unanswered"
    assert scene.shard.directory.find("log").records.head_seq == 1


async def test_a_shard_that_is_given_away_waits_for_no_asker_that_is_gone_or_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    scene.ask(OLD, "append", "q", {"records": [{"data": 1}]})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.server.dismiss)
        await trio.testing.wait_all_tasks_blocked()
        scene.loses_gateway()
    scene.ask(link(1), "append", "q", {"records": [{"data": 1}]})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.server.dismiss)
        await trio.testing.wait_all_tasks_blocked()
        scene.remote.silent = lambda for_s: {link(1)}
    scene.ask(OTHER, "append", "q", {"records": [{"data": 1}]})
    monkeypatch.setattr(server, "DISMISS_S", 0.01)
    await scene.server.dismiss()


def test_what_it_left_in_the_socket_is_ignored() -> None:
    scene = Scene()
    scene.loses_gateway()
    scene.ask(OLD, "claim", "q", {"node": "w", "max": 9, "wait_ms": 20_000})
    scene.stream(OLD, "late")
    scene.ask(OLD, "append", "log", {"records": [{"data": 1}]})
    scene.ask(NEW, "append", "q", {"records": [{"data": 1}]})
    assert OLD not in scene.socket.sent
    assert counters(scene.harness) == (1, 0)
    assert scene.shard.directory.find("log").records.head_seq == 1
    assert len(scene.replies(NEW)) == 1


def test_a_reply_that_is_ready_later_is_kept_for_no_one() -> None:
    scene = Scene()
    respond = scene.server._met(OLD)
    assert respond is not None
    scene.loses_gateway()
    for _ in range(60):
        respond(Reply(1, b"x" * 5000))
    assert not scene.server._replies._askers


def test_an_asker_that_no_report_names_is_served() -> None:
    scene = Scene()
    for peer in (b"g1.1", b"g0.3", b"\x00\x80\x00A\xa7"):
        assert scene.ask(peer, "state", "log") in scene.replies(peer)


def test_the_end_of_an_asker_is_logged_once() -> None:
    scene = Scene()
    scene.ask(OLD, "state", "log")
    with capture_logs() as logs:
        scene.loses_gateway()
        scene.loses_gateway()
    assert [(each["event"], each["asker"]) for each in logs] == [("asker_gone", "g0.1")]


def test_windows_are_divided_between_the_gateways_and_every_asker_hears_of_it() -> None:
    scene = Scene()
    for peer in (OLD, OTHER):
        scene.ask(peer, "state", "log")
    assert scene.shard.status().window == 2 * SMALLEST_WINDOW
    scene.loses_gateway()
    assert scene.socket.told == [], "nothing has changed"
    scene.ask(NEW, "state", "log")
    scene.census.update({"g1": 1})
    assert scene.shard.status().window == SMALLEST_WINDOW
    assert sorted(scene.socket.told) == [NEW, OTHER]
    scene.census.update({"g2": 1})
    assert scene.shard.status().window == SMALLEST_WINDOW


def test_an_asker_whose_window_grows_gets_what_it_has_room_for() -> None:
    scene = Scene()
    scene.server._replies.most = 10_000
    for _ in range(4):
        last = scene.ask(OLD, "diff", "log", {"from_seq": 0})
    deferred = scene.ask(OLD, "append", "log", {"records": [{"data": 1}]})
    assert last not in scene.replies(OLD)
    scene.census.update({})
    assert scene.replies(OLD)[-2:] == [last, deferred]


# -- of other machines


def link(number: int, machine: str = "mA") -> bytes:
    return linked(machine, "g0.1", number).encode()


def remote_replies(scene: Scene, peer: bytes) -> list[int]:
    return [message.id for message in scene.remote.sent.get(peer, ()) if isinstance(message, Reply)]


def test_an_asker_on_another_machine_is_answered_through_its_own_socket() -> None:
    scene = Scene()
    theirs = scene.ask(link(1), "claim", "q", {"node": "w", "max": 1})
    ours = scene.ask(OTHER, "claim", "q", {"node": "w", "max": 1})
    assert (remote_replies(scene, link(1)), scene.replies(OTHER)) == ([theirs], [ours])
    assert set(scene.remote.sent) == {link(1)}
    assert set(scene.socket.sent) == {OTHER}


def test_a_status_for_another_machine_has_the_time_at_which_it_leaves() -> None:
    scene = Scene()
    before = time.monotonic_ns()
    assert before <= scene.remote.status().clock_ns <= time.monotonic_ns()
    assert scene.socket.status().clock_ns == 0


async def test_other_machines_hear_for_a_minute_what_the_last_process_died_over(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, marks = Scene(), ((7, 10**12),)
    scene.server._died_over = marks
    monkeypatch.setattr(time, "monotonic", trio.current_time)
    with trio.move_on_after(DIED_OVER_S / 2):
        await scene.server._forget_lost(scene.remote)  # type: ignore[arg-type]
    assert scene.remote.status().died_over == marks
    assert scene.socket.status().died_over == ()
    with trio.move_on_after(DIED_OVER_S + 2):
        await scene.server._forget_lost(scene.remote)  # type: ignore[arg-type]
    assert scene.remote.status().died_over == ()


def test_a_later_link_ends_what_the_earlier_one_had_asked_for() -> None:
    scene = Scene()
    scene.ask(link(1), "claim", "q", {"node": "w", "max": 9, "wait_ms": 20_000})
    elsewhere = scene.ask(link(1, "mB"), "claim", "q", {"node": "v", "max": 1, "wait_ms": 20_000})
    scene.ask(link(2), "state", "q")
    scene.ask(OTHER, "append", "q", {"records": [{"data": 1}, {"data": 2}]})
    assert remote_replies(scene, link(1)) == []
    assert remote_replies(scene, link(1, "mB")) == [elsewhere]
    (job,) = claim(scene.harness, "x")
    assert (job["$seq"], job["deliveries"]) == (2, 1)


def test_a_late_message_of_an_earlier_link_is_ignored_and_its_sender_told() -> None:
    scene = Scene()
    scene.ask(link(2), "state", "q")
    late = scene.ask(link(1), "append", "q", {"records": [{"data": 1}]})
    assert late not in remote_replies(scene, link(1))
    assert scene.remote.over == [link(1)]
    assert counters(scene.harness) == (0, 0)


def test_a_link_that_asks_no_more_is_forgotten_at_once() -> None:
    scene = Scene()
    scene.ask(link(1), "claim", "q", {"node": "w", "max": 9, "wait_ms": 20_000})
    scene.say(link(1), NoMore())
    scene.ask(NEW, "append", "q", {"records": [{"data": 1}]})
    assert counters(scene.harness) == (1, 0)
    scene.ask(link(1), "claim", "q", {"node": "w", "max": 9})
    assert scene.remote.over == [link(1)], "it is not to be heard again"
    assert counters(scene.harness) == (1, 0)


def test_windows_are_divided_among_the_gateways_of_all_machines() -> None:
    scene = Scene()
    alone = scene.shard.window
    scene.ask(OTHER, "state", "q")
    for machine in ("mA", "mB"):
        scene.ask(link(1, machine), "state", "q")
    assert scene.shard.window < alone
    assert OTHER in scene.socket.told
    scene.census.lost(link(1, "mA"))
    scene.census.lost(link(1, "mB"))
    scene.census.changed()
    assert scene.shard.window == alone


async def test_a_link_that_is_heard_no_more_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    scene = Scene()
    scene.stream(link(1), "a", 2)
    scene.harness.append("q", 0, 1)
    scene.stream(link(1), "a", 2)
    assert counters(scene.harness)[1] == 2
    lost = [[], [link(1)]]
    scene.remote.forget_lost = lambda for_s: lost.pop(0) if lost else []
    with trio.move_on_after(5):
        await scene.server._forget_lost(scene.remote)  # type: ignore[arg-type]
    scene.shard.commits.sync_now()
    assert counters(scene.harness) == (2, 0)
    scene.ask(link(1), "append", "q", {"records": [{"data": 1}]})
    assert scene.remote.over == [link(1)]
    assert counters(scene.harness) == (2, 0)
    scene.ask(link(2), "append", "q", {"records": [{"data": 1}]})
    assert counters(scene.harness) == (3, 0)
