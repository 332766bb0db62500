"""Reads that wait: when their topic is delivered, and what ends them."""

from __future__ import annotations

import pytest

from proto.model.errors import ErrorCode, TopicsError
from shardd.delivery.pressure import (
    FULL_LAG,
)
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness
from tests.unit.shardd.delivery.test_pressure import answered, append, park, press


@pytest.fixture
def shard() -> Harness:
    return Harness()


@pytest.mark.parametrize("name", ["", "n" * 256, "é" * 128])
def test_a_diff_after_a_cursor_whose_name_cannot_exist_is_400(shard: Harness, name: str) -> None:
    shard.append("a", 1)
    with pytest.raises(TopicsError) as caught:
        shard.call("diff", "a", {"cursor": name})
    assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_REQUEST, {"field": "cursor"})
    with pytest.raises(TopicsError) as caught:
        shard.call("diff", "a", {"cursor": "n" * 255})
    assert caught.value.code is ErrorCode.CURSOR_NOT_FOUND


class TestDelivery:
    def test_topics_that_nobody_waits_for_are_not_scheduled(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.send("append", "a", {"records": [{"data": 1}]})
        shard.shard.commits.flush()
        assert len(shard.shard.scheduler) == 0

    def test_a_woken_read_says_how_long_it_was_held_back(self, shard: Harness) -> None:
        """`throttle_wait_ms`."""
        shard.append("a", 1)
        press(shard, 0.6)
        ident = park(shard, "a")
        append(shard, "a")
        assert answered(shard, ident) is None
        append(shard, "a")
        shard.clock.advance(10)
        shard.shard.deliver()
        reply = answered(shard, ident)
        assert reply is not None
        assert reply.performance["throttle_wait_ms"] == pytest.approx(10)
        assert reply.performance["records_scanned"] == 2

    def test_a_read_that_waits_for_nobody_says_zero(self, shard: Harness) -> None:
        shard.append("a", 1)
        press(shard, 1.0)
        assert shard.reply("diff", "a", {}).performance["throttle_wait_ms"] == 0.0

    def test_a_poll_that_ends_while_its_topic_is_held_gets_what_there_is(self, shard: Harness) -> None:
        """Pressure costs latency, never data."""
        shard.call("configure", "a", {"priority": -1})
        shard.append("a", 1)
        ident = park(shard, "a")
        press(shard, 1.0)
        append(shard, "a")
        shard.clock.advance(29_999)
        shard.shard.deliver()
        assert answered(shard, ident) is None
        shard.clock.advance(1)
        shard.shard.deliver()
        reply = answered(shard, ident)
        assert reply is not None
        assert reply.performance["throttle_wait_ms"] == pytest.approx(30_000)
        assert b'"$seq":2' in reply.body

    def test_a_feed_of_a_held_topic_is_told_to_come_back(self, shard: Harness) -> None:
        """The topics of a stream are paced, and it says so."""
        feed = {"limit": 10, "budget": 1000, "nodes": (), "tags": True, "meta": True, "data": True, "strong": False}
        feed |= {"epoch": 0, "from_seq": 1, "wait_ms": 30_000, "touch": False}
        shard.call("configure", "a", {"priority": -1})
        shard.append("a", 1)
        poll = park(shard, "a")
        waiting = shard.send("feed", "a", **feed)
        press(shard, 1.0)
        assert answered(shard, waiting) is None, "nothing has come that could be held back"
        append(shard, "a")
        shard.clock.advance(20)
        shard.shard.sample(FULL_LAG)
        reply = answered(shard, waiting)
        assert reply is not None
        assert reply.error is not None
        assert (reply.error.code, reply.error.retry_after_ms) == (ErrorCode.THROTTLED, 1000)
        again = shard.reply("feed", "a", **feed)
        assert again.error is not None
        assert again.error.code == ErrorCode.THROTTLED
        assert answered(shard, poll) is None, "a poll just waits"
        press(shard, 0.0)
        assert b'"$seq":2' in shard.reply("feed", "a", **feed).body
        assert answered(shard, poll) is not None

    def test_a_held_topic_is_delivered_by_the_sample_that_ends_the_holding(self, shard: Harness) -> None:
        shard.call("configure", "a", {"priority": -1})
        shard.append("a", 1)
        ident = park(shard, "a")
        press(shard, 1.0)
        append(shard, "a")
        press(shard, 0.0)
        assert answered(shard, ident) is not None

    def test_a_poll_that_is_gone_leaves_nothing_to_schedule(self, shard: Harness) -> None:
        shard.append("a", 1)
        press(shard, 1.0)
        ident = park(shard, "a")
        append(shard, "a")
        assert len(shard.shard.scheduler) == 1
        shard.shard.reads.cancel("peer", ident)
        assert len(shard.shard.scheduler) == 0

    def test_a_deleted_topic_ends_its_polls_however_high_the_pressure(self, shard: Harness) -> None:
        shard.append("a", 1)
        press(shard, 1.0)
        ident = park(shard, "a")
        append(shard, "a")
        shard.call("delete_topic", "a")
        reply = answered(shard, ident)
        assert reply is not None
        assert reply.error is not None
        assert reply.error.code == ErrorCode.TOPIC_NOT_FOUND
        assert len(shard.shard.scheduler) == 0

    def test_a_damaged_file_is_bad_news_for_its_readers_alone(self) -> None:
        """The records were written to a file and left memory while they gathered."""
        shard = Harness(cache_bytes=0)
        shard.append("a", 1)
        ident = park(shard, "a")
        press(shard, 0.6)
        append(shard, "a")
        for _ in range(2):
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        path = next(path for path in disk.names if path.suffix == ".data")
        for place in range(64, len(disk.names[path].data), 8):
            disk.names[path].data[place] ^= 1
        shard.clock.advance(10)
        shard.shard.deliver()
        reply = answered(shard, ident)
        assert reply is not None
        assert reply.error is not None
        assert reply.error.detail is not None
        assert reply.error.detail["reason"] == "damaged"
        assert shard.append("b", 1)["count"] == 1

    def test_what_waits_to_be_delivered_has_a_deadline(self, shard: Harness) -> None:
        shard.append("a", 1)
        press(shard, 0.6)
        looked: list[float | None] = []
        shard.shard.scheduler.more = lambda: looked.append(shard.shard.next_due)
        park(shard, "a")
        append(shard, "a")
        assert looked == [30.0, pytest.approx(0.01)]

    def test_the_state_shows_what_waiting_is_worth(self, shard: Harness) -> None:
        """The priority the scheduler is using right now."""
        shard.call("configure", "a", {"priority": -40})
        shard.append("a", 1)
        park(shard, "a")
        press(shard, 1.0)
        append(shard, "a")
        shard.clock.advance(1500)
        assert shard.call("state", "a")["effective_priority"] == 110
        press(shard, 0.0)
        assert shard.call("state", "a")["effective_priority"] == -40
