"""The holdings: the topics and bytes of a shard that count under the caps over all shards."""

from __future__ import annotations

from proto.ipc.operations import Room
from shardd.topic.directory import Directory
from shardd.topic.promises import Promises


class Holdings:
    def __init__(self, directory: Directory, promises: Promises) -> None:
        self._directory = directory
        self._promises = promises

    @property
    def staged(self) -> Room:
        """Topics, and bytes at most, when everything staged has committed."""
        return Room(len(self._directory.assigned), self._directory.totals.bytes + self._promises.booked)

    @property
    def visible(self) -> Room:
        """What readers see."""
        return Room(len(self._directory.visible), self._directory.totals.bytes)

    @property
    def lasting(self) -> Room:
        """The most that a process could find that begins now: a staged deletion may not be in the log. The bytes of a
        topic count until its deletion has committed."""
        staged = self.staged
        return Room(staged.topics + self._directory.leaving, staged.bytes)
