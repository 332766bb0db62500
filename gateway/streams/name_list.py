"""The name list: the first topics of a prefix in one shard, kept up to date by changes.

A list is whole, or it ends at a bound: the shard may have more names after it. `most` is the number of topics that a
stream may watch. A shard is asked for twice as many names. A list that grows to three times as many is cut to twice as
many, and one that has a bound and shrinks to `most` has to be asked for again. So `most` changes lie between two cuts
or two questions, and a change costs the same however many names a prefix has.
"""

from __future__ import annotations

from collections.abc import Mapping


class NameList:
    def __init__(self, epochs: Mapping[str, int], most: int) -> None:
        self.epochs = dict(epochs)
        self._most = most
        self._bound: str | None = None
        if len(self.epochs) >= asked(most):
            self._bound = max(self.epochs)

    @property
    def short(self) -> bool:
        """Whether the shard has to be asked again: the list is short, and there may be names behind its bound."""
        return self._bound is not None and len(self.epochs) <= self._most

    def change(self, name: str, epoch: int) -> list[str]:
        """Take in a name with its epoch, or 0 if it was deleted. Returns the names that are no longer in the list."""
        if not epoch:
            return [] if self.epochs.pop(name, None) is None else [name]
        if self._bound is not None and name > self._bound:
            return []
        self.epochs[name] = epoch
        if len(self.epochs) < 3 * self._most:
            return []
        names = sorted(self.epochs)
        self._bound = names[asked(self._most) - 1]
        beyond = names[asked(self._most) :]
        for each in beyond:
            del self.epochs[each]
        return beyond


def asked(most: int) -> int:
    """The number of names that a shard is asked for."""
    return 2 * most
