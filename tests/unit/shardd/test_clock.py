"""Claims about the shard's clock: its time after the wall clock is set, and durations that do not change."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.clock import CONFIRM_S, SLEW, TOLERANCE_MS, SystemClock
from tests.support.harness import FakeClock, Harness

BORN_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Machine:
    """A wall clock that can be set, and a time since boot that can be advanced."""

    def __init__(self) -> None:
        self.wall = BORN_MS * 10**6
        self.elapsed = 0
        self.clock = SystemClock(lambda: self.wall, lambda: self.elapsed)
        self.jumps: list[int] = []
        self.clock.on_jump(self.jumps.append)

    def pass_(self, ms: int, every_ms: int = 1000) -> None:
        """Advance the time, and read the clock now and then."""
        for at in range(0, ms, every_ms):
            step = min(every_ms, ms - at) * 10**6
            self.wall += step
            self.elapsed += step
            self.clock.now_ms()

    def set(self, by_ms: int) -> None:
        self.wall += by_ms * 10**6


class TestClock:
    def test_it_follows_the_wall_clock(self) -> None:
        machine = Machine()
        machine.pass_(3_600_000)
        assert machine.clock.now_ms() == BORN_MS + 3_600_000

    @pytest.mark.parametrize("by_ms", [DAY_MS, -DAY_MS, TOLERANCE_MS + 1, -TOLERANCE_MS - 1])
    def test_a_step_for_a_moment_is_as_if_it_had_not_been(self, by_ms: int) -> None:
        machine = Machine()
        machine.pass_(10_000)
        machine.set(by_ms)
        machine.pass_(60_000)
        assert machine.clock.now_ms() == BORN_MS + 70_000
        assert machine.clock.statistics().steps == 1
        assert machine.clock.statistics().offset_ms == by_ms
        machine.set(-by_ms)
        machine.pass_(10_000)
        assert machine.clock.now_ms() == BORN_MS + 80_000
        assert (machine.jumps, machine.clock.statistics().offset_ms) == ([], 0)

    def test_a_clock_that_was_set_for_good_is_followed_in_the_end(self) -> None:
        machine = Machine()
        machine.set(DAY_MS)
        machine.pass_(round(CONFIRM_S * 1000) - 2000)
        assert machine.clock.now_ms() < BORN_MS + DAY_MS
        machine.pass_(5000)
        assert machine.clock.now_ms() == machine.wall // 10**6
        assert machine.jumps == [DAY_MS]

    def test_one_that_was_set_back_is_approached_without_going_back(self) -> None:
        machine = Machine()
        machine.set(-60_000)
        machine.pass_(round(CONFIRM_S * 1000) + 1000)
        before = machine.clock.now_ms()
        machine.pass_(100_000)
        assert machine.clock.now_ms() == before + 100_000 - 100_000 // SLEW
        machine.pass_(60_000 * SLEW)
        assert machine.clock.now_ms() == machine.wall // 10**6
        assert machine.clock.statistics().steps == 1
        assert machine.jumps == []

    def test_small_differences_are_slewed(self) -> None:
        machine = Machine()
        machine.set(500)
        machine.pass_(1000)
        assert machine.clock.now_ms() == BORN_MS + 1000 + 1000 // SLEW
        machine.pass_(10_000)
        assert machine.clock.now_ms() == machine.wall // 10**6
        assert machine.clock.statistics().steps == 0

    def test_a_step_that_changes_has_not_lasted(self) -> None:
        machine = Machine()
        for _ in range(20):
            machine.set(DAY_MS)
            machine.pass_(round(CONFIRM_S * 1000) // 2)
        assert machine.clock.now_ms() == BORN_MS + 20 * (round(CONFIRM_S * 1000) // 2)
        assert machine.clock.statistics().steps == 20

    @given(
        st.lists(
            st.tuples(st.integers(-2 * DAY_MS, 2 * DAY_MS) | st.integers(-2000, 2000), st.integers(1, 600_000)),
            max_size=30,
        )
    )
    def test_it_never_goes_back_never_stands_still_and_jumps_only_to_the_wall_clock(
        self, steps: list[tuple[int, int]]
    ) -> None:
        machine = Machine()
        last = machine.clock.now_ms()
        for by_ms, ms in steps:
            machine.set(by_ms)
            machine.pass_(ms, 10_000)
            now = machine.clock.now_ms()
            passed = now - last - sum(machine.jumps)
            assert ms - ms / SLEW - 2 <= passed <= ms + ms / SLEW + 2
            machine.jumps.clear()
            last = now


class ByMachine(FakeClock):
    """The shard's clock, on a machine whose wall clock can be set."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.real = machine.clock
        self.on_jump = self.real.on_jump  # type: ignore[method-assign]
        self.statistics = self.real.statistics  # type: ignore[method-assign]

    def now_ms(self) -> int:
        return self.real.now_ms()


