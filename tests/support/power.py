"""Power cuts: a service whose calls on its files are traced (`power/trace.c`), and the files that a cut leaves.

A cut is SIGKILL of all processes, and then a data directory with what a device may have at that moment. Durable is
what a sync covered, by the contract of `shardd.storage.disk`:

    bytes and size of a file     a sync of it that began after the write, and ended
    a name in a directory        a sync of the directory that began after the name was made, changed or removed

The rest is pending, and survives by the mode of the cut:

    drop       nothing of it
    keep       all of it
    tear       of each file and directory what came first; the last write in part, and perhaps zeros after it
    reorder    of each file any of the writes, in whole sectors, and zeros for the others; of each name any first part
               of its changes

A sync of a file may be made to fail. The device then has any sectors of the writes that it was to cover, and a later
sync that succeeds brings none of the others: the kernel takes them for written. Names that a failed sync of a directory
was to cover stay pending.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.support.programs import tool
from tests.support.service import Service

HEAD = struct.Struct("<4sIQQQIIQ")
assert HEAD.size == 48
CREATE, WRITE, SIZE, RENAME, UNLINK, MKDIR, RMDIR, SYNC, SYNCED, FAILED = range(1, 11)
MODES = ("drop", "keep", "tear", "reorder")
SECTOR = 512
_FOLDER = Path(__file__).parent / "power"


class Record(NamedTuple):
    op: int
    time_ns: int
    inode: int
    offset: int
    one: str
    two: str
    data: bytes


def records(path: Path) -> Iterator[Record]:
    """The records of a trace. A kill may have ended it within the last one."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        at = 0
        while at + HEAD.size <= len(view):
            magic, op, time_ns, inode, offset, one, two, length = HEAD.unpack_from(view, at)
            assert magic == b"TPPW", f"{path}, offset {at}: records are mixed"
            paths = at + HEAD.size
            data = paths + one + two
            at = data + length
            if at > len(view):
                return
            names = view[paths : paths + one].decode(), view[paths + one : data].decode()
            yield Record(op, time_ns, inode, offset, *names, view[data:at])


