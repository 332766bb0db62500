"""Retention: removes objects that no restore to a moment of the last TOPICS_BUCKET_RETAIN_MS needs.

    manifests    kept: those of the window, and the newest one before it
    parts        kept: from the first one that a kept manifest needs; all, while no manifest is older than the window
    fences, ends kept for ever: a holder that was stopped for days must still find its next number taken
    streams      kept: those that a kept manifest names, and those younger than a day, whose manifest may follow

Manifests are removed first, oldest first, then what only they needed. So a process that dies meanwhile leaves objects
that nothing refers to, which the next run removes. The newest manifest is never removed: the one with the most frames
in its files, whichever holder made it, and however late.
"""

from __future__ import annotations

from shardd.replication.manifests import Heads
from shardd.replication.names import ShardNames, number_of
from shardd.replication.parts import HEADER_SIZE
from shardd.replication.store import Store

STREAM_MS = 86_400_000


def expired(moments_ms: list[int], now_ms: int, retain_ms: int) -> int:
    """How many of the manifests, in order, no restore to a moment of the window needs."""
    after = sum(moment <= now_ms - retain_ms for moment in moments_ms)
    return max(after - 1, 0)


class Retention:
    """The retention of one shard's objects."""

    def __init__(self, store: Store, names: ShardNames) -> None:
        self._store = store
        self._names = names
        self._heads = Heads(store, names)

    def remove(self, now_ms: int, retain_ms: int) -> None:
        """Remove what is not needed. May be repeated after an error. Blocks. Raises `StoreError`, `ManifestError`."""
        found = self._heads.ordered()
        if not found:
            return
        old = expired([head.upto_ms for _, head in found], now_ms, retain_ms)
        for number, _ in found[:old]:
            self._store.delete(self._names.manifest(number))
        kept = [head for _, head in found[old:]]
        if kept[0].upto_ms <= now_ms - retain_ms:
            self._remove_parts(min(head.first_part for head in kept))
        self._remove_streams(frozenset(stream.name for head in kept for stream in head.streams), now_ms)

    def _remove_parts(self, first: int) -> None:
        for each in self._store.list(self._names.log):
            number = number_of(each.name)
            if number is None or number >= first:
                return
            if each.size != HEADER_SIZE:  # a fence, or an end, has no frames
                self._store.delete(each.name)

    def _remove_streams(self, needed: frozenset[str], now_ms: int) -> None:
        for each in self._store.list(self._names.checkpoints):
            stream = each.name.removeprefix(self._names.checkpoints).partition("/")[0]
            made = stream.partition("-")[0]
            if stream not in needed and made.isdecimal() and int(made) < now_ms - STREAM_MS:
                self._store.delete(each.name)
