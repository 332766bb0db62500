"""Members and moves: what the machines of a service tell each other in the bucket.

    members/<machine>    a `Member`, in JSON; rewritten by its machine every third of the time to live
    moves/<number>       a `Move`, in JSON; created by the machine that gives a shard away, removed `KEPT` numbers later

A machine has a name that its data directory keeps (`supervisor.process.datadir`), and a nonce for each start. Who may
write to the bucket is trusted with all of its service. So the members say which keys are allowed, and an operator who
deletes one revokes its keys; a machine that runs writes it again. How old a member is plays no part in that.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shardd.replication.names import MEMBERS, MOVES, move_name, number_of
from shardd.replication.store import Absent, Exists, Store, StoreError, Unsealed
from shardd.roster.members import Member
from shardd.roster.moves import Move

MOST = 256
"""Machines that are read; those after them, in the order of names, are not heard."""
KEPT = 32
"""Moves that are kept, and read: the last ones. A roster that starts reads them all in one look."""


def publish(store: Store, member: Member) -> None:
    """Blocks. Raises `StoreError`."""
    store.put(MEMBERS + member.machine, msgspec.json.encode(member))


def withdraw(store: Store, member: Member) -> None:
    """Remove a member, unless a later start of its machine has written it. Blocks. Raises `StoreError`."""
    found = read_all(store, {}).get(member.machine)
    if found is not None and found.nonce == member.nonce:
        store.delete(MEMBERS + member.machine)


def read_all(store: Store, known: Mapping[str, Member]) -> dict[str, Member]:
    """All members, by machine. One that cannot be read is as it was in `known`. Blocks. Raises `StoreError` if they
    cannot be listed."""
    found: dict[str, Member] = {}
    for name in [each.name for each in store.list(MEMBERS)][:MOST]:
        machine = name.removeprefix(MEMBERS)
        try:
            member = msgspec.json.decode(store.get(name), type=Member)
        except Absent:
            continue  # removed since it was listed
        except (StoreError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if machine not in known:
                continue
            member = known[machine]
        if member.machine == machine:
            found[machine] = member
    return found


def keys(members: Mapping[str, Member]) -> dict[str, str]:
    """The nonce of each member, by its key."""
    return {each.key: each.nonce for each in members.values() if each.key}


def create_move(store: Store, move: Move) -> None:
    """Create the entry, unless there is one of its number, and remove the one that is `KEPT` numbers before it. Blocks.
    Raises `StoreError`."""
    try:
        store.create(move_name(move.number), msgspec.json.encode(move))
    except Exists:
        pass  # a look tells whose it is
    if move.number > KEPT:
        store.delete(move_name(move.number - KEPT))  # never the last one: there is, or was, that of the move


def moves_from(store: Store, number: int, shards: int) -> list[Move]:
    """The entries from this number on, at most the last `KEPT`. One that is damaged, or was removed since it was
    listed, moves nothing, and its number is taken. Blocks. Raises `StoreError`."""
    after = move_name(number - 1) if number > 1 else ""
    found = []
    for name in [each.name for each in store.list(MOVES, after)][-KEPT:]:
        at = number_of(name)
        if at is None:
            continue
        try:
            move = msgspec.json.decode(store.get(name), type=Move)
        except (Absent, Unsealed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            move = None
        valid = move is not None and move.number == at and 0 <= move.shard < shards
        found.append(move if move is not None and valid else Move(at, 0, -1, "", "", ""))
    return found
