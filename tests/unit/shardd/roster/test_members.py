"""Claims about which machines one of them takes to be there, on its own clock."""

from __future__ import annotations

import pytest

from shardd.roster.members import Member, Members, RosterTiming, Standing

TIMING = RosterTiming(time_to_live=9.0, calm=1000.0)


class Observer:
    def __init__(self) -> None:
        self.members = Members(TIMING)
        self.now = 100.0
        self.wall_s = 5000.0
        self.beat = 0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall_s += seconds

    def look(self, *found: Member, takes: float = 0.0) -> dict[str, Standing]:
        began, began_wall_s = self.now, self.wall_s
        self.pass_time(takes)
        self.members.looked(found, began, self.now, began_wall_s, self.wall_s)
        return self.members.standings(self.now)

    def lives(self, seconds: float, machine: str = "a", skew: float = 0.0, beats: bool = True) -> dict[str, Standing]:
        """Looks for so long, while the machine rewrites its object or not."""
        found: dict[str, Standing] = {}
        for _ in range(round(seconds / TIMING.renewal)):
            self.pass_time(TIMING.renewal)
            self.beat += beats
            found = self.look(Member(machine, "n", beat=self.beat, at_ms=round(1000 * (self.wall_s + skew))))
        return found


@pytest.fixture
def observer() -> Observer:
    return Observer()


def test_a_machine_is_placed_upon_only_when_it_was_seen_to_live(observer: Observer) -> None:
    assert observer.look(Member("a", "n", beat=7)) == {"a": Standing.UNPROVEN}
    observer.pass_time(3)
    assert observer.look(Member("a", "n", beat=8, at_ms=round(1000 * observer.wall_s))) == {"a": Standing.PLACEABLE}


def test_nothing_is_moved_to_a_machine_that_may_be_lost(observer: Observer) -> None:
    observer.lives(9)
    assert observer.lives(3, beats=False) == {"a": Standing.PLACEABLE}, "one look was late"
    assert observer.lives(3, beats=False) == {"a": Standing.UNPROVEN}
    assert observer.lives(3) == {"a": Standing.PLACEABLE}


def test_a_machine_that_did_not_change_for_twice_the_time_to_live_is_away(observer: Observer) -> None:
    observer.lives(9)
    assert "a" in observer.lives(15, beats=False)
    assert observer.members.member("a") is not None
    assert observer.lives(3, beats=False) == {}
    assert observer.members.member("a") is None


def test_time_without_looks_counts_for_nothing(observer: Observer) -> None:
    """An observer that was stopped, or cut off, has not seen anything be unchanged."""
    observer.lives(9)
    observer.pass_time(1000)
    assert observer.look(Member("a", "n", beat=observer.beat + 1, at_ms=round(1000 * observer.wall_s))) != {}
    observer.pass_time(TIMING.renewal)
    assert observer.look(Member("a", "n", beat=observer.beat + 1), takes=1000) != {}, "the look itself took long"


def test_the_longer_time_to_live_counts(observer: Observer) -> None:
    slow = Member("a", "n", ttl_ms=18_000)
    observer.look(slow)
    observer.pass_time(35)
    assert observer.look(slow) != {}
    observer.pass_time(1)
    assert observer.look(slow) == {}


def test_an_object_that_was_removed_is_of_a_machine_that_is_away(observer: Observer) -> None:
    observer.lives(9)
    assert observer.look() == {}


def test_a_machine_that_says_so_is_leaving(observer: Observer) -> None:
    observer.lives(9)
    assert observer.look(Member("a", "n", beat=99, leaving=True)) == {"a": Standing.LEAVING}


@pytest.mark.parametrize(("skew", "standing"), [(4.1, "held back"), (-7.1, "held back"), (0.9, "placeable")])
def test_a_wall_clock_that_is_certainly_wrong_holds_a_machine_back(
    observer: Observer, skew: float, standing: str
) -> None:
    assert observer.lives(9, skew=skew) == {"a": standing}


def test_an_object_that_was_written_long_before_it_was_seen_proves_no_wrong_clock(observer: Observer) -> None:
    observer.lives(9)
    written = Member("a", "n", beat=99, at_ms=round(1000 * observer.wall_s))
    observer.pass_time(500)
    assert observer.look(written) == {"a": Standing.PLACEABLE}


@pytest.mark.parametrize("beat", [1, 99])
def test_a_write_that_takes_long_proves_no_wrong_clock(observer: Observer, beat: int) -> None:
    """A machine reads its clock before it writes, and looks meanwhile show the object before."""
    observer.lives(9)
    began_ms = round(1000 * observer.wall_s)
    observer.lives(3, beats=False)
    observer.pass_time(0.1)
    assert observer.look(Member("a", "n" if beat > 1 else "m", beat=beat, at_ms=began_ms)) == {"a": Standing.PLACEABLE}
    assert observer.lives(3) == {"a": Standing.PLACEABLE}


def test_a_write_that_was_given_up_and_was_done_all_the_same_proves_no_wrong_clock(observer: Observer) -> None:
    observer.lives(9)
    began_ms = round(1000 * observer.wall_s)
    assert observer.lives(12, beats=False) == {"a": Standing.UNPROVEN}
    observer.pass_time(3)
    assert observer.look(Member("a", "n", beat=99, at_ms=began_ms)) == {"a": Standing.PLACEABLE}


def test_a_flapping_machine_gets_one_shard_an_hour(observer: Observer) -> None:
    observer.lives(9)
    observer.members.placed("a", observer.now)
    for returned, standing in ((1, "placeable"), (2, "held back")):
        observer.lives(21, beats=False)
        assert observer.lives(3) == {"a": standing}, f"returned {returned} times"
    since = 48
    assert observer.lives(TIMING.calm - since - 3) == {"a": Standing.HELD_BACK}
    assert observer.lives(6) == {"a": Standing.PLACEABLE}, "an hour after its last shard"


def test_a_machine_that_was_restarted_quickly_does_not_flap(observer: Observer) -> None:
    observer.lives(9)
    observer.members.placed("a", observer.now)
    for start in range(5):
        observer.pass_time(TIMING.renewal)
        assert observer.look(Member("a", f"start {start}", beat=1, at_ms=round(1000 * observer.wall_s))) == {
            "a": Standing.PLACEABLE
        }
