"""Tracebacks for the log: where and which exceptions, without their texts.

The text of a parser's exception may be what a client sent, a key included: `KeyError`, `ValueError`, those of h2, h11
and msgspec quote their input. Only an `OSError` keeps its number and the system's words for it.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any

MOST = 20
"""Exceptions of a chain or of groups that one line tells of."""


def told(error: BaseException) -> str:
    """All exceptions of a chain, the first cause first, and of groups."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting and len(found) < MOST:
        each = waiting.pop()
        if any(each is other for other in found):
            continue
        found.append(each)
        before = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        waiting += [before] if before is not None else []
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else []
    return "".join(map(_one, reversed(found))).rstrip("\n")


def _one(error: BaseException) -> str:
    lines = traceback.format_tb(error.__traceback__)
    return "".join([*(["Traceback (most recent call last):\n"] if lines else []), *lines, kind(error), "\n"])


def kind(error: BaseException) -> str:
    """The type of an exception, as a log line may name it."""
    made = type(error)
    name = made.__qualname__ if made.__module__ == "builtins" else f"{made.__module__}.{made.__qualname__}"
    code = error.errno if isinstance(error, OSError) else None
    return name if not isinstance(code, int) else f"{name}: [Errno {code}] {os.strerror(code)}"


def rendered(logger: Any, method: str, fields: Any) -> Any:
    """structlog processor: `exc_info` becomes `exception`."""
    wanted = fields.pop("exc_info", None)
    error = wanted if isinstance(wanted, BaseException) else sys.exc_info()[1] if wanted else None
    if error is not None:
        fields["exception"] = told(error)
    return fields


def install() -> None:
    """An exception that ends a process or a thread, or that cannot be handled, is logged without its text, too."""

    def hook(kind_: type[BaseException], error: BaseException, _: Any) -> None:
        sys.stderr.write(told(error) + "\n")

    def ignored(given: Any) -> None:
        if given.exc_value is not None:
            sys.stderr.write(f"ignored: {told(given.exc_value)}\n")

    sys.excepthook = hook
    threading.excepthook = ignored
    sys.unraisablehook = ignored
