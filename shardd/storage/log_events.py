"""Log events: what a shard's log (`wal`, `group_commit`) tells the one that follows it, in the shard's thread."""

from __future__ import annotations

from typing import Protocol

from proto.format.frame import Frame
from proto.model.errors import TopicsError


class LogEvents(Protocol):
    def logged(self, frame: Frame) -> None:
        """A frame that is not a batch was staged."""

    def full(self, frames: list[Frame]) -> bool:
        """The disk has no space for these frames; the list is empty for writes that must not fail. Returns True if
        space was freed."""

    def out_of_room(self) -> TopicsError:
        """The error for changes that failed because the disk is full."""

    def sync_begins(self) -> None:
        """A sync begins, or one of several until the bucket has what they cover."""

    def sync_ended(self, good: bool) -> None:
        """The sync that `sync_begins` announced is over. If it is good, all that was visible then is safe."""

    def synced(self) -> None:
        """A sync is over, or the bucket has more of the log. The changes that waited are committed or undone."""
