"""Claims about turns: a key with much that waits delays only its own."""

from __future__ import annotations

from gateway.streams.turns import Turns


def taken(turns: Turns[str]) -> list[str]:
    found = []
    while (what := turns.take()) is not None:
        found.append(what)
    return found


def test_keys_take_turns_however_much_of_one_waits() -> None:
    turns: Turns[str] = Turns()
    for n in range(250):
        turns.add(b"many", f"many {n}")
    for what in ("few 0", "few 1"):
        turns.add(b"few", what)
    assert taken(turns)[:5] == ["many 0", "few 0", "many 1", "few 1", "many 2"]


def test_what_waits_already_waits_once_at_its_place() -> None:
    turns: Turns[str] = Turns()
    for what in ("a", "b", "a"):
        turns.add(b"", what)
    assert taken(turns) == ["a", "b"]
    assert turns.take() is None


def test_what_is_removed_has_no_turn() -> None:
    turns: Turns[str] = Turns()
    turns.add(b"", "a")
    turns.remove(b"", "a")
    turns.remove(b"", "b")
    turns.remove(b"other", "a")
    assert turns.take() is None


async def test_a_waiter_goes_on_when_something_waits() -> None:
    turns: Turns[str] = Turns()
    turns.add(b"", "a")
    await turns.some()
