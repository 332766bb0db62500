"""Claims about the moment at which the next part is created."""

from __future__ import annotations

from shardd.replication.pace import LONGEST_PAUSE_S, PART_BYTES, Pace


def test_the_first_part_is_created_at_once() -> None:
    pace = Pace(0.0, True)
    assert pace.due < 0
    assert pace.enough(1)


def test_as_much_as_the_part_before_had_does_not_wait() -> None:
    pace = Pace(0.0, True)
    pace.begun(10.0, 800)
    pace.ended(10.02)
    assert pace.enough(800)
    assert not pace.enough(799)
    assert pace.due == 10.02 + (10.02 - 10.0) / 2


def test_what_is_under_way_does_not_count() -> None:
    pace = Pace(0.0, True)
    pace.begun(10.0, 800)
    assert not pace.enough(800 + 799)
    assert pace.enough(800 + 800)


def test_an_outage_and_a_large_part_delay_nothing_for_long() -> None:
    pace = Pace(0.0, True)
    pace.begun(10.0, 3 * PART_BYTES)
    pace.ended(99.0)
    assert pace.due == 99.0 + LONGEST_PAUSE_S
    assert pace.enough(PART_BYTES)


def test_without_waiting_changes_a_part_is_due_after_the_interval_or_when_it_is_full() -> None:
    pace = Pace(1.0, False)
    pace.turn(10.0)
    pace.begun(10.5, 100)
    pace.ended(10.6)
    assert pace.due == 11.0
    assert not pace.enough(PART_BYTES - 1)
    assert pace.enough(PART_BYTES)
