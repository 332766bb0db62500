"""Rog logs: the name and number of partitions of each.

The messages are in the partitions' topics, which may be in any shard. The definition is in the shard that owns the
log's name. That shard alone decides which of two concurrent creations was first.

A definition is a frame of kind LOGDEF and an entry of the catalog. It never changes and is never removed.
"""

from __future__ import annotations

from proto.ipc.message import Reply, Request
from proto.ipc.operations import LogCreate, LogFind, Partitions
from proto.model.errors import TopicsError
from shardd.changes.transactions import Asked, Respond, Staging
from shardd.frames import RogLog
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible


class Logs:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.logs = staging.directory.logs
        self.coming: set[str] = set()
        """Names whose creations are staged."""

    def find(self, request: Request[LogFind], respond: Respond) -> None:
        """Answers with a log's number of partitions, 0 for an unknown log."""
        respond(Reply(request.id, extra=Partitions(self.logs.get(request.topic, 0))))

    def create(self, request: Request[LogCreate], respond: Respond) -> None:
        """Creates a log; option `partitions`. The answer's `created` is False for a log that exists or is staged. A
        creation waits for a sync."""
        name, partitions = request.topic, request.options.partitions
        if name in self.logs or name in self.coming:
            respond(Reply(request.id))
            return
        definition = RogLog(name, partitions)
        change = _Defined(request, respond, self, definition, body=definition, requires_sync=True)
        with indivisible:
            self.coming.add(name)
            self._staging.stage_apart(change)


class _Defined(Asked, eq=False):
    logs: Logs
    log: RogLog

    def commit(self, timing: Timing) -> None:
        self.logs.coming.discard(self.log.name)
        self.logs.logs[self.log.name] = self.log.partitions
        self.respond(Reply(self.request.id, created=True))

    def undo(self, error: TopicsError) -> None:
        self.logs.coming.discard(self.log.name)
        super().undo(error)
