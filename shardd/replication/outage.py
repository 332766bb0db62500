"""Outages: counts the calls that a store failed, and logs them, but not each. Called in any thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from shardd.replication.store import StoreError

LOG_INTERVAL = 60.0
"""Seconds between log lines while the bucket is away."""
_log: Any = structlog.get_logger()


class Outage:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.failures = 0
        self.lag_bytes: Callable[[], int] = lambda: 0
        """The calls that wait for the store."""
        self._away_since: float | None = None
        self._logged_at = float("-inf")

    def failed(self, error: StoreError) -> None:
        self.failures += 1
        now = self._monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            _log.error("bucket_away", reason=str(error), kind=type(error).__name__, lag_bytes=self.lag_bytes())

    def answered(self) -> None:
        if self._away_since is not None:
            _log.info("bucket_back", away_s=round(self._monotonic() - self._away_since, 1))
            self._away_since, self._logged_at = None, float("-inf")
