"""A change: what a changing operation stages. Group commit then commits or undoes it, once.

    stage     the operation assigns the change's state (see `shardd.storage.group_commit`); `encode` makes its frame
    commit    the change becomes visible, and its request is answered
    undo      the assigned state is taken back, and its request is refused

A change is data and these three methods. It says what it needs: a frame (`logged`), a sync (`requires_sync`).
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from proto.format.frame import Frame
from proto.format.map_body import MapBody
from proto.model.errors import TopicsError


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of a change: `write_ms` for the write call, `sync_ms` waiting for the device (0 if it need not). Both
    are rounded to µs."""

    write_ms: float = 0.0
    sync_ms: float = 0.0


class Change(Struct, kw_only=True, eq=False):
    """A change that belongs to no topic, and the base of all others."""

    requires_sync: bool = False
    """Whether it commits only after a sync."""
    body: MapBody | None = None
    """The content of its frame; None for a change without a frame."""
    ts_ms: int = 0
    """Commit time in its frame."""
    number: int = 0
    """Number of its frame, or of the frame before it if it has none. Group commit sets this and the rest."""
    written_at: float = 0.0
    write_ms: float = 0.0

    @property
    def topic_id(self) -> int:
        return 0

    @property
    def logged(self) -> bool:
        """Whether it has a frame. Otherwise it shares the outcome of the frame before it."""
        return self.body is not None

    def encode(self, frame_no: int, synced_no: int) -> Frame:
        """The frame of a change that is `logged`. Called once, when it is staged."""
        assert self.body is not None
        return self.body.encode(self.topic_id, self.ts_ms, frame_no=frame_no, synced_no=synced_no)

    def commit(self, timing: Timing) -> None:
        """Make the change visible. Called at most once, in the order of staging."""

    def undo(self, error: TopicsError) -> None:
        """Take back what staging assigned, because of `error`. Called instead of `commit`, newest change first."""
