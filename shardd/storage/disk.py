"""The disk: the only module of the shard that opens, writes, renames or removes data files.

Callers may rely on these promises. The fault-injecting disk of the tests takes away everything beyond them:

- The bytes of a `write` survive the death of the process at once, and the death of the machine after `sync`.
- A created, renamed or removed name, of a file or a directory, survives the death of the machine only after `sync_dir`
  of its parent directory.
- A write may be short: it returns the number of bytes taken, and the caller handles the rest.
- After a failed `sync` the bytes since the last good one may be on the device or not. A second try proves nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from errno import EDQUOT, EINVAL, ENOSPC
from pathlib import Path
from typing import Protocol

from proto.format.buffer import Buffer
from proto.process.directory_lock import lock_directory

IOV_MAX = 1024


def is_full(error: OSError) -> bool:
    """True if the error says that the disk or the user's quota is full (ENOSPC, EDQUOT)."""
    return error.errno in (ENOSPC, EDQUOT)


def write_all(file: File, data: Buffer, path: Path) -> None:
    """Write to a file of this path. Raises OSError, also if the disk took only a part."""
    if file.write([data]) != len(data):
        raise OSError(ENOSPC, "the disk did not take all bytes", str(path))


def identity(path: Path) -> tuple[int, int]:
    """Device and inode of a file or directory: the same after it was renamed, another one if something else has its
    name. Raises OSError."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


class Claim:
    """A directory that no other process claims, until this is closed or the process ends."""

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError if another process has it, OSError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            lock_directory(self._descriptor)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class File(Protocol):
    """A file opened for appending."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers. Returns the number of bytes taken. Raises OSError."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Overwrite bytes in place. Raises OSError; a short write is an error too."""

    def sync(self) -> None:
        """Call fdatasync. Blocks: call it in a worker thread. Raises OSError."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def boot_id(self) -> str:
        """Identifies the current boot of the machine. While it is the same, bytes written without a sync are intact."""

    def make_dir(self, path: Path) -> None:
        """Create the directory and its parents, whose names are not durable yet. Does nothing if it exists."""

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if the directory does not exist."""

    def size(self, path: Path) -> int: ...

    def free(self, path: Path) -> int:
        """Bytes that unprivileged users may still write to the file system of `path`. Raises OSError."""

    def allot(self, path: Path, size: int) -> None:
        """Allocate all blocks of a file of `size` bytes; creates the file if needed. Raises OSError if there is no
        room."""

    def vacate(self, path: Path) -> None:
        """Free the blocks of an allotted file. Its size stays. Raises OSError."""

    def allotted(self, path: Path) -> tuple[int, int]:
        """Size of an allotted file, and the bytes that it has blocks for. Raises OSError."""

    def create(self, path: Path) -> File:
        """Create an empty file, for appending. An existing file is emptied."""

    def open(self, path: Path) -> File:
        """Open an existing file for appending and overwriting."""

    def read(self, path: Path) -> memoryview:
        """The whole file, read-only, as it is now. Raises OSError."""

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, fewer if the file ends before. Raises OSError."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, replacing `target`; or rename a directory to a name that is free."""

    def remove(self, path: Path) -> None: ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory. Raises OSError, also if it is not empty."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its contents. Does nothing if it does not exist."""

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
    """Open without following a symbolic link and without waiting for a FIFO. Root may verify a directory that another
    user can write to."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class RealDisk:
    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip()
        except OSError:
            return os.urandom(16).hex()  # never equal to another one, so the next process assumes a new boot

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
        # Not mapped: a map ends the process where the device cannot read, or where the file is cut short meanwhile.
        with open(path, "rb", buffering=0, opener=_not_a_link) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(EINVAL, "is no regular file", str(path))
            try:
                return memoryview(file.readall())
            except OSError as error:
                error.filename = str(path)
                raise

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        descriptor = _not_a_link(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, offset)  # a regular file: short only at its end
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_dir(self, path: Path) -> None:
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def sync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _dropped(*_: object, **_named: object) -> None:
    """Does nothing, in place of a change."""


class _Untouched:
    """A file that accepts every write and stores nothing."""

    write_at = sync = truncate = close = _dropped

    def write(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))


class ReadOnlyDisk:
    """A disk that reads from another disk and drops every change. Recovery on it leaves the files as they are."""

    make_dir = allot = vacate = replace = remove = remove_dir = remove_tree = sync_dir = _dropped

    def __init__(self, disk: Disk) -> None:
        self.boot_id = disk.boot_id
        self.list = disk.list
        self.size = disk.size
        self.free = disk.free
        self.allotted = disk.allotted
        self.read = disk.read
        self.read_part = disk.read_part

    def create(self, path: Path) -> File:
        return _Untouched()

    open = create
