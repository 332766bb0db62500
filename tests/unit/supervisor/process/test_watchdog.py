"""Which children the watchdog kills: silence is counted in its own ticks. And the service manager's interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from supervisor.process.notify import Notifier
from supervisor.process.states import ChildState
from supervisor.process.watchdog import START_FACTOR, Watchdog, timeout_s

HANG_S = 10.0


@dataclass
class Played:
    name: str
    state: ChildState = ChildState.SERVING
    living: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(heard_at=0.0, spoken=True))
    hangs: int = 0
    kills: int = 0

    def kill(self) -> None:
        self.kills += 1


class Watch:
    def __init__(self, hang_s: float | None = HANG_S, manager_s: float | None = None) -> None:
        self.children = [Played("shard-00"), Played("shard-01")]
        self.watchdog = Watchdog(hang_s, manager_s, cast(Any, self.children), Notifier(""), structlog.get_logger())
        self.now = 1000.0

    def pass_(self, seconds: float, tick_s: float = 1.0, *, answering: int = 0) -> None:
        """Advance the clock; only child `answering` answers in every tick."""
        until = self.now + seconds
        while self.now < until:
            self.children[answering].living.heard_at = self.now + tick_s / 2
            self.watchdog.look(self.now, self.now + tick_s)
            self.now += tick_s

    @property
    def kills(self) -> list[int]:
        return [child.kills for child in self.children]


@pytest.mark.parametrize("state", [ChildState.SERVING, ChildState.LEAVING])
def test_a_child_that_does_not_answer_is_killed_in_time_and_no_other(state: ChildState) -> None:
    watch = Watch()
    watch.children[1].state = state
    watch.pass_(HANG_S - 1)
    assert watch.kills == [0, 0]
    watch.pass_(1)
    assert watch.kills == [0, 1]
    assert watch.children[1].hangs == 1


def test_a_sign_begins_the_silence_anew() -> None:
    watch = Watch()
    watch.pass_(HANG_S - 1)
    watch.pass_(1, answering=1)
    watch.pass_(HANG_S - 1)
    assert watch.kills == [0, 0]


@pytest.mark.parametrize("pause_s", [HANG_S, 3600.0])
def test_a_pause_of_the_supervisor_is_nobodys_silence(pause_s: float) -> None:
    """Example: the container was frozen. No child could answer, and all get time to answer afterwards."""
    watch = Watch()
    watch.pass_(1)
    watch.watchdog.look(watch.now, watch.now + pause_s)
    watch.now += pause_s
    assert watch.kills == [0, 0]
    watch.pass_(HANG_S / 2, answering=1)
    assert watch.kills == [0, 0]


def test_a_child_that_starts_gets_much_longer() -> None:
    watch = Watch()
    watch.children[1].state = ChildState.STARTING
    watch.pass_(HANG_S * START_FACTOR - 1)
    assert watch.kills == [0, 0]
    watch.pass_(1)
    assert watch.kills == [0, 1]


@pytest.mark.parametrize("state", [ChildState.STOPPING, ChildState.WAITING, ChildState.HELD])
def test_children_that_end_or_are_not_there_are_not_watched(state: ChildState) -> None:
    watch = Watch()
    watch.children[1].state = state
    watch.pass_(HANG_S * START_FACTOR * 2)
    assert watch.kills == [0, 0]


def test_a_timeout_of_0_kills_nothing() -> None:
    watch = Watch(hang_s=None, manager_s=20.0)
    watch.pass_(HANG_S * 100)
    assert watch.kills == [0, 0]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
    ],
)
def test_the_watchdog_is_fed_if_it_is_meant_for_this_process(environment: dict[str, str], wanted: float | None) -> None:
    assert timeout_s(environment, 7) == wanted
