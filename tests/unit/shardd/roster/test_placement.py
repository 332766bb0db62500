"""Claims about placement: what is balanced stays, little moves, and machines that see the same agree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from shardd.roster.members import Standing
from shardd.roster.placement import Transfer, next_transfer, ranks

PLACEABLE = Standing.PLACEABLE


def standings(count: int, **others: Standing) -> dict[str, Standing]:
    return {**{f"m{i}": PLACEABLE for i in range(count)}, **others}


def carried_out(members: Mapping[str, Standing], holders: list[str]) -> list[Transfer]:
    """All moves until there is none, one after the other. Changes `holders`."""
    moves: list[Transfer] = []
    while (move := next_transfer(members, holders)) is not None:
        assert holders[move.shard] == move.source != move.target
        holders[move.shard] = move.target
        moves.append(move)
        assert len(moves) <= len(holders), "it ends"
    return moves


def loads(members: Mapping[str, Standing], holders: list[str]) -> list[int]:
    counts = Counter(holders)
    return [counts[machine] for machine in members]


def least_moves(members: Mapping[str, Standing], holders: list[str]) -> int:
    held = loads(members, holders)
    least, most = len(holders) // len(members), -(-len(holders) // len(members))
    return max(sum(max(each - most, 0) for each in held), sum(max(least - each, 0) for each in held))


@pytest.mark.parametrize("shards", [1, 2, 8, 16, 64])
@pytest.mark.parametrize("machines", [2, 3, 5, 8])
def test_from_anywhere_the_fewest_shards_move_until_loads_are_even(shards: int, machines: int) -> None:
    rng = random.Random(shards * machines)
    for _ in range(20):
        members = {f"m{rng.random()}": PLACEABLE for _ in range(machines)}
        some = rng.sample(list(members), rng.randint(1, machines))
        holders = rng.choices(some, k=shards)
        least = least_moves(members, holders)
        assert len(carried_out(members, holders)) == least
        assert set(loads(members, holders)) <= {shards // machines, -(-shards // machines)}


@pytest.mark.parametrize("shards", [8, 16, 64])
@pytest.mark.parametrize("machines", [2, 3, 5])
def test_a_join_moves_the_newcomers_part_and_nothing_else(shards: int, machines: int) -> None:
    members = standings(machines)
    holders = ["m0"] * shards
    carried_out(members, holders)
    more = {**members, "new": PLACEABLE}
    least = least_moves(more, holders)
    moves = carried_out(more, holders)
    assert len(moves) == least == shards // (machines + 1)
    assert {move.target for move in moves} == {"new"}


def test_machines_that_see_the_same_agree_in_whatever_order_they_see_it() -> None:
    members = standings(4)
    holders = ["m0", "m0", "m0", "m1", "m2", "m0", "m3", "m0"]
    backwards = dict(reversed(members.items()))
    assert next_transfer(members, holders) == next_transfer(backwards, holders)
    assert ranks(3, members, "m0") == ranks(3, backwards, "m0")


def test_a_machine_that_goes_changes_no_order_among_the_others() -> None:
    for shard in range(20):
        before = ranks(shard, standings(5), "")
        after = ranks(shard, standings(4), "")
        assert [machine for machine in before if machine != "m4"] == after


def test_the_holder_is_the_last_to_claim_and_the_target_of_a_move_the_first() -> None:
    for shard in range(20):
        assert ranks(shard, standings(4), "m2")[-1] == "m2"
        assert ranks(shard, standings(4), "m2", "m1")[0] == "m1"
    assert ranks(0, standings(1), "m0") == ["m0"], "the only one"


def test_seconds_are_spread_over_the_machines() -> None:
    seconds = Counter(ranks(shard, standings(4), "m0")[0] for shard in range(300))
    assert set(seconds) == {"m1", "m2", "m3"}
    assert min(seconds.values()) > 60


def test_a_machine_that_leaves_gives_all_away_and_claims_nothing() -> None:
    members = standings(2, m2=Standing.LEAVING)
    holders = ["m0", "m1", "m2", "m2", "m2"]
    carried_out(members, holders)
    assert sorted(loads(members, holders)) == [0, 2, 3]
    assert "m2" not in holders
    assert all("m2" not in ranks(shard, members, "m0") for shard in range(20))


@pytest.mark.parametrize("standing", [Standing.UNPROVEN, Standing.HELD_BACK])
def test_no_shard_is_moved_to_a_machine_that_is_not_sure(standing: Standing) -> None:
    members = standings(2, m2=standing)
    holders = ["m0"] * 6
    moves = carried_out(members, holders)
    assert {move.target for move in moves} == {"m1"}
    assert loads(members, holders) == [3, 3, 0], "the others are even among themselves"


def test_a_machine_that_leaves_gives_to_those_that_are_held_back_if_there_are_no_others() -> None:
    """It would wait for an hour, and its operator with it."""
    members = {"m0": Standing.LEAVING, "m1": Standing.HELD_BACK, "m2": Standing.HELD_BACK, "m3": Standing.UNPROVEN}
    holders = ["m0"] * 4
    carried_out(members, holders)
    assert sorted(holders) == ["m1", "m1", "m2", "m2"]
    holders = ["m0"] * 4
    carried_out({**members, "m4": PLACEABLE}, holders)
    assert holders == ["m4"] * 4


def test_a_machine_that_gets_nothing_gives_what_is_above_its_part() -> None:
    members = standings(2, m2=Standing.HELD_BACK)
    holders = ["m2"] * 6
    carried_out(members, holders)
    assert loads(members, holders) == [2, 2, 2]


def test_a_machine_that_is_held_back_claims_after_the_others() -> None:
    members = standings(3, m3=Standing.HELD_BACK)
    for shard in range(20):
        assert ranks(shard, members, "m0")[2:] == ["m3", "m0"]


def test_shards_of_machines_that_are_away_are_not_moved() -> None:
    members = standings(2)
    assert next_transfer(members, ["gone", "gone", "", "m0", "m1"]) is None
    assert next_transfer({}, ["gone"]) is None
    assert next_transfer({"m0": Standing.LEAVING}, ["m0"]) is None, "there is no other"


def test_of_the_shards_that_may_be_moved_one_that_the_target_follows_is() -> None:
    """Machines with wrong clocks see others held back for ever, and expect another shard than they are to get."""
    members, holders = standings(2), ["m0"] * 6
    for wanted in range(6):
        move = next_transfer(members, holders, lambda shard, machine: (shard, machine) == (wanted, "m1"))  # noqa: B023
        assert move == Transfer(wanted, "m0", "m1")


def test_a_shard_is_moved_to_a_machine_that_can_run_it() -> None:
    """Else nothing would be moved for as long as one machine cannot follow, and a machine that leaves would wait."""
    members = {"a": Standing.LEAVING, "b": PLACEABLE, "g": PLACEABLE}

    def moved(holders: list[str], *fails: tuple[int, str]) -> Transfer | None:
        return next_transfer(members, holders, fails=lambda *pair: pair in fails)

    for meant in ("", "b"):
        found = next_transfer(members, ["a", "a", "g", "g"], meant=meant, fails=lambda _, machine: machine == "b")
        assert found is not None
        assert (found.source, found.target) == ("a", "g")
    assert moved(["a", "a", "g", "g"], (0, "b")) == Transfer(1, "a", "b"), "it can run this one"
    assert moved(["a", "a", "g", "g"], (1, "b")) == Transfer(0, "a", "b")
    assert moved(["a", "b", "g", "g"], (0, "b")) == Transfer(0, "a", "g")
    assert moved(["a", "b", "g", "g"], (0, "b"), (0, "g")) is None, "no other machine can"
    members["g"] = Standing.HELD_BACK
    assert moved(["a", "b", "g", "g"], (0, "b")) == Transfer(0, "a", "g")


def test_what_one_machine_cannot_run_is_shared_by_the_others() -> None:
    members, holders = standings(3), ["m0"] * 9
    while (move := next_transfer(members, holders, fails=lambda _, machine: machine == "m1")) is not None:
        holders[move.shard] = move.target
    assert sorted(loads(members, holders)) == [0, 4, 5]


@pytest.mark.parametrize("returns", ["m0", "m2"])
def test_the_target_stays_when_the_standing_of_another_one_changes(returns: str) -> None:
    """Clocks that are a little wrong look right at times. A shard whose target changed each time would never move."""
    leaving = standings(3, m9=Standing.LEAVING)
    for shards in (["m9"] * 2, ["m1", "m9", "m9", "m9"]):
        meant = next_transfer({**leaving, returns: Standing.HELD_BACK}, shards, meant="m1")
        assert meant is not None
        assert meant.target == "m1"
        assert next_transfer(leaving, shards, meant="m1") == meant
    assert next_transfer(leaving, ["m1", "m1", "m9"], meant="m1") != meant, "it has its part"
    assert next_transfer({**leaving, "m1": Standing.HELD_BACK}, ["m9"] * 2, meant="m1") != meant, "it may get none"


def test_whichever_target_stays_loads_become_even_with_one_more_move_at_most() -> None:
    rng = random.Random(7)
    for _ in range(500):
        members = standings(rng.randint(2, 6))
        holders = rng.choices(list(members), k=rng.randint(1, 16))
        least, meant = least_moves(members, holders), rng.choice(list(members))
        moves = 0
        while (move := next_transfer(members, holders, meant=meant)) is not None:
            holders[move.shard] = move.target
            moves += 1
            assert move.source != move.target
            assert moves <= least + 1
        assert max(loads(members, holders)) - min(loads(members, holders)) <= 1
