"""Claims about floods of equal log lines."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import structlog

from proto.process.log_dedup import MOST_KINDS, WINDOW_S, Repeats


class Log:
    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.repeats = Repeats(self.write, lambda: self.now, timer=False)

    def write(self, method: str, event: str, fields: dict[str, Any]) -> None:
        self.lines.append((event, fields))

    def say(self, method: str, event: str, **fields: Any) -> None:
        try:
            passed = self.repeats(None, method, {"event": event, **fields})
        except structlog.DropEvent:
            return
        self.lines.append((event, {name: value for name, value in passed.items() if name != "event"}))


def test_the_first_is_written_at_once_and_the_rest_is_counted() -> None:
    log = Log()
    for number in range(5):
        log.say("warning", "full", connections=number, where="a")
    assert log.lines == [("full", {"connections": 0, "where": "a"})]
    log.repeats.flush()
    assert len(log.lines) == 1, "the window is still open"
    log.now = WINDOW_S
    log.repeats.flush()
    assert log.lines[1:] == [("full", {"connections": 4, "where": "a", "repeated": 4})]


def test_a_flood_is_one_line_a_window_and_is_forgotten_when_it_ends() -> None:
    log = Log()
    for _ in range(1000):
        log.say("error", "bad")
        log.now += WINDOW_S / 100
        log.repeats.flush()
    assert len(log.lines) in (10, 11)
    log.repeats.flush(everything=True)
    assert 1 + sum(fields.get("repeated", 0) for _, fields in log.lines) == 1000
    for _ in range(2):
        log.now += 2 * WINDOW_S
        log.repeats.flush()
    before = len(log.lines)
    log.say("error", "bad")
    assert log.lines[before:] == [("bad", {})]


def test_nothing_counted_is_lost_at_the_end() -> None:
    log = Log()
    for _ in range(3):
        log.say("warning", "w")
    log.repeats.flush(everything=True)
    assert log.lines[-1] == ("w", {"repeated": 2})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("warning", "a", {}), ("warning", "b", {})),
        (("warning", "a", {"reason": "x"}), ("warning", "a", {"reason": "y"})),
        (("warning", "a", {}), ("error", "a", {})),
    ],
)
def test_other_lines_are_not_touched(first: Any, second: Any) -> None:
    log = Log()
    for method, event, fields in (first, second):
        log.say(method, event, **fields)
    assert len(log.lines) == 2


def test_lines_below_warnings_are_never_held_back() -> None:
    log = Log()
    for _ in range(9):
        log.say("info", "request", path="/")
    assert len(log.lines) == 9


def test_memory_is_bounded_and_nothing_is_held_back_beyond_it() -> None:
    log = Log()
    for number in range(2 * MOST_KINDS):
        log.say("warning", f"w{number}")
    assert len(log.repeats._kinds) <= MOST_KINDS
    assert len(log.lines) == 2 * MOST_KINDS


def test_what_is_due_is_written_without_another_line() -> None:
    """`Repeats` writes the last line by its own timer."""
    written = threading.Event()
    now = 1000.0
    repeats = Repeats(lambda *_: written.set(), lambda: now)
    repeats(None, "warning", {"event": "w"})
    now += WINDOW_S - 0.01
    with pytest.raises(structlog.DropEvent):
        repeats(None, "warning", {"event": "w"})
    now += 0.01
    assert written.wait(10)


def test_a_process_that_ends_has_said_everything() -> None:
    """Through the whole processor chain of a real process."""
    script = "from proto.process.log import configure\nlog = configure('gateway', 'info', 'logfmt')\n"
    script += "for number in range(3):\n    log.warning('full', number=number)\n    log.info('fine')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    said = [line.split(" ", 1)[1] for line in done.stderr.splitlines()]
    fine = "level=info event=fine process=gateway"
    assert said == [
        "level=warning event=full number=0 process=gateway",
        fine,
        fine,
        fine,
        "level=warning event=full number=2 process=gateway repeated=2",
    ]


@pytest.mark.slow
def test_each_death_of_a_child_is_a_line_of_the_supervisor() -> None:
    script = "from proto.process.log import configure\nlog = configure('supervisor', 'info', 'logfmt')\n"
    script += "for _ in range(3):\n    log.error('child_died', child='shard-00')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("event=child_died") == 3


@pytest.mark.slow
def test_a_bug_that_is_met_again_and_again_has_one_traceback() -> None:
    script = "from proto.process.log import configure\nlog = configure('gateway', 'info', 'logfmt')\n"
    script += (
        "for _ in range(3):\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        log.exception('bug')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("ZeroDivisionError") == 1
    assert "event=bug process=gateway repeated=2" in done.stderr
    assert "NoneType" not in done.stderr
