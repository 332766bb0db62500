"""Pressure: how far a shard is behind, as a level from 0 to 1, and what follows from the level.

    above 0.2   a delivery waits up to 20 ms, so that it carries more records
    above 0.4   the group-commit window widens, up to 10 ms, so that one sync serves more writes
    above 0.8   routers and topics of negative priority wait until the level is below 0.6; streams report it
    1.0         the queue of writes is full: writes without `disable_backpressure` are refused with `429 throttled`

All of this costs latency, never data. The functions here decide. `shardd.delivery.scheduler`,
`shardd.storage.group_commit` and `shardd.operations.append` carry the decisions out.

A sample is taken every 100 ms. Each of its four parts is a share of a full value; the sample's level is the largest of
them. The new level is the mean of the sample's and the previous level, so one late sample counts half and decays fast.
One part is the queue of writes that wait for a sync: a slow disk is pressure even if the processor is idle. That queue
is bounded, so a write that finds it full sets the level to 1 at once, without a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from proto.model.errors import ErrorCode, TopicsError

SAMPLE_INTERVAL = 0.1
FULL_DEPTH = 1000
"""Topics that are ready and not served."""
FULL_DELAY = 0.005
"""Mean seconds from when a topic was ready until it was served."""
FULL_LAG = 0.05
"""Seconds by which the event loop was late."""
COALESCE_ABOVE, MAX_COALESCE = 0.2, 0.020
WIDEN_ABOVE, MAX_WINDOW = 0.4, 0.010
HOLD_ABOVE, RELEASE_BELOW = 0.8, 0.6
MIN_RETRY_MS, MAX_RETRY_MS = 100, 5000
PACE_MS = 1000
"""After how long a stream asks again for a held topic, in ms."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. `depth` is the number of ready topics, `delay_s` how long they have been ready, `lag_s` the lag
    of the event loop, `queue` the used share of the submit queue."""

    depth: int
    delay_s: float
    lag_s: float
    queue: float


def raw_level(sample: Sample) -> float:
    """The level of one sample alone, 0 to 1."""
    parts = (sample.depth / FULL_DEPTH, sample.delay_s / FULL_DELAY, sample.lag_s / FULL_LAG, sample.queue)
    return min(max(*parts, 0.0), 1.0)


def next_level(level: float, sample: Sample) -> float:
    return (level + raw_level(sample)) / 2


def coalesce_s(level: float) -> float:
    """How long a ready topic gathers records before its readers are answered, in seconds."""
    return _ramp(level, COALESCE_ABOVE) * MAX_COALESCE


def widening_s(level: float, window_s: float) -> float:
    """Seconds to add to a group-commit window of `window_s` seconds."""
    return _ramp(level, WIDEN_ABOVE) * max(MAX_WINDOW - window_s, 0.0)


def holds(level: float, held: bool) -> bool:
    """Whether routers and topics of negative priority must wait. `held`: whether they wait now."""
    return level >= RELEASE_BELOW if held else level > HOLD_ABOVE


def retry_after_ms(oldest_wait_s: float) -> int:
    """After how many ms a refused write may be tried again: twice the oldest queued write's wait, 100 to 5000 ms."""
    return min(max(round(oldest_wait_s * 2000), MIN_RETRY_MS), MAX_RETRY_MS)


def _ramp(level: float, above: float) -> float:
    """0 for a level up to `above`, then linear up to 1 at level 1."""
    return max(level - above, 0.0) / (1 - above)


def _throttled(message: str, after_ms: int) -> TopicsError:
    return TopicsError(ErrorCode.THROTTLED, message, {"retry_after_ms": after_ms}, retry_after_ms=after_ms)


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
        """Blocks until nothing is held. Work that has no turn in the scheduler calls this before it begins."""
        while self.holding:
            await self._calm.wait()

    def refuse(self, waiting: int, oldest_wait_s: float) -> TopicsError:
        """Sets the level to 1 and returns `429 throttled`, for a write that found the queue full."""
        self._reach(1.0)
        self.refused_total += 1
        after_ms = retry_after_ms(oldest_wait_s)
        return _throttled(
            f"{waiting} writes wait for the disk, which is the limit. Try again in {after_ms} ms, or set "
            "disable_backpressure to wait with them",
            after_ms,
        )

    def throttled(self) -> TopicsError:
        """The `429 throttled` for a stream's read of a held topic."""
        return _throttled("watch throttled under CPU pressure: topics of negative priority wait", PACE_MS)

    def _reach(self, level: float) -> None:
        self.level = level
        self.coalesce_s = coalesce_s(level)
        held, self.holding = self.holding, holds(level, self.holding)
        if held and not self.holding:
            self._calm.set()
            self._calm = trio.Event()
