"""The service manager's watchdog interval, from the environment."""

from __future__ import annotations

import pytest

from supervisor.process.watchdog import timeout_s


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
