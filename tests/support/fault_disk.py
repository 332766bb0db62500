"""The fault disk: a disk in memory that keeps exactly what `shardd.storage.disk` promises, and fails on demand.

A sync that fails makes nothing durable, and the kernel forgets what it was to cover: a later sync that succeeds brings
only what was written since.

Every call is numbered. `crash_at` stops the machine before a call: this call and all later ones raise `Crash`. `faults`
maps a call's number to its fault: an `OSError` to raise, or an int, the bytes that a write takes before it stops.
`after_crash` is the disk as the next boot finds it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from proto.format.buffer import Buffer

Survival = Literal["process", "drop", "tear"]
"""What survives a crash: all writes (only the process died), only synced ones, or also a random part of the rest."""


class Crash(BaseException):
    """The machine stopped. Not an `Exception`, because the product must not handle it."""


@dataclass
class Node:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    dirty: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of `data` that were written since the last sync, whether that succeeded or not."""

    def write(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data
        self.dirty.append((offset, offset + len(data)))

    def sync(self) -> None:
        durable = bytearray(self.synced[: len(self.data)])
        durable += bytes(len(self.data) - len(durable))
        for begin, end in self.dirty:
            durable[begin:end] = self.data[begin:end]
        self.synced = bytes(durable)
        self.dirty.clear()

    def copy(self) -> Node:
        return Node(bytearray(self.data), self.synced, list(self.dirty))


class FaultFile:
    def __init__(self, disk: FaultDisk, node: Node, name: str) -> None:
        self._disk = disk
        self._node = node
        self._name = name
        self._closed = False

    def _call(self, what: str) -> OSError | int | None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self._name)
        return self._disk.call(what, self._name)

    def write(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        fault = self._call("write")
        if isinstance(fault, int):
            data = data[:fault]
        room = self._disk.room()
        if data and not room:
            raise OSError(errno.ENOSPC, "no space left on device", self._name)
        data = data[:room]
        self._node.write(len(self._node.data), data)
        return len(data)

    def write_at(self, offset: int, data: bytes) -> None:
        if isinstance(self._call("write_at"), int):
            raise OSError(5, "short write in place")
        self._node.write(offset, data)

    def sync(self) -> None:
        try:
            self._call("sync")
        except OSError:
            self._node.dirty.clear()
            raise
        self._node.sync()

    def truncate(self, size: int) -> None:
        self._call("truncate")
        del self._node.data[size:]
        self._node.write(len(self._node.data), bytes(size - len(self._node.data)))

    def close(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self._name)
        self._closed = True


class FaultDisk:
    def __init__(self, boot: int = 1) -> None:
        self.boot = boot
        self.names: dict[Path, Node] = {}
        self.durable: dict[Path, Node] = {}
        self.calls: list[tuple[str, str]] = []
        self.renamed: list[tuple[Path, Path]] = []
        self.dirs: set[Path] = set()
        """Directories that `make_dir` made."""
        self.unsynced_dirs: set[Path] = set()
        """Directories of `dirs` without a durable name: a crash of the machine removes them and all that they hold."""
        self.removed_dirs: set[Path] = set()
        """Directories that were removed, and whose parents were not synced since: a crash of the machine brings them
        back, with what they held when they were synced."""
        self.crash_at: int | None = None
        self.faults: dict[int, OSError | int] = {}
        self.fail: dict[str, OSError] = {}
        """Call name → error of every such call while it is in the dict."""
        self.unreadable: dict[Path, OSError] = {}
        """Path → error that reading the file raises."""
        self.bad: dict[Path, range] = {}
        """Path → the bytes of the file that the device cannot read."""
        self.free_bytes = 1 << 40
        self.capacity: int | None = None
        """The most bytes of files and allotted blocks together; `free_bytes` is not used then."""
        self.allotments: dict[Path, tuple[int, int]] = {}
        """Files of allotted blocks: their size, and how many of the bytes have blocks."""

    def call(self, what: str, name: str) -> OSError | int | None:
        number = len(self.calls)
        if self.crash_at is not None and number >= self.crash_at:
            raise Crash
        self.calls.append((what, name))
        fault = self.faults.get(number, self.fail.get(what))
        if isinstance(fault, OSError):
            raise fault
        return fault

    def after_crash(self, survival: Survival, seed: int = 0) -> FaultDisk:
        if survival == "process":
            found = FaultDisk(self.boot)
            copies = {id(node): node.copy() for node in self._nodes()}
            found.names = {path: copies[id(node)] for path, node in self.names.items()}
            found.durable = {path: copies[id(node)] for path, node in self.durable.items()}
            found.renamed = list(self.renamed)
            found.capacity, found.allotments = self.capacity, dict(self.allotments)
            found.dirs, found.unsynced_dirs = set(self.dirs), set(self.unsynced_dirs)
            found.removed_dirs = set(self.removed_dirs)
            return found
        found = FaultDisk(self.boot + 1)
        rng = random.Random(seed)
        everything = survival == "tear" and rng.random() < 0.5
        lost = set() if everything else self.unsynced_dirs
        dirs = self.dirs if everything else self.dirs | self.removed_dirs
        found.dirs = {path for path in dirs if lost.isdisjoint((path, *path.parents))}
        for path, node in (self.names if everything else self.durable).items():
            if not lost.isdisjoint(path.parents):
                continue
            data = node.synced if survival == "drop" else _torn(bytes(node.data), node.synced, rng)
            found.names[path] = Node(bytearray(data), data)
        found.durable = dict(found.names)
        found.capacity, found.allotments = self.capacity, dict(self.allotments)
        return found

    def settled(self) -> FaultDisk:
        """Make all writes durable, as if the system had flushed them by itself."""
        found = self.after_crash("process")
        for node in found.names.values():
            node.synced = bytes(node.data)
            node.dirty.clear()
        found.durable = dict(found.names)
        found.unsynced_dirs.clear()
        found.removed_dirs.clear()
        return found

    def _nodes(self) -> list[Node]:
        return [*self.names.values(), *self.durable.values()]

    def boot_id(self) -> str:
        return f"boot {self.boot}"

    def make_dir(self, path: Path) -> None:
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "is no directory", str(path))
        # What is at the top is there when the machine is set up: a data directory, a cold one.
        unknown = [each for each in (path, *path.parents) if each not in self.dirs and len(each.parts) > 2]
        missing = [each for each in unknown if not _below(self.names, each)]
        if missing:
            self.call("make_dir", path.name)
            self.dirs.update(missing)
            self.unsynced_dirs.update(missing)
            for each in self.removed_dirs.intersection(missing):
                self._forget_removed(each)

    def list(self, path: Path) -> list[str]:
        if path in self.names:
            raise NotADirectoryError(errno.ENOTDIR, "is no directory", str(path))
        depth = len(path.parts)
        found: tuple[Iterable[Path], ...] = (self.names, self.allotments, self.dirs)
        return sorted({p.parts[depth] for paths in found for p in _below(paths, path)})

    def size(self, path: Path) -> int:
        return self.allotments[path][0] if path in self.allotments else len(self._node(path).data)

    def free(self, path: Path) -> int:
        return self.free_bytes if self.capacity is None else max(self.capacity - self.used, 0)

    @property
    def used(self) -> int:
        return sum(len(node.data) for node in self.names.values()) + sum(held for _, held in self.allotments.values())

    def room(self) -> int:
        return 1 << 62 if self.capacity is None else max(self.capacity - self.used, 0)

    def allot(self, path: Path, size: int) -> None:
        self.call("allot", path.name)
        _, held = self.allotments.setdefault(path, (0, 0))
        if size <= 0:
            raise OSError(errno.EINVAL, "nothing to allocate", str(path))
        if size - held > self.room():
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        self.allotments[path] = (size, size)

    def vacate(self, path: Path) -> None:
        self.call("vacate", path.name)
        self.allotments[path] = (self.allotted(path)[0], 0)

    def allotted(self, path: Path) -> tuple[int, int]:
        if path not in self.allotments:
            raise _missing(path)
        return self.allotments[path]

    def _is_dir(self, path: Path) -> bool:
        return len(path.parts) <= 2 or path in self.dirs or any(path in each.parents for each in self.names)

    def _node(self, path: Path) -> Node:
        if path not in self.names:
            raise _missing(path)
        return self.names[path]

    def create(self, path: Path) -> FaultFile:
        self.call("create", path.name)
        if not self._is_dir(path.parent):
            raise _missing(path)
        node = self.names.get(path)
        if node is None:
            node = self.names[path] = Node()
        node.data.clear()
        return FaultFile(self, node, path.name)

    def open(self, path: Path) -> FaultFile:
        return FaultFile(self, self._node(path), path.name)

    def read(self, path: Path) -> memoryview:
        return memoryview(self.read_part(path, 0, len(self._node(path).data)))

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        if (error := self.unreadable.get(path)) is not None:
            raise error
        bad = self.bad.get(path, range(0))
        if bad and offset < bad.stop and bad.start < offset + size:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return bytes(self._node(path).data[offset : offset + size])

    def replace(self, source: Path, target: Path) -> None:
        self.call("replace", target.name)
        if source in self.names:
            self.names[target] = self.names.pop(source)
            return
        if not self._is_dir(source):
            raise _missing(source)
        if _below(self.names, target) or _below(self.dirs, target):
            raise OSError(errno.ENOTEMPTY, "the name is taken", str(target))
        for path in _below(self.names, source):
            self.names[target / path.relative_to(source)] = self.names.pop(path)
        for path in [p for p in self.dirs if p == source] + _below(self.dirs, source):
            self.dirs.discard(path)
            self.dirs.add(target / path.relative_to(source))
        for path in _below(self.unsynced_dirs, source):
            self.unsynced_dirs.add(target / path.relative_to(source))
        self.removed_dirs.difference_update(_below(self.removed_dirs, source))
        self.renamed.append((source, target))

    def remove(self, path: Path) -> None:
        self.call("remove", path.name)
        if self.allotments.pop(path, None) is not None:
            return
        self._node(path)
        del self.names[path]

    def remove_dir(self, path: Path) -> None:
        self.call("remove_dir", path.name)
        if not self._is_dir(path):
            raise _missing(path)
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(path))
        self.dirs.remove(path)
        self.removed_dirs.add(path)
        if path in self.unsynced_dirs:
            self.unsynced_dirs.remove(path)
            self._forget_removed(path)

    def _forget_removed(self, path: Path) -> None:
        """Have a removed directory, and what it held, never come back."""
        self.removed_dirs.remove(path)
        for name in _below(self.durable, path):
            del self.durable[name]

    def remove_tree(self, path: Path) -> None:
        self.call("remove_tree", path.name)
        for name in _below(self.names, path):
            del self.names[name]
        for name in _below(self.durable, path):
            del self.durable[name]
        for made in (self.dirs, self.unsynced_dirs, self.removed_dirs):
            made -= {path, *_below(made, path)}

    def sync_dir(self, path: Path) -> None:
        self.call("sync_dir", path.name)
        if not self._is_dir(path):
            raise _missing(path)
        self.unsynced_dirs -= {p for p in self.unsynced_dirs if p.parent == path}
        for removed in [p for p in self.removed_dirs if p.parent == path]:
            self._forget_removed(removed)
        for name in [p for p in self.durable if p.parent == path and p not in self.names]:
            del self.durable[name]
        self.durable.update({p: node for p, node in self.names.items() if p.parent == path})
        # A directory's new name is durable once its new parent is synced; its old name is gone once the old parent is.
        for source, target in self.renamed:
            if target.parent == path:
                for p in _below(self.durable, source):
                    self.durable[target / p.relative_to(source)] = self.durable[p]
            if source.parent == path:
                for p in [p for p in _below(self.durable, source) if p not in self.names]:
                    del self.durable[p]


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such file or directory", str(path))


def _below(paths: Iterable[Path], directory: Path) -> list[Path]:
    """Return the paths below a directory, at any depth. Called very often: `parts` is cached by pathlib, `parents` is
    not."""
    parts = directory.parts
    depth = len(parts)
    return [path for path in paths if path.parts[:depth] == parts and len(path.parts) > depth]


def _torn(data: bytes, synced: bytes, rng: random.Random) -> bytes:
    """Return the synced bytes, a random part of the bytes appended since, and perhaps zeros in place of the rest."""
    if len(data) <= len(synced):
        return rng.choice((data, synced))
    kept = rng.randint(len(synced), len(data))
    zeros = rng.choice((0, 0, len(data) - kept))
    return data[:kept] + bytes(zeros)
