"""Nodes: the numbers of the machines of a service, from 1, for protocols that name a machine by one.

    nodes/<number>    in the bucket: the name of the machine, in JSON; created once, never removed

The creation decides between machines that want the same number. So no two machines have the same one, and a machine
finds its own again, unless its object is damaged or is not among the newest.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from proto.format.buffer import Buffer
from shardd.replication.names import NODES, number_of
from shardd.replication.store import Absent, Store, Unsealed, settle

MOST = 1024
"""Numbers that are read, of the newest machines. Those of others are not known."""


class Node(Struct, frozen=True):
    machine: str


class Nodes:
    """The numbers that have been read. The methods block, and raise `StoreError`; what was read before stays read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.machines: dict[int, str] = {}
        """By number: the name of the machine, "" while it cannot be read."""

    def read(self) -> None:
        listed = sorted(filter(None, (number_of(each.name) for each in self._store.list(NODES))))
        for number in listed[-MOST:]:
            self.machines[number] = self.machines.get(number) or self._read(number)

    def _read(self, number: int) -> str:
        try:
            return _machine(self._store.get(_name(number)))
        except (Absent, Unsealed):
            return ""

    def number(self, machine: str) -> int:
        """The number of a machine, created if it has none yet."""
        self.read()
        wanted = self.numbers().get(machine, 0)
        if wanted:
            return wanted
        wanted = max(self.machines, default=0)
        while self.machines.get(wanted) != machine:
            wanted += 1
            self.machines[wanted] = _machine(settle(self._store, _name(wanted), msgspec.json.encode(Node(machine))))
        return wanted

    def numbers(self) -> dict[str, int]:
        """The number of each machine."""
        return {machine: number for number, machine in sorted(self.machines.items()) if machine}


def _machine(data: Buffer) -> str:
    try:
        return msgspec.json.decode(data, type=Node).machine
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _name(number: int) -> str:
    return f"{NODES}{number:020d}"
