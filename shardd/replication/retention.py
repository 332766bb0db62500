"""Retention: removes objects that no restore to a moment of the last TOPICS_BUCKET_RETAIN_MS needs.

    manifests    kept: those of the window, and the newest one before it
    parts        kept: from the first one that a kept manifest needs; all, while no manifest is older than the window
    fences       kept for ever: a holder that was stopped for days must still find its next number taken
    streams      kept: those that a kept manifest names, and those younger than a day, whose manifest may follow

Manifests are removed first, oldest first, then what only they needed. So a process that dies meanwhile leaves objects
that nothing refers to, which the next run removes. The newest manifest is never removed.
"""

from __future__ import annotations

from typing import NamedTuple

from shardd.replication import manifests
from shardd.replication.names import ShardNames, number_of
from shardd.replication.parts import HEADER_SIZE
from shardd.replication.store import Store

STREAM_MS = 86_400_000


class Needs(NamedTuple):
    """What a manifest needs, and the moment that it is as of."""

    upto_ms: int
    first_part: int
    streams: frozenset[str]


def expired(moments_ms: list[int], now_ms: int, retain_ms: int) -> int:
    """How many of the manifests, in order, no restore to a moment of the window needs."""
    after = sum(moment <= now_ms - retain_ms for moment in moments_ms)
    return max(after - 1, 0)


class Retention:
    """The retention of one shard's objects. Remembers what each manifest needs."""

    def __init__(self, store: Store, names: ShardNames) -> None:
        self._store = store
        self._names = names
        self._needs: dict[int, Needs] = {}

    def remove(self, now_ms: int, retain_ms: int) -> None:
        """Remove what is not needed. May be repeated after an error. Blocks. Raises `StoreError`, `ManifestError`."""
        numbers = manifests.numbers(self._store, self._names)
        if not numbers:
            return
        self._needs = {number: self._needs.get(number) or self._read(number) for number in numbers}
        old = expired([self._needs[number].upto_ms for number in numbers], now_ms, retain_ms)
        for number in numbers[:old]:
            self._store.delete(self._names.manifest(number))
            del self._needs[number]
        oldest = self._needs[numbers[old]]
        if oldest.upto_ms <= now_ms - retain_ms:
            self._remove_parts(oldest.first_part)
        self._remove_streams(now_ms)

    def _read(self, number: int) -> Needs:
        head = manifests.read_head(self._store, self._names.manifest(number))
        return Needs(head.upto_ms, head.first_part, frozenset(stream.name for stream in head.streams))

    def _remove_parts(self, first: int) -> None:
        for each in self._store.list(self._names.log):
            number = number_of(each.name)
            if number is None or number >= first:
                return
            if each.size != HEADER_SIZE:  # a fence has no frames
                self._store.delete(each.name)

    def _remove_streams(self, now_ms: int) -> None:
        needed = frozenset().union(*(needs.streams for needs in self._needs.values()))
        for each in self._store.list(self._names.checkpoints):
            stream = each.name.removeprefix(self._names.checkpoints).partition("/")[0]
            made = stream.partition("-")[0]
            if stream not in needed and made.isdecimal() and int(made) < now_ms - STREAM_MS:
                self._store.delete(each.name)
