"""A disk in memory that keeps exactly what `shardd.disk` promises, and fails on demand.

Every call counts. `crash_at` stops the machine before a call (the call and all after it raise `Crash`); `faults` maps a
call's number to what goes wrong there: an `OSError` to raise, or an int: how many bytes a write takes before it stops.
`after_crash` is the disk as the next boot finds it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from proto.frame import Buffer

Survival = Literal["process", "drop", "tear"]
"""What survives: everything written (only the process died), only what was synced, or a random part of the rest."""


class Crash(BaseException):
    """The machine stopped. Not an Exception: nothing in the product may handle it."""


@dataclass
class Node:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class FaultFile:
    def __init__(self, disk: FaultDisk, node: Node, name: str) -> None:
        self._disk = disk
        self._node = node
        self._name = name

    def write(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        fault = self._disk.call("write", self._name)
        if isinstance(fault, int):
            data = data[:fault]
        self._node.data += data
        return len(data)

    def write_at(self, offset: int, data: bytes) -> None:
        if isinstance(self._disk.call("write_at", self._name), int):
            raise OSError(5, "short write in place")
        self._node.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        self._disk.call("sync", self._name)
        self._node.synced = bytes(self._node.data)

    def truncate(self, size: int) -> None:
        self._disk.call("truncate", self._name)
        del self._node.data[size:]

    def close(self) -> None:
        pass


class FaultDisk:
    def __init__(self, boot: int = 1) -> None:
        self.boot = boot
        self.names: dict[Path, Node] = {}
        self.durable: dict[Path, Node] = {}
        self.calls: list[tuple[str, str]] = []
        self.renamed: list[tuple[Path, Path]] = []
        self.crash_at: int | None = None
        self.faults: dict[int, OSError | int] = {}
        self.fail: dict[str, OSError] = {}
        """Call name → error for every such call until it is taken out again."""
        self.free_bytes = 1 << 40

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
            copies = {id(node): Node(bytearray(node.data), node.synced) for node in self._nodes()}
            found.names = {path: copies[id(node)] for path, node in self.names.items()}
            found.durable = {path: copies[id(node)] for path, node in self.durable.items()}
            found.renamed = list(self.renamed)
            return found
        found = FaultDisk(self.boot + 1)
        rng = random.Random(seed)
        for path, node in (self.names if survival == "tear" and rng.random() < 0.5 else self.durable).items():
            data = node.synced if survival == "drop" else _torn(bytes(node.data), node.synced, rng)
            found.names[path] = Node(bytearray(data), data)
        found.durable = dict(found.names)
        return found

    def settled(self) -> FaultDisk:
        """All that was written has come to the device by itself."""
        found = self.after_crash("process")
        for node in found.names.values():
            node.synced = bytes(node.data)
        found.durable = dict(found.names)
        return found

    def _nodes(self) -> list[Node]:
        return [*self.names.values(), *self.durable.values()]

    def boot_id(self) -> str:
        return f"boot {self.boot}"

    def make_dir(self, path: Path) -> None:
        pass

    def list(self, path: Path) -> list[str]:
        return sorted({p.relative_to(path).parts[0] for p in self.names if path in p.parents})

    def size(self, path: Path) -> int:
        return len(self._node(path).data)

    def free(self, path: Path) -> int:
        return self.free_bytes

    def _node(self, path: Path) -> Node:
        if path not in self.names:
            raise FileNotFoundError(2, "no such file", str(path))
        return self.names[path]

    def create(self, path: Path) -> FaultFile:
        self.call("create", path.name)
        node = self.names.get(path)
        if node is None:
            node = self.names[path] = Node()
        node.data.clear()
        return FaultFile(self, node, path.name)

    def open(self, path: Path) -> FaultFile:
        return FaultFile(self, self._node(path), path.name)

    def read(self, path: Path) -> memoryview:
        return memoryview(bytes(self._node(path).data))

    def replace(self, source: Path, target: Path) -> None:
        self.call("replace", target.name)
        if source in self.names:
            self.names[target] = self.names.pop(source)
            return
        inside = [p for p in self.names if source in p.parents]
        assert inside, "nothing to rename"
        assert not any(target in p.parents for p in self.names), "the name is taken"
        for path in inside:
            self.names[target / path.relative_to(source)] = self.names.pop(path)
        self.renamed.append((source, target))

    def remove(self, path: Path) -> None:
        self.call("remove", path.name)
        self._node(path)
        del self.names[path]

    def remove_tree(self, path: Path) -> None:
        self.call("remove_tree", path.name)
        for name in [p for p in self.names if path in p.parents]:
            del self.names[name]
        for name in [p for p in self.durable if path in p.parents]:
            del self.durable[name]

    def sync_dir(self, path: Path) -> None:
        self.call("sync_dir", path.name)
        for name in [p for p in self.durable if p.parent == path and p not in self.names]:
            del self.durable[name]
        self.durable.update({p: node for p, node in self.names.items() if p.parent == path})
        # A directory's new name is there once its new parent is synced, its old name is gone once the old one is.
        for source, target in self.renamed:
            if target.parent == path:
                for p in [p for p in self.durable if source in p.parents]:
                    self.durable[target / p.relative_to(source)] = self.durable[p]
            if source.parent == path:
                for p in [p for p in self.durable if source in p.parents and p not in self.names]:
                    del self.durable[p]


def _torn(data: bytes, synced: bytes, rng: random.Random) -> bytes:
    """What was synced, a random part of what was appended since, and perhaps zeros where the rest should be."""
    if len(data) <= len(synced):
        return rng.choice((data, synced))
    kept = rng.randint(len(synced), len(data))
    zeros = rng.choice((0, 0, len(data) - kept))
    return data[:kept] + bytes(zeros)
