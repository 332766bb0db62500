"""Tickets: let a page in a browser open a stream or a WebSocket without its key in an address.

A browser's EventSource and WebSocket send no headers. A page requests a ticket with its key in a header, then opens the
address with `?ticket=…`. The home shard of the key keeps the ticket (`shardd.operations.tickets`), and the ticket names
that shard, so any gateway may use it:

    ticket_ + base64url of    u16 big-endian    index of the home shard, that of the key's digest
                              22 bytes          random

A text that is no ticket by its form was not issued by any gateway and is 400, with or without keys. The home shard gets
the SHA-256 of a ticket, never the ticket.

    made ──used for its path, within TICKET_TTL_S──► used up: the stream has the key that requested the ticket
         ├─another path, or used before────────────► 401
         ├─TICKET_TTL_S passed─────────────────────► 401
         ├─its key gone, or changed────────────────► 401
         ├─its home shard started again────────────► 401; the page requests another one
         ├─its home shard does not serve───────────► 503; the ticket stays as it is
         └─no answer from its home shard───────────► 503; the ticket may be used up

A client that presents a ticket has shown no key yet. So `MOST_USES` bounds the requests of such clients to each shard:
made-up tickets do not fill its link, and a shard that hangs delays no ticket of another.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeVar

from gateway.admission.slots import Bound, Slots
from gateway.contract.auth import UNPROVEN, Keyring, unauthorized
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import Operation, TicketMake, TicketUse
from proto.model.errors import invalid
from proto.model.keys import Key, Scope

A = TypeVar("A")
HOME_BYTES = 2
RANDOM_BYTES = 22
MOST_USES = 256
"""Requests at a time that ask one shard for a ticket."""
_FORM = re.compile(r"ticket_([A-Za-z0-9_-]{32})", re.ASCII)


def check_form(ticket: str) -> None:
    """Check that a text has the form of tickets. Raises `400 invalid_request`."""
    if _FORM.fullmatch(ticket) is None:
        raise invalid("this is no ticket: ask for one with POST /v0/tickets", field="ticket")


class Tickets:
    """Asks the home shards of keys for tickets."""

    def __init__(self, shards: Shards, keyring: Keyring) -> None:
        self._shards = shards
        self._keyring = keyring
        self._uses = [Slots(Bound("max_ticket_uses", MOST_USES), Bound("", 0)) for _ in shards.states]

    async def make(self, key: Key, path: str) -> str:
        """Return a new ticket for `path`, spelled as in the request that will use it. Raises `429 throttled`, `503`."""
        home = self._shards.index_of(key.digest.hex())
        token = home.to_bytes(HOME_BYTES, "big") + secrets.token_bytes(RANDOM_BYTES)
        ticket = "ticket_" + urlsafe_b64encode(token).decode()
        asked = TicketMake(_digest(ticket), _digest(path), key.digest, key.scopes.value, key.prefixes)
        await self._ask(home, asked)
        return ticket

    async def use(self, ticket: str, path: str) -> Key:
        """Use up a ticket, which has the form of one, and return the key that requested it. Raises `401 unauthorized`,
        `429 throttled`, `503`."""
        home = int.from_bytes(urlsafe_b64decode(ticket.removeprefix("ticket_"))[:HOME_BYTES], "big")
        if home < len(self._shards.states):
            slot = self._uses[home].take(UNPROVEN)
            try:
                found = (await self._ask(home, TicketUse(_digest(ticket), _digest(path)))).extra
            finally:
                slot.release()
            if found is not None:
                key = Key(found.owner, Scope(found.scopes), found.prefixes)
                if self._keyring.knows(key):
                    return key
        raise unauthorized(
            "this ticket is not good for this address: each is for one path, one use and a minute; "
            "ask for another one with POST /v0/tickets"
        )

    async def _ask(self, home: int, operation: Operation[A]) -> Reply[A]:
        return (await self._shards.ask_one(home, operation)).checked()


def _digest(text: str) -> bytes:
    # Tickets are looked up by digest, so that the duration of a look-up reveals nothing of a ticket.
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
