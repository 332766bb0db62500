"""Pressure: how far a shard is behind, as one number from 0 to 1, and what it does about it.

    above 0.2   deliveries are held back for up to 20 ms, so that each carries more records
    above 0.4   the group-commit window widens, up to 10 ms, so that fewer syncs serve more writes
    above 0.8   routers and topics of negative priority wait, until pressure is below 0.6; streams are told so
    1.0         as long as the queue of writes is full, they are refused with `429 throttled`, unless they ask not to be

All of it costs latency, never data. The functions here decide; `shardd.delivery.scheduler`,
`shardd.storage.group_commit` and `shardd.operations.append` do it.

A sample is taken every 100 ms. Its four parts are shares of what counts as full, the largest is what counts, and the
level is the mean of it and of the level before, so that a single hiccup is worth a half and is forgotten soon. The
queue of writes that wait for a sync is one of the four: a disk that does not keep up is pressure, however idle the
processor is. That queue is bounded, so a write that finds it full does not wait for a sample: the level is 1 at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from proto.model.errors import ErrorCode, TopicsError

SAMPLE_INTERVAL = 0.1
FULL_DEPTH = 1000
"""Topics that are ready and not served."""
FULL_DELAY = 0.005
"""Seconds from when a topic was ready until it was served, on average."""
FULL_LAG = 0.05
"""Seconds by which the event loop was late."""
COALESCE_ABOVE, MAX_COALESCE = 0.2, 0.020
WIDEN_ABOVE, MAX_WINDOW = 0.4, 0.010
HOLD_ABOVE, RELEASE_BELOW = 0.8, 0.6
MIN_RETRY_MS, MAX_RETRY_MS = 100, 5000
PACE_MS = 1000
"""When a stream whose topic waits looks again."""


@dataclass(frozen=True, slots=True)
class Sample:
    """`depth` topics ready, `delay_s` how long they are, `lag_s` of the loop, `queue` the share of the submit queue
    that is taken."""

    depth: int
    delay_s: float
    lag_s: float
    queue: float


def raw_level(sample: Sample) -> float:
    """Of one sample, 0 to 1."""
    parts = (sample.depth / FULL_DEPTH, sample.delay_s / FULL_DELAY, sample.lag_s / FULL_LAG, sample.queue)
    return min(max(*parts, 0.0), 1.0)


def next_level(level: float, sample: Sample) -> float:
    return (level + raw_level(sample)) / 2


def coalesce_s(level: float) -> float:
    """How long a topic gathers records before those who wait are told, in seconds."""
    return _ramp(level, COALESCE_ABOVE) * MAX_COALESCE


def widening_s(level: float, window_s: float) -> float:
    """What is added to a group-commit window of `window_s` seconds."""
    return _ramp(level, WIDEN_ABOVE) * max(MAX_WINDOW - window_s, 0.0)


def holds(level: float, held: bool) -> bool:
    """Must routers and topics of negative priority wait? `held`: they do now."""
    return level >= RELEASE_BELOW if held else level > HOLD_ABOVE


def retry_after_ms(oldest_wait_s: float) -> int:
    """When a refused write may be tried again: the longest wait of those in the queue, over again."""
    return min(max(round(oldest_wait_s * 2000), MIN_RETRY_MS), MAX_RETRY_MS)


def _ramp(level: float, above: float) -> float:
    """0 up to `above`, then straight to 1."""
    return max(level - above, 0.0) / (1 - above)


class Pressure:
    """The present level and what follows from it."""

    def __init__(self) -> None:
        self.level = 0.0
        self.coalesce_s = 0.0
        self.holding = False
        self.refused_total = 0
        self._calm = trio.Event()

    def sample(self, sample: Sample) -> None:
        self._reach(next_level(self.level, sample))

    async def calm(self) -> None:
        """Wait until nothing need be held. Work that no turn in the scheduler belongs to asks here before it begins."""
        while self.holding:
            await self._calm.wait()

    def refuse(self, waiting: int, oldest_wait_s: float) -> TopicsError:
        """`429 throttled` for a write that found the queue full."""
        self._reach(1.0)
        self.refused_total += 1
        after_ms = retry_after_ms(oldest_wait_s)
        return TopicsError(
            ErrorCode.THROTTLED,
            f"{waiting} writes wait for the disk, which is as many as may. Try again in {after_ms} ms, or set "
            "disable_backpressure to wait with them",
            {"retry_after_ms": after_ms},
            retry_after_ms=after_ms,
        )

    def paced(self) -> TopicsError:
        """`429 throttled` for the feed of a topic that has to wait."""
        return TopicsError(
            ErrorCode.THROTTLED,
            "watch throttled under CPU pressure: topics of negative priority wait",
            {"retry_after_ms": PACE_MS},
            retry_after_ms=PACE_MS,
        )

    def _reach(self, level: float) -> None:
        self.level = level
        self.coalesce_s = coalesce_s(level)
        held, self.holding = self.holding, holds(level, self.holding)
        if held and not self.holding:
            self._calm.set()
            self._calm = trio.Event()
