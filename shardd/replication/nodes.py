"""Nodes: the numbers of the machines of a service, from 1, for protocols that name a machine by one.

    nodes/<number>    in the bucket: the name of the machine, in JSON; created once, never removed

The creation decides between machines that want the same number. So a machine has one for ever, and no two have the same
one, although a machine whose object was damaged gets another.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from proto.format.buffer import Buffer
from shardd.replication.names import NODES, number_of
from shardd.replication.store import Absent, Store, Unsealed, settle


class Node(Struct, frozen=True):
    machine: str


def read_nodes(store: Store, known: Mapping[int, str]) -> dict[int, str]:
    """The name of each node's machine, "" if it is damaged. Those in `known` are not read again. Blocks. Raises
    `StoreError`."""
    numbers = filter(None, (number_of(each.name) for each in store.list(NODES)))
    return {number: known.get(number) or _read(store, number) for number in numbers}


def _read(store: Store, number: int) -> str:
    try:
        return _machine(store.get(_name(number)))
    except (Absent, Unsealed):
        return ""


def _machine(data: Buffer) -> str:
    try:
        return msgspec.json.decode(data, type=Node).machine
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _name(number: int) -> str:
    return f"{NODES}{number:020d}"


def number(store: Store, machine: str) -> int:
    """The number of a machine, created if it has none yet. Blocks. Raises `StoreError`."""
    taken = read_nodes(store, {})
    for number, other in taken.items():
        if other == machine:
            return number
    wanted = max(taken, default=0) + 1
    while _machine(settle(store, _name(wanted), msgspec.json.encode(Node(machine)))) != machine:
        wanted += 1
    return wanted
