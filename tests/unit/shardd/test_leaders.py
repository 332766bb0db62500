"""Leaders: a list has every machine that held the shard, and says which seqs of a topic each of them led."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from shardd.leaders import KEPT, Leader, followed_by, runs

FIRST = [Leader(0, "a")]


def of(leaders: Sequence[Leader], times: Sequence[int], oldest: int = 1) -> tuple[tuple[int, str], ...]:
    """The runs of a topic with records from seq `oldest` on that were committed at these times."""
    return runs(leaders, lambda ms: oldest + bisect_left(times, ms), oldest)


def test_consecutive_terms_of_a_machine_are_one_leader() -> None:
    leaders = followed_by(followed_by(FIRST, "a", 10), "b", 20)
    assert leaders == [(0, "a"), (20, "b")]
    assert followed_by(leaders, "b", 30) == leaders
    assert followed_by(leaders, "a", 30) == [*leaders, (30, "a")]


def test_what_an_earlier_term_does_not_tell_is_not_known() -> None:
    assert followed_by([], "b", 20) == [(0, ""), (20, "b")]


def test_the_oldest_leaders_are_forgotten() -> None:
    leaders = FIRST
    for number in range(3 * KEPT):
        leaders = followed_by(leaders, f"m{number % 3}", number)
    assert len(leaders) == KEPT
    assert leaders[0] == (0, "")
    assert leaders[-1] == (3 * KEPT - 1, "m2")


def test_each_machine_led_what_was_committed_from_its_term_on() -> None:
    leaders = [*FIRST, Leader(20, "b"), Leader(40, "a")]
    assert of(leaders, [5, 15, 20, 25, 45]) == ((1, "a"), (3, "b"), (5, "a"))
    assert of(leaders, [5, 15]) == ((1, "a"), (3, "a")), "who leads now has written nothing yet"
    assert of(leaders, []) == ((1, "a"),)


def test_a_machine_that_wrote_nothing_led_nothing() -> None:
    leaders = [*FIRST, Leader(20, "b"), Leader(30, "c")]
    assert of(leaders, [5, 35]) == ((1, "a"), (2, "c"))


def test_a_clock_that_was_ahead_gives_no_machine_what_a_later_one_led() -> None:
    leaders = [*FIRST, Leader(50, "b"), Leader(20, "c")]
    assert of(leaders, [5, 15, 25, 35]) == ((1, "a"), (3, "c"))


def test_the_leader_of_what_is_gone_is_known_only_if_there_was_one() -> None:
    assert of(FIRST, [5, 15], oldest=7) == ((1, "a"), (7, "a"))
    assert of([*FIRST, Leader(10, "b")], [5, 15], oldest=7) == ((1, "a"), (7, "a"), (8, "b"))
    assert of([*FIRST, Leader(3, "b")], [5, 15], oldest=7) == ((1, ""), (7, "b"))
    assert of([*FIRST, Leader(3, "b")], [], oldest=7) == ((1, ""), (7, "b")), "all is gone"


def test_without_leaders_nothing_is_known() -> None:
    assert of([], [5]) == ((1, ""),)
