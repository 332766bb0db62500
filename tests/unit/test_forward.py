"""The logic of the benchmark of two machines: rounds are paired, and each machine is the first one in turn."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import forward
import pytest
from forward import Measure


class Echo:
    def rtt_us(self, seconds: float, asked: int, answered: int) -> float:
        assert (asked, answered) == (7, 65_536)
        return 20.0


def test_differences_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round in which the whole machine is slow makes neither side look better."""
    held, other = type("Server", (), {"port": 1}), type("Server", (), {"port": 2})
    slow = [1, 10, 1]
    order: list[Any] = []

    def measured(asked: Any, servers: Any, make: Any, seconds: float) -> Measure:
        number = len(order) // 2
        order.append(asked)
        extra = 50 if asked is other else 0
        return Measure(100 * slow[number] + extra, (200 if asked is other else 100) * slow[number])

    monkeypatch.setattr(forward, "measured", measured)
    monkeypatch.setattr(forward, "drive", lambda *_: None)
    monkeypatch.setattr(forward, "sizes", lambda *_: (7, 65_536))
    row = forward.compared("state", (held, other), Echo(), 0.0, 3)
    assert (row.held_us, row.other_us, row.added_us, row.rtt_us) == (100, 150, 50, 20)
    assert row.cpu_ratio == 2
    assert order == [other, held, held, other, other, held]


@pytest.mark.parametrize(("asked", "answered"), [(8, 1), (200, 300), (100, 65_536), (65_536, 40)])
def test_the_link_carries_requests_and_answers_of_any_size(asked: int, answered: int) -> None:
    with closing(forward.Echo()) as echo:
        assert 0 < echo.rtt_us(0, asked, answered) < 5e6
