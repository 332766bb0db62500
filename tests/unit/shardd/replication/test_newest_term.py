"""Claims about the newest term as one replica sees it: when it is over, and for how long its holder may answer."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from shardd.replication.messages import Kind, Part, Position, Seen, Timing
from shardd.replication.newest_term import NewestTerm

TIMING = Timing(time_to_live=12.0)
THEIRS = Seen(3, "theirs", 5, Position())


def newest(*, automatic: bool = True, follows: bool = False) -> NewestTerm:
    return NewestTerm("me", TIMING, ("mine before",), automatic=automatic, follows=follows)


@pytest.mark.parametrize(("rank", "over_after"), [(0, 12.0), (1, 16.0), (2, 20.0), (math.inf, math.inf)])
def test_a_term_that_did_not_change_is_over_after_the_time_to_live_and_a_third_for_each_rank(
    rank: float, over_after: float
) -> None:
    term = newest()
    term.rank = rank
    for asked_at in range(40):
        term.looked(THEIRS, asked_at, asked_at)
        assert term.over == (asked_at >= over_after)
        assert term.waits_for_another != term.over


def test_a_sign_of_life_begins_the_time_anew() -> None:
    term = newest()
    for asked_at in range(40):
        term.looked(replace(THEIRS, alive=asked_at // 10), asked_at, asked_at)
        assert not term.over


def test_the_longer_time_to_live_counts() -> None:
    term = newest()
    for asked_at in range(30):
        term.looked(replace(THEIRS, time_to_live=24.0), asked_at, asked_at)
        assert term.over == (asked_at >= 24)


@pytest.mark.parametrize("by_hand", [False, True])
def test_without_takeovers_only_an_operator_ends_the_term_of_another_machine(by_hand: bool) -> None:
    term = newest(automatic=False)
    term.looked(THEIRS, 0.0, 0.0)
    if by_hand:
        term.take_over()
    term.looked(THEIRS, 100.0, 100.0)
    assert term.over == by_hand
    term.stand_back()
    term.looked(THEIRS, 200.0, 200.0)
    assert not term.over


@pytest.mark.parametrize("follows", [False, True])
def test_a_term_of_the_same_directory_and_one_that_has_ended_are_over_unless_another_shard_is_followed(
    follows: bool,
) -> None:
    term = newest(follows=follows)
    term.looked(replace(THEIRS, nonce="mine before"), 0.0, 0.0)
    assert term.over != follows
    term = newest(follows=follows)
    term.passed(Part(7, Kind.END, 3, "theirs", 1, 0))
    term.looked(THEIRS, 0.0, 0.0)
    assert term.over != follows


@pytest.mark.parametrize(("alive", "silent_at"), [(5, 20.0), (6, 111.0)])
def test_a_holder_that_is_replaced_may_answer_until_its_silence_which_counts_from_its_last_sign_of_life(
    alive: int, silent_at: float
) -> None:
    term = newest()
    term.looked(THEIRS, 9.0, 10.0)
    term.note_holder(THEIRS)
    assert term.claim().living
    assert term.look().replaced == 3
    term.claimed(Seen(4, "me", None, Position(), replaced=alive), 101.0)
    assert term.may_answer(silent_at - 0.1)
    assert not term.may_answer(silent_at)


def test_a_claim_is_abrupt_unless_the_log_has_the_end_of_the_term() -> None:
    term = newest()
    term.looked(THEIRS, 0.0, 0.0)
    assert term.claim().abrupt
    term.passed(Part(7, Kind.END, 3, "theirs", 1, 0))
    assert not term.claim().abrupt
