"""Claims about what a replica does with each answer. Schedules of many faults are in tests/simulation."""

from __future__ import annotations

import math
from typing import TypeVar

import pytest
from msgspec.structs import replace

from shardd.replication.messages import (
    Answer,
    Apply,
    CreatePart,
    CreateTerm,
    Ended,
    Hold,
    Kind,
    Look,
    Output,
    Part,
    Position,
    ReadPart,
    Renew,
    Request,
    Restore,
    Result,
    Seen,
    Shipped,
    Timing,
)
from shardd.replication.newest_term import NewestTerm
from shardd.replication.protocol import Replica
from shardd.replication.states import ReplicaState

BEGIN = Position()
TIMING = Timing(time_to_live=9.0)
R = TypeVar("R", bound=Request)


class Bench:
    """A replica, what it has asked and told, and a clock that only the test moves."""

    def __init__(
        self, *, position: Position = BEGIN, previous: str = "", automatic: bool = True, follows: bool = False
    ) -> None:
        newest = NewestTerm("me", TIMING, (previous,), automatic=automatic, follows=follows)
        self.replica = Replica(newest, position)
        self.now = 100.0
        self.open: list[Request] = []
        self.told: list[Output] = []
        self._take(self.replica.tick(self.now))

    def _take(self, outputs: list[Output]) -> None:
        self.open += [each for each in outputs if isinstance(each, Request)]
        self.told += [each for each in outputs if not isinstance(each, Request)]

    def asked(self, kind: type[R]) -> R:
        return next(each for each in self.open if isinstance(each, kind))

    def open_parts(self) -> list[Request]:
        return [each for each in self.open if isinstance(each, CreatePart)]

    def open_reads(self) -> list[Request]:
        return [each for each in self.open if isinstance(each, ReadPart)]

    def answer(self, kind: type[Request], answer: Answer) -> None:
        request = self.asked(kind)
        self.open.remove(request)
        self._take(self.replica.answered(request, answer, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._take(self.replica.tick(self.now))

    def see(self, term: int, nonce: str, alive: int | None = None, manifest: Position = BEGIN) -> None:
        self.answer(Look, Seen(term, nonce, alive, manifest))

    def claim(self) -> None:
        """From a standby in an empty bucket to the owner of term 1."""
        self.see(0, "")
        self.answer(CreateTerm, Result.DONE)
        self.see(1, "me")

    def renew(self) -> None:
        self.answer(Renew, Result.DONE)
        look = self.open[-1]
        assert isinstance(look, Look)
        self.open.remove(look)
        self._take(self.replica.answered(look, Seen(1, "me", 1, BEGIN), self.now))

    def hold(self) -> None:
        self.claim()
        self.renew()
        self.answer(ReadPart, Result.ABSENT)
        self.answer(CreatePart, Result.DONE)
        self.see(1, "me")
        assert self.told == [Hold(1)]

    def ship(self, upto_no: int) -> Part:
        """Offer frames; returns the part that is to be created."""
        self.replica.offer(upto_no)
        self.wait(0)
        return self.asked(CreatePart).part


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def holder(bench: Bench) -> Bench:
    bench.hold()
    return bench


def frames(number: int, first_no: int, last_no: int, term: int = 1, nonce: str = "other") -> Part:
    return Part(number, Kind.FRAMES, term, nonce, first_no, last_no)


# What a creation's answer means


def test_a_part_that_was_created_is_shipped(holder: Bench) -> None:
    assert holder.ship(3) == frames(2, 1, 3, nonce="me")
    holder.answer(CreatePart, Result.DONE)
    assert holder.told[-1] == Shipped(frames(2, 1, 3, nonce="me"))
    assert holder.ship(5) == frames(3, 4, 5, nonce="me")


@pytest.mark.parametrize("answer", [Result.TAKEN, Result.UNKNOWN])
def test_a_part_that_is_read_back_as_ours_is_shipped(holder: Bench, answer: Result) -> None:
    part = holder.ship(3)
    holder.answer(CreatePart, answer)
    holder.wait(1)
    assert holder.told == [Hold(1)], "nothing is guessed"
    holder.answer(ReadPart, part)
    assert holder.told[-1] == Shipped(frames(2, 1, 3, nonce="me"))


def test_an_absent_part_is_created_again_with_the_same_frames_whatever_was_offered_meanwhile(holder: Bench) -> None:
    part = holder.ship(3)
    holder.answer(CreatePart, Result.UNKNOWN)
    holder.replica.offer(9)
    holder.wait(1)
    holder.answer(ReadPart, Result.ABSENT)
    assert holder.asked(CreatePart).part == part


def test_a_foreign_part_in_its_place_deposes_a_holder(holder: Bench) -> None:
    holder.ship(3)
    holder.answer(CreatePart, Result.TAKEN)
    holder.answer(ReadPart, Part(2, Kind.FENCE, 2, "other", 1, 0))
    assert isinstance(holder.told[-1], Ended)
    assert holder.replica.state is ReplicaState.DEPOSED
    assert not holder.replica.serving(holder.now)
    holder.wait(50)
    assert not [each for each in holder.open if isinstance(each, CreatePart)]


def test_a_read_without_an_answer_is_made_again_after_a_pause_that_grows(holder: Bench) -> None:
    holder.ship(3)
    holder.answer(CreatePart, Result.UNKNOWN)
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        holder.wait(0.9 * pause)
        assert not [each for each in holder.open if isinstance(each, ReadPart)]
        holder.wait(0.11 * pause)
        holder.answer(ReadPart, Result.UNKNOWN)


def test_a_late_or_repeated_answer_changes_nothing(holder: Bench) -> None:
    holder.ship(3)
    request = holder.asked(CreatePart)
    holder.answer(CreatePart, Result.UNKNOWN)
    assert holder.replica.answered(request, Result.DONE, holder.now) == []
    assert holder.told == [Hold(1)]


# Taking over


def test_a_term_is_over_when_it_did_not_change_for_the_time_to_live_on_the_observers_clock(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Result.ABSENT)
    for _ in range(2):
        bench.wait(4.4)
        bench.see(4, "other", 17)
        bench.answer(ReadPart, Result.ABSENT)
    assert bench.replica.state is ReplicaState.STANDBY, "8.8 of 9 seconds"
    bench.wait(3)
    bench.see(4, "other", 17)
    assert bench.asked(CreateTerm).term == 5


def test_the_look_that_can_show_a_dead_term_is_made_at_once_and_once(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Result.ABSENT)
    for _ in range(2):
        bench.wait(3)
        bench.now += 0.5  # the store is slow
        bench.see(4, "other", 17)
        bench.answer(ReadPart, Result.ABSENT)
    bench.wait(1.75)
    assert not [each for each in bench.open if isinstance(each, Look)], "8.75 of 9 seconds"
    bench.answer(ReadPart, Result.ABSENT)
    bench.wait(0.25)
    bench.see(4, "other", 17)
    assert bench.asked(CreateTerm).term == 5


@pytest.mark.parametrize("automatic", [True, False])
def test_a_term_that_may_not_be_taken_is_looked_at_every_third_of_the_time_to_live(automatic: bool) -> None:
    bench = Bench(automatic=automatic)
    bench.see(4, "other", 17)
    if automatic:
        bench.answer(ReadPart, Result.DAMAGED)
    else:
        bench.answer(ReadPart, Result.ABSENT)
    looks = 0
    for _ in range(200):
        bench.wait(0.1)
        for each in list(bench.open):
            looks += isinstance(each, Look)
            bench.answer(type(each), Seen(4, "other", 17, BEGIN) if isinstance(each, Look) else Result.DAMAGED)
    assert bench.replica.state is ReplicaState.STANDBY
    assert 5 <= looks <= 8, "20 seconds have six thirds of 9, and a look after 9"


def test_a_sign_of_life_begins_the_time_again(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Result.ABSENT)
    bench.wait(8)
    bench.see(4, "other", 18)
    bench.answer(ReadPart, Result.ABSENT)
    bench.wait(8)
    bench.see(4, "other", 18)
    assert bench.replica.state is ReplicaState.STANDBY


def test_time_without_answers_counts_for_nothing(bench: Bench) -> None:
    """A machine that is cut from the bucket learns nothing of the holder."""
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Result.UNKNOWN)
    bench.wait(100)
    bench.answer(Look, Result.UNKNOWN)
    assert bench.replica.state is ReplicaState.STANDBY


def test_without_automatic_takeover_only_an_operator_ends_a_silent_term() -> None:
    bench = Bench(automatic=False)
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Result.ABSENT)
    bench.wait(100)
    bench.see(4, "other", 17)
    assert bench.replica.state is ReplicaState.STANDBY
    bench.answer(ReadPart, Result.ABSENT)
    bench.replica.newest.take_over()
    bench.wait(1)
    bench.see(4, "other", 18)
    assert bench.asked(CreateTerm).term == 5


