"""Opened: what a service has opened before it starts anything. `boot` opens and closes it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.process.audit_file import AuditFile
from supervisor.process.cluster import Address
from supervisor.process.datadir import DataDir
from supervisor.process.rundir import RuntimeDir


@dataclass(frozen=True, slots=True)
class Opened:
    """`walrus` and `rog` are the listening sockets of these protocols, in the order of their configured addresses."""

    data: DataDir
    runtime: RuntimeDir
    listening: socket.socket
    walrus: Sequence[socket.socket] = ()
    rog: Sequence[socket.socket] = ()
    cluster: Address | None = None
    audit: AuditFile | None = None

    @property
    def sockets(self) -> list[socket.socket]:
        """All that clients connect to."""
        return [self.listening, *self.walrus, *self.rog]
