"""Storage: files as readers see them, in a directory or as objects of a bucket (`bucket`).

A reader opens the first bytes of a file and says which of them it needs. A file of a directory is mapped, and nothing
needs to be said; of a bucket, only the needed ranges are read. Files are pickled with the pieces that tasks read.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa


class Content(Protocol):
    """Bytes of an open file. They stay, whatever happens to the file."""

    size: int
    """Bytes that the file has."""
    buffer: Any
    """The bytes that were asked for, as far as the file has them."""
    view: memoryview

    def need(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make ranges (offset, length) of `view` valid. Raises `FileNotFoundError`, `CorruptFile`, OSError."""


class File(Protocol):
    """A file of frames."""

    @property
    def path(self) -> str: ...

    @property
    def remedy(self) -> str:
        """The remedy for damage; ends a message. Empty if there is none."""

    @property
    def constant(self) -> bool:
        """Whether an equal file has the same content for ever."""

    def open(self, end: int | None, *, settled: bool) -> Content:
        """The first `end` bytes, all if it is None. `settled`: these bytes are never cut off. Raises
        `FileNotFoundError`, OSError."""

    def index(self) -> bytes | None:
        """The content of the index of a segment; None if there is none."""

    def at(self, offset: int) -> str:
        """A place in the file, for messages."""


class _Local:
    """Content of a file of a directory."""

    def __init__(self, size: int, data: Any) -> None:
        self.size = size
        self.buffer = pa.py_buffer(data)
        self.view = memoryview(data)

    def need(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Does nothing: all bytes are there."""


class Kept:
    """The last used values, by key, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._found: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Any) -> Any:
        """None if it is not there."""
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return self._found[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        with self._lock:
            if key not in self._found:
                self._found[key] = value, size
                self._bytes += size
            while self._bytes > self._most:
                self._bytes -= self._found.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: str

    @property
    def remedy(self) -> str:
        return ""

    @property
    def constant(self) -> bool:
        return False

    def open(self, end: int | None, *, settled: bool) -> _Local:
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
            length = size if end is None else min(end, size)
            # A mapping of bytes that are cut off would kill the process. An empty file cannot be mapped.
            if settled and length:
                return _Local(size, mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ))
            file.seek(0)
            return _Local(size, file.read(length))

    def index(self) -> bytes | None:
        try:
            return Path(self.path).with_suffix(".idx").read_bytes()
        except OSError:
            return None

    def at(self, offset: int) -> str:
        return f"{self.path}, byte {offset}"
