"""Rog logs: their names and how many partitions each has. The messages are in the partitions' topics, which may live
in any shard; the definition lives in the shard that the log's name belongs to, and it alone decides which of two
creators was first.

A definition is a frame of kind LOGDEF and an entry of the catalog. It never changes and is never removed.
"""

from __future__ import annotations

from proto.format.frame import Kind
from proto.ipc.message import Reply, Request
from proto.model.errors import TopicsError
from shardd.changes.transactions import Respond, Staging, refuse
from shardd.storage.group_commit import Timing


class Logs:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._logs = staging.directory.logs
        self._coming: set[str] = set()

    def find(self, request: Request, respond: Respond) -> None:
        """`extra` is `{"partitions": n}`, 0 for a log there is not."""
        respond(Reply(request.id, extra={"partitions": self._logs.get(request.topic, 0)}))

    def create(self, request: Request, respond: Respond) -> None:
        """Option `partitions`. The answer says `created`, False for a log that is there or on its way. Waits for a
        sync."""
        name, partitions = request.topic, request.options["partitions"]
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
        self._staging.commits.stage(frame, requires_sync=True, commit=commit, undo=undo)
