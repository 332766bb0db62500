"""The holdings: the topics and bytes of a shard that count under the caps over all shards."""

from __future__ import annotations

from proto.ipc.operations import Room
from shardd.topic.directory import Directory
from shardd.topic.promises import Promises


class Holdings:
    """See `shardd.changes.allowance.Held`."""

    def __init__(self, directory: Directory, promises: Promises) -> None:
        self._directory = directory
        self._promises = promises

    @property
    def staged(self) -> Room:
        return Room(len(self._directory.assigned), self._directory.totals.bytes + self._promises.booked)

    @property
    def visible(self) -> Room:
        return Room(len(self._directory.visible), self._directory.totals.bytes)

    @property
    def lasting(self) -> Room:
        staged = self.staged  # the bytes of a topic count until its deletion has committed
        return Room(staged.topics + self._directory.leaving, staged.bytes)
