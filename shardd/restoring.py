"""Restoring: what a shard lacks after its start, and makes again or gives up before all of it is served.

copies of routers    made again from their sources, after the log was replayed
seqs                 given up if another machine may have given them to records that are lost

A topic whose files cannot be read gives none up. So the next start does it again, for all topics: each time, the next
seqs of each one stay unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from errno import EIO

import structlog
from structlog.typing import FilteringBoundLogger

from proto.model.errors import not_ready, starting
from shardd.changes import seq_reservation
from shardd.changes.transactions import Staging
from shardd.recovery.replay import replay_deferred
from shardd.routers.copier import Copier
from shardd.routers.copy_recovery import Restore
from shardd.topic.topic import Deferred, Topic

_log: FilteringBoundLogger = structlog.get_logger()


class Restoring:
    _giving_up: Callable[[], None] | None = None
    """Called when every topic has given seqs up, if they have to."""
    _owed = False
    """Whether one could not, as its files cannot be read."""

    def __init__(self, staging: Staging, copier: Copier, flush: Callable[[], None]) -> None:
        """`flush` writes what was staged outside of a group of requests."""
        self._staging = staging
        self._directory = staging.directory
        self._copier = copier
        self._flush = flush
        self.restored = not self._unrestored()
        """True when every topic has all copies that it had at the last stop. Before that, only requests of other shards
        are answered, unless `waiting` is set, and no checkpoint is made."""
        self.waiting: frozenset[str] | None = None
        """Topics that wait for a source whose shard cannot start. While it is set, all other topics are served."""

    def _unrestored(self) -> list[Topic]:
        """Topics whose copies have to be made again."""
        return [topic for topic in self._directory.visible.values() if topic.unrestored]

    def restores(self) -> list[Restore]:
        """The restores that have to be done before the shard is `restored`."""

        def replay(topic: Topic, deferred: Deferred) -> None:
            replay_deferred(self._directory, topic, *deferred)

        return [Restore(topic, self._copier, replay) for topic in self._unrestored()]

    def ended(self, topics: Iterable[str]) -> None:
        """All copies are made again; `topics` had lacked some. Raises OSError."""
        self.restored = True
        if self._giving_up is not None:
            visible = self._directory.visible
            self._give_up(visible[name] for name in topics if name in visible)

    def check(self, topic: str) -> None:
        """Raises `503` for a request before the shard is restored, unless its topic can be served already."""
        if self.waiting is None:
            raise starting("this shard is making copies of its routers again; retry shortly")
        if topic in self.waiting:
            raise not_ready(
                f'"{topic}" waits for the source of its routers, whose shard cannot start; the service\'s log says why',
                reason="source_away",
            )

    def give_seqs_up(self, done: Callable[[], None]) -> None:
        """Another machine may have given seqs to records that are lost: count the next ones of each topic as used.
        Topics whose copies are still missing follow when they are restored. Then `done` is called, unless the files of
        a topic cannot be read: it is not served before a start has done this again. Raises OSError."""
        self._giving_up = done
        self._give_up(topic for topic in self._directory.visible.values() if not topic.unrestored)

    def _give_up(self, topics: Iterable[Topic]) -> None:
        changes = []
        for topic in topics:
            if topic.unloaded is None:
                changes.append(seq_reservation.give_up(topic, self._staging))
            else:
                self._owed = topic.unloaded.owes_seqs = True
                remedy = "restart the service once its files are back"
                _log.warning("seqs_not_given_up", topic=topic.name, reason="its files cannot be read", remedy=remedy)
        self._flush()
        self._staging.commits.sync_now()
        if not all(change.done for change in changes):
            raise OSError(EIO, "the log could not be synced")
        if self.restored and self._giving_up is not None and not self._owed:
            self._giving_up()
            self._giving_up = None
