"""Log lines of the supervisor, on standard error: a constant event name, then fields."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog


class _Unbreakable:
    """A stream whose writes never fail: a terminal that went away must not end the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass


def chosen_format(configured: str) -> str:
    if configured != "auto":
        return configured
    return "console" if sys.stderr.isatty() else "logfmt"


def configure(level: str, form: str) -> Any:
    """Set up logging for this process and return its logger. `form` is console, logfmt or json."""
    renderers: dict[str, Any] = {
        "console": structlog.dev.ConsoleRenderer(),
        "logfmt": structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        "json": structlog.processors.JSONRenderer(),
    }
    stream: Any = _Unbreakable(sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderers[form],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Writes a line and its end in one go, because the children write to the same place.
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger().bind(process="supervisor")
