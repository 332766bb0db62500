"""Askers: the processes that send requests to a shard, by name, and which of them are gone.

An asker is one incarnation of a gateway or of a shard. Its name is the routing id of its sockets, so ZeroMQ puts it in
front of each of its packets:

    g<index>.<incarnation>    a gateway
    s<index>.<incarnation>    a shard that asks other shards
    spare.<incarnation>       a gateway that serves only while the others are replaced; it divides no window
    m<nonce>.<name>.<number>  a link of a process on another machine, whose supervisor made the nonce at its start. The
                              number of a later link of that name is higher; the earlier link is gone then

ZeroMQ does not report the end of a peer. The supervisor does:

    1  The process of an asker ends, and the supervisor reaps it.
    2  The supervisor tells each shard the first incarnation of each process that may still live (`Askers`). All earlier
       ones are gone.
    3  A shard drops what it keeps for an asker that is gone: `shardd.process.server`.
    4  Requests of that asker may still be in the shard's socket. They are read later, and ignored.

The numbers only grow. So a report that is late, repeated, or replaced by a later one before it is sent does no harm.
An asker that no report names is served: it may have started before its report arrives. If the supervisor ends, so do
all shards.

A name connects to an endpoint once. Endpoints and names are new for every incarnation, so this holds by construction;
a ROUTER never reads from a second peer of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache


def gateway(index: int) -> str:
    """Name of a gateway in all its incarnations."""
    return f"g{index}"


SPARE = "spare"
"""Name of the spare gateway in all its incarnations."""


def shard(index: int) -> str:
    """Name of a shard in all its incarnations."""
    return f"s{index}"


def named(name: str, incarnation: int) -> str:
    """Name of one incarnation: an asker."""
    return f"{name}.{incarnation}"


def linked(machine: str, asker: str, count: int) -> str:
    """Name of an asker's `count`-th link to other machines."""
    name, _, incarnation = asker.rpartition(".")
    return named(f"{machine}.{name}", (int(incarnation) << 32) + count)


@lru_cache(1024)
def machine_of(asker: bytes) -> str:
    """The machine of a link that another machine made, else ""."""
    machine, _, rest = asker.partition(b".")
    is_link = machine[:1] == b"m" and rest.rpartition(b".")[2].isdigit() and asker.isascii()
    return machine.decode() if is_link else ""


class Census:
    """Which askers are gone, as far as a shard knows."""

    def __init__(self, first: Mapping[str, int]) -> None:
        """`first` has the first incarnation of each process that may live, as `proto.ipc.control.Askers`."""
        self._first: dict[bytes, int] = {}
        self._remote: set[bytes] = set()
        """Names of askers of other machines that have a link."""
        self.changed: Callable[[], object] = lambda: None
        """Called after each report."""
        self.update(first)

    def update(self, first: Mapping[str, int]) -> None:
        for name, incarnation in first.items():
            known = self._first.get(name.encode(), 0)
            self._first[name.encode()] = max(known, incarnation)
        self.changed()

    def met(self, asker: bytes) -> None:
        """An asker of another machine has sent a message: its earlier links are gone."""
        name, _, number = asker.rpartition(b".")
        if not number.isdigit():
            return
        first = self._first.get(name, 0)
        # After a loss, `first` may be the number of this link, which nothing has counted yet.
        if int(number) > first or (int(number) == first and name not in self._remote):
            self._first[name] = int(number)
            self._remote.add(name)
            self.changed()

    def lost(self, asker: bytes) -> None:
        """A link of another machine is gone."""
        name, _, number = asker.rpartition(b".")
        if int(number) >= self._first.get(name, 0):
            self._first[name] = int(number) + 1
            self._remote.discard(name)

    def gone(self, asker: bytes) -> bool:
        """Whether the process of this asker has ended."""
        name, _, incarnation = asker.rpartition(b".")
        return incarnation.isdigit() and int(incarnation) < self._first.get(name, 0)

    @property
    def gateways(self) -> int:
        """Number of gateways that the reports name, and of those of other machines that ask; at least 1."""
        ours = sum(name.startswith(b"g") for name in self._first)
        return max(ours + sum(b".g" in name for name in self._remote), 1)
