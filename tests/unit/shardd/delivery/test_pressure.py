"""Pressure: what a shard does when it is behind."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

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
from shardd.process.server import Server
from shardd.topic.topic import Topic
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
