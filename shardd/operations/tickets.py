"""Tickets whose home is this shard: who requested them, and for what. `gateway.api.tickets` has what a ticket is.

The home of a ticket is the shard of its key's digest, so one place counts the tickets of a key, and one place decides
that a ticket is used once. They are in memory only, as SHA-256: a restart of the shard voids them.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from proto.ipc.message import Reply, Request
from proto.ipc.operations import TicketHolder, TicketMake, TicketUse
from proto.model.errors import cap_reached
from proto.model.limits import TICKET_TTL_S
from shardd.changes.transactions import Respond, Staging
from shardd.storage.indivisible import indivisible


class _Ticket(Struct, frozen=True):
    holder: TicketHolder
    path: bytes
    until: float


class Tickets:
    """The unused tickets, in the order of issue, which is also that of expiry."""

    def __init__(self, staging: Staging) -> None:
        self._clock = staging.clock
        self._most = staging.limits.max_tickets_per_key
        self._unused: dict[bytes, _Ticket] = {}
        self._held: Counter[bytes] = Counter()
        """Number of unused tickets by the digest of their key."""

    def make(self, request: Request[TicketMake], respond: Respond) -> None:
        """Keeps a ticket. Raises `429 throttled`."""
        self._forget_old()
        asked = request.options
        if self._most and self._held[asked.owner] >= self._most:
            raise cap_reached("max_tickets_per_key", self._most, f"use them, or wait {TICKET_TTL_S:g} seconds")
        holder = TicketHolder(asked.owner, asked.scopes, asked.prefixes)
        ticket = _Ticket(holder, asked.path, self._clock.monotonic() + TICKET_TTL_S)
        with indivisible:
            self._unused[asked.ticket] = ticket
            self._held[asked.owner] += 1
            respond(Reply(request.id))

    def use(self, request: Request[TicketUse], respond: Respond) -> None:
        """Answers with the holder of a ticket for this path, or with nothing. The ticket is used up in both cases."""
        self._forget_old()
        asked = request.options
        found = self._unused.get(asked.ticket)
        if found is None:
            respond(Reply(request.id))
            return
        with indivisible:
            self._take(asked.ticket)
            respond(Reply(request.id, extra=found.holder if found.path == asked.path else None))

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        while self._unused:
            digest, oldest = next(iter(self._unused.items()))
            if oldest.until > now:
                return
            with indivisible:
                self._take(digest)

    def _take(self, digest: bytes) -> None:
        owner = self._unused.pop(digest).holder.owner
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
