"""Delivery priority: manual, or derived from how recently the topic was read; it grows while the topic waits.

The scheduler serves topics in bands of priority. A band's weight is its share of the delivery work while every band has
work:

    priority      weight
    750 and up       8
    500 to 749       4
    250 to 499       2
    0 to 249         1
    below 0          1     not served while pressure holds it (see `shardd.delivery.pressure`)
"""

from __future__ import annotations

from bisect import bisect_left

from proto.model.topic_config import TopicConfig

RECENT = 500
HALF_LIFE_MS = 30_000
FORGOTTEN_MS = 300_000
BOOST_PER_SECOND = 100
BOOSTED_SECONDS = 10
WEIGHTS = (8, 4, 2, 1, 1)
"""Weight of each band, highest priority first."""
_FLOORS = (-750, -500, -250, 0)
"""The lowest priority of each band but the last, negated: ascending, as bisect wants it."""


def effective_priority(config: TopicConfig, last_read_ts: int | None, now_ms: int) -> int:
    """The topic's priority, -1000 to 1000. A read adds 500; that halves every 30 s and ends after 5 min."""
    if config.priority is not None:
        return config.priority
    if not config.auto_priority or last_read_ts is None:
        return 0
    idle = max(now_ms - last_read_ts, 0)
    return 0 if idle > FORGOTTEN_MS else round(RECENT * 2 ** -(idle / HALF_LIFE_MS))


def age_boost(waited_s: float) -> int:
    """Points that a wait of so many seconds adds to a topic's priority: 0 to 1000, so that no topic starves."""
    return round(BOOST_PER_SECOND * min(max(waited_s, 0.0), BOOSTED_SECONDS))


def band(priority: int) -> int:
    """The index in `WEIGHTS` of a priority that includes its boost."""
    return bisect_left(_FLOORS, -priority)
