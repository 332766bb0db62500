"""Log deduplication: replaces a flood of equal log lines by one line, and later one with the number of repetitions.

Lines are equal if they have the same method, event and string fields; numbers (counts, durations, offsets) may differ.
The first line is written at once. Equal lines within `WINDOW_S` are counted. At the end of the window the last of them
is written with `repeated=N`, which begins the next window. Only warnings and errors are deduplicated, because lines of
lower levels are rare or wanted one by one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

WINDOW_S = 10.0
MOST_KINDS = 256
"""Kinds of lines tracked at a time; further kinds are written without deduplication."""
REPEATED = "repeated"
_LIMITED = ("warning", "error", "exception", "critical")

Write = Callable[[str, str, dict[str, Any]], object]
"""Method, event, fields."""


@dataclass(slots=True)
class _Kind:
    ends_at: float
    count: int = 0
    method: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class Repeats:
    """structlog processor. `write` is called with lines due later, without the lock, from a short-lived thread."""

    def __init__(self, write: Write, monotonic: Callable[[], float] = time.monotonic, *, timer: bool = True) -> None:
        self._write = write
        self._monotonic = monotonic
        self._timer = timer
        self._waiting = False
        self._kinds: dict[object, _Kind] = {}
        self._lock = threading.Lock()

    def __call__(self, logger: Any, method: str, fields: Any) -> Any:
        """Return the line's fields, or raise `structlog.DropEvent` for a counted line."""
        if method not in _LIMITED or REPEATED in fields:
            return fields
        with self._lock:
            kind = self._kinds.get(name := _name(method, fields))
            now = self._monotonic()
            if kind is None or (now >= kind.ends_at and not kind.count):
                if len(self._kinds) >= MOST_KINDS:
                    self._kinds = {each: found for each, found in self._kinds.items() if found.ends_at > now}
                if len(self._kinds) < MOST_KINDS:
                    self._kinds[name] = _Kind(now + WINDOW_S)
                return fields
            kind.count += 1
            kind.method, kind.fields = method, dict(fields)
            # The first line had the traceback; `exc_info` would refer to another exception when this line is written.
            kind.fields.pop("exc_info", None)
            if self._timer and not self._waiting:
                self._wake_in(kind.ends_at - now)
        raise structlog.DropEvent

    def _wake_in(self, seconds: float) -> None:
        self._waiting = True
        timer = threading.Timer(max(seconds, 0.1), self.flush)
        timer.daemon = True
        timer.start()

    def flush(self, *, everything: bool = False) -> None:
        """Write the counted lines whose window has ended; with `everything`, all of them."""
        due: list[_Kind] = []
        with self._lock:
            now = self._monotonic()
            self._waiting = False
            for name, kind in list(self._kinds.items()):
                if kind.count and (everything or now >= kind.ends_at):
                    due.append(kind)
                    self._kinds[name] = _Kind(now + WINDOW_S)
                elif now >= kind.ends_at:
                    del self._kinds[name]
            waiting = [kind.ends_at for kind in self._kinds.values() if kind.count]
            if waiting and self._timer:
                self._wake_in(min(waiting) - now)
        for kind in due:
            event = str(kind.fields.pop("event", ""))
            self._write(kind.method, event, {**kind.fields, REPEATED: kind.count})


def _name(method: str, fields: Any) -> object:
    texts = tuple((name, value) for name, value in sorted(fields.items()) if isinstance(value, str))
    return method, texts
