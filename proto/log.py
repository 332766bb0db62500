"""Log lines of every process, on standard error: a constant event name, then fields. Never payloads, never keys.

The supervisor decides level and format and hands them to its children in the environment.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import structlog

LEVEL_VARIABLE = "TOPICS_LOG_LEVEL"
FORMAT_VARIABLE = "TOPICS_LOG_FORMAT"


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


def configure(process: str, level: str | None = None, form: str | None = None) -> Any:
    """Set up logging for this process and return its logger. `form` is console, logfmt or json; what is None comes
    from the environment."""
    level = level or os.environ.get(LEVEL_VARIABLE, "info")
    form = form or chosen_format(os.environ.get(FORMAT_VARIABLE, "auto"))
    traceback = structlog.processors.format_exc_info
    renderers: dict[str, list[Any]] = {
        # Not the default formatter of tracebacks: it shows local variables, and those hold payloads.
        "console": [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)],
        "logfmt": [
            traceback,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        "json": [traceback, structlog.processors.JSONRenderer()],
    }
    stream: Any = _Unbreakable(sys.stderr)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers[form],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Writes a line and its end in one go, because all processes write to the same place.
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(process=process)
    return structlog.get_logger()
