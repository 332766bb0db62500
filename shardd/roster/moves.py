"""The moves: a list in the bucket that lets one shard move at a time. No I/O, no clock.

A holder that is to give a shard away creates `moves/<number>`, the number after the last one, if absent. One of several
creators wins. An entry never changes. It is *pending* until the shard has a later term than the one that is given away,
or until it was seen for `void` seconds and nothing followed: its creator may be dead. While it is pending, no other one
is created, and its target claims the shard before all others.

An entry is ours if a look that began after its creation shows it to be the last one. So an entry that arrives late, in
a name that was removed meanwhile, means nothing: there are later ones. The last entry is never removed: a machine that
asks for an entry's creation removes one with a smaller number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct


class Move(Struct, frozen=True):
    """The content of `moves/<number>`."""

    number: int
    shard: int
    term: int
    """The term that is given away."""
    source: str
    """Id of the machine that has it."""
    nonce: str
    """Of the source's roster."""
    target: str


class Moves:
    """The list, as one machine sees it."""

    def __init__(self, void: float) -> None:
        self._void = void
        self.last: Move | None = None
        self._since = 0.0
        """End of the look that first showed the last entry."""
        self._began = 0.0
        """Begin of the last look."""

    def looked(self, found: Iterable[Move], began: float, now: float) -> list[Move]:
        """Take in a look at the entries from the last known one on. Returns those that are new."""
        known = 0 if self.last is None else self.last.number
        new = sorted((move for move in found if move.number > known), key=lambda move: move.number)
        if new:
            self.last, self._since = new[-1], now
        self._began = began
        return new

    @property
    def next_number(self) -> int:
        return 1 if self.last is None else self.last.number + 1

    def pending(self, newest_term: Callable[[int], int]) -> Move | None:
        """The entry that is pending. `newest_term` has the newest term of each shard."""
        move = self.last
        if move is None or newest_term(move.shard) > move.term or self._began - self._since >= self._void:
            return None
        return move
