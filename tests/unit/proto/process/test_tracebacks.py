"""No text of an exception gets into the log of a process that parses what strangers send."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import structlog

from proto.process import log, tracebacks

SECRET = "Bearer-c2VjcmV0"


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    for place, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(place, name, getattr(place, name))
    before = structlog.get_config()
    yield lambda: capsys.readouterr().err
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def fails() -> None:
    try:
        {}[SECRET]  # type: ignore[index]
    except KeyError as error:
        error.add_note(SECRET)
        raise ExceptionGroup(SECRET, [ValueError(SECRET), OSError(28, SECRET, SECRET)]) from error


@pytest.mark.parametrize("form", ["logfmt", "journal", "json", "console"])
def test_a_traceback_tells_where_and_what_kind(form: str, errors: Callable[[], str]) -> None:
    logger = log.configure("gateway", "info", form)
    try:
        fails()
    except ExceptionGroup:
        logger.exception("request_failed", id="x")
    told = errors()
    assert SECRET not in told
    for part in ("in fails", "KeyError", "ExceptionGroup", "ValueError", "OSError: [Errno 28] No space left on device"):
        assert part in told, part


def test_nor_does_what_ends_the_process_or_a_thread_or_cannot_be_raised(errors: Callable[[], str]) -> None:
    log.configure("shard-00", "info", "logfmt")

    class Bad:
        def __del__(self) -> None:
            raise ValueError(SECRET)

    Bad()
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    try:
        fails()
    except ExceptionGroup as error:
        sys.excepthook(type(error), error, error.__traceback__)
    told = errors()
    assert SECRET not in told
    assert told.count("\nExceptionGroup\n") == 2
    assert told.count("ignored: ") == 2


def test_the_supervisor_parses_nothing_of_strangers_and_tells_all(errors: Callable[[], str]) -> None:
    logger = log.configure("supervisor", "info", "logfmt")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    assert "ValueError: why" in errors()


def test_a_chain_has_a_bound_and_a_circle_an_end() -> None:
    error = ValueError("x")
    for _ in range(5000):
        after = ValueError("x")
        after.__context__ = error
        error = after
    assert tracebacks.told(error).count("ValueError") == tracebacks.MOST
    one, two = ValueError("x"), KeyError("x")
    one.__cause__, two.__cause__ = two, one
    assert tracebacks.told(one) == "KeyError\nValueError"
