"""Streams of a session: one at a time, in the order of their numbers, at whichever gateways, whatever dies."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import SessionMove, SessionNews, SessionTake
from proto.model.limits import MAX_WAIT_MS
from shardd.operations.session_streams import NEWS_S, TAKE_S
from shardd.process.server import MAINTENANCE_INTERVAL
from tests.support.harness import Harness

WID, OTHER = "wid_" + "a" * 22, "wid_" + "b" * 22
ONE, TWO = "g0.1", "g1.1"


class Scene:
    """A shard with two sessions, and gateways that ask it."""

    def __init__(self, harness: Harness | None = None) -> None:
        if harness is None:
            harness = Harness()
            for wid in (WID, OTHER):
                told = {"limit": 1, "heartbeat_ms": 1000}
                harness.reply("session_make", wid, {"t": [1, 0, 0]}, owner=b"k", options=told)
        self.harness = harness
        self.streams = harness.shard.session_streams
        self._ids = count(1000)
        self.said: dict[int, Message] = {}

    def restarted(self) -> Scene:
        return Scene(self.harness.restarted())

    def send(self, caller: str, operation: Any, topic: str = "", body: bytes = b"") -> int:
        ident = next(self._ids)

        def respond(message: Message) -> None:
            assert not isinstance(self.said.get(ident), Reply), "answered twice"
            self.said.pop(ident, None)
            self.said[ident] = message

        self.harness.shard.handle(Request(ident, operation, topic, body), caller, respond)
        return ident

    def ask(self, caller: str, operation: Any, topic: str = "", body: bytes = b"") -> int:
        ident = self.send(caller, operation, topic, body)
        self.settle()
        return ident

    def settle(self) -> None:
        self.harness.shard.flush()
        self.harness.shard.commits.sync_now()

    def wait(self, ms: int) -> None:
        self.harness.clock.advance(ms)
        self.harness.shard.deliver()

    def take(self, caller: str, wid: str = WID, owner: bytes = b"k") -> int:
        return self.ask(caller, SessionTake(owner), wid)

    def listen(self, caller: str) -> int:
        return self.ask(caller, SessionNews())

    def move(self, caller: str, number: int, seq: int | None = None, *, over: bool = False, wid: str = WID) -> Any:
        topics = {} if seq is None else {"t": [1, seq, 0]}
        return self.answer(self.ask(caller, SessionMove(), body=msgspec.json.encode({wid: [0, topics, number, over]})))

    def answer(self, ident: int) -> Any:
        reply = self.said[ident]
        assert isinstance(reply, Reply)
        return reply.extra if reply.error is None else reply.error.status

    def waits(self, ident: int) -> bool:
        return isinstance(self.said[ident], Parked)

    def position(self) -> int:
        reply = self.harness.reply("session_open", WID, owner=b"k")
        assert reply.extra is not None
        return int(reply.extra.topics["t"][1])

    def begun(self, caller: str, wid: str = WID) -> int:
        """The number of a stream that begins at once."""
        return int(self.answer(self.take(caller, wid)).stream)


def test_the_first_stream_begins_at_once_and_numbers_grow() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.move(ONE, first, over=True)
    second = scene.answer(scene.take(TWO))
    assert (0, first) < (first, second.stream)
    assert second.previous == first


@pytest.mark.parametrize("caller", [ONE, TWO])
def test_a_stream_waits_for_the_end_of_the_one_before_it_and_begins_at_its_last_position(caller: str) -> None:
    scene = Scene()
    first = scene.begun(ONE)
    news = scene.listen(ONE)
    assert scene.waits(news)
    second = scene.take(caller)
    assert scene.waits(second)
    assert scene.answer(news).streams == ((WID, first),)
    assert scene.move(ONE, first, 7).superseded == (), "it has not ended"
    assert scene.waits(second)
    scene.move(ONE, first, 9, over=True)
    found = scene.answer(second)
    assert found.stream > first
    assert found.previous == first
    assert tuple(found.topics["t"]) == (1, 9, 0)


def test_news_wait_for_a_gateway_that_is_not_listening() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.take(TWO)
    assert scene.answer(scene.listen(ONE)).streams == ((WID, first),)
    assert scene.waits(scene.listen(ONE)), "once"


def test_a_gateway_that_hangs_is_not_waited_for_and_moves_nothing_afterwards() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    second = scene.take(TWO)
    due = scene.harness.shard.next_due
    assert due is not None
    assert due - scene.harness.clock.monotonic() == pytest.approx(TAKE_S)
    scene.wait(1999)
    assert scene.waits(second)
    scene.wait(1)
    number = scene.answer(second).stream
    assert scene.harness.shard.session_streams.next_due is None
    assert scene.move(TWO, number, 3).superseded == ()
    late = scene.move(ONE, first, 50, over=True)
    assert late.superseded == (WID,)
    assert scene.position() == 3
    assert scene.restarted().position() == 3


def test_takes_that_supersede_each_other_wait_no_longer_than_one() -> None:
    scene = Scene()
    scene.begun(ONE)
    for _ in range(3):
        scene.take(TWO)
        scene.wait(500)
    last = scene.take(TWO)
    scene.wait(500)
    assert scene.answer(last).stream


def test_the_end_of_a_stream_that_is_over_ends_no_later_one() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.move(ONE, first, over=True)
    second = scene.begun(ONE)
    assert scene.move(ONE, first, over=True).superseded == (WID,)
    third = scene.take(TWO)
    assert scene.waits(third)
    scene.move(ONE, second, over=True)
    assert scene.answer(third).previous == second


def test_of_several_takes_that_wait_the_last_begins() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    news = scene.listen(ONE)
    takes = [scene.take(caller) for caller in (TWO, ONE, TWO)]
    assert [scene.answer(each).stream for each in takes[:2]] == [0, 0]
    assert scene.answer(news).streams == ((WID, first),)
    assert scene.waits(scene.listen(ONE)), "it is told once"
    scene.move(ONE, first, over=True)
    assert scene.answer(takes[2]).stream > first


def test_takes_of_one_group_begin_one_after_the_other_and_no_news_overtakes_an_answer() -> None:
    """The gateway must know the first stream when it hears that this has to end."""
    scene = Scene()
    news = scene.listen(ONE)
    takes = [scene.send(ONE, SessionTake(b"k"), WID) for _ in range(3)]
    scene.settle()
    assert [ident for ident, message in scene.said.items() if isinstance(message, Reply)] == [takes[1], takes[0], news]
    first = scene.answer(takes[0])
    assert scene.answer(takes[1]).stream == 0
    assert scene.answer(news).streams == ((WID, first.stream),)
    scene.move(ONE, first.stream, 4, over=True)
    assert tuple(scene.answer(takes[2]).topics["t"]) == (1, 4, 0)


def test_the_stream_of_a_gateway_that_is_gone_has_ended() -> None:
    scene = Scene()
    scene.begun(ONE)
    waiting = scene.take(TWO)
    scene.harness.shard.forget(ONE)
    scene.settle()
    assert scene.answer(waiting).stream
    scene.harness.shard.forget(TWO)
    assert scene.begun(ONE)


def test_a_stream_whose_gateway_is_gone_before_it_begins_keeps_none_waiting() -> None:
    scene = Scene()
    scene.send(ONE, SessionTake(b"k"), WID)
    waiting = scene.send(TWO, SessionTake(b"k"), WID)
    scene.harness.shard.forget(ONE)
    scene.settle()
    scene.wait(0)
    assert scene.answer(waiting).stream == 2
    assert scene.waits(scene.take(ONE))


def test_a_take_whose_gateway_is_gone_or_whose_client_left_does_not_begin() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    gone = scene.take(TWO)
    scene.harness.shard.forget(TWO)
    left = scene.take(ONE)
    scene.harness.shard.cancel(ONE, left)
    assert scene.harness.shard.session_streams.next_due is None
    scene.move(ONE, first, over=True)
    assert scene.waits(gone)
    assert scene.waits(left)
    assert scene.begun(TWO)


def test_after_a_restart_numbers_are_larger_and_moves_say_which_gateway_has_the_stream() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.move(ONE, first, 4)
    again = scene.restarted()
    assert again.move(ONE, first).superseded == ()
    news = again.listen(ONE)
    second = again.take(TWO)
    assert again.waits(second)
    assert again.answer(news).streams == ((WID, first),)
    again.move(ONE, first, 6, over=True)
    found = again.answer(second)
    assert found.stream > first
    assert found.previous == first
    assert tuple(found.topics["t"]) == (1, 6, 0)


def test_after_a_restart_a_take_does_not_wait_for_gateways_that_said_nothing_yet() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    again = scene.restarted()
    second = again.begun(TWO)
    assert second > first
    assert again.move(ONE, first, 9).superseded == (WID,)
    assert again.position() == 0
    assert again.restarted().begun(ONE) > second


def test_numbers_outlive_checkpoints() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.harness.shard.checkpoint_now()
    second = scene.restarted().begun(TWO)
    assert second > first
    scene.harness.shard.close()
    assert scene.restarted().begun(TWO) > first


def test_a_stream_that_the_log_has_lost_counts_and_is_logged() -> None:
    """A machine that stops may lose frames that were not synced; its gateways may be others."""
    scene = Scene()
    assert scene.move(ONE, 7, 3).superseded == ()
    assert scene.move(TWO, 6, 9).superseded == (WID,)
    assert scene.position() == 3
    again = scene.restarted()
    assert again.move(TWO, 6, 9).superseded == (WID,)
    assert again.begun(TWO) == 8


def test_a_number_that_was_drawn_twice_is_the_latest_streams() -> None:
    """The log could not be written, so the number of the first stream was lost."""
    scene = Scene()
    assert scene.begun(TWO) == 1
    assert scene.move(ONE, 1, 9).superseded == (WID,)
    assert scene.move(TWO, 1, 2).superseded == ()
    assert scene.position() == 2


@pytest.mark.parametrize("number", [-1, 0, 1 << 62, 1 << 64, 1.5, None, "1"])
def test_an_absurd_number_moves_nothing(number: Any) -> None:
    scene = Scene()
    assert scene.move(ONE, number, 9) == 500
    assert scene.position() == 0
    assert scene.begun(ONE) == 1


def test_a_stream_begins_while_the_log_cannot_be_written() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.move(ONE, first, 5, over=True)
    scene.harness.shard.log.read_only = "for the test"
    second = scene.answer(scene.take(TWO))
    assert (second.stream, tuple(second.topics["t"])) == (2, (1, 5, 0))
    third = scene.take(ONE)
    assert scene.waits(third)
    assert scene.move(TWO, 2, 6, over=True) == 503, "positions are kept by the gateway"
    assert scene.answer(third).stream == 3


def exists(scene: Scene) -> bool:
    """Whether the session is there after a round of maintenance."""
    scene.harness.shard.maintain()
    scene.settle()
    return WID in scene.harness.shard.directory.sessions.by_wid


def test_a_session_with_an_open_stream_stays_however_long_its_gateway_says_nothing() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    scene.harness.clock.advance(400_000)
    assert exists(scene)
    assert OTHER not in scene.harness.shard.directory.sessions.by_wid
    waiting = scene.take(TWO)
    assert scene.move(ONE, first, 1, over=True).unknown == ()
    second = scene.answer(waiting).stream
    scene.harness.clock.advance(400_000)
    assert exists(scene)
    scene.move(TWO, second, over=True)
    scene.harness.clock.advance(300_000)
    assert exists(scene)
    scene.harness.clock.advance(1)
    assert not exists(scene)
    assert scene.answer(scene.take(ONE)) == 404


def test_a_session_that_is_being_taken_stays() -> None:
    scene = Scene()
    taking = scene.send(ONE, SessionTake(b"k"), WID)
    scene.harness.clock.advance(400_000)
    scene.harness.shard.maintain()
    assert exists(scene)
    assert scene.answer(taking).stream == 1


def test_the_time_of_a_session_begins_when_the_gateway_of_its_stream_is_gone() -> None:
    scene = Scene()
    scene.begun(ONE)
    scene.harness.clock.advance(400_000)
    scene.harness.shard.forget(ONE)
    scene.harness.clock.advance(300_000)
    assert exists(scene)
    scene.harness.clock.advance(1)
    assert not exists(scene)


@pytest.mark.parametrize("answered", [False, True])
def test_a_take_whose_client_left_before_its_gateway_had_the_answer_is_no_stream(answered: bool) -> None:
    scene = Scene()
    left = scene.send(ONE, SessionTake(b"k"), WID)
    if answered:
        scene.settle()
    scene.harness.shard.cancel(ONE, left)
    scene.settle()
    assert scene.begun(TWO) == 2
    scene.harness.shard.cancel(ONE, left)
    again = scene.take(TWO)
    assert scene.waits(again), "a stream of another take has ended"
    scene.harness.shard.cancel(TWO, again)
    scene.move(TWO, 2, over=True)
    left = scene.ask(ONE, SessionTake(b"k"), WID)
    scene.harness.shard.cancel(ONE, left)
    scene.harness.clock.advance(300_001)
    assert not exists(scene)


def test_a_session_is_taken_by_its_owner_only_and_the_stream_stays() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    news = scene.listen(ONE)
    assert scene.answer(scene.take(TWO, owner=b"other")) == 401
    assert scene.answer(scene.take(TWO, wid="wid_none")) == 404
    assert scene.waits(news)
    assert scene.move(ONE, first, 1).superseded == ()


def test_sessions_do_not_disturb_each_other() -> None:
    scene = Scene()
    scene.begun(ONE)
    other = scene.begun(TWO, OTHER)
    scene.move(TWO, other, over=True, wid=OTHER)
    assert scene.waits(scene.take(TWO))


def test_a_request_for_news_ends_before_its_asker_takes_the_shard_for_hung() -> None:
    shortest_timeout_ms = 1000
    scene = Scene()
    news = scene.listen(ONE)
    scene.harness.clock.advance(MAX_WAIT_MS + shortest_timeout_ms - int(MAINTENANCE_INTERVAL * 1000))
    scene.harness.shard.maintain()
    assert scene.answer(news).streams == ()


def test_a_request_for_news_ends_in_time_and_when_it_is_cancelled() -> None:
    scene = Scene()
    first = scene.begun(ONE)
    news = scene.listen(ONE)
    scene.harness.clock.advance(int(NEWS_S * 1000))
    scene.harness.shard.maintain()
    assert scene.answer(news).streams == ()
    news = scene.listen(ONE)
    scene.harness.shard.cancel(ONE, news)
    scene.take(TWO)
    assert scene.waits(news)
    assert scene.answer(scene.listen(ONE)).streams == ((WID, first),)
