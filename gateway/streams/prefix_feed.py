"""The feed of a prefix: the topics whose names begin with it, from the lists of all shards, for its members.

A feed gets the list of each shard once, and keeps it up to date with the shard's changes.
`gateway.streams.prefix_feeds` asks for both. The changes are followed while a list is asked for, so one may be known
before the answer. It counts if its version is later than the list's:

    the list is asked for          changes are kept with their versions from now on
    a change comes                 kept; also taken into the list that was there before, if there was one
    the list comes                 replaces the one before; then the kept changes that are later than it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gateway.streams.name_list import NameList
from proto.ipc.operations import Listed
from proto.model.keys import Key


class Member(Protocol):
    """A wildcard, as a feed sees it."""

    key: Key
    """The key of the member's client."""

    def listed(self, epochs: Mapping[str, int], gone: Iterable[str]) -> int:
        """Take in the topics that are new in the list, or were made again, and those that are no longer in it. Returns
        the number of topics that are watched now and were not."""


class PrefixFeed:
    def __init__(self, prefix: str, key: Key, shards: int, most: int, index_of: Callable[[str], int]) -> None:
        self.prefix = prefix
        self.prefixes = key.prefixes
        self.digest = key.digest
        """That of the key that the feed was made for."""
        self.members: dict[Member, dict[str, int]] = {}
        """The changes that wait for each member, by name: the epoch, or 0 for a name that is no longer in the list."""
        self._most = most
        self._index_of = index_of
        self._lists: list[NameList | None] = [None] * shards
        self._early: list[dict[str, tuple[int, int]] | None] = [None] * shards
        """While a list is asked for: version and epoch of each name that has changed."""

    @property
    def complete(self) -> bool:
        """Whether each shard has given its list."""
        return None not in self._lists

    def epochs(self) -> dict[str, int]:
        """Return the listed topics with their epochs, in the order of their names."""
        return dict(sorted(each for found in self._lists if found for each in found.epochs.items()))

    def epoch(self, name: str) -> int | None:
        """Return the epoch of a listed topic."""
        found = self._lists[self._index_of(name)]
        return None if found is None else found.epochs.get(name)

    def asked(self, index: int) -> None:
        """Called before a shard is asked for its list."""
        self._early[index] = {}

    def short(self, index: int) -> bool:
        """Whether a shard has to be asked for its list again, and is not."""
        known = self._lists[index]
        return known is not None and known.short and self._early[index] is None

    def listed(self, index: int, found: Listed) -> None:
        """Take over the list of a shard."""
        last = self._lists[index]
        before = {} if last is None else last.epochs
        early, self._early[index] = self._early[index] or {}, None
        known = self._lists[index] = NameList(found.epochs, self._most)
        for name, (version, epoch) in early.items():
            if version > found.version:
                known.change(name, epoch)
        now = known.epochs
        self._tell(dict.fromkeys(before.keys() - now.keys(), 0) | dict(now.items() - before.items()))

    def change(self, index: int, name: str, epoch: int, version: int) -> bool:
        """Take in a name of a shard that has changed, with its epoch, 0 if it was deleted. Returns False if that is
        nothing new for the members."""
        if self.prefixes and not name.startswith(self.prefixes):
            return False
        early, known = self._early[index], self._lists[index]
        if early is not None:
            early[name] = (version, epoch)
        if known is None:
            return False
        before = known.epochs.get(name, 0)
        changes = dict.fromkeys(known.change(name, epoch), 0)
        now = known.epochs.get(name, 0)
        if now != before:
            changes[name] = now
        self._tell(changes)
        return bool(changes)

    def _tell(self, changes: Mapping[str, int]) -> None:
        for pending in self.members.values():
            pending.update(changes)
