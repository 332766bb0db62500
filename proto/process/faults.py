"""Faults: exceptions that fail one request, reader or task, and not its process.

Each is counted by operation, and logged with its traceback and an id. The client gets `500 internal` with the id. Ids
differ, so that log lines are not taken for repetitions; `MOST_LINES` bounds what a flood of faults writes.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from proto.model.errors import ErrorCode, TopicsError

WINDOW_S = 10.0
MOST_LINES = 100
"""Faults logged in each window. The first line of a later window says how many were not logged."""
_log: FilteringBoundLogger = structlog.get_logger()


class Faults:
    """The faults of this process: use `faults`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        """Number of faults by operation."""
        self._monotonic = monotonic
        self._window_ends = 0.0
        self._lines = 0
        self._not_logged = 0

    def failed(self, operation: str, **detail: Any) -> TopicsError:
        """Count and log the exception that is being handled. Returns the `500` for the client, with `detail`."""
        ident = secrets.token_hex(6)
        self.counts[operation] += 1
        now = self._monotonic()
        if now >= self._window_ends:
            self._window_ends, self._lines = now + WINDOW_S, 0
        if self._lines < MOST_LINES:
            self._lines += 1
            more = {"not_logged": self._not_logged} if self._not_logged else {}
            self._not_logged = 0
            _log.exception("request_failed", operation=operation, id=ident, **more)
        else:
            self._not_logged += 1
        return TopicsError(
            ErrorCode.INTERNAL, f"internal error {ident}; the service's log has its cause", {"id": ident, **detail}
        )


faults = Faults()
