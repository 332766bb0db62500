"""The logic of the benchmark of several machines: how long a shard took no write."""

from __future__ import annotations

import pytest
from machines import Event, longest, show


@pytest.mark.parametrize(
    ("times", "longest_s"),
    [
        ([1.0, 2.0, 9.9, 10.1, 13.0, 13.5, 15.0], 2.9),
        ([9.0, 10.5, 14.0], 3.5),
        ([7.0, 13.9], 6.9),
        ([9.9, 10.1, 10.2], 3.8),
        ([7.0], 7.0),
        ([15.0], 4.0),
        ([], 4.0),
    ],
    ids=[
        "within the event",
        "until the event ends",
        "from before the event",
        "none at the end",
        "none since before the event",
        "none yet",
        "none",
    ],
)
def test_a_shard_is_away_from_the_last_write_before_to_the_first_one_after(
    times: list[float], longest_s: float
) -> None:
    assert longest(times, 10.0, 14.0) == pytest.approx(longest_s)


def test_only_a_kill_may_cost_the_time_to_live() -> None:
    aims_s = {what: Event(what, 0.0, 0, 0.0, 0).aim_s(3000) for what in ("joins", "is killed", "leaves")}
    assert aims_s == {"joins": 1.0, "is killed": 5.0, "leaves": 1.0}


def test_the_table_says_why_a_write_failed_where_none_should(capsys: pytest.CaptureFixture[str]) -> None:
    joined = Event("joins", 0.4, 1, 0.0, 0, ("503 [a reason]",))
    show([joined, Event("is killed", 3.0, 1, 0.0, 0, ("timed out",))], 3000)
    printed = capsys.readouterr().out
    assert "a machine joins: 503 [a reason]" in printed
    assert "timed out" not in printed
