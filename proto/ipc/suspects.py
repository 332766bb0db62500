"""Suspects: requests that a shard had in hand when it died. A request in hand at two deaths is not sent a third time.

A client that gets no answer sends its request again. If the request ends the process, by a defect that is not known
yet, the client would keep the shard down, and with it the topics of all others. So requests are known by what they say:
operation, options, topic and body. Fields that the asker adds (what the key may do, the reading of the routers) do not
count.

A suspect is forgotten `FORGOTTEN_S` after its last death. Which requests were in hand is known for a death by any
signal too (`proto.ipc.in_hand`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import xxhash
from structlog.typing import FilteringBoundLogger

from proto.ipc.message import Request
from proto.ipc.operations import NAMES, Growing, Operation, RouterDelete, RouterPut
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
        self._monotonic = monotonic
        self._deaths: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of deaths, and the time of the last one, by print; the oldest first."""

    def __len__(self) -> int:
        return len(self._deaths)

    def died(self, shard: int, request: Request) -> None:
        """Note that a shard died with this request in hand."""
        mark = print_of(request.options, request.topic, request.body)
        deaths = self._deaths.pop(mark, (0, 0.0))[0] + 1
        self._deaths[mark] = deaths, self._monotonic()
        while len(self._deaths) > MOST:
            self._deaths.popitem(last=False)
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

    def check(self, shard: int, operation: Operation[Any], topic: str, body: bytes) -> None:
        """Raises `500` for a request that was in hand at `DEATHS` deaths."""
        mark = print_of(operation, topic, body)
        deaths, at = self._deaths.get(mark, (0, 0.0))
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


def print_of(operation: Operation[Any], topic: str, body: bytes) -> str:
    """The part that is the same whenever a client sends a request again."""
    if isinstance(operation, RouterPut | RouterDelete):
        operation = msgspec.structs.replace(operation, reading=(0, 0))
    if isinstance(operation, Growing):
        operation = msgspec.structs.replace(operation, **_ADDED)
    return xxhash.xxh3_128_hexdigest(_encode((NAMES[type(operation)], operation, topic)) + body)
