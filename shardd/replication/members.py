"""Members: which machines a service has, and the keys by which their askers are heard.

    members/<machine>    in the bucket: a `Member`, in JSON; rewritten by its machine every third of the time to live

A machine has a name that its data directory keeps (`supervisor.process.datadir`), and a nonce for each start. Who may
write to the bucket is trusted with all of its service. So this list says which keys are allowed, and an operator who
deletes a member revokes its keys; a machine that runs writes it again. How old a member is plays no part in that.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from shardd.replication.names import MEMBERS
from shardd.replication.store import Absent, Store, StoreError

MOST = 256
"""Machines that are read; those after them, in the order of names, are not heard."""


class Member(Struct, frozen=True, omit_defaults=True):
    """A machine of the service. Fields are appended: an older release ignores those that it does not know."""

    machine: str
    nonce: str
    """Begins the names of its askers, see `proto.ipc.askers`."""
    address: str
    """Where its clients reach it."""
    key: str
    """The public key of its askers."""
    endpoint: str
    """Where its first shard hears other machines, the others at the ports after it; port 0 if each has any."""
    at_ms: int
    """Its wall clock when it wrote this."""


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
    return {each.key: each.nonce for each in members.values()}
