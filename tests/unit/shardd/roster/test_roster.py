"""Claims about a machine's roster: when it is a member, what it runs, what it claims, what it gives away."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec.structs import replace

from shardd.roster.handover import HandOverEvent, HandOverState
from shardd.roster.members import Member, RosterTiming, Standing
from shardd.roster.moves import Move
from shardd.roster.placement import next_transfer, ranks
from shardd.roster.roster import CreateMove, LookAround, Publish, Roster, RosterRequest, RosterState
from shardd.roster.view import Found, Held

TIMING = RosterTiming(time_to_live=9.0, void=60.0, keep=60.0, spare=600.0)
SHARDS = 4


class Bucket:
    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.holders = [Held()] * SHARDS
        self.moves: dict[int, Move] = {}

    def carry(self, request: RosterRequest | None) -> Found | None:
        match request:
            case Publish(member):
                self.members[member.machine] = member
            case CreateMove(move):
                self.moves.setdefault(move.number, move)
            case LookAround(from_move):
                moves = [each for each in self.moves.values() if each.number >= from_move]
                return Found(tuple(self.members.values()), tuple(self.holders), tuple(moves))
        return None


class Scene:
    """Machines with one bucket, and a clock that only the test moves."""

    def __init__(self, *machines: str) -> None:
        self.bucket = Bucket()
        self.now = 100.0
        self.ahead: dict[str, float] = {}
        """Seconds by which wall clocks are ahead."""
        self.rosters = {machine: self.roster(machine) for machine in machines}

    def roster(self, machine: str, nonce: str = "", place: str = "") -> Roster:
        return Roster(machine, nonce or f"{machine} start", place or f"{machine} place", SHARDS, TIMING)

    def step(self, roster: Roster) -> RosterRequest | None:
        wall_s = self.now + self.ahead.get(roster.machine, 0.0)
        request = roster.tick(self.now, wall_s)
        if request is not None:
            roster.answered(request, self.bucket.carry(request), self.now, wall_s)
        return request

    def turns(self, roster: Roster) -> None:
        while self.step(roster) is not None:
            pass

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TIMING.renewal)):
            self.now += TIMING.renewal
            for roster in self.rosters.values():
                self.turns(roster)

    def hold(self, machine: str, *shards: int, term: int = 1) -> None:
        for shard in shards:
            self.bucket.holders[shard] = Held(term, machine)
            self.rosters[machine].held[shard] = term

    def ready(self, machine: str, *shards: int) -> None:
        """The machine has followed these shards to their ends."""
        self.rosters[machine].lags.update(dict.fromkeys(shards, 0.1))


@pytest.fixture
def pair() -> Scene:
    """Machine a holds all shards, b has come and has caught up with all of them."""
    scene = Scene("a", "b")
    scene.hold("a", *range(SHARDS))
    scene.ready("b", *range(SHARDS))
    scene.wait(9)
    return scene


def refuses(roster: Roster, shard: int) -> bool:
    """Whether a hand-over of the shard is where its process refuses requests."""
    states, handover = (HandOverState.REFUSING, HandOverState.ENDING), roster.handover
    return handover is not None and handover.state in states and handover.move.shard == shard


def report(roster: Roster, event: HandOverEvent, now: float) -> None:
    if roster.handover is not None:
        roster.handover.meet(event, now)


def given(scene: Scene, machine: str = "a") -> HandOverState | None:
    handover = scene.rosters[machine].handover
    return None if handover is None else handover.state


def test_a_shard_that_one_machine_cannot_run_goes_to_another_one() -> None:
    scene = Scene("a", "b", "g")
    scene.hold("a", *range(SHARDS))
    scene.rosters["b"].failed = set(range(SHARDS))
    scene.wait(9)
    assert scene.bucket.members["b"].fails == list(range(SHARDS))
    scene.rosters["a"].leave()
    scene.wait(9)
    assert set(scene.bucket.members["a"].gives.values()) == {"g"}
    scene.rosters["b"].failed = set()  # as when its process is to begin again, or is not needed any more
    scene.wait(60)
    assert set(scene.bucket.members["a"].gives.values()) == {"g"}
    assert scene.bucket.members["b"].fails
    scene.ready("b", 0)
    scene.wait(9)
    assert scene.bucket.members["b"].fails == list(range(1, SHARDS)), "it has followed this one"
    scene.wait(TIMING.calm)
    assert not scene.bucket.members["b"].fails


# Being a member


def test_a_machine_without_an_object_is_a_member_at_once() -> None:
    scene = Scene("a")
    scene.turns(scene.rosters["a"])
    assert scene.rosters["a"].state is RosterState.ADMITTED
    assert scene.bucket.members["a"].nonce == "a start"


def test_before_it_is_a_member_a_machine_runs_and_claims_nothing() -> None:
    roster = Scene("a").rosters["a"]
    assert roster.wanted(0) == set()
    assert roster.rank(0) == math.inf


def test_a_restart_at_the_same_place_is_a_member_at_once(pair: Scene) -> None:
    again = pair.roster("a", "second start", "a place")
    pair.turns(again)
    assert again.state is RosterState.ADMITTED
    assert again.wanted(pair.now) == set(range(SHARDS)), "what the directory held"


def test_a_copied_directory_is_refused_while_the_original_lives(pair: Scene) -> None:
    pair.rosters["copy"] = copy = pair.roster("a", "another start", "elsewhere")
    pair.wait(6)
    assert copy.state is RosterState.REFUSED
    assert copy.tick(pair.now + 99, 0) is None
    assert pair.bucket.members["a"].nonce == "a start", "it wrote nothing"
    assert copy.wanted(pair.now) == set()


def test_a_directory_that_was_moved_is_a_member_after_the_time_to_live(pair: Scene) -> None:
    del pair.rosters["a"]
    pair.rosters["moved"] = moved = pair.roster("a", "another start", "elsewhere")
    pair.wait(9)
    assert moved.wanted(pair.now) == set()
    pair.wait(3)
    assert moved.state is RosterState.ADMITTED


def test_of_two_that_began_at_the_same_moment_one_stays() -> None:
    scene = Scene()
    scene.rosters = {str(n): scene.roster("a", f"nonce {n}", f"place {n}") for n in range(2)}
    first, second = scene.rosters.values()
    looks = [each.tick(scene.now, 0) for each in (first, second)]
    for each, look in zip((first, second), looks, strict=True):
        assert look is not None
        each.answered(look, scene.bucket.carry(look), scene.now, 0)
    scene.wait(18)
    assert (first.state, second.state) == (RosterState.ADMITTED, RosterState.REFUSED)


def test_late_writes_of_its_own_past_do_not_end_a_machine(pair: Scene) -> None:
    late = pair.bucket.members["a"]
    pair.rosters["a"] = again = pair.roster("a", "zz: second start", "a place")
    for beat in range(50, 55):
        pair.wait(3)
        pair.bucket.members["a"] = msgspec.structs.replace(late, beat=beat)
        pair.wait(3)
    assert again.state is RosterState.ADMITTED


# What it runs, and claims


def test_a_machine_runs_what_it_holds_and_follows_what_it_is_the_second_for() -> None:
    scene = Scene("a", "b", "c")
    scene.hold("a", *range(SHARDS))
    scene.wait(9)
    assert scene.rosters["a"].wanted(scene.now) == set(range(SHARDS))
    for shard in range(SHARDS):
        second = ranks(shard, scene.rosters["a"].view.members.standings(scene.now), "a")[0]
        assert shard in scene.rosters[second].wanted(scene.now)
        assert {name: roster.rank(shard) for name, roster in scene.rosters.items()}[second] == 0
        assert scene.rosters["a"].rank(shard) == 2


def test_when_holder_and_second_are_away_the_next_one_follows_and_claims() -> None:
    scene = Scene("a", "b", "c")
    scene.hold("a", *range(SHARDS))
    scene.wait(9)
    del scene.rosters["a"], scene.rosters["b"]
    scene.wait(21)
    last = scene.rosters["c"]
    assert last.wanted(scene.now) == set(range(SHARDS))
    assert [last.rank(shard) for shard in range(SHARDS)] == [0] * SHARDS


@pytest.fixture
def three() -> Scene:
    """Machine a holds all shards, b and c are there."""
    scene = Scene("a", "b", "c")
    scene.hold("a", *range(SHARDS))
    scene.wait(9)
    return scene


def run(scene: Scene, machine: str) -> set[int]:
    """Start and end processes as the roster of a machine wants it."""
    roster = scene.rosters[machine]
    roster.runs = set(roster.wanted(scene.now))
    return roster.runs


def needs(scene: Scene, machine: str) -> set[int]:
    """What a machine holds, claims first, and is to be given next."""
    roster, holders = scene.rosters[machine], [each.machine for each in scene.bucket.holders]
    found = {shard for shard in range(SHARDS) if holders[shard] == machine or roster.rank(shard) == 0}
    coming = next_transfer(roster.view.members.standings(scene.now), holders)
    return found | {coming.shard} if coming is not None and coming.target == machine else found


def test_a_machine_runs_what_it_needs_and_no_more(three: Scene) -> None:
    for machine, roster in three.rosters.items():
        assert roster.wanted(three.now) == needs(three, machine)
    assert three.rosters["b"].wanted(three.now) | three.rosters["c"].wanted(three.now) == set(range(SHARDS))
    assert three.rosters["b"].wanted(three.now) != set(range(SHARDS))


def test_a_machine_runs_the_shard_that_its_holder_means_for_it(three: Scene) -> None:
    """Whatever it would decide itself: a machine whose clock is wrong may see others held back."""
    target, members = three.rosters["c"], three.bucket.members
    shard = min(set(range(SHARDS)) - target.wanted(three.now))
    for each in ("b", "a"):
        del three.rosters[each]
        members[each] = msgspec.structs.replace(members[each], beat=99, gives={shard: "c"})
        three.wait(3)
        assert (shard in target.wanted(three.now)) == (each == "a"), "b does not hold it"


@pytest.mark.parametrize("seconds", [1, 2, 9])
def test_as_many_machines_follow_a_shard_as_are_to(seconds: int) -> None:
    scene = Scene("a", "b", "c", "d")
    for machine in scene.rosters:
        scene.rosters[machine] = Roster(machine, "n", f"{machine} place", SHARDS, TIMING, seconds=seconds)
        scene.hold(machine, "abcd".index(machine))
    scene.wait(9)
    for shard in range(SHARDS):
        run = [machine for machine, roster in scene.rosters.items() if shard in roster.wanted(scene.now)]
        assert len(run) == min(1 + seconds, 4)


def test_a_shard_that_need_not_run_any_more_runs_on_for_a_while(three: Scene) -> None:
    before = set(run(three, "a"))
    assert before == set(range(SHARDS))
    three.rosters["a"].held.clear()
    three.hold("b", *range(SHARDS), term=2)
    for _ in range(6):
        three.wait(9)
        assert run(three, "a") == before
    three.wait(9)
    assert run(three, "a") == needs(three, "a") < before


def test_a_need_that_comes_and_goes_ends_and_starts_nothing(three: Scene) -> None:
    shard = min(set(range(SHARDS)) - run(three, "b"))
    for turn in range(12):
        three.bucket.holders[shard] = Held(2 + turn, "b" if turn % 2 else "a")
        three.wait(30)
        assert (shard in run(three, "b")) == (turn > 0)


def test_the_next_roster_keeps_what_runs_and_starts_nothing_else(three: Scene) -> None:
    three.wait(100)
    again = three.rosters["b"] = three.roster("b")
    again.runs = {0}
    assert again.wanted(three.now) == {0}, "it has not looked"
    three.turns(again)
    assert again.wanted(three.now) == needs(three, "b") | {0}
    three.wait(63)
    assert again.wanted(three.now) == needs(three, "b")


def test_files_may_go_after_a_day_without_need_if_another_machine_holds_the_shard(three: Scene) -> None:
    roster = three.rosters["b"]
    shard = min(set(range(SHARDS)) - run(three, "b"))
    three.wait(TIMING.spare - 30)
    assert roster.spare(three.now) == set()
    three.wait(60)
    assert shard in roster.spare(three.now)
    assert not roster.spare(three.now) & roster.wanted(three.now)
    roster.runs = {shard}
    assert shard not in roster.spare(three.now), "it has a process"
    roster.runs = set()
    for holder in (Held(), Held(5, "b")):
        three.bucket.holders[shard] = holder
        three.wait(3)
        assert shard not in roster.spare(three.now)
    assert three.roster("b").spare(three.now) == set(), "it has not looked"


def test_a_term_without_a_sign_of_life_for_the_time_to_live_is_over(three: Scene) -> None:
    roster = three.rosters["b"]
    roster.runs = {1}
    signs = [replace(Held(1, "a", 0, 0.0), ttl_s=ttl_s) for ttl_s in (0.0, 0.0, 20.0, 0.0)]
    for beat in range(4):
        three.bucket.holders = [*signs[:3], replace(signs[3], alive=beat)]
        three.wait(3)
    assert roster.view.over == {0}, "1 runs here, 2 has a longer time to live, 3 lives"
    three.wait(12)
    assert roster.view.over == {0, 2, 3}
    three.bucket.holders[0] = Held(2, "c")
    three.wait(3)
    assert roster.view.over == {2, 3}


def test_a_later_term_has_the_roster_look_at_once(three: Scene) -> None:
    roster = three.rosters["b"]
    assert three.step(roster) is None
    roster.look_again()
    assert isinstance(three.step(roster), LookAround)


def test_two_views_of_the_members_give_two_orders_and_no_more() -> None:
    """Each goes by its own; who has a shard is decided by its term."""
    scene = Scene("a", "b", "c")
    scene.hold("a", *range(SHARDS))
    scene.wait(9)
    blind = Roster("c", "c start", "c place", SHARDS, TIMING)
    for _ in range(3):
        scene.now += 3
        while (request := blind.tick(scene.now, 0)) is not None:
            found = scene.bucket.carry(request)
            seen = found and replace(found, members=[each for each in found.members if each.machine != "b"])
            blind.answered(request, seen, scene.now, 0)
    assert all(blind.rank(shard) == 0 for shard in range(SHARDS))
    assert any(scene.rosters["b"].rank(shard) == 0 for shard in range(SHARDS))


def test_a_look_without_an_answer_is_made_again_and_a_late_answer_is_passed_over(pair: Scene) -> None:
    roster = pair.rosters["b"]
    pair.now += 3
    look = roster.tick(pair.now, 0)
    assert isinstance(look, LookAround)
    roster.answered(look, None, pair.now, 0)
    before = roster.view.holders
    roster.answered(look, Found((), [Held(9, "z")] * SHARDS, ()), pair.now, 0)
    assert roster.view.holders == before
    assert roster.tick(pair.now, 0) is None, "it pauses"
    pair.now += TIMING.renewal / 4
    assert isinstance(roster.tick(pair.now, 0), LookAround)


# Giving away


def test_a_holder_offers_a_shard_to_a_machine_that_has_caught_up(pair: Scene) -> None:
    move = pair.bucket.moves[1]
    assert (move.source, move.target, move.term) == ("a", "b", 1)
    assert given(pair) is HandOverState.SAVING
    assert pair.rosters["b"].rank(move.shard) == 0
    assert not refuses(pair.rosters["a"], move.shard)


def test_nothing_is_given_to_a_machine_that_has_not_caught_up() -> None:
    scene = Scene("a", "b")
    scene.hold("a", *range(SHARDS))
    scene.rosters["b"].lags.update(dict.fromkeys(range(SHARDS), 1.5))
    scene.wait(30)
    assert scene.bucket.moves == {}
    scene.ready("b", *range(SHARDS))
    scene.turns(scene.rosters["b"])  # on change, it is written at once
    assert all(lag < 1 for lag in scene.bucket.members["b"].lags.values())
    scene.wait(3)
    assert len(scene.bucket.moves) == 1


def test_a_holder_means_a_shard_for_the_same_machine_though_another_one_may_get_it_again() -> None:
    scene = Scene("a", "b", "c")
    scene.hold("a", *range(SHARDS))
    scene.ahead["b"] = 30
    scene.wait(9)
    giver = scene.rosters["a"]
    meant = scene.bucket.members["a"].gives
    assert (giver.view.members.standings(scene.now)["b"], list(meant.values())) == (Standing.HELD_BACK, ["c"])
    scene.ahead.clear()
    scene.wait(6)
    assert giver.view.members.standings(scene.now)["b"] is Standing.PLACEABLE
    assert scene.bucket.members["a"].gives == meant


def test_a_machine_that_was_lost_is_given_nothing() -> None:
    """Its object says for twice the time to live that it follows, and has no shard any more."""
    scene = Scene("a", "b", "c")
    for machine, shards in {"a": (0, 1), "b": (2,), "c": (3,)}.items():
        scene.hold(machine, *shards)
    scene.ready("b", 0, 1)
    scene.wait(9)
    del scene.rosters["b"]
    scene.wait(9)
    scene.hold("a", 2, term=2)
    scene.ready("c", 0, 1, 2)
    scene.wait(6)
    assert "b" in scene.rosters["a"].view.members.standings(scene.now)
    assert [move.target for move in scene.bucket.moves.values()] == ["c"]


def test_a_target_that_may_be_lost_ends_the_hand_over_before_the_end(pair: Scene) -> None:
    giver = pair.rosters["a"]
    del pair.rosters["b"]
    report(giver, HandOverEvent.SAVED, pair.now)
    pair.wait(3)
    assert given(pair) is HandOverState.REFUSING
    pair.wait(3)
    assert given(pair) is None
    assert not refuses(giver, pair.bucket.moves[1].shard)


def test_what_was_given_up_holds_up_no_other_move_of_its_giver_for_longer_than_the_time_to_live(pair: Scene) -> None:
    pair.rosters["c"] = pair.roster("c")
    pair.ready("c", *range(SHARDS))
    del pair.rosters["b"]
    pair.wait(9)
    assert given(pair) is None
    assert len(pair.bucket.moves) == 1
    pair.wait(9)
    assert pair.bucket.moves[2].target == "c"
    assert given(pair) is HandOverState.SAVING
    for event in (HandOverEvent.SAVED, HandOverEvent.SHIPPED, HandOverEvent.ENDED):
        report(pair.rosters["a"], event, pair.now)
    pair.wait(30)
    assert len(pair.bucket.moves) == 2, "that one is on its way, and was not given up"


def test_a_machine_that_does_not_hold_a_shard_gives_none_away() -> None:
    """1. It was stopped. 2. Another one took the shard. 3. It wakes, and what it has seen last is old."""
    scene = Scene("a", "b")
    scene.hold("a", *range(SHARDS), term=1)
    scene.ready("b", *range(SHARDS))
    scene.bucket.holders = [Held(2, "a")] * SHARDS  # by a later process of it
    scene.wait(30)
    assert scene.bucket.moves == {}


def test_one_shard_moves_at_a_time(pair: Scene) -> None:
    pair.rosters["c"] = pair.roster("c")
    pair.ready("c", *range(SHARDS))
    pair.wait(30)
    assert len(pair.bucket.moves) == 1


def test_the_whole_way(pair: Scene) -> None:
    giver, shard = pair.rosters["a"], pair.bucket.moves[1].shard
    report(giver, HandOverEvent.SHIPPED, pair.now)
    assert given(pair) is HandOverState.SAVING, "that was not asked for yet"
    report(giver, HandOverEvent.SAVED, pair.now)
    assert refuses(giver, shard)
    report(giver, HandOverEvent.SHIPPED, pair.now)
    assert given(pair) is HandOverState.ENDING
    report(giver, HandOverEvent.ENDED, pair.now)
    del giver.held[shard]
    pair.hold("b", shard, term=2)
    pair.wait(3)
    assert not refuses(giver, shard)
    assert shard in giver.wanted(pair.now), "it follows, as the second"
    pair.wait(3)
    assert pair.rosters["b"].view.move == pair.bucket.moves[2]
    assert pair.bucket.moves[2].shard != shard


def test_all_know_which_shard_is_moved_from_the_holders_wish_to_the_next_term() -> None:
    scene = Scene("a", "b", "c")
    scene.hold("a", 0, 1)
    scene.hold("b", 2)
    scene.wait(9)
    wishes = dict(scene.bucket.members["a"].gives)
    assert list(wishes.values()) == ["c"]
    assert [roster.moving for roster in scene.rosters.values()] == [wishes.keys()] * 3
    scene.ready("c", *wishes)
    scene.wait(9)
    giver = scene.rosters["a"]
    assert giver.handover is not None
    assert [roster.moving for roster in scene.rosters.values()] == [wishes.keys()] * 3
    for event in (HandOverEvent.SAVED, HandOverEvent.SHIPPED, HandOverEvent.ENDED):
        report(giver, event, scene.now)
    for shard in wishes:
        del giver.held[shard]
        scene.hold("c", shard, term=2)
    scene.wait(9)
    assert [roster.moving for roster in scene.rosters.values()] == [set()] * 3


def test_nobody_is_in_a_hurry_while_the_next_holder_catches_up() -> None:
    scene = Scene("a", "b", "c")
    scene.hold("a", 0, 1)
    scene.hold("b", 2)
    scene.wait(9)
    (wish,) = scene.bucket.members["a"].gives
    scene.wait(9)
    assert [roster.moving for roster in scene.rosters.values()] == [set()] * 3
    scene.ready("c", wish)
    scene.turns(scene.rosters["c"])  # it says so
    assert scene.rosters["c"].moving == {wish}
    scene.turns(scene.rosters["b"])
    scene.wait(3)
    assert [roster.moving for roster in scene.rosters.values()] == [{wish}] * 3


def test_a_machine_that_is_to_get_a_shard_looks_often() -> None:
    """So that it sees the entry of the move before the shard has no holder, and claims it first."""
    scene = Scene("a", "b", "c")
    scene.hold("a", 0, 1)
    scene.hold("b", 2)
    scene.wait(9)
    assert list(scene.bucket.members["a"].gives.values()) == ["c"]

    def looks(machine: str) -> int:
        found = 0
        for _ in range(4):
            scene.now += TIMING.renewal / 4
            while (request := scene.step(scene.rosters[machine])) is not None:
                found += isinstance(request, LookAround)
        return found

    assert (looks("c"), looks("b")) == (4, 1)
    scene.wait(9)
    assert looks("c") == 1, "catching up may take hours"
    scene.ready("c", *range(SHARDS))
    looks("c")
    assert looks("c") == 4


def test_a_shard_that_only_runs_on_for_a_while_is_not_offered(three: Scene) -> None:
    """Its process may end at any moment, and this machine would not look for the move."""
    three.ready("c", *range(SHARDS))
    three.turns(three.rosters["c"])
    assert three.bucket.members["c"].lags.keys() == needs(three, "c") < set(range(SHARDS))


def test_an_entry_whose_creation_got_no_answer_is_looked_for() -> None:
    scene = Scene("a", "b")
    scene.hold("a", *range(SHARDS))
    scene.ready("b", *range(SHARDS))
    created: list[Move] = []
    carry = scene.bucket.carry

    def losing(request: RosterRequest | None) -> Found | None:
        if isinstance(request, CreateMove):
            created.append(request.move)
            if len(created) == 1:
                return None
        return carry(request)

    scene.bucket.carry = losing  # type: ignore[method-assign]
    scene.wait(9)
    assert created == [scene.bucket.moves[1]] * 2, "absent: created again, as it was"
    assert given(scene) is HandOverState.SAVING


def test_of_two_givers_one_wins_and_the_other_serves_on(pair: Scene) -> None:
    giver = pair.rosters.pop("a")
    pair.now += 70  # its own is void
    while not isinstance(request := giver.tick(pair.now, pair.now), CreateMove):
        pair.wait(0 if request else 3)
        giver.answered(request or LookAround(0), pair.bucket.carry(request), pair.now, pair.now)
    pair.bucket.moves[2] = other = Move(2, 3, 1, "z", "z start", "y")
    giver.answered(request, pair.bucket.carry(request), pair.now, pair.now)
    pair.turns(giver)
    assert giver.handover is None
    assert giver.view.move == other


def test_a_giver_that_died_blocks_others_until_its_move_is_void(pair: Scene) -> None:
    shard = pair.bucket.moves[1].shard
    again = pair.rosters["a"] = pair.roster("a", "second start", "a place")
    pair.hold("a", *range(SHARDS), term=2)
    pair.bucket.holders[shard] = Held(1, "a")
    again.held.pop(shard)  # it cannot be opened
    pair.wait(60)
    assert len(pair.bucket.moves) == 1
    pair.wait(9)
    assert again.handover is None, "the next one would be the same shard"
    again.held[shard] = 1
    pair.wait(3)
    assert pair.bucket.moves[2].nonce == "second start"


def test_a_machine_that_leaves_gives_all_its_shards_away_and_claims_none(pair: Scene) -> None:
    leaver = pair.rosters["a"]
    leaver.leave()
    term = 1
    for _ in range(SHARDS):
        pair.wait(6)
        handover = leaver.handover
        assert handover is not None
        for event in (HandOverEvent.SAVED, HandOverEvent.SHIPPED, HandOverEvent.ENDED):
            report(leaver, event, pair.now)
        term += 1
        del leaver.held[handover.move.shard]
        pair.hold("b", handover.move.shard, term=term)
    pair.wait(6)
    assert leaver.wanted(pair.now) == set()
    assert leaver.rank(0) == math.inf
