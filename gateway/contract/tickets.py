"""Tickets: let a page in a browser open a stream or a WebSocket without its key in an address.

A browser's EventSource and WebSocket send no headers. A page requests a ticket with its key in a header, then opens the
address with `?ticket=…`:

    issued ──used for its path, within TTL_S──► used up: the stream has the key that requested the ticket
           ├─another path, or used before─────► 401
           ├─TTL_S passed─────────────────────► 401
           ├─its key gone, or changed─────────► 401
           └─the gateway started again────────► 401; the page requests another one

A text that is no ticket by its form was not issued by any gateway and is 400, with or without keys.

The gateway keeps a ticket as its SHA-256, in memory only. A ticket is valid for one path, so it grants less than its
key. The number of unused tickets of each key is limited.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from dataclasses import dataclass
from time import monotonic

from gateway.admission.slots import cap_reached
from gateway.contract.auth import Keyring, unauthorized
from proto.model.errors import invalid
from proto.model.keys import Key

TTL_S = 60.0
TICKET_BYTES = 24
_FORM = re.compile(r"ticket_[A-Za-z0-9_-]{32}", re.ASCII)


def check_form(ticket: str) -> None:
    """Check that a text has the form of tickets. Raises `400 invalid_request`."""
    if _FORM.fullmatch(ticket) is None:
        raise invalid("this is no ticket: ask for one with POST /v0/tickets", field="ticket")


@dataclass(frozen=True, slots=True)
class _Ticket:
    key: Key
    path: str
    until: float


class Tickets:
    """The unused tickets, in the order of issue, which is also that of expiry."""

    def __init__(self, keyring: Keyring, most_per_key: int) -> None:
        self._keyring = keyring
        self._most = most_per_key
        self._open: dict[bytes, _Ticket] = {}
        self._by_key: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, key: Key, path: str) -> str:
        """Return a new ticket for `path`, spelled as in the request that will use it. Raises `429 throttled`."""
        self._forget_old()
        if self._most and self._by_key[key.digest] >= self._most:
            raise cap_reached("max_tickets_per_key", self._most, f"use them, or wait {TTL_S:g} seconds")
        ticket = "ticket_" + secrets.token_urlsafe(TICKET_BYTES)
        self._open[_digest(ticket)] = _Ticket(key, path, monotonic() + TTL_S)
        self._by_key[key.digest] += 1
        return ticket

    def redeem(self, ticket: str, path: str) -> Key:
        """Use up a ticket and return the key that requested it. Raises `401 unauthorized`."""
        self._forget_old()
        found = self._take(_digest(ticket))
        if found is None or found.path != path or not self._keyring.knows(found.key):
            raise unauthorized(
                "this ticket is not good for this address: each is for one path, one use and a minute; "
                "ask for another one with POST /v0/tickets"
            )
        return found.key

    def _forget_old(self) -> None:
        now = monotonic()
        while self._open:
            digest, oldest = next(iter(self._open.items()))
            if oldest.until > now:
                return
            self._take(digest)

    def _take(self, digest: bytes) -> _Ticket | None:
        found = self._open.pop(digest, None)
        if found is not None:
            self._by_key[found.key.digest] -= 1
            if not self._by_key[found.key.digest]:
                del self._by_key[found.key.digest]
        return found


def _digest(ticket: str) -> bytes:
    # Tickets are looked up by digest, so that the duration of a look-up reveals nothing of a ticket.
    return hashlib.sha256(ticket.encode()).digest()
