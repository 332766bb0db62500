"""Rog logs: the name and number of partitions of each.

The messages are in the partitions' topics, which may be in any shard. The definition is in the shard that owns the
log's name. That shard alone decides which of two concurrent creations was first.

A definition is a frame of kind LOGDEF and an entry of the catalog. It never changes and is never removed.
"""

from __future__ import annotations

from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.ipc.operations import LogCreate, LogFind, Partitions
from proto.model.errors import TopicsError
from shardd.changes.transactions import Loose, Respond, Staging, refuse
from shardd.storage.change import Timing


class Logs:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._logs = staging.directory.logs
        self._coming: set[str] = set()

    def find(self, request: Request[LogFind], respond: Respond) -> None:
        """Answers with a log's number of partitions, 0 for an unknown log."""
        respond(Reply(request.id, extra=Partitions(self._logs.get(request.topic, 0))))

    def create(self, request: Request[LogCreate], respond: Respond) -> None:
        """Creates a log; option `partitions`. The answer's `created` is False for a log that exists or is staged. A
        creation waits for a sync."""
        name, partitions = request.topic, request.options.partitions
        if name in self._logs or name in self._coming:
            respond(Reply(request.id))
            return
        self._coming.add(name)

        def commit(timing: Timing) -> None:
            self._coming.discard(name)
            self._logs[name] = partitions
            respond(Reply(request.id, created=True))

        def undo(error: TopicsError) -> None:
            self._coming.discard(name)
            refuse(request.id, respond, error)

        frame = self._staging.control_frame(Kind.LOGDEF, 0, {"name": name, "partitions": partitions})
        self._staging.commits.stage(Loose(None, frame, commit, undo, requires_sync=True))  # type: ignore[arg-type]
