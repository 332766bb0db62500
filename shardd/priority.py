"""Effective delivery priority: manual, or derived from how recently somebody consumed the topic."""

from __future__ import annotations

from shardd.config import TopicConfig

RECENT = 500
HALF_LIFE_MS = 30_000
FORGOTTEN_MS = 300_000


def effective_priority(config: TopicConfig, last_read_ts: int | None, now_ms: int) -> int:
    """-1000 to 1000. Recency is worth 500 right after a read, half of it after 30 s, nothing after 5 min."""
    if config.priority is not None:
        return config.priority
    if not config.auto_priority or last_read_ts is None:
        return 0
    idle = max(now_ms - last_read_ts, 0)
    return 0 if idle > FORGOTTEN_MS else round(RECENT * 2 ** -(idle / HALF_LIFE_MS))
