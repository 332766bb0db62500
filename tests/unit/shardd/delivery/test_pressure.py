"""Priority, scheduler and pressure: the order in which topics are served, and what a shard does when it is behind."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from proto.model.topic_config import TopicConfig
from shardd.delivery.pressure import (
    FULL_DELAY,
    FULL_DEPTH,
    FULL_LAG,
    MAX_COALESCE,
    MAX_RETRY_MS,
    MAX_WINDOW,
    MIN_RETRY_MS,
    SAMPLE_INTERVAL,
    Pressure,
    Sample,
    coalesce_s,
    holds,
    next_level,
    raw_level,
    retry_after_ms,
    widening_s,
)
from shardd.delivery.priority import WEIGHTS, age_boost, band, effective_priority
from shardd.delivery.scheduler import SLICE, Rounds, Scheduler
from shardd.process.loop import Server
from shardd.topic.topic import Topic
from tests.support.fault_disk import FaultDisk
from tests.support.harness import FakeClock, Harness

CALM = Sample(0, 0.0, 0.0, 0.0)
FULL = Sample(0, 0.0, FULL_LAG, 0.0)
FSYNC = {"durability": "fsync"}


def topic(ident: int, priority: int | None = None) -> Topic:
    return Topic(f"t{ident}", ident, 1, TopicConfig(priority=priority))


def under(level: float, pressure: Pressure | None = None) -> Pressure:
    """A `Pressure` that samples have brought to the level, or close to it."""
    pressure = pressure or Pressure()
    for _ in range(60):
        pressure.sample(Sample(0, 0.0, level * FULL_LAG, 0.0))
    return pressure


class Stage:
    """A scheduler whose deliveries take `cost_s` each."""

    def __init__(self, pressure: Pressure | None = None, cost_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.pressure = pressure or Pressure()
        self.scheduler = Scheduler(self.clock, self.pressure)
        self.served: list[int] = []
        self.cost_s = cost_s
        self._topics: dict[int, Topic] = {}

    def attach(self, ident: int, priority: int | None = None, *, background: bool = False) -> Topic:
        """Attaches a deliverer to the topic."""
        one = self._topics.setdefault(ident, topic(ident, priority))
        self.scheduler.attach(one, self.serve, background=background)
        return one

    def ready(self, ident: int, priority: int | None = None) -> Topic:
        """Marks a topic with a deliverer ready."""
        one = self._topics.get(ident) or self.attach(ident, priority)
        self.scheduler.ready(one)
        return one

    def serve(self, topic: Topic, since: float) -> int:
        self.served.append(topic.id)
        self.clock.elapsed += self.cost_s
        return 1

    def deliver(self) -> list[int]:
        self.served = []
        self.scheduler.deliver()
        return self.served


class TestPriority:
    @pytest.mark.parametrize(
        ("priority", "weight"),
        [(2000, 8), (750, 8), (749, 4), (500, 4), (499, 2), (250, 2), (249, 1), (0, 1)],
    )
    def test_bands_have_weights(self, priority: int, weight: int) -> None:
        assert WEIGHTS[band(priority)] == weight

    def test_negative_priorities_have_a_band_of_their_own(self) -> None:
        assert band(-1) == band(-1000) == len(WEIGHTS) - 1 != band(0)

    @pytest.mark.parametrize(
        ("waited", "boost"), [(-1.0, 0), (0.0, 0), (0.5, 50), (1.0, 100), (10.0, 1000), (600.0, 1000)]
    )
    def test_waiting_is_worth_a_hundred_a_second_for_ten_seconds(self, waited: float, boost: int) -> None:
        assert age_boost(waited) == boost

    @pytest.mark.parametrize(("idle_ms", "expected"), [(0, 500), (30_000, 250), (60_000, 125), (300_001, 0)])
    def test_recency_halves_every_thirty_seconds(self, idle_ms: int, expected: int) -> None:
        """`auto_priority`."""
        assert effective_priority(TopicConfig(), 1000, 1000 + idle_ms) == expected

    def test_a_manual_priority_wins(self) -> None:
        assert effective_priority(TopicConfig(priority=-7), 1000, 1000) == -7
        assert effective_priority(TopicConfig(auto_priority=False), 1000, 1000) == 0


class TestLevel:
    @pytest.mark.parametrize(
        "sample",
        [
            Sample(FULL_DEPTH, 0.0, 0.0, 0.0),
            Sample(0, FULL_DELAY, 0.0, 0.0),
            FULL,
            Sample(0, 0.0, 0.0, 1.0),
            Sample(9**9, 9.0, 9.0, 9.0),
        ],
    )
    def test_each_part_alone_can_make_it_full(self, sample: Sample) -> None:
        assert raw_level(sample) == 1.0

    def test_nothing_to_do_is_no_pressure(self) -> None:
        assert raw_level(CALM) == 0.0
        assert raw_level(Sample(0, -1.0, -1.0, 0.0)) == 0.0

    def test_one_hiccup_is_worth_a_half_and_soon_forgotten(self) -> None:
        level = next_level(0.0, FULL)
        assert level == 0.5
        assert next_level(next_level(level, CALM), CALM) < 0.2

    def test_lasting_pressure_becomes_full(self) -> None:
        assert under(1.0).level > 0.99

    @pytest.mark.parametrize(("level", "share"), [(0.0, 0.0), (0.2, 0.0), (0.6, 0.5), (1.0, 1.0)])
    def test_deliveries_gather_above_a_fifth(self, level: float, share: float) -> None:
        assert coalesce_s(level) == pytest.approx(share * MAX_COALESCE)

    @pytest.mark.parametrize(("level", "window"), [(0.0, 0.0005), (0.4, 0.0005), (0.7, 0.00525), (1.0, MAX_WINDOW)])
    def test_the_sync_window_widens_above_two_fifths(self, level: float, window: float) -> None:
        assert 0.0005 + widening_s(level, 0.0005) == pytest.approx(window)

    def test_a_window_that_is_wide_already_stays(self) -> None:
        assert widening_s(1.0, 0.5) == 0.0

    def test_holding_begins_above_eight_tenths_and_ends_below_six(self) -> None:
        assert [holds(level, False) for level in (0.59, 0.7, 0.8, 0.81)] == [False, False, False, True]
        assert [holds(level, True) for level in (0.81, 0.7, 0.6, 0.59)] == [True, True, True, False]

    def test_a_refused_write_is_told_to_come_back_when_the_queue_may_have_room(self) -> None:
        assert retry_after_ms(0.0) == MIN_RETRY_MS
        assert retry_after_ms(0.4) == 800
        assert retry_after_ms(60.0) == MAX_RETRY_MS


class TestRounds:
    def test_full_queues_share_by_weight(self) -> None:
        rounds = Rounds(WEIGHTS)
        queues = [[1]] * len(WEIGHTS)
        turns: Counter[int | None] = Counter()
        for _ in range(160):
            queue = rounds.choose(queues)
            assert queue is not None
            turns[queue] += 1
            rounds.spend(queue, 1)
        assert [turns[queue] for queue in range(len(WEIGHTS))] == [80, 40, 20, 10, 10]

    def test_what_is_shared_is_work_and_not_turns(self) -> None:
        rounds = Rounds((4, 4))
        spent = [0, 0]
        for _ in range(600):
            queue = rounds.choose([[1], [1]])
            assert queue is not None
            cost = (5, 1)[queue]
            rounds.spend(queue, cost)
            spent[queue] += cost
        assert spent[0] == pytest.approx(spent[1], rel=0.05)

    def test_an_idle_queue_saves_nothing_up(self) -> None:
        rounds = Rounds((8, 1))
        for _ in range(100):
            queue = rounds.choose([[], [1]])
            assert queue == 1
            rounds.spend(queue, 1)
        turns = []
        for _ in range(18):
            queue = rounds.choose([[1], [1]])
            assert queue is not None
            rounds.spend(queue, 1)
            turns.append(queue)
        assert turns.count(0) == 16

    def test_one_monstrous_topic_does_not_shut_its_band_out(self) -> None:
        rounds = Rounds((1, 1))
        assert rounds.choose([[1], []]) == 0
        rounds.spend(0, 1_000_000)
        others = 0
        while (queue := rounds.choose([[1], [1]])) == 1:
            others += 1
            rounds.spend(queue, 1)
        assert others < 20

    def test_nothing_to_do_is_nobodys_turn(self) -> None:
        assert Rounds(WEIGHTS).choose([OrderedDict[int, int]() for _ in WEIGHTS]) is None


class TestScheduler:
    def test_a_topic_is_there_once_however_often_it_grows(self) -> None:
        stage = Stage()
        for _ in range(5):
            stage.ready(1)
        assert len(stage.scheduler) == stage.scheduler.depth == 1
        assert stage.deliver() == [1]
        assert stage.deliver() == []

    def test_topics_that_nobody_waits_for_are_not_scheduled(self) -> None:
        stage = Stage()
        stage.scheduler.ready(topic(1))
        assert len(stage.scheduler) == 0

    def test_everybody_who_waits_for_a_topic_is_served_in_its_turn(self) -> None:
        stage = Stage()
        for _ in range(3):
            stage.attach(1)
        stage.ready(1)
        assert stage.deliver() == [1, 1, 1]

    def test_a_topic_that_grows_while_it_is_served_has_another_turn(self) -> None:
        stage = Stage()
        one = topic(1)
        seen: list[int] = []

        def serve(topic: Topic, since: float) -> int:
            seen.append(len(seen))
            if len(seen) < 3:
                stage.scheduler.ready(topic)
            return 1

        stage.scheduler.attach(one, serve)
        stage.scheduler.ready(one)
        stage.scheduler.deliver()
        assert seen == [0, 1, 2]

    def test_who_leaves_in_its_turn_leaves_nothing_behind(self) -> None:
        stage = Stage()
        one = topic(1)

        def serve(topic: Topic, since: float) -> int:
            stage.scheduler.detach(topic, serve)
            return 0

        stage.scheduler.attach(one, serve)
        stage.scheduler.ready(one)
        stage.scheduler.deliver()
        stage.scheduler.ready(one)
        assert len(stage.scheduler) == 0

    def test_what_is_left_is_told(self) -> None:
        stage = Stage(cost_s=SLICE)
        told: list[float | None] = []
        stage.scheduler.more = lambda: told.append(stage.scheduler.next_due)
        stage.ready(1)
        stage.ready(2)
        stage.deliver()
        stage.deliver()
        assert told == [0.0]

    def test_first_come_first_served_within_a_band(self) -> None:
        stage = Stage()
        for ident, priority in ((3, 10), (1, 249), (2, 0)):
            stage.ready(ident, priority)
        assert stage.deliver() == [3, 1, 2]

    def test_better_bands_go_first_and_nobody_is_left_out(self) -> None:
        stage = Stage()
        for ident, priority in enumerate((-5, 0, 250, 500, 750)):
            for n in range(10):
                stage.ready(100 * ident + n, priority)
        served = [ident // 100 for ident in stage.deliver()]
        assert served[:16] == [4] * 8 + [3] * 4 + [2] * 2 + [1] + [0]
        assert Counter(served) == dict.fromkeys(range(5), 10)

    def test_recently_read_topics_go_before_forgotten_ones(self) -> None:
        stage = Stage()
        stage.attach(2).last_read_ts = stage.clock.now_ms()
        stage.ready(1)
        stage.ready(2)
        assert stage.deliver() == [2, 1]

    def test_a_slice_of_time_ends_a_delivery_and_the_rest_is_due_at_once(self) -> None:
        stage = Stage(cost_s=SLICE / 4)
        for ident in range(10):
            stage.ready(ident, 0)
        assert stage.deliver() == [0, 1, 2, 3]
        assert stage.scheduler.next_due == 0.0
        assert stage.deliver() == [4, 5, 6, 7]
        assert stage.deliver() == [8, 9]
        assert stage.scheduler.next_due is None

    def test_waiting_moves_a_topic_up(self) -> None:
        stage = Stage(cost_s=SLICE)
        stage.ready(0, 500)
        low = stage.ready(1, 200)
        assert stage.deliver() == [0]
        stage.clock.advance(2900)
        for ident in range(2, 6):
            stage.ready(ident, 300)
        assert stage.scheduler.boost(low) == 290
        stage.clock.advance(200)
        assert stage.deliver() == [1]
        assert stage.scheduler.boost(low) == 0

    def test_under_pressure_a_topic_gathers_records_for_a_while(self) -> None:
        stage = Stage(under(0.6))
        window = stage.pressure.coalesce_s
        assert window == pytest.approx(MAX_COALESCE / 2)
        stage.ready(1)
        assert stage.deliver() == []
        assert stage.scheduler.depth == 0
        due = stage.scheduler.next_due
        assert due == pytest.approx(window)
        stage.clock.elapsed += window / 2
        stage.ready(2)
        stage.clock.elapsed = window
        assert stage.deliver() == [1]
        stage.clock.elapsed = 1.5 * window
        assert stage.deliver() == [2]

    def test_gathering_on_purpose_is_no_delay(self) -> None:
        """Otherwise pressure would sustain itself."""
        stage = Stage(under(0.6))
        stage.ready(1)
        stage.clock.elapsed = 1.0
        stage.deliver()
        assert stage.scheduler.take_delay() == 0.0

    def test_the_delay_is_what_topics_waited_on_average(self) -> None:
        stage = Stage()
        for waited in (0.001, 0.003):
            stage.ready(1)
            stage.clock.elapsed += waited
            stage.deliver()
        assert stage.scheduler.take_delay() == pytest.approx(0.002)
        assert stage.scheduler.take_delay() == 0.0

    def test_a_topic_that_is_not_served_is_a_delay_too(self) -> None:
        stage = Stage(cost_s=SLICE)
        stage.ready(1)
        stage.ready(2)
        stage.clock.elapsed += 0.1
        stage.deliver()
        assert stage.scheduler.take_delay() == pytest.approx(0.1 + SLICE)
        stage.clock.elapsed += 1.0
        stage.deliver()
        assert stage.scheduler.take_delay() == pytest.approx(1.1 + SLICE)

    def test_negative_priorities_wait_until_pressure_has_fallen(self) -> None:
        stage = Stage()
        stage.ready(1, -1)
        stage.ready(2, 0)
        under(1.0, stage.pressure)
        assert stage.deliver() == [2]
        assert stage.scheduler.next_due is None
        assert stage.scheduler.statistics().held == 1
        under(0.7, stage.pressure)
        stage.clock.advance(60_000)
        assert stage.deliver() == []
        under(0.5, stage.pressure)
        assert stage.scheduler.next_due == 0.0
        assert stage.deliver() == [1]

    def test_a_held_topic_is_served_at_once_when_pressure_is_over(self) -> None:
        stage = Stage()
        stage.ready(1, -1)
        under(1.0, stage.pressure)
        assert stage.deliver() == []
        under(0.0, stage.pressure)
        assert stage.deliver() == [1]
        assert stage.scheduler.take_delay() == 0.0

    def test_background_work_waits_until_pressure_has_fallen(self) -> None:
        """Routers work so."""
        stage = Stage(under(1.0))
        stage.attach(1, background=True)
        stage.ready(1)
        stage.clock.advance(60_000)
        assert stage.deliver() == []
        under(0.7, stage.pressure)
        assert stage.deliver() == []
        under(0.5, stage.pressure)
        assert stage.deliver() == [1]

    def test_readers_do_not_wait_for_the_background_work_of_their_topic(self) -> None:
        stage = Stage(under(1.0))
        stage.attach(1, background=True)
        stage.ready(1)
        stage.attach(1)
        for _ in range(3):
            stage.ready(1)
            stage.clock.advance(60_000)
            assert stage.deliver() == [1]
        assert stage.scheduler.statistics().held == 1
        under(0.0, stage.pressure)
        assert stage.deliver() == [1]

    @pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
    def test_a_topic_that_nobody_waits_for_any_more_is_nowhere(self, level: float) -> None:
        stage = Stage()
        one = stage.ready(1, -1)
        under(level, stage.pressure)
        two = stage.ready(2, -1)
        if level == 1.0:
            stage.deliver()
        stage.scheduler.detach(one, stage.serve)
        stage.scheduler.detach(two, stage.serve)
        assert len(stage.scheduler) == 0
        assert stage.scheduler.next_due is None
        stage.scheduler.ready(one)
        stage.clock.advance(1000)
        assert stage.deliver() == []

    def test_one_of_several_may_leave(self) -> None:
        stage = Stage()
        one = stage.attach(1)
        stage.attach(1)
        stage.ready(1)
        stage.scheduler.detach(one, stage.serve)
        assert stage.deliver() == [1]

    async def test_who_needs_no_turn_waits_for_calm(self) -> None:
        pressure = under(1.0)
        done = trio.Event()

        async def wait() -> None:
            await pressure.calm()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            under(0.7, pressure)
            await wait_all_tasks_blocked()
            assert not done.is_set()
            under(0.5, pressure)
            await done.wait()
        await pressure.calm()


@pytest.fixture
def shard() -> Harness:
    return Harness()


def park(shard: Harness, name: str, from_seq: int = 1) -> int:
    return shard.send("diff", name, {"from_seq": from_seq, "wait_ms": 30_000})


def press(shard: Harness, level: float) -> None:
    for _ in range(60):
        shard.shard.sample(level * FULL_LAG)


def answered(shard: Harness, ident: int) -> Reply | None:
    message = shard.replies[ident]
    return message if isinstance(message, Reply) else None


def append(shard: Harness, name: str, **fields: Any) -> int:
    ident = shard.send("append", name, {"records": [{"data": 1}], **fields})
    shard.shard.flush()
    return ident


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


class TestFullQueue:
    @pytest.fixture
    def full(self) -> Harness:
        """A shard whose queue holds two writes, and is full."""
        shard = Harness(wal_queue_max=2)
        shard.call("configure", "safe", FSYNC)
        shard.call("configure", "fast")
        shard.call("configure", "air", {"durability": "ephemeral"})
        shard.append("air", 1)
        for _ in range(2):
            append(shard, "safe")
        return shard

    def refusal(self, shard: Harness, name: str) -> TopicsError:
        ident = append(shard, name)
        reply = answered(shard, ident)
        assert reply is not None
        assert reply.error is not None
        return reply.error

    @pytest.mark.parametrize("name", ["safe", "fast", "new"])
    def test_a_write_is_told_when_to_come_back(self, full: Harness, name: str) -> None:
        """`429 throttled` with `Retry-After` and `retry_after_ms`."""
        full.clock.advance(400)
        error = self.refusal(full, name)
        assert (error.code, error.status) == (ErrorCode.THROTTLED, 429)
        assert error.detail == {"retry_after_ms": 800}
        assert error.retry_after_ms == 800
        assert "new" not in full.shard.directory.assigned

    def test_refusals_are_counted(self, full: Harness) -> None:
        """`submit_full_total`."""
        for _ in range(3):
            self.refusal(full, "safe")
        wal = full.call("stats")["wal"]
        assert wal["submit_full_total"] == 3
        assert wal["queue_depth"] == wal["queue_depth_peak"] == 2

    def test_a_trusted_loader_is_queued_instead(self, full: Harness) -> None:
        """`disable_backpressure`."""
        ident = append(full, "safe", disable_backpressure=True)
        full.shard.commits.sync_now()
        reply = answered(full, ident)
        assert reply is not None
        assert reply.error is None
        assert full.call("stats")["wal"]["submit_full_total"] == 0

    def test_what_never_goes_to_the_disk_is_not_refused(self, full: Harness) -> None:
        assert full.append("air", 2)["count"] == 1

    def test_writes_of_the_same_group_count(self) -> None:
        shard = Harness(wal_queue_max=2)
        shard.call("configure", "safe", FSYNC)
        idents = [shard.send("append", "safe", {"records": [{"data": 1}]}) for _ in range(5)]
        shard.shard.flush()
        shard.shard.commits.sync_now()
        replies = [answered(shard, ident) for ident in idents]
        assert [reply is not None and reply.error is None for reply in replies] == [True, True, False, False, False]
        assert shard.call("state", "safe")["head_seq"] == 2

    def test_a_write_that_was_made_before_is_still_recognised(self) -> None:
        """A retry appends nothing, so it is not refused."""
        shard = Harness(wal_queue_max=1)
        shard.call("configure", "safe", FSYNC)
        shard.append("safe", 1, idempotency_key="k")
        append(shard, "safe")
        ident = append(shard, "safe", idempotency_key="k")
        reply = answered(shard, ident)
        assert reply is not None
        assert b'"deduped":true' in reply.body

    def test_there_is_room_again_after_the_sync(self, full: Harness) -> None:
        self.refusal(full, "safe")
        full.shard.commits.sync_now()
        assert full.append("safe", 1)["count"] == 1

    def test_there_is_room_again_after_a_failed_sync(self, full: Harness) -> None:
        disk = full.disk
        disk.faults[len(disk.calls)] = OSError(5, "Input/output error")  # type: ignore[attr-defined]
        full.shard.commits.sync_now()
        assert full.shard.commits.depth == 0
        assert full.append("safe", 1)["count"] == 1

    def test_a_write_that_finds_the_queue_full_makes_pressure_full(self, full: Harness) -> None:
        """Ruling 3: near 1.0, with a full queue."""
        assert full.shard.pressure.level < 0.2
        self.refusal(full, "safe")
        assert full.shard.pressure.level == 1.0
        assert full.shard.pressure.holding

    def test_a_full_queue_is_full_pressure(self, full: Harness) -> None:
        for _ in range(60):
            full.shard.sample(0.0)
        assert full.shard.pressure.level > 0.99
        assert full.call("stats")["pressure"] > 0.99


class Socket:
    """A socket that receives nothing."""

    async def read(self, handle: Any) -> None:
        await trio.sleep_forever()

    def send(self, frames: list[bytes]) -> None:
        raise AssertionError


class LoopClock(FakeClock):
    """A clock that follows the event loop's time."""

    def monotonic(self) -> float:
        return trio.current_time()


class TestServer:
    async def test_gathered_records_are_delivered_when_their_window_is_over(self, autojump_clock: MockClock) -> None:
        shard = Harness(clock=LoopClock())
        shard.append("a", 1)
        press(shard, 0.6)
        async with trio.open_nursery() as nursery:
            server = Server(shard.shard, Socket(), Limits())  # type: ignore[arg-type]
            await nursery.start(server.run)
            ident = park(shard, "a")
            append(shard, "a")
            start = trio.current_time()
            while answered(shard, ident) is None:
                await trio.lowlevel.checkpoint()
                await trio.sleep(0.001)
            assert trio.current_time() - start < 2 * MAX_COALESCE
            nursery.cancel_scope.cancel()

    async def test_pressure_is_sampled_ten_times_a_second(self, autojump_clock: MockClock) -> None:
        shard = Harness(clock=LoopClock())
        press(shard, 1.0)
        async with trio.open_nursery() as nursery:
            server = Server(shard.shard, Socket(), Limits())  # type: ignore[arg-type]
            await nursery.start(server.run)
            await trio.sleep(10.5 * SAMPLE_INTERVAL)
            assert shard.shard.pressure.level == pytest.approx(0.5**10, rel=0.01)
            nursery.cancel_scope.cancel()
