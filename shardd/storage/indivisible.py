"""Indivisible: blocks that change a shard's memory in several steps.

    with indivisible:
        …

An exception that leaves such a block in the middle leaves memory half changed. It sets `broken`, and then the process
must end: a start reads the memory back from the files. Outside of these blocks an exception fails only its request.

A `TopicsError` or a `SegmentError` may leave a block: the statement that raises it has changed nothing half. So may
`Undone`. Nothing may leave a block of `strictly_indivisible`: one in which changes become visible. Those behind the one
that fails are in the log, and would be neither visible nor undone.

A process is one shard, so there is one object for all blocks. Blocks may be nested.
"""

from __future__ import annotations

from types import TracebackType

from proto.model.errors import TopicsError
from shardd.errors import ShardError
from shardd.storage.errors import SegmentError


class Undone(ShardError):
    """A change failed, for the reason in `__cause__`. It was taken back, or is among the staged ones, which are."""


class Indivisible:
    __slots__ = ("_whole", "broken")

    def __init__(self, *whole: type[Exception]) -> None:
        """Exceptions of the kinds `whole` may leave a block."""
        self._whole = whole
        self.broken = False
        """An exception has left a block in the middle. That of `indivisible` says so of all blocks."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, self._whole):
            indivisible.broken = True


indivisible = Indivisible(TopicsError, SegmentError, Undone)
strictly_indivisible = Indivisible()
