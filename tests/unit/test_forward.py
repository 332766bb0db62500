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

    def measured(pair: Any, make: Any, seconds: float) -> list[Measure]:
        number = len(order) // 2
        order.extend(pair)
        costs = {held: Measure(100 * slow[number], 100 * slow[number])}
        costs[other] = Measure(100 * slow[number] + 50, 200 * slow[number])
        return [costs[server] for server in pair]

    monkeypatch.setattr(forward, "measured", measured)
    monkeypatch.setattr(forward, "drive", lambda *_: None)
    monkeypatch.setattr(forward, "sizes", lambda *_: (7, 65_536))
    row = forward.compared("state", (held, other), Echo(), 0.0, 3)
    assert (row.held_us, row.other_us, row.added_us, row.rtt_us) == (100, 150, 50, 20)
    assert row.cpu_ratio == 2
    assert order == [other, held, held, other, other, held]


def test_both_machines_are_asked_in_turn_with_a_stream_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bytes]] = []

    class Line:
        def __init__(self, port: int) -> None:
            self._port = port

        def ask(self, request: bytes) -> None:
            asked.append((self._port, request))

        def close(self) -> None:
            asked.append((self._port, b"closed"))

    monkeypatch.setattr(forward, "Line", Line)
    pair = [type("Server", (), {"port": port}) for port in (1, 2)]
    latencies = forward.in_turn(pair, [iter([b"a", b"b"]), iter([b"c", b"d"])], 0.0)
    assert asked == [(1, b"a"), (2, b"c"), (2, b"closed"), (1, b"closed")]
    assert len(latencies) == 2


def test_processor_time_of_a_machine_is_that_of_its_own_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([0.0, 0.1, 0.1, 0.4, 0.4, 0.5, 0.5, 0.8])
    monkeypatch.setattr(forward, "cpu_s", lambda _: next(used))
    monkeypatch.setattr(forward, "drive", lambda *_: type("Outcome", (), {"requests": 1000}))
    pair = [type("Server", (), {"port": port}) for port in (1, 2)]
    one, two = forward.spent(pair, lambda: iter(()), 0.5)
    assert one == pytest.approx(100)
    assert two == pytest.approx(300)


@pytest.mark.parametrize(("asked", "answered"), [(8, 1), (200, 300), (100, 65_536), (65_536, 40)])
def test_the_link_carries_requests_and_answers_of_any_size(asked: int, answered: int) -> None:
    with closing(forward.Echo()) as echo:
        assert 0 < echo.rtt_us(0, asked, answered) < 5e6
