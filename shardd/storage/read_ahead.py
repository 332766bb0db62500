"""Read ahead: a file that is read forward, `READ_AHEAD` bytes at a time or more.

Nothing is mapped: a map ends the process where the device cannot read, or where the file is cut short meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from proto.format.frame import HEADER, FrameError, Header, check
from shardd.storage.disk import Disk

READ_AHEAD = 128 << 10


class ReadAhead:
    """All methods block, and raise OSError."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.size = disk.size(path)
        """That of the file, in bytes."""
        self._start = 0
        self._piece = b""

    def part(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, fewer if the file ends before."""
        at = offset - self._start
        if not 0 <= at <= len(self._piece) - size:
            self._read(offset, size)
            at = 0
        return self._piece[at : at + size]

    def frame(self, offset: int) -> tuple[Header, bytes]:
        """The valid frame at `offset`, and its bytes: a copy, which keeps no other bytes in memory. Raises
        `FrameError`, or `UnknownVersion`."""
        at = offset - self._start
        try:
            header = check(self._piece, at)
        except FrameError:  # also if the piece ends before the frame
            self._read(offset, min(Header(self.part(offset, HEADER.size)).length, self.size - offset))
            header, at = check(self._piece), 0
        return header, self._piece[at : at + header.length]

    def _read(self, offset: int, size: int) -> None:
        self._start, self._piece = offset, self._disk.read_part(self._path, offset, max(size, READ_AHEAD))
