"""Name reads: the topics whose names begin with a prefix, and the names that have changed since a version.

A list of names is answered at once. A request for changes is

asked ──► answered          a topic was made or deleted since its version, or the version is not known
  │
  └────► parked ──► answered    a topic was made or deleted
              ├───► answered    `LONGEST_S` have passed
              └───► dropped     the caller disconnected

Each topic that becomes visible or ceases to be adds one to the version. An answer has each changed name once, with what
is true of it at the answer's version. So the cost of a change does not depend on how many prefixes are watched: the
asker knows them. The last `KEPT` changes are known. The first version of a process is random, so no asker of an earlier
process is taken for one of this. Changes of one flush are answered together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import cache
from itertools import islice
from secrets import randbits

from proto.ipc.message import Message, Parked, Reply, Request
from proto.ipc.operations import ChangedNames, Listed, NameChanges, WatchNames
from shardd.clock import Clock
from shardd.topic import name_ranges
from shardd.topic.directory import Directory

LONGEST_S = 60.0
"""A request parked this long is answered without changes: its asker may be gone."""
KEPT = 4096
"""Changes that are kept. An asker that missed more has to list again."""

Respond = Callable[[Message], None]
_Key = tuple[Hashable, int]
_Waiting = tuple[Request[NameChanges], Respond, float]


class NameReads:
    def __init__(self, clock: Clock, directory: Directory) -> None:
        self._clock = clock
        self._directory = directory
        self._parked: dict[_Key, _Waiting] = {}
        self._version = randbits(60)
        self._changed: deque[str] = deque(maxlen=KEPT)
        self._told = self._version
        """The version at the last `deliver`."""
        directory.renamed = self._renamed

    def __len__(self) -> int:
        """Number of parked reads."""
        return len(self._parked)

    def list(self, request: Request[WatchNames], respond: Respond) -> None:
        """Answers the first topics of a prefix."""
        asked = request.options
        prefixes = name_ranges.distinct(asked.prefix, asked.prefixes)
        topics, _ = self._directory.range_of(prefixes, asked.most)
        respond(Reply(request.id, extra=Listed({topic.name: topic.epoch for topic in topics}, self._version)))

    def changes(self, request: Request[NameChanges], caller: Hashable, respond: Respond) -> None:
        """Answers the changes since a version, or parks the request. `caller` names the peer."""
        since = request.options.since
        if since == self._version:
            self._parked[caller, request.id] = (request, respond, self._clock.monotonic())
            respond(Parked(request.id))
        else:
            respond(Reply(request.id, extra=self._since(since)))

    def _since(self, since: int | None) -> ChangedNames:
        missed = -1 if since is None else self._version - since
        if not 0 <= missed <= len(self._changed):
            return ChangedNames({}, self._version, known=False)
        visible = self._directory.visible
        names = dict.fromkeys(islice(reversed(self._changed), missed))
        return ChangedNames(
            {name: topic.epoch if (topic := visible.get(name)) is not None else 0 for name in names}, self._version
        )

    def _renamed(self, name: str) -> None:
        self._version += 1
        self._changed.append(name)

    def deliver(self) -> None:
        """Answers the parked requests if names have changed since the last call."""
        if self._told == self._version:
            return
        self._told = self._version
        parked, self._parked = self._parked, {}
        changes_since = cache(self._since)
        for request, respond, _ in parked.values():
            respond(Reply(request.id, extra=changes_since(request.options.since)))

    def expire(self) -> None:
        """Answers the requests that have been parked for `LONGEST_S`."""
        oldest = self._clock.monotonic() - LONGEST_S
        for key, (request, respond, since) in tuple(self._parked.items()):
            if since <= oldest:
                del self._parked[key]
                respond(Reply(request.id, extra=self._since(request.options.since)))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Drops the parked read of a caller that disconnected. Does nothing if it has none."""
        self._parked.pop((caller, ident), None)

    def forget(self, caller: Hashable) -> None:
        """Drops the parked reads of a caller that is gone."""
        for key in [key for key in self._parked if key[0] == caller]:
            del self._parked[key]
