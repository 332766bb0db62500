"""Room on the disk that a shard holds for its next checkpoint, in files that have nothing in them.

    shard-NN/ballast-<n>     blocks, allotted but never written; what counts is their number

A checkpoint is what makes room, so it must never lack any. A shard therefore holds as many bytes as its next checkpoint
may write (`shardd.storage.free_space` counts them), and takes in nothing that it cannot hold room for. A file is in one
of two states:

    held       its blocks are its own; nobody else can use them
    given up   its size is still that of what it held, its blocks are free: to be used by this shard's checkpoint

What is given up is still *promised*: every shard subtracts it, for all shards of the data directory, from what the
system calls free (`promised`). So while one shard's checkpoint uses its room, no other takes in writes because of it.

A checkpoint, and what a process that dies at any step leaves behind:

    begins      all files are given up; what comes meanwhile is held in a new one
    succeeds    files that were given up are removed
    fails       they are held again, as far as there is room

The next start holds again whatever files it finds, and the files are removed at an orderly stop. A file system that
cannot allot blocks without writing (ZFS) leaves every file given up: then all of it is promised, which comes to the
same as long as nothing but topics writes there.
"""

from __future__ import annotations

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
        """Bytes in files that are held."""
        self._held: dict[Path, int] = {}

    def begin(self) -> None:
        """Hold what an earlier process left."""
        for name in self._disk.list(self._path):
            if name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal():
                self._number = max(self._number, int(name[len(PREFIX) :]))
                self._given_up[self._path / name] = self._disk.allotted(self._path / name)[0]
        self.hold_again()

    def grow(self, size: int) -> bool:
        """Hold so many bytes more. False if there is no room for them."""
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
        """Let go of the room, not of the promise. False if there was none."""
        freed = bool(self._held)
        for path, size in self._held.items():
            try:
                self._disk.vacate(path)
            except OSError:
                continue  # it keeps its blocks: nothing was freed, nothing is lost
            self._given_up[path] = size
        self._held.clear()
        self._current = None
        self.held = 0
        return freed

    def hold_again(self) -> None:
        """Hold what was given up, as far as there is room."""
        for path, size in list(self._given_up.items()):
            try:
                self._disk.allot(path, size)
            except OSError:
                continue
            del self._given_up[path]
            self._held[path] = size
            self.held += size

    def used(self) -> None:
        """What was given up has served its purpose, or nobody needs it any more."""
        for path in list(self._given_up):
            try:
                self._disk.remove(path)
            except OSError:
                continue
            del self._given_up[path]

    def end(self) -> None:
        """The shard stops: nothing is held any more."""
        self.give_up()
        self.used()


def promised(disk: Disk, data: Path) -> tuple[int, int]:
    """Bytes that the shards below `data` have given up and not yet done with; and how many shards there are."""
    shards = [name for name in disk.list(data) if name.startswith("shard-")]
    total = 0
    for shard in shards:
        for name in disk.list(data / shard):
            if name.startswith(PREFIX):
                try:
                    size, held = disk.allotted(data / shard / name)
                except OSError:
                    continue  # removed meanwhile
                total += max(size - held, 0)
    return total, len(shards)
