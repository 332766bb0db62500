"""The door to data files. Nothing else in the shard opens, writes, renames or removes a file.

What callers may rely on, and what the fault-injecting disk of the tests takes away where it is not promised:

- bytes of a `write` survive the death of the process at once, and the death of the machine after `sync`;
- a created, renamed or removed name, of a file or a directory, survives the death of the machine only after `sync_dir`
  of the directory it is in;
- a write may be short: the number of bytes taken is returned, the rest is the caller's to handle;
- after a failed `sync` the bytes since the last good one may be on the device or not; trying again proves nothing.
"""

from __future__ import annotations

import builtins
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Sequence
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Protocol

from proto.format.frame import Buffer

IOV_MAX = 1024


def is_full(error: OSError) -> bool:
    """Does the error say that the disk, or this user's share of it, is full?"""
    return error.errno in (ENOSPC, EDQUOT)


class File(Protocol):
    """A file opened for appending."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers; returns how many bytes were taken. Raises OSError."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Overwrite bytes in place. Raises OSError; a short write is an error too."""

    def sync(self) -> None:
        """fdatasync. Blocks: call it in a worker thread. Raises OSError."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def boot_id(self) -> str:
        """Names the time since the machine was started: while it is the same, what was written is still there."""

    def make_dir(self, path: Path) -> None:
        """Create the directory and its parents, whose names are not durable yet; nothing if it is there."""

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if there is none."""

    def size(self, path: Path) -> int: ...

    def free(self, path: Path) -> int:
        """Bytes that may still be written to the file system that `path` is on. Raises OSError."""

    def allot(self, path: Path, size: int) -> None:
        """A file of `size` bytes, new or as it is, that has all its blocks. Raises OSError if there is no room."""

    def vacate(self, path: Path) -> None:
        """Give the blocks of such a file back; its size stays."""

    def allotted(self, path: Path) -> tuple[int, int]:
        """Size of such a file, and bytes that it has blocks for."""

    def create(self, path: Path) -> File:
        """A new empty file; an existing one is emptied."""

    def open(self, path: Path) -> File:
        """An existing file, to append to and overwrite in."""

    def read(self, path: Path) -> memoryview:
        """The whole file, read-only. Stays readable after the file is removed."""

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        """So many bytes from there on, fewer if the file ends before. Raises OSError."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, or a directory to a name that is free."""

    def remove(self, path: Path) -> None: ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all that is in it; nothing if it is not there."""

    def sync_dir(self, path: Path) -> None: ...


class _RealFile:
    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def write(self, buffers: Sequence[Buffer]) -> int:
        written = 0
        for start in range(0, len(buffers), IOV_MAX):
            group = buffers[start : start + IOV_MAX]
            count = os.writev(self._descriptor, group)
            written += count
            if count < sum(map(len, group)):
                break
        return written

    def write_at(self, offset: int, data: bytes) -> None:
        if os.pwrite(self._descriptor, data, offset) != len(data):
            raise OSError("short write in place")

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._descriptor)


def _not_a_link(path: str | Path, flags: int) -> int:
    """Root may verify what another user may write to: no link is followed, and a FIFO is not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class RealDisk:
    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip()
        except OSError:
            return os.urandom(16).hex()  # of no use to the next process, which then must be careful

    def make_dir(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def free(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def allot(self, path: Path, size: int) -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def vacate(self, path: Path) -> None:
        size = path.stat().st_size
        os.truncate(path, 0)
        os.truncate(path, size)

    def allotted(self, path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_size, min(found.st_blocks * 512, found.st_size)

    def create(self, path: Path) -> File:
        return _RealFile(path, os.O_CREAT | os.O_TRUNC)

    def open(self, path: Path) -> File:
        return _RealFile(path, 0)

    def read(self, path: Path) -> memoryview:
        with open(path, "rb", opener=_not_a_link) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "is no regular file", str(path))
            size = found.st_size
            if not size:  # mmap refuses empty files
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        descriptor = _not_a_link(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, offset)  # short at the end only: these are files, not sockets
        finally:
            os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def sync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Untouched:
    """A file that takes everything and keeps nothing."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))

    def write_at(self, offset: int, data: bytes) -> None:
        pass

    def sync(self) -> None:
        pass

    def truncate(self, size: int) -> None:
        pass

    def close(self) -> None:
        pass


class ReadOnlyDisk:
    """Another disk, read but never changed: what recovery would mend stays as it is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def boot_id(self) -> str:
        return self._disk.boot_id()

    def list(self, path: Path) -> builtins.list[str]:
        return self._disk.list(path)

    def size(self, path: Path) -> int:
        return self._disk.size(path)

    def free(self, path: Path) -> int:
        return self._disk.free(path)

    def read(self, path: Path) -> memoryview:
        return self._disk.read(path)

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        return self._disk.read_part(path, offset, size)

    def make_dir(self, path: Path) -> None:
        pass

    def allot(self, path: Path, size: int) -> None:
        pass

    def vacate(self, path: Path) -> None:
        pass

    def allotted(self, path: Path) -> tuple[int, int]:
        return self._disk.allotted(path)

    def create(self, path: Path) -> File:
        return _Untouched()

    def open(self, path: Path) -> File:
        return _Untouched()

    def replace(self, source: Path, target: Path) -> None:
        pass

    def remove(self, path: Path) -> None:
        pass

    def remove_tree(self, path: Path) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass
