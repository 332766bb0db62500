"""Claims about the list of moves as one machine sees it."""

from __future__ import annotations

from shardd.roster.moves import Move, Moves

VOID = 60.0


def move(number: int, shard: int = 0, term: int = 1) -> Move:
    return Move(number, shard, term, "a", "nonce", "b")


def test_a_move_is_pending_until_its_shard_has_a_later_term() -> None:
    moves = Moves(VOID)
    assert moves.pending(lambda shard: 1) is None
    assert moves.looked([move(1)], 10, 11) == [move(1)]
    assert moves.pending(lambda shard: 1) == move(1)
    assert moves.pending(lambda shard: 2) is None
    assert moves.next_number == 2


def test_a_move_is_void_when_nothing_followed_for_long_on_the_observers_clock() -> None:
    moves = Moves(VOID)
    moves.looked([move(1)], 10, 11)
    moves.looked([move(1)], 70.9, 90)
    assert moves.pending(lambda shard: 1) == move(1), "59.9 s from the end of one look to the begin of another"
    moves.looked([], 71, 71)
    assert moves.pending(lambda shard: 1) is None


def test_an_entry_in_a_name_that_was_freed_means_nothing() -> None:
    """1. A creator was stopped. 2. Others made entries 1 to 3, and the first ones were removed. 3. It arrives."""
    moves = Moves(VOID)
    assert moves.looked([move(3, term=8)], 10, 11) == [move(3, term=8)]
    assert moves.looked([move(1), move(3, term=8)], 12, 13) == []
    assert moves.last == move(3, term=8)


def test_all_new_entries_are_found_in_order() -> None:
    moves = Moves(VOID)
    assert moves.looked([move(3), move(2), move(1)], 10, 11) == [move(1), move(2), move(3)]
    assert moves.last == move(3)
