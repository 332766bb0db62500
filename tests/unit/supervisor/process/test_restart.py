"""Restart policy: values in, decision out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.process.restart import (
    FIRST_DELAY_S,
    FIRST_HOLD_S,
    LONGEST_DELAY_S,
    LONGEST_HOLD_S,
    WINDOW_S,
    Again,
    Death,
    TooOften,
    decide,
    hold_s,
)


def deaths(*times: float, uptime_s: float = 0.1) -> list[Death]:
    return [Death(at, uptime_s) for at in times]


def test_the_first_restart_comes_after_100_ms() -> None:
    assert decide(deaths(5.0), 5.0, 10) == Again(FIRST_DELAY_S)


def test_the_pause_doubles_up_to_5_s() -> None:
    spaced = [100.0 * n for n in range(9)]  # far apart, so that the limit does not apply; uptimes are short
    delays = [decide(deaths(*spaced[: n + 1]), spaced[n], 10) for n in range(9)]
    assert delays == [Again(s) for s in (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0)]


def test_a_minute_of_life_starts_a_new_series() -> None:
    history = [*deaths(1, 2, 3), Death(70, 65.0), Death(71, 0.5)]
    assert decide(history[:4], 70, 10) == Again(FIRST_DELAY_S)
    assert decide(history, 71, 10) == Again(2 * FIRST_DELAY_S)


def test_more_than_the_limit_within_a_minute_is_too_often() -> None:
    times = [float(n) for n in range(11)]
    assert isinstance(decide(deaths(*times[:10]), 9.0, 10), Again)
    verdict = decide(deaths(*times), 10.0, 10)
    assert verdict == TooOften("died 11 times within 60 s")


def test_old_deaths_are_forgiven() -> None:
    times = [float(n) for n in range(10)]
    assert isinstance(decide(deaths(*times, 61.0), 61.0, 10), Again)


@given(
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), min_size=1, max_size=40),
    st.integers(0, 20),
)
def test_the_decision_is_always_a_bounded_pause_or_justified(steps: list[tuple[float, float]], limit: int) -> None:
    now, history = 0.0, []
    for pause, uptime in steps:
        now += pause
        history.append(Death(now, uptime))
    match decide(history, now, limit):
        case Again(delay_s):
            assert FIRST_DELAY_S <= delay_s <= LONGEST_DELAY_S
        case TooOften():
            assert sum(now - d.at < WINDOW_S for d in history) > limit


def test_holds_double_up_to_the_longest() -> None:
    pauses = [hold_s(n) for n in range(1000)]
    assert (pauses[0], pauses[1], pauses[-1]) == (FIRST_HOLD_S, 2 * FIRST_HOLD_S, LONGEST_HOLD_S)
    assert pauses == sorted(pauses)


def test_deaths_over_requests_neither_grow_the_pause_nor_count_as_too_often() -> None:
    over = [Death(float(n), 0.1, excused=True) for n in range(50)]
    assert decide(over, 49.0, 10) == Again(FIRST_DELAY_S)
    own = [Death(50.0, 0.1), Death(51.0, 0.1)]
    assert decide(over + own, 51.0, 10) == Again(2 * FIRST_DELAY_S)
    assert isinstance(decide(over + deaths(*(50.0 + n for n in range(11))), 60.0, 10), TooOften)
