"""Storage: files as readers see them, in a directory or as objects of a bucket (`bucket`).

A reader opens the first bytes of a file and says which of them it needs. Only these are read. Nothing is mapped: a map
ends the process where the device cannot read. Files are pickled with the pieces that tasks read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from errno import EIO
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Protocol
from weakref import finalize

import pyarrow as pa

from pyspark_topics.errors import CorruptFile


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
    """Content of a file of a directory, whose descriptor it has until the last reference to it is gone."""

    def __init__(self, path: str, end: int | None) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        length = self.size if end is None else min(end, self.size)
        self.buffer = pa.allocate_buffer(length) if length else pa.py_buffer(b"")
        self.view = memoryview(self.buffer)
        if length:
            self.view = self.view.cast("B")  # they are signed ones

    def need(self, ranges: Iterable[tuple[int, int]]) -> None:
        start = stop = 0
        for offset, size in ranges:
            if offset != stop:
                self._read(start, stop)
                start = offset
            stop = offset + size
        self._read(start, stop)

    def _read(self, start: int, stop: int) -> None:
        if (read := self._filled(start, stop)) < min(stop, len(self.view)):
            raise CorruptFile(f"{self._path}: it ends at byte {read}, and had {self.size}")

    def _filled(self, at: int, stop: int) -> int:
        """Where the bytes end that could be read."""
        while part := self.view[at:stop]:
            try:
                count = os.preadv(self._descriptor, [part], at)
            except OSError as error:
                if error.errno != EIO:
                    raise
                raise CorruptFile(f"{self._path}, byte {at}: the device cannot read it ({error.strerror})") from error
            if not count:
                break
            at += count
        return at


class _Whole(_Local):
    """Content of a file of which bytes may be cut off at any time, read when it is opened."""

    def __init__(self, path: str, end: int | None) -> None:
        super().__init__(path, end)
        length = self._filled(0, len(self.view))
        self.buffer, self.view = self.buffer.slice(0, length), self.view[:length]

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
    remedy: ClassVar = ""
    constant: ClassVar = False

    def open(self, end: int | None, *, settled: bool) -> _Local:
        return (_Local if settled else _Whole)(self.path, end)

    def index(self) -> bytes | None:
        try:
            return Path(self.path).with_suffix(".idx").read_bytes()
        except OSError:
            return None

    def at(self, offset: int) -> str:
        return f"{self.path}, byte {offset}"
