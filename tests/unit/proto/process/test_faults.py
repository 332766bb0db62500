"""Faults: counted, told with an id, and bounded in the log."""

from __future__ import annotations

from structlog.testing import capture_logs

from proto.model.errors import ErrorCode, TopicsError
from proto.process.faults import MOST_LINES, WINDOW_S, Faults


def fail(faults: Faults, operation: str = "diff") -> TopicsError:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        return faults.failed(operation, outcome="unknown")


def test_the_client_gets_the_id_that_the_log_has() -> None:
    faults = Faults()
    with capture_logs() as lines:
        error = fail(faults)
    assert error.code is ErrorCode.INTERNAL
    assert error.detail is not None
    assert error.detail["outcome"] == "unknown"
    assert [(line["id"], line["operation"], line["exc_info"]) for line in lines] == [(error.detail["id"], "diff", True)]
    assert error.detail["id"] in error.message


def test_a_flood_is_counted_and_not_logged_in_full() -> None:
    now = [0.0]
    faults = Faults(lambda: now[0])
    with capture_logs() as lines:
        for _ in range(3 * MOST_LINES):
            fail(faults)
        assert len(lines) == MOST_LINES
        now[0] = WINDOW_S
        fail(faults)
    assert lines[-1]["not_logged"] == 2 * MOST_LINES
    assert faults.counts == {"diff": 3 * MOST_LINES + 1}