class Stepping:
    """A shard on a machine whose wall clock can be set."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.shard = Harness(clock=ByMachine(self.machine))

    def pass_(self, ms: int) -> None:
        for _ in range(0, ms, 1000):
            self.machine.pass_(1000)
            self.shard.shard.maintain()

    def restarted(self) -> None:
        """Start a new process, which reads the wall clock again."""
        machine = Machine()
        machine.wall, machine.elapsed = self.machine.wall, self.machine.elapsed
        machine.clock = SystemClock(lambda: machine.wall, lambda: machine.elapsed)
        self.machine = machine
        limits = msgspec.structs.asdict(self.shard.limits)
        self.shard = Harness(self.shard.disk, ByMachine(machine), self.shard.path, **limits)

    def count(self, topic: str) -> int:
        return int(self.shard.call("state", topic, touch=False)["count"])


def claimed(shard: Harness) -> list[int]:
    answer: Any = shard.call("claim", "q", {"node": "w", "max": 10, "lease_ms": 30_000})
    return [job["$seq"] for job in answer["claimed"]]


@pytest.fixture
def there() -> Stepping:
    made = Stepping()
    made.shard.call("configure", "t", {"ttl_ms": 60_000, "durability": "disk"})
    made.shard.call("configure", "q", {"type": "queue", "leases_durable": True})
    return made


class TestShard:
    def test_a_day_ahead_for_a_moment_takes_no_record_no_lease_and_no_key(self, there: Stepping) -> None:
        shard = there.shard
        shard.append("t", 1, idempotency_key="k")
        shard.append("q", 1)
        assert claimed(shard) == [1]
        there.machine.set(DAY_MS)
        there.pass_(10_000)
        assert there.count("t") == 1
        assert claimed(shard) == [], "the job is held"
        assert shard.append("t", 1, idempotency_key="k")["deduped"] is True
        (ts,) = [record["$ts"] for record in shard.diff("t")["records"]]
        shard.append("t", 2)
        there.machine.set(-DAY_MS)
        there.pass_(10_000)
        (_, later) = [record["$ts"] for record in shard.diff("t")["records"]]
        assert ts <= later <= ts + 20_000, "no record has a time in the future"
        there.pass_(45_000)
        assert there.count("t") == 1, "the TTL goes on: the first one is gone"
        assert claimed(shard) == [1], "and so is the lease"

    def test_a_clock_that_is_corrected_for_good_ends_no_lease_and_no_key_early(self, there: Stepping) -> None:
        shard = there.shard
        shard.append("q", 1, idempotency_key="k")
        there.machine.set(DAY_MS)
        there.pass_(round(CONFIRM_S * 1000) - 10_000)
        assert shard.append("q", 2, idempotency_key="l")["deduped"] is False
        assert claimed(shard) == [1, 2]
        there.pass_(20_000)
        assert there.machine.jumps or shard.shard.staging.clock.statistics().offset_ms == 0
        assert claimed(shard) == []
        assert shard.append("q", 2, idempotency_key="l")["deduped"] is True
        there.pass_(15_000)
        assert claimed(shard) == [1, 2]

    def test_what_was_written_a_day_ahead_lasts_as_long_as_it_was_to_after_a_restart(self, there: Stepping) -> None:
        """The wall clock was wrong at the start of that process, which took it as right."""
        there.machine.set(DAY_MS)
        there.restarted()
        there.shard.append("t", 1, idempotency_key="k")
        there.shard.append("q", 1)
        assert claimed(there.shard) == [1]
        there.machine.set(-DAY_MS)
        there.restarted()
        shard = there.shard
        assert there.count("t") == 1
        assert claimed(shard) == []
        assert shard.append("t", 1, idempotency_key="k")["deduped"] is True
        shard.append("t", 2)
        there.pass_(31_000)
        assert claimed(shard) == [1], "not a day later"
        assert there.count("t") == 2
        there.pass_(31_000)
        assert there.count("t") == 0
        shard.append("new", 1)
        (ts,) = [record["$ts"] for record in shard.diff("new")["records"]]
        assert ts == there.machine.wall // 10**6, "other topics have the right time"

    def test_the_same_from_a_catalog(self, there: Stepping) -> None:
        there.machine.set(DAY_MS)
        there.restarted()
        there.shard.append("t", 1)
        there.shard.append("q", 1)
        assert claimed(there.shard) == [1]
        there.shard.shard.close()
        there.machine.set(-DAY_MS)
        there.restarted()
        there.pass_(31_000)
        assert claimed(there.shard) == [1]
        assert there.count("t") == 1
        there.pass_(31_000)
        assert there.count("t") == 0

    def test_a_clock_that_was_corrected_for_good_is_still_right_after_a_kill(self, there: Stepping) -> None:
        """A correction is in no log: it makes a checkpoint due, also in a shard that is idle."""
        there.shard.call("append", "q", {"records": [{"data": 1, "delay_ms": 600_000}, {"data": 2}]})
        there.machine.set(DAY_MS)
        there.pass_(round(CONFIRM_S * 1000) - 10_000)
        assert claimed(there.shard) == [2]
        there.shard.append("q", 3, idempotency_key="k")
        assert claimed(there.shard) == [3]
        there.shard.settle()
        there.shard.shard.checkpoint_now()
        control = there.shard.shard.control
        assert not control.due
        there.pass_(20_000)
        assert control.due
        assert control.worth
        there.shard.shard.checkpoint_now()
        assert not control.due
        there.restarted()
        assert claimed(there.shard) == [], "the delay and the leases last"
        assert there.shard.append("q", 3, idempotency_key="k")["deduped"] is True
        there.pass_(11_000)
        assert claimed(there.shard) == [2, 3]
        there.pass_(600_000 - round(CONFIRM_S * 1000) - 22_000)
        assert 1 not in claimed(there.shard)
        there.pass_(2000)
        assert 1 in claimed(there.shard)

    def test_steps_are_counted_and_told(self, there: Stepping) -> None:
        there.machine.set(-DAY_MS)
        there.pass_(1000)
        told = cast(Any, there.shard.call("stats", per_topic=0))["clock"]
        assert told == {"steps": 1, "offset_ms": -DAY_MS}

    def test_a_key_lasts_as_long_as_before_also_in_a_topic_whose_time_was_ahead_of_the_clock(
        self, there: Stepping
    ) -> None:
        there.shard.append("q", 0)
        there.machine.set(-DAY_MS)
        there.restarted()
        there.machine.set(DAY_MS)
        there.pass_(round(CONFIRM_S * 1000) - 10_000)
        there.shard.append("q", 1, idempotency_key="k")
        there.pass_(20_000)
        assert there.shard.append("q", 1, idempotency_key="k")["deduped"] is True
        there.pass_(125_000)
        assert there.shard.append("q", 1, idempotency_key="k")["deduped"] is False