@dataclass(eq=False, slots=True)
class File:
    """Pending are writes, (offset, bytes), and sizes, (size, None), after the first `applied` ones."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    applied: int = 0

    def sync(self, upto: int) -> None:
        count = max(upto - self.applied, 0)
        for each in self.pending[:count]:
            _apply(self.durable, *each)
        del self.pending[:count]
        self.applied += count

    def lose(self, upto: int, rng: Random) -> None:
        """A sync has failed."""
        count = max(upto - self.applied, 0)
        for at, data in self.pending[:count]:
            _apply_some(self.durable, at, data, rng, 0.5)
        del self.pending[:count]
        self.applied += count

    def survivor(self, mode: str, rng: Random) -> bytes:
        content = bytearray(self.durable)
        if mode == "drop":
            return bytes(content)
        if mode == "reorder":
            for at, data in self.pending:
                _apply_some(content, at, data, rng, 0.7)
            return bytes(content)
        kept = len(self.pending) if mode == "keep" else rng.randint(0, len(self.pending))
        for each in self.pending[:kept]:
            _apply(content, *each)
        if kept < len(self.pending):
            at, data = self.pending[kept]
            if data is not None:
                part = rng.randint(0, len(data))
                _apply(content, at, data[:part] + bytes(rng.choice((0, len(data) - part))))
        return bytes(content)


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
    if len(content) < at:
        content += bytes(at - len(content))
    if data is not None:
        content[at : at + len(data)] = data


def _apply_some(content: bytearray, at: int, data: bytes | None, rng: Random, share: float) -> None:
    """Apply a size or not, and this share of the sectors of a write."""
    if data is None:
        if rng.random() < 0.5:
            _apply(content, at, None)
        return
    for begin in range(0, len(data), SECTOR):
        if rng.random() < share:
            _apply(content, at + begin, data[begin : begin + SECTOR])


@dataclass(eq=False, slots=True)
class Folder:
    """`now` has the names as the process sees them. Each pending change is of one name, or of two that a rename within
    the directory changes together."""

    now: dict[str, Any] = field(default_factory=dict)
    durable: dict[str, Any] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)
    applied: int = 0

    def change(self, **names: Any) -> None:
        """Give names to files or folders; None removes a name."""
        _rename(self.now, names)
        self.pending.append(names)

    def sync(self, upto: int) -> None:
        count = max(upto - self.applied, 0)
        for each in self.pending[:count]:
            _rename(self.durable, each)
        del self.pending[:count]
        self.applied += count

    def survivors(self, mode: str, rng: Random) -> dict[str, Any]:
        names = dict(self.durable)
        kept = len(self.pending) if mode in ("keep", "reorder") else 0
        if mode == "tear":
            kept = rng.randint(0, len(self.pending))
        lost: set[str] = set()
        for each in self.pending[:kept]:
            if mode == "reorder" and (rng.random() < 0.3 or not lost.isdisjoint(each)):
                lost.update(each)
            else:
                _rename(names, each)
        return names


def _rename(names: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Device:
    """The files below a directory, as far as they are durable, and what is pending."""

    def __init__(self, root: Path, seen: Path | None = None, rng: Random | None = None) -> None:
        """All that `root` has is durable. `seen` is its path for the processes that are traced, if that is another one;
        `rng` decides what the device has after a failed sync."""
        self.root = seen or root
        self._rng = rng or Random(0)
        self._files: dict[int, File] = {}
        self.top = self._scanned(root) if root.is_dir() else Folder()
        self._begun: dict[int, tuple[File | Folder, int, int]] = {}
        self.slowest_sync_ns = 0

    def _scanned(self, path: Path) -> Folder:
        folder = Folder()
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                folder.now[entry.name] = self._scanned(path / entry.name)
            else:
                file = File(bytearray((path / entry.name).read_bytes()))
                folder.now[entry.name] = self._files[entry.inode()] = file
        folder.durable = dict(folder.now)
        return folder

    def _folder(self, path: Path) -> Folder:
        found = self.top
        for part in path.relative_to(self.root).parts:
            found = found.now[part]
        return found

    @property
    def unsynced(self) -> int:
        """The files that have pending writes."""
        return sum(bool(file.pending) for file in self._files.values())

    def play(self, trace: Path) -> None:
        for record in records(trace):
            self._take(record)

    def _take(self, record: Record) -> None:
        op, path = record.op, Path(record.one)
        if op in (SYNC, SYNCED, FAILED):
            self._take_sync(record)
        elif op == WRITE:
            self._files[record.inode].pending.append((record.offset, record.data))
        elif op == SIZE:
            self._files[record.inode].pending.append((record.offset, None))
        elif path == self.root:
            assert op == MKDIR, "the data directory itself was moved"
        elif op == CREATE:
            file = self._files[record.inode] = File()
            self._folder(path.parent).change(**{path.name: file})
        elif op == MKDIR:
            self._folder(path.parent).change(**{path.name: Folder()})
        elif op == RENAME:
            source, target = self._folder(path.parent), self._folder(Path(record.two).parent)
            moved, name = source.now[path.name], Path(record.two).name
            if source is target:
                source.change(**{path.name: None, name: moved})
            else:
                target.change(**{name: moved})
                source.change(**{path.name: None})
        else:
            self._folder(path.parent).change(**{path.name: None})

    def _take_sync(self, record: Record) -> None:
        if record.op == SYNC:
            if record.one and not Path(record.one).is_relative_to(self.root):
                return
            node = self._folder(Path(record.one)) if record.one else self._files[record.inode]
            self._begun[record.offset] = node, node.applied + len(node.pending), record.time_ns
            return
        begun = self._begun.pop(record.offset, None)
        if begun is None:
            return
        node, upto, since_ns = begun
        if record.op == SYNCED:
            node.sync(upto)
            self.slowest_sync_ns = max(self.slowest_sync_ns, record.time_ns - since_ns)
        elif isinstance(node, File):
            node.lose(upto, self._rng)

    def write(self, target: Path, mode: str, rng: Random) -> None:
        """Make a directory with what survives a cut now."""
        target.mkdir(mode=0o700)
        self._write(self.top, target, mode, rng)

    def _write(self, folder: Folder, target: Path, mode: str, rng: Random) -> None:
        for name, node in folder.survivors(mode, rng).items():
            if isinstance(node, Folder):
                (target / name).mkdir(mode=0o700)
                self._write(node, target / name, mode, rng)
            else:
                (target / name).write_bytes(node.survivor(mode, rng))
                (target / name).chmod(0o600)


def built(directory: Path) -> Path:
    """The library, made by the C compiler of this machine. A test without one is left out."""
    library = directory / "trace.so"
    options = ["-shared", "-fPIC", "-O2", "-U_FORTIFY_SOURCE"]
    command = [tool("gcc", "cc"), *options, "-o", str(library), str(_FOLDER / "trace.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class Faults:
    """The faults of a device. They hold until they are lifted, but for syncs that are counted."""

    _SET, _FAILED = struct.Struct("<iiI"), struct.Struct("<I")

    def __init__(self, path: Path) -> None:
        size = self._SET.size + self._FAILED.size
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), size)

    def set(self, *, syncs: int = 0, write_errno: int = 0, sync_s: float = 0.0) -> None:
        """`syncs` fail, -1: all; writes fail with an error; syncs take so much longer. What is not named is lifted."""
        self._SET.pack_into(self._shared, 0, syncs, write_errno, int(sync_s * 1e6))

    @property
    def failed(self) -> int:
        """Syncs that have failed so far."""
        found: int = self._FAILED.unpack_from(self._shared, self._SET.size)[0]
        return found


class Power:
    """The power of one service, whose directory is `directory`. `environment` is for the service."""

    def __init__(self, directory: Path, rng: Random, root: Path | None = None, seen: Path | None = None) -> None:
        """`root` is the data directory, by default that of a `Service`; `seen` its path for the service, if that is
        another one."""
        self._rng = rng
        self._trace, self._boot = directory / "trace", directory / "boot_id"
        self._root = root or directory / "data"
        self._seen = seen or self._root
        self._device = Device(self._root, self._seen, rng)
        self._boots = 0
        self.slowest_sync_ns = 0
        self.modes = dict.fromkeys(MODES, 0)
        self.unsynced = 0
        """Files that had writes which no sync covered, at cuts that may take them."""
        self.faults = Faults(directory / "faults")
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONPOWER_LIBRARY": str(built(directory)),
            "PYTHONPOWER_ROOT": str(self._seen),
            "PYTHONPOWER_TRACE": str(self._trace),
            "PYTHONPOWER_BOOT": str(self._boot),
            "PYTHONPOWER_FAULTS": str(directory / "faults"),
        }
        self._next_boot()

    def _next_boot(self) -> None:
        self._boots += 1
        self._boot.write_text(f"boot {self._boots}\n")
        self._trace.unlink(missing_ok=True)

    def cut(self, service: Service) -> int:
        """Kill all processes and leave what survives. Returns the moment, of `time.monotonic_ns`. The caller starts
        the service."""
        service.kill_group()
        killed_ns = time.monotonic_ns()
        mode = self._rng.choice(MODES)
        self.modes[mode] += 1
        self._device.play(self._trace)
        self.unsynced += self._device.unsynced if mode != "keep" else 0
        shutil.rmtree(self._root)
        self._device.write(self._root, mode, self._rng)
        self.slowest_sync_ns = max(self.slowest_sync_ns, self._device.slowest_sync_ns)
        self._device = Device(self._root, self._seen, self._rng)
        self._next_boot()
        return killed_ns

    def figures(self) -> str:
        modes = ", ".join(f"{count} {mode}" for mode, count in self.modes.items())
        return f"{modes}; slowest sync {self.slowest_sync_ns / 1e6:.0f} ms"
