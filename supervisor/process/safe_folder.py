"""Safe folder: opens directories and regular files without following links.

Root may run `topics backup` and `topics restore` on directories that another user can write. A symbolic link there
could lead to files which that user cannot read, and a FIFO would block for ever. Every entry is therefore opened
relative to the descriptor of its directory, with O_NOFOLLOW and O_NONBLOCK. Its kind is checked before opening, because
opening a device may have effects, and again by `fstat`, because the entry may have been replaced in between. Only the
directory that the operator names may be a link.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

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
    """An entry is not of the expected kind. `kind` describes it. No data was read from it."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(errno.EINVAL, "", str(path))
        self.path = path
        self.kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")

    def __str__(self) -> str:
        return f"{self.path} is {self.kind}"


@dataclass(frozen=True, slots=True)
class Folder(AbstractContextManager["Folder"]):
    """Opened directory; `path` is for messages only. The end of its `with` block closes the descriptor."""

    path: Path
    descriptor: int

    @classmethod
    def of(cls, path: Path) -> Folder:
        """Open the directory that the operator named, following links. Raises OSError."""
        return cls(path, os.open(path, _FLAGS | os.O_DIRECTORY))

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.descriptor))

    def mode(self, name: str) -> int:
        """`st_mode` of an entry, without following links. Raises FileNotFoundError."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode

    def folder(self, name: str) -> Folder:
        """Open a subdirectory. Raises `NotPlain`, FileNotFoundError."""
        return Folder(self.path / name, self._opened(name, stat.S_IFDIR))

    def folder_if_any(self, name: str) -> Folder | None:
        """As `folder`; None if there is none."""
        try:
            return self.folder(name)
        except FileNotFoundError:
            return None

    def file(self, name: str) -> int:
        """Open a regular file for reading and return its descriptor. Raises `NotPlain`, FileNotFoundError."""
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
    """Content of a small regular file. Raises `NotPlain`, OSError."""
    with Folder.of(path.parent) as folder, open(folder.file(path.name), "rb") as file:
        return file.read()
