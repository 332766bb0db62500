"""This machine among the others of its service: the keys by which they know each other, and the roster's news.

The supervisor makes a nonce and a key pair for the askers of this machine at each start. The roster, a child, publishes
them, and reports the members of the service; the shards hear the askers of these.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from msgspec.structs import replace

from proto.ipc.control import Cluster, Control, Members
from supervisor.config.settings import Settings
from supervisor.process import listener
from supervisor.process.datadir import DataDir
from supervisor.process.listener import ListenError

VARIABLE = "TOPICS_CLUSTER_LISTEN"


@dataclass(frozen=True, slots=True)
class Address:
    """Where shard 0 listens for other machines; the others at the ports after it. `at` is where they find it."""

    host: str
    port: int
    at: str
    machine: str = ""
    """The name of this machine."""

    def of(self, index: int) -> str:
        return f"{self.host}:{self.port + index if self.port else 0}"


def address(settings: Settings, data: DataDir) -> Address | None:
    """None without `TOPICS_CLUSTER_LISTEN`. Raises `ListenError`, `DataDirError`."""
    shards = data.shards
    given = settings.cluster_listen
    if not given:
        return None
    if not settings.bucket or settings.replication != "sync":
        raise ListenError(
            f"{VARIABLE}={given} needs TOPICS_BUCKET and TOPICS_REPLICATION=sync, which decide which machine holds "
            "a shard"
        )
    found = listener.addresses(given, VARIABLE, allowed=True)
    if len(found) != 1:
        raise ListenError(f"{VARIABLE}={given}: one address is needed, 10.0.0.5:4100 for example")
    resolved = found[0][1]
    host, port = str(resolved[0]), int(resolved[1])
    if port + shards > 65536:
        raise ListenError(
            f"{VARIABLE}={given}: {shards} shards need ports up to {port + shards - 1}: choose a lower one"
        )
    at = given.rpartition(":")[0]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        at = (urlsplit(settings.advertise).hostname if settings.advertise else None) or socket.gethostname()
        at = f"[{at}]" if ":" in at else at
    return Address(f"[{host}]" if ":" in host else host, port, f"tcp://{at}", data.machine())


class Machines:
    """What this machine and the others know of each other. `changed` is called at news of the members."""

    def __init__(self, at: Address, changed: Callable[[], None]) -> None:
        from proto.ipc.remote import KeyPair  # loads ZeroMQ

        keys = KeyPair.new()
        self._at = at
        self._cluster = Cluster(f"m{secrets.token_hex(8)}", keys.public, keys.secret, member=at.machine)
        self._changed = changed
        self.members = Members({})

    def of_asker(self) -> Cluster:
        """For a gateway, which asks other machines."""
        return replace(self._cluster, known=self.members.known)

    def of_shard(self, index: int) -> Cluster:
        """For a shard, which hears them as well; and for the roster, as shard 0."""
        return replace(self._cluster, listen=self._at.of(index), at=self._at.at, members=self.members.machines)

    def heard(self, message: Control) -> None:
        """A message of the roster."""
        if isinstance(message, Members):
            self.members = message
            self._changed()
