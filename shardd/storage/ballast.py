"""Ballast: disk blocks that a shard reserves for its next checkpoint, in files without content.

    shard-NN/ballast-<n>     blocks that are allocated and never written; only their number matters

Checkpoints free disk space, so a checkpoint must never run out of it. A shard reserves as many bytes as its next
checkpoint may write (`shardd.storage.free_space` counts them). It refuses writes that it cannot reserve space for. A
file is in one of two states:

    held       the file owns its blocks; no other file can use them
    given up   the file keeps its size and its blocks are free, for this shard's checkpoint

Bytes that are given up stay *promised*. Every shard subtracts the promised bytes of all shards of the data directory
from the free bytes that the system reports (`promised`). So no shard accepts writes into the space that another shard's
checkpoint is using.

Steps of a checkpoint. A process that dies leaves the files as the last step left them:

    begins      all files are given up; space for writes during the checkpoint is held in a new file
    succeeds    the files that were given up are removed
    fails       they are held again, as far as there is space

The next start holds again all files that it finds. An orderly stop removes them. On a file system that cannot allocate
blocks without writing (ZFS), every file stays given up. All bytes are then promised, which has the same effect as long
as only topics writes to that file system.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shardd.storage.disk import Disk

PREFIX = "ballast-"


class Ballast:
    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._given_up: dict[Path, int] = {}
        self._current: Path | None = None
        self._number = 0
        self.held = 0
        """Bytes of the files that are held."""
        self._held: dict[Path, int] = {}

    def begin(self) -> None:
        """Hold the files that an earlier process left."""
        for name in self._disk.list(self._path):
            if name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal():
                self._number = max(self._number, int(name[len(PREFIX) :]))
                self._given_up[self._path / name] = self._disk.allotted(self._path / name)[0]
        self.hold_again()

    def grow(self, size: int) -> bool:
        """Hold `size` more bytes. Returns False if the disk has no space for them."""
        if self._current is None:
            self._number += 1
            self._current = self._path / f"{PREFIX}{self._number}"
        before = self._held.get(self._current, 0)
        try:
            self._disk.allot(self._current, before + size)
        except OSError:
            return False
        self._held[self._current] = before + size
        self.held += size
        return True

    def give_up(self) -> bool:
        """Free the blocks of all held files; their bytes stay promised. Returns False if no file was held."""
        freed = bool(self._held)
        for path, size in self._held.items():
            with suppress(OSError):  # then the file keeps its blocks: nothing was freed, nothing is lost
                self._disk.vacate(path)
                self._given_up[path] = size
        self._held.clear()
        self._current = None
        self.held = 0
        return freed

    def hold_again(self) -> None:
        """Hold again the files that were given up, as far as the disk has space."""
        for path, size in list(self._given_up.items()):
            with suppress(OSError):
                self._disk.allot(path, size)
                del self._given_up[path]
                self._held[path] = size
                self.held += size

    def used(self) -> None:
        """Remove the files that were given up: the checkpoint has succeeded, or the shard stops."""
        for path in list(self._given_up):
            with suppress(OSError):
                self._disk.remove(path)
                del self._given_up[path]


def promised(disk: Disk, data: Path) -> tuple[int, int]:
    """Bytes that the shards below `data` have promised, and the number of those shards. Raises OSError."""
    shards = [name for name in disk.list(data) if name.startswith("shard-")]
    total = 0
    for shard in shards:
        for name in disk.list(data / shard):
            if name.startswith(PREFIX):
                with suppress(OSError):  # it may have been removed meanwhile
                    size, held = disk.allotted(data / shard / name)
                    total += max(size - held, 0)
    return total, len(shards)
