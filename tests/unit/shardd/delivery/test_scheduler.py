"""The scheduler: the order in which topics are served."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proto.model.topic_config import TopicConfig
from shardd.delivery.pressure import (
    FULL_LAG,
    MAX_COALESCE,
    Pressure,
    Sample,
)
from shardd.delivery.priority import WEIGHTS, age_boost
from shardd.delivery.scheduler import SLICE, Rounds, Scheduler
from shardd.topic.topic import Topic
from tests.support.harness import FakeClock


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
        assert age_boost(stage.scheduler.waited(low)) == 290
        stage.clock.advance(200)
        assert stage.deliver() == [1]
        assert age_boost(stage.scheduler.waited(low)) == 0

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
        assert (len(stage.scheduler), stage.scheduler.next_due) == (1, None)
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
        assert (len(stage.scheduler), stage.scheduler.next_due) == (1, None)
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
