"""Suspects: requests that a shard had in hand when it died. A request in hand at two deaths is not sent a third time.

A client that gets no answer sends its request again. If the request ends the process, by a defect that is not known
yet, the client would keep the shard down, and with it the topics of all others. So requests are known by what they say:
operation, options, topic and body. Fields that the asker adds (what the key may do, the reading of the routers) do not
count.

A gateway asks each new process of a shard the same questions of its own, which name nothing of a client's. They are in
hand at a death by chance, and without them it serves less than it could: they are never suspects. The requests between
shards that name a topic may be: a refusal then holds up that topic alone.

A suspect is forgotten `FORGOTTEN_S` after its last death. Which requests were in hand is known for a death by any
signal too (`proto.ipc.in_hand`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog
import xxhash
from structlog.typing import FilteringBoundLogger

from proto.ipc.control import Suspected
from proto.ipc.message import Request
from proto.ipc.operations import (
    NAMES,
    Growing,
    NameChanges,
    Operation,
    Ping,
    RouterDelete,
    RouterPut,
    Sample,
    SessionNews,
    Stats,
)
from proto.model.errors import ErrorCode, TopicsError

DEATHS = 2
"""After this many deaths with a request in hand, it is refused."""
MOST = 1000
"""Suspects that are remembered."""
FORGOTTEN_S = 3600.0
_ADDED: dict[str, Any] = dict.fromkeys(Growing.__struct_fields__)
_encode = msgspec.msgpack.Encoder().encode
_log: FilteringBoundLogger = structlog.get_logger()


class Suspects:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.on_death: Callable[[Suspected], object] = lambda suspected: None
        """Called with the requests of this process that a shard died over."""
        self._monotonic = monotonic
        self._deaths: OrderedDict[str, tuple[int, float, tuple[int, int]]] = OrderedDict()
        """Number of deaths, the time of the last one, and the shard and incarnation that died, by print; the oldest
        first."""

    def __len__(self) -> int:
        return len(self._deaths)

    def died(self, shard: int, incarnation: int, requests: Iterable[Request]) -> None:
        """Note that a process of a shard died with these requests in hand."""
        asked = (request for request in requests if not _is_own(request.options))
        found = {print_of(request.options, request.topic, request.body): request for request in asked}
        for mark, request in found.items():
            deaths = self._note(mark, (shard, incarnation))
            _log.error(
                "request_in_hand_at_death",
                shard=shard,
                operation=request.op,
                topic=request.topic,
                bytes=len(request.body),
                suspect=mark,
                deaths=deaths,
                action="refused from now on" if deaths >= DEATHS else "none yet",
            )
        if found:
            self.on_death(Suspected(shard, incarnation, list(found)))

    def heard(self, suspected: Suspected) -> None:
        """Note the requests of another gateway that a shard died over."""
        for mark in suspected.prints:
            self._note(mark, (suspected.shard, suspected.incarnation))

    def _note(self, mark: str, death: tuple[int, int]) -> int:
        """Count a death once, however many had the same request in hand. Returns the number of deaths."""
        deaths, _, last = self._deaths.pop(mark, (0, 0.0, None))
        deaths += last != death
        self._deaths[mark] = deaths, self._monotonic(), death
        while len(self._deaths) > MOST:
            self._deaths.popitem(last=False)
        return deaths

    def check(self, shard: int, operation: Operation[Any], topic: str, body: bytes) -> None:
        """Raises `500` for a request that was in hand at `DEATHS` deaths."""
        mark = print_of(operation, topic, body)
        deaths, at, _ = self._deaths.get(mark, (0, 0.0, None))
        if not deaths:
            return
        if self._monotonic() - at > FORGOTTEN_S:
            del self._deaths[mark]
        elif deaths >= DEATHS:
            raise TopicsError(
                ErrorCode.INTERNAL,
                f"shard {shard} died {deaths} times over this request, so it is not carried out; the service's log "
                f"names it as suspect {mark}",
                {"id": mark, "shard": shard, "outcome": "not_done"},
            )


def _is_own(operation: Operation[Any]) -> bool:
    """Whether it is a question that a gateway asks by itself, whatever its clients do."""
    return isinstance(operation, Ping | Sample | SessionNews | NameChanges) or operation == Stats()


def print_of(operation: Operation[Any], topic: str, body: bytes) -> str:
    """The part that is the same whenever a client sends a request again."""
    if isinstance(operation, RouterPut | RouterDelete):
        operation = msgspec.structs.replace(operation, reading=(0, 0))
    if isinstance(operation, Growing):
        operation = msgspec.structs.replace(operation, **_ADDED)
    return xxhash.xxh3_128_hexdigest(_encode((NAMES[type(operation)], operation, topic)) + body)
