"""Retention: removes objects that no restore to a moment of the last TOPICS_BUCKET_RETAIN_MS needs.

    manifests    kept: those of the window, and the newest one before it
    parts        kept: from the first one that a kept manifest needs; all, while no manifest is older than the window
    fences, ends kept for ever: a holder that was stopped for days must still find its next number taken
    streams      kept: those that a kept manifest names, and those younger than a day, whose manifest may follow

Manifests are removed first, oldest first, then what only they needed. So a process that dies meanwhile leaves objects
that nothing refers to, which the next run removes. The newest manifest is never removed: the one with the most frames
in its files, whichever holder made it, and however late.

Only a manifest that was read back, and whose chunks and parts were seen, lets others be removed. One that is damaged
or lacks something is kept, with what it names, until it is older than the window.
"""

from __future__ import annotations

from typing import Any

import structlog

from shardd.replication import manifests
from shardd.replication.manifests import Head, Heads, ManifestError
from shardd.replication.names import ShardNames, number_of
from shardd.replication.parts import HEADER_SIZE
from shardd.replication.store import Absent, Store, Unsealed

_log: Any = structlog.get_logger()
STREAM_MS = 86_400_000


def expired(moments_ms: list[int], now_ms: int, retain_ms: int) -> int:
    """How many of the manifests, in order, no restore to a moment of the window needs."""
    after = sum(moment <= now_ms - retain_ms for moment in moments_ms)
    return max(after - 1, 0)


class Retention:
    def __init__(self, store: Store, names: ShardNames) -> None:
        self._store = store
        self._names = names
        self._heads = Heads(store, names)
        self._seen: set[int] = set()
        """Manifests that were read back once."""

    def remove(self, now_ms: int, retain_ms: int) -> None:
        """Remove unneeded objects. May be repeated after an error. Blocks. Raises `StoreError`."""
        found = self._heads.ordered()
        whole = [each for each in found if self._is_whole(*each)]
        if not whole:
            return
        first, head = whole[expired([head.upto_ms for _, head in whole], now_ms, retain_ms)]
        if not self._looked_for(head):
            self._seen.discard(first)
            return
        at = found.index((first, head))
        passed = head.upto_ms <= now_ms - retain_ms
        damaged = set(self._heads.damaged)
        old = [number for number in damaged if number < first] + [number for number, _ in found[:at]]
        for number in sorted(old) if passed else ():
            self._store.delete(self._names.manifest(number))
            damaged.discard(number)
        kept = [head for _, head in found[at if passed else 0 :]]
        if passed:
            self._remove_parts(min(head.first_part for head in kept))
        if not damaged:
            self._remove_streams(frozenset(stream.name for head in kept for stream in head.streams), now_ms)

    def _is_whole(self, number: int, head: Head) -> bool:
        """Whether a manifest can be restored from, as far as a look tells."""
        if number not in self._seen:
            try:
                read, _ = manifests.decode(self._store.get(self._names.manifest(number)), number)
            except (ManifestError, Absent, Unsealed):
                return False
            if read != head or not self._looked_for(head):
                return False
            self._seen.add(number)
        return True

    def _looked_for(self, head: Head) -> bool:
        try:
            manifests.look_for(self._store, self._names, head)
        except ManifestError as error:
            _log.error("manifest_not_whole", manifest=head.part, reason=str(error), action="nothing is removed for it")
            return False
        return True

    def _remove_parts(self, first: int) -> None:
        for each in self._store.list(self._names.log):
            number = number_of(each.name)
            if number is None:
                continue  # a stranger's
            if number >= first:
                return
            if each.size != HEADER_SIZE:  # a fence, or an end, has no frames
                self._store.delete(each.name)

    def _remove_streams(self, needed: frozenset[str], now_ms: int) -> None:
        for each in self._store.list(self._names.checkpoints):
            stream = each.name.removeprefix(self._names.checkpoints).partition("/")[0]
            made = stream.partition("-")[0]
            if stream not in needed and made.isdecimal() and int(made) < now_ms - STREAM_MS:
                self._store.delete(each.name)