def test_a_term_of_the_same_directory_is_over_at_once() -> None:
    bench = Bench(previous="before")
    bench.see(4, "before", 17)
    assert bench.asked(CreateTerm).term == 5


def test_the_end_of_a_term_lets_a_standby_take_over_at_once(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Part(1, Kind.END, 4, "other", 1, 0))
    bench.see(4, "other", 17)
    assert bench.asked(CreateTerm).term == 5


@pytest.mark.parametrize("answer", [Result.DONE, Result.TAKEN, Result.UNKNOWN])
def test_whose_a_term_is_says_the_look_and_not_the_creation(answer: Result) -> None:
    for nonce, state in (("me", ReplicaState.FENCING), ("other", ReplicaState.STANDBY)):
        bench = Bench()
        bench.see(0, "")
        bench.answer(CreateTerm, answer)
        bench.wait(1)
        bench.see(1, nonce)
        assert bench.replica.state is state


def test_the_old_holders_last_parts_are_applied_before_the_fence(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.replica.newest.take_over()
    bench.answer(ReadPart, frames(1, 1, 8, term=4))
    bench.answer(Apply, Result.DONE)
    bench.see(4, "other", 17)
    bench.answer(CreateTerm, Result.DONE)
    bench.see(5, "me")
    bench.wait(TIMING.handover)
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part == Part(2, Kind.FENCE, 5, "me", 9, 8)
    bench.answer(CreatePart, Result.TAKEN)
    bench.answer(ReadPart, frames(2, 9, 12, term=4))
    bench.answer(Apply, Result.DONE)
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part == Part(3, Kind.FENCE, 5, "me", 13, 12)


@pytest.mark.parametrize(("counter", "since_claim"), [(17, 4.5), (18, TIMING.handover)])
def test_a_holder_is_replaced_when_it_is_silent(bench: Bench, counter: int, since_claim: float) -> None:
    bench.see(4, "other", 17)
    bench.wait(TIMING.handover - 4.5)
    bench.answer(ReadPart, Result.ABSENT)
    bench.replica.newest.take_over()
    bench.wait(0)
    bench.see(4, "other", 17)
    assert bench.asked(CreateTerm).living
    bench.answer(CreateTerm, Result.DONE)
    assert bench.asked(Look).replaced == 4
    bench.answer(Look, Seen(5, "me", None, BEGIN, counter))
    bench.wait(since_claim - 0.1)
    bench.answer(ReadPart, frames(1, 1, 8, term=4))
    bench.answer(Apply, Result.DONE)
    bench.answer(ReadPart, Result.ABSENT)
    assert not bench.open_parts(), "it may still answer, and ship"
    bench.wait(TIMING.follow)
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part == Part(2, Kind.FENCE, 5, "me", 9, 8)


def test_the_log_of_a_shard_that_is_moved_is_read_often(bench: Bench) -> None:
    bench.see(4, "other", 17)
    for hurries, pause in ((False, TIMING.follow), (True, TIMING.hurry), (False, TIMING.follow)):
        bench.replica.hurries = hurries
        bench.answer(ReadPart, Result.ABSENT)
        bench.wait(pause - 0.01)
        assert not bench.open_reads()
        bench.wait(0.011)
        assert bench.open_reads()


def test_a_holder_that_ends_its_term_meanwhile_is_not_waited_for(bench: Bench) -> None:
    bench.replica.newest.take_over()
    bench.see(4, "other", 17)
    bench.answer(CreateTerm, Result.DONE)
    bench.answer(Look, Seen(5, "me", None, BEGIN, 18))
    bench.answer(ReadPart, Part(1, Kind.END, 4, "other", 1, 0))
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part.kind is Kind.FENCE


def test_a_term_of_the_same_directory_is_not_waited_for_by_a_shard_that_follows() -> None:
    bench = Bench(previous="me before", follows=True)
    bench.see(4, "me before", 17)
    assert bench.replica.state is ReplicaState.STANDBY
    bench.replica.newest.take_over()
    bench.wait(0)
    bench.answer(ReadPart, Result.ABSENT)
    bench.see(4, "me before", 17)
    assert not bench.asked(CreateTerm).living
    bench.answer(CreateTerm, Result.DONE)
    bench.see(5, "me")
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part.kind is Kind.FENCE


@pytest.mark.parametrize("times", [1, 2])
def test_a_holder_is_waited_for_also_if_the_own_term_was_created_late(bench: Bench, times: int) -> None:
    """`times`: the holder's time to live is so many of this machine's, and that of the late term is not."""
    ttl_s = times * TIMING.time_to_live
    silent = Seen(4, "other", 17, BEGIN, time_to_live=ttl_s)
    bench.answer(Look, silent)
    watched(bench, ttl_s, silent)
    bench.answer(CreateTerm, Result.UNKNOWN)
    bench.wait(TIMING.retry)
    bench.answer(Look, replace(silent, alive=18))  # it lives; and then the term is created after all
    watched(bench, TIMING.renewal, Seen(5, "me", None, BEGIN))
    bench.answer(CreateTerm, Result.DONE)
    assert bench.asked(Look).replaced == 4
    bench.answer(Look, Seen(6, "me", None, BEGIN, 19))
    bench.answer(ReadPart, Result.ABSENT)
    bench.wait(times * TIMING.handover - TIMING.follow)
    bench.answer(ReadPart, Result.ABSENT)
    assert not bench.open_parts(), "it may still answer"
    bench.wait(TIMING.follow)
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part.kind is Kind.FENCE


def test_a_candidate_that_another_operator_replaces_gives_up(bench: Bench) -> None:
    bench.replica.newest.take_over()
    bench.see(4, "other", 17)
    bench.answer(CreateTerm, Result.DONE)
    bench.answer(Look, Seen(5, "me", None, BEGIN, 17))
    bench.answer(Renew, Result.DONE)
    look = bench.open[-1]
    bench.open.clear()
    bench._take(bench.replica.answered(look, Seen(6, "third", 1, BEGIN), bench.now))
    bench.wait(TIMING.renewal)
    bench.see(6, "third", 1)
    assert bench.replica.state is ReplicaState.STANDBY
    assert not [each for each in bench.open if isinstance(each, CreateTerm)]


def test_a_holder_that_answers_without_a_term_is_not_waited_for() -> None:
    bench = Bench(automatic=False)
    bench.replica.newest.take_over()
    bench.see(4, "other", 17)
    assert not bench.asked(CreateTerm).living
    bench.answer(CreateTerm, Result.DONE)
    bench.see(5, "me")
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part.kind is Kind.FENCE


def test_a_fence_of_a_later_term_makes_a_candidate_a_standby(bench: Bench) -> None:
    bench.claim()
    bench.answer(ReadPart, Part(1, Kind.FENCE, 2, "other", 1, 0))
    assert bench.replica.state is ReplicaState.STANDBY


def test_a_fence_that_retention_had_passed_does_not_count(bench: Bench) -> None:
    bench.claim()
    bench.answer(ReadPart, Result.ABSENT)
    bench.answer(CreatePart, Result.DONE)
    bench.see(1, "me", None, Position(7, 70))
    assert bench.told == []
    bench.answer(Restore, Position(7, 70))
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part == Part(8, Kind.FENCE, 1, "me", 71, 70)
    bench.answer(CreatePart, Result.DONE)
    bench.see(1, "me", None, Position(7, 70))
    assert bench.told == [Hold(1)]
    assert bench.replica.position == Position(8, 70)


def test_a_fence_in_a_gap_of_the_log_hides_nothing_from_a_later_candidate(bench: Bench) -> None:
    """1. Part 1 had frames 1 to 8, and retention removed it. 2. A candidate that was stopped meanwhile put its fence
    there, and lost its term. 3. A replica that was away reads that fence."""
    bench.claim()
    bench.answer(ReadPart, Part(1, Kind.FENCE, 0, "other", 1, 0))
    bench.answer(ReadPart, Result.ABSENT)
    bench.answer(CreatePart, Result.DONE)
    bench.see(1, "me", None, Position(1, 8))
    assert bench.told == []
    bench.answer(Restore, Position(1, 8))
    bench.answer(ReadPart, Part(2, Kind.FENCE, 1, "me", 1, 0))
    bench.see(1, "me", None, Position(1, 8))
    assert bench.told == [Hold(1)]
    assert bench.replica.position == Position(2, 8)


def test_a_standby_that_misses_frames_between_two_parts_is_restored(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Part(1, Kind.FENCE, 1, "other", 1, 0))
    bench.answer(ReadPart, frames(2, 9, 12))
    bench.answer(Restore, Position(1, 8))
    bench.answer(ReadPart, frames(2, 9, 12))
    assert bench.asked(Apply).part == frames(2, 9, 12)


def test_a_fence_of_a_later_term_than_was_seen_is_looked_for_at_once(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, Part(1, Kind.FENCE, 4, "other", 1, 0))
    assert bench.open_reads(), "its term is known"
    bench.answer(ReadPart, Part(2, Kind.FENCE, 5, "another", 1, 0))
    bench.see(5, "another", 1)
    assert bench.open_reads()
    assert bench.replica.newest.waits_for_another


def test_a_log_that_differs_is_set_aside(bench: Bench) -> None:
    bench.see(4, "other", 17)
    bench.answer(ReadPart, frames(1, 1, 8, term=4))
    bench.answer(Apply, Result.DIFFERS)
    bench.answer(Restore, Position(0, 0))
    assert bench.asked(ReadPart).number == 1


def test_a_standby_that_retention_has_passed_is_restored(bench: Bench) -> None:
    bench.see(4, "other", 17, Position(7, 70))
    bench.answer(ReadPart, Result.ABSENT)
    bench.answer(Restore, Position(7, 70))
    assert bench.asked(ReadPart).number == 8


# Being alive, and silence


def test_a_holder_that_could_not_renew_for_two_thirds_of_the_time_to_live_is_silent(holder: Bench) -> None:
    assert holder.replica.serving(holder.now + 5.9)
    assert not holder.replica.serving(holder.now + 6)
    holder.wait(3)
    holder.answer(Renew, Result.UNKNOWN)
    holder.wait(4)
    assert not holder.replica.serving(holder.now)
    holder.renew()
    assert holder.replica.serving(holder.now)


def test_time_counts_from_the_begin_of_a_renewal(holder: Bench) -> None:
    holder.wait(3)
    holder.now += 5
    holder.renew()
    assert not holder.replica.serving(holder.now + 1)


def test_a_holder_that_sees_a_later_term_is_silent_ships_what_is_left_and_ends_its_term(holder: Bench) -> None:
    holder.ship(3)
    holder.replica.offer(5)
    holder.wait(3)
    holder.answer(Renew, Result.DONE)
    holder.see(2, "other")
    assert not holder.replica.serving(holder.now)
    holder.answer(CreatePart, Result.DONE)
    assert holder.asked(CreatePart).part == frames(3, 4, 5, nonce="me")
    holder.answer(CreatePart, Result.DONE)
    assert holder.asked(CreatePart).part == Part(4, Kind.END, 1, "me", 6, 5)
    holder.answer(CreatePart, Result.DONE)
    assert holder.told[-1] == Ended(deposed=True)


def test_a_holder_that_finds_the_fence_before_it_has_ended_its_term_is_deposed(holder: Bench) -> None:
    holder.wait(3)
    holder.answer(Renew, Result.DONE)
    holder.see(2, "other")
    holder.wait(60)
    assert not [each for each in holder.open if isinstance(each, Renew)]
    holder.answer(CreatePart, Result.TAKEN)
    holder.answer(ReadPart, Part(2, Kind.FENCE, 2, "other", 1, 0))
    assert holder.told[-1] == Ended(deposed=True)


def test_a_holder_that_answers_without_a_term_ends_when_it_sees_a_later_one() -> None:
    bench = Bench(automatic=False)
    bench.hold()
    bench.wait(3)
    bench.answer(Renew, Result.DONE)
    bench.see(2, "other")
    assert bench.told[-1] == Ended(deposed=True)


def test_a_candidate_that_sees_a_later_term_is_a_standby(bench: Bench) -> None:
    bench.claim()
    bench.answer(Renew, Result.DONE)
    look = bench.open[-1]
    bench.replica.answered(look, Seen(2, "other", 1, BEGIN), bench.now)
    assert bench.replica.state is ReplicaState.STANDBY


# The end


def test_a_drained_holder_ships_what_is_left_and_ends_its_term(holder: Bench) -> None:
    holder.ship(3)
    holder.replica.offer(5)
    holder.replica.drain()
    holder.answer(CreatePart, Result.DONE)
    assert holder.asked(CreatePart).part == frames(3, 4, 5, nonce="me")
    assert holder.replica.serving(holder.now)
    holder.answer(CreatePart, Result.DONE)
    assert holder.asked(CreatePart).part == Part(4, Kind.END, 1, "me", 6, 5)
    assert not holder.replica.serving(holder.now), "another machine may have seen the end before its answer comes"
    holder.answer(CreatePart, Result.DONE)
    assert holder.told[-1] == Ended(deposed=False)


def test_a_part_that_is_open_when_a_term_is_lost_is_not_created_again(bench: Bench) -> None:
    bench.claim()
    bench.answer(ReadPart, Result.ABSENT)
    bench.answer(Renew, Result.DONE)
    bench.see(2, "other")
    assert bench.replica.state is ReplicaState.STANDBY
    bench.answer(CreatePart, Result.UNKNOWN)
    bench.wait(2)
    assert not [each for each in bench.open if isinstance(each, CreatePart)]


def test_what_the_local_shard_is_doing_is_waited_for(bench: Bench) -> None:
    bench.claim()
    bench.answer(ReadPart, frames(1, 1, 8, term=0))
    bench.answer(Renew, Result.DONE)
    bench.see(2, "other")
    bench.wait(2)
    assert not [each for each in bench.open if isinstance(each, ReadPart)]
    bench.answer(Apply, Result.DONE)
    assert bench.replica.position == Position(1, 8)


# Several machines: which one claims


def watched(bench: Bench, seconds: float, seen: Seen) -> None:
    """Let time pass in thirds of the time to live, with a look after each that shows `seen`."""
    for _ in range(round(seconds / TIMING.renewal)):
        bench.wait(TIMING.renewal)
        if bench.open_reads():
            bench.answer(ReadPart, Result.ABSENT)
        bench.answer(Look, seen)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_waits_for_a_third_of_the_time_to_live_more(bench: Bench, rank: int) -> None:
    bench.replica.newest.rank = rank
    silent = Seen(4, "other", 17, BEGIN)
    bench.answer(Look, silent)
    watched(bench, TIMING.time_to_live + rank * TIMING.renewal - TIMING.renewal, silent)
    assert bench.replica.state is ReplicaState.STANDBY
    watched(bench, TIMING.renewal, silent)
    assert bench.asked(CreateTerm).term == 5


@pytest.mark.parametrize("seen", [Seen(0, "", None, BEGIN), Seen(4, "other", 17, BEGIN)])
def test_an_unranked_machine_never_claims(bench: Bench, seen: Seen) -> None:
    bench.replica.newest.rank = math.inf
    bench.answer(Look, seen)
    watched(bench, 20 * TIMING.time_to_live, seen)
    assert bench.replica.state is ReplicaState.STANDBY
    bench.replica.newest.rank = 0
    watched(bench, TIMING.renewal, seen)
    assert bench.replica.state is ReplicaState.CLAIMING


def test_an_end_is_claimed_by_rank_too(bench: Bench) -> None:
    bench.replica.newest.rank = 1
    seen = Seen(4, "other", 17, BEGIN)
    bench.answer(Look, seen)
    bench.answer(ReadPart, Part(1, Kind.END, 4, "other", 1, 0))
    bench.answer(Look, seen)
    assert bench.replica.state is ReplicaState.STANDBY
    watched(bench, TIMING.renewal, seen)
    assert bench.asked(CreateTerm).term == 5


def test_a_term_that_is_over_after_another_one_that_was_is_waited_for_from_its_own_end(bench: Bench) -> None:
    bench.replica.newest.rank = 2
    bench.answer(Look, Seen(0, "", None, BEGIN))
    watched(bench, TIMING.renewal, Seen(0, "", None, BEGIN))
    watched(bench, TIMING.renewal, Seen(1, "other", 1, BEGIN))
    assert bench.replica.state is ReplicaState.STANDBY, "a third of the time to live before it would have claimed"


@pytest.mark.parametrize("rank", [1, math.inf])
def test_a_restart_takes_its_own_term_over_at_once_whatever_its_rank(rank: float) -> None:
    bench = Bench(previous="before")
    bench.replica.newest.rank = rank
    bench.see(4, "before", 17)
    assert bench.asked(CreateTerm).term == 5


@pytest.mark.parametrize(("own", "of_term", "waits"), [(9.0, 18.0, 18.0), (9.0, 3.0, 9.0), (9.0, 0.0, 9.0)])
def test_the_longer_time_to_live_counts(bench: Bench, own: float, of_term: float, waits: float) -> None:
    """The holder's, or this machine's: a holder that renews as seldom as its own allows lives."""
    assert TIMING.time_to_live == own
    silent = Seen(4, "other", 17, BEGIN, time_to_live=of_term)
    bench.answer(Look, silent)
    watched(bench, waits - TIMING.renewal, silent)
    assert bench.replica.state is ReplicaState.STANDBY
    watched(bench, TIMING.renewal, silent)
    assert bench.asked(CreateTerm).term == 5


def test_the_silence_of_a_holder_is_by_its_own_time_to_live_if_that_is_longer(bench: Bench) -> None:
    bench.replica.newest.take_over()
    bench.answer(Look, Seen(4, "other", 17, BEGIN, time_to_live=18.0))
    bench.answer(CreateTerm, Result.DONE)
    bench.answer(Look, Seen(5, "me", None, BEGIN, 18))
    bench.answer(ReadPart, Result.ABSENT)
    bench.wait(TIMING.handover)
    bench.answer(ReadPart, Result.ABSENT)
    assert not bench.open_parts(), "it may still answer"
    bench.wait(TIMING.handover)
    bench.answer(ReadPart, Result.ABSENT)
    assert bench.asked(CreatePart).part.kind is Kind.FENCE
