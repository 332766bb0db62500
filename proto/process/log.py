"""Logging of every process, to standard error: a constant event name, then fields. Never payloads, never keys.

The supervisor chooses level and format, and passes them to its children in the environment.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

import structlog

from proto.model.visible import visible
from proto.process import tracebacks
from proto.process.log_dedup import Repeats
from proto.process.trace import with_trace

_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}
"""Syslog priority of each log method."""
LEVEL_VARIABLE = "TOPICS_LOG_LEVEL"
FORMAT_VARIABLE = "TOPICS_LOG_FORMAT"


class _Unbreakable:
    """Stream whose writes never fail, because a closed terminal must not end the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def chosen_format(configured: str) -> str:
    if configured != "auto":
        return configured
    if _to_journal(os.environ.get("JOURNAL_STREAM", "")):
        return "journal"
    return "console" if sys.stderr.isatty() else "logfmt"


def _to_journal(stream: str) -> bool:
    """Whether standard error is the stream in JOURNAL_STREAM (`device:inode`); it may have been redirected."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def _with_priority(logger: Any, method: str, line: str) -> str:
    """The journal reads a line's priority from `<n>` before it."""
    return f"<{_PRIORITIES.get(method, 6)}>{line}"


def _without_timestamp(logger: Any, method: str, fields: Any) -> Any:
    fields.pop("timestamp", None)
    return fields


def _shown(logger: Any, method: str, line: str) -> str:
    return visible(line)


def _shown_values(logger: Any, method: str, fields: Any) -> Any:
    """For a console, which gets tracebacks in several lines and colors."""
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = "\n".join(map(visible, value.split("\n"))) if name == "exception" else visible(value)
    return fields


def _renderers() -> dict[str, list[Any]]:
    """What makes a line of its fields, by the form of the log."""
    return {
        # The default traceback formatter shows local variables, and those hold payloads.
        "console": [
            _shown_values,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ],
        "logfmt": [
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
            _shown,
        ],
        "journal": [
            # The journal has its own timestamp.
            _without_timestamp,
            structlog.processors.LogfmtRenderer(key_order=["level", "event"], bool_as_flag=False),
            _shown,
            _with_priority,
        ],
        "json": [structlog.processors.JSONRenderer(), _shown],
    }


def configure(process: str, level: str | None = None, form: str | None = None) -> Any:
    """Configure logging of this process and return its logger. `form` is console, logfmt, journal or json. A `level` or
    `form` of None is taken from the environment."""
    level = level or os.environ.get(LEVEL_VARIABLE, "info")
    form = form or chosen_format(os.environ.get(FORMAT_VARIABLE, "auto"))
    traceback: Any = structlog.processors.format_exc_info
    if process != "supervisor":  # which parses nothing of strangers
        traceback = tracebacks.rendered
        tracebacks.install()
    stream: Any = _Unbreakable(sys.stderr)
    repeats = Repeats(lambda method, event, fields: getattr(structlog.get_logger(), method)(event, **fields))
    atexit.register(repeats.flush, everything=True)
    # The supervisor's lines are rare, and each death of a child must be logged.
    limited = [repeats] if process != "supervisor" else []
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *limited,
            with_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            traceback,
            *_renderers()[form],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Writes a line and its newline in one call, because all processes write to the same stream.
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(process=process)
    return structlog.get_logger()
