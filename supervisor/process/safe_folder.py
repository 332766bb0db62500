"""Directories and regular files, opened without following links.

`topics backup` and `topics restore` may be run by root on directories that another user may write to. A symbolic link
there would lead them to files that user cannot read; a FIFO would stop them for ever. So every entry is opened relative
to the descriptor of its directory, with O_NOFOLLOW and O_NONBLOCK, and its kind is checked twice: before it is opened,
because opening a device may have effects, and by `fstat` of what was opened, because the entry may have been exchanged
in between. The directory that the operator names is the exception: it may be a link.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a regular file",
}


class NotPlain(OSError):
    """An entry of another kind than the one that belongs there. It was not opened; `kind` names what it is."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(errno.EINVAL, "", str(path))
        self.path = path
        self.kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")

    def __str__(self) -> str:
        return f"{self.path} is {self.kind}"


class Folder:
    """An opened directory; `path` is for messages only. Closes its descriptor when its `with` block ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def of(cls, path: Path) -> Folder:
        """The directory that an operator named; links on the way to it are followed. Raises OSError."""
        return cls(path, os.open(path, _FLAGS | os.O_DIRECTORY))

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.descriptor))

    def mode(self, name: str) -> int:
        """Of the entry itself. Raises FileNotFoundError."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode

    def folder(self, name: str) -> Folder:
        """A directory in this one. Raises `NotPlain`, FileNotFoundError."""
        return Folder(self.path / name, self._opened(name, stat.S_IFDIR))

    def file(self, name: str) -> int:
        """The descriptor of a regular file, to read from. Raises `NotPlain`, FileNotFoundError."""
        return self._opened(name, stat.S_IFREG)

    def _opened(self, name: str, wanted: int) -> int:
        path = self.path / name
        mode = self.mode(name)
        if stat.S_IFMT(mode) != wanted:
            raise NotPlain(path, mode)
        try:
            descriptor = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPlain(path, stat.S_IFLNK) from None
            error.filename = str(path)
            raise
        mode = os.fstat(descriptor).st_mode
        if stat.S_IFMT(mode) != wanted:
            os.close(descriptor)
            raise NotPlain(path, mode)
        return descriptor


def read(path: Path) -> bytes:
    """A small regular file. Raises `NotPlain`, OSError."""
    with Folder.of(path.parent) as folder, open(folder.file(path.name), "rb") as file:
        return file.read()
