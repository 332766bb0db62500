"""Name reads: the topics whose names begin with a prefix, answered when they change.

asked ──► answered          the list differs from the one that the asker knows
  │
  └────► parked ──► answered    a topic of the prefix was made or deleted, and the list differs
              ├───► answered    `LONGEST_S` have passed
              └───► dropped     the caller disconnected

The reply is the whole list, up to a number of names, and its digest. So an asker that missed replies, or asks a
restarted shard, has the right list after one reply. Changes of one flush are answered together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import xxhash

from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import Listed, WatchNames
from shardd.clock import Clock
from shardd.topic import name_ranges
from shardd.topic.directory import Directory

LONGEST_S = 60.0
"""A request parked this long is answered with the same list: its asker may be gone."""

Respond = Callable[[Message], None]
_Key = tuple[Hashable, int]
_Waiting = tuple[Request[WatchNames], Respond, float]
_Prefixes = tuple[str, ...]


class NameReads:
    def __init__(self, clock: Clock, directory: Directory) -> None:
        self._clock = clock
        self._directory = directory
        self._parked: dict[_Prefixes, dict[_Key, _Waiting]] = {}
        self._changed: set[_Prefixes] = set()
        directory.renamed = self._renamed

    def __len__(self) -> int:
        """Number of parked reads."""
        return sum(map(len, self._parked.values()))

    def read(self, request: Request[WatchNames], caller: Hashable, respond: Respond) -> None:
        """Answers the list, or parks the request. `caller` names the peer."""
        asked = request.options
        prefixes = tuple(name_ranges.distinct(asked.prefix, asked.prefixes))
        found = self._list(prefixes, asked.most)
        if found.digest != asked.known:
            respond(Reply(request.id, extra=found))
            return
        self._parked.setdefault(prefixes, {})[caller, request.id] = (request, respond, self._clock.monotonic())
        respond(Parked(request.id))

    def _list(self, prefixes: _Prefixes, most: int) -> Listed:
        topics, _ = self._directory.range_of(prefixes, most)
        epochs = {topic.name: topic.epoch for topic in topics}
        text = " ".join([f"{name} {epoch}" for name, epoch in epochs.items()])
        return Listed(epochs, xxhash.xxh3_64_intdigest(text.encode()))

    def _renamed(self, name: str) -> None:
        for prefixes in self._parked:
            if name.startswith(prefixes):
                self._changed.add(prefixes)

    def deliver(self) -> None:
        """Answers the parked reads whose lists have changed."""
        changed, self._changed = self._changed, set()
        for prefixes in changed:
            found: dict[int, Listed] = {}
            for key, (request, respond, _) in tuple(self._parked.get(prefixes, {}).items()):
                asked = request.options
                if asked.most not in found:
                    found[asked.most] = self._list(prefixes, asked.most)
                if found[asked.most].digest != asked.known:
                    self._over(prefixes, key)
                    respond(Reply(request.id, extra=found[asked.most]))

    def expire(self) -> None:
        """Answers the requests that have been parked for `LONGEST_S`."""
        oldest = self._clock.monotonic() - LONGEST_S
        for prefixes, waiting in tuple(self._parked.items()):
            for key, (request, respond, since) in tuple(waiting.items()):
                if since <= oldest:
                    self._over(prefixes, key)
                    respond(Reply(request.id, extra=self._list(prefixes, request.options.most)))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Drops the parked read of a caller that disconnected. Does nothing if it has none."""
        for prefixes, waiting in self._parked.items():
            if (caller, ident) in waiting:
                self._over(prefixes, (caller, ident))
                return

    def _over(self, prefixes: _Prefixes, key: _Key) -> None:
        waiting = self._parked[prefixes]
        del waiting[key]
        if not waiting:
            del self._parked[prefixes]
