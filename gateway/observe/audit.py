"""The audit log: who changed what exists, and who was refused. JSON Lines, one event a line.

    {"time":"2027-01-31T12:00:00.123Z","event":"change","key":"5d41402a","operation":"configure","names":["orders"],
     "status":200,"peer":"192.0.2.7"}
    {"time":…,"event":"refused","key":null,"operation":"append","names":["orders"],"status":401,"peer":"192.0.2.7"}
    {"time":…,"event":"suppressed","refused":17}

A change is a request for an operation that needs the scope `admin` or `delete`, whatever its answer, an append that
makes a topic, and a publish with `config` in a WebSocket, whose commands have lines as requests have. Status 499 is a
client that left; the change may have been made. A refusal is a 401 or 403. `key` is the beginning of the key's digest,
as in the request log; null if none was found. No line has a key, a query, a header or a payload.

A stranger can cause refusals, so a window has at most `MOST` lines of them, of several gateways each an equal part, and
the next line of any kind, or `flush`, says how many more there were. The supervisor opens the file, and opens it again
when it was renamed; each line is one `write` at its end, so a program may truncate it meanwhile. A line that cannot be
written is lost and told to the log: requests continue.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from gateway.contract.operation import Operation
from gateway.http.messages import Request
from proto.model.keys import Scope
from proto.model.visible import visible

WINDOW_S = 60.0
MOST = 60
"""Refusals that a window has lines for: 30 MB a day."""
MOST_NAME, MOST_NAMES = 255, 10
_REFUSED = frozenset({401, 403})
_GRAVE = Scope.ADMIN | Scope.DELETE
_log: FilteringBoundLogger = structlog.get_logger()


class Audit:
    """Writes to `descriptor`, which is open for appending. Newer ones come through `further`, a socket."""

    def __init__(
        self,
        descriptor: int,
        further: int = -1,
        monotonic: Callable[[], float] = time.monotonic,
        gateways: int = 1,
    ) -> None:
        """Each of several `gateways` has an equal part of the lines."""
        self._descriptor = descriptor
        self._further = socket.socket(fileno=further) if further >= 0 else None
        if self._further is not None:
            self._further.setblocking(False)
            self.reopened()  # the file may have been opened again after `descriptor` was inherited
        self._monotonic = monotonic
        self._most = -(-MOST // gateways)
        self._ends = 0.0
        self._lines = 0
        self._suppressed = 0

    def answered(
        self, operation: Operation | None, names: list[str], request: Request, status: int, *, grave: bool = False
    ) -> None:
        """Write a line if the answer to a request, or to a command in it, deserves one. `grave`: it needed `admin` or
        `delete`, which its operation does not tell."""
        if status in _REFUSED:
            self.flush()
            if self._lines >= self._most:
                self._suppressed += 1
                return
            self._lines += 1
            self._write("refused", operation, names, request, status)
        elif operation is not None and (grave or _changes(operation, status)):
            self._write("change", operation, names, request, status)

    def reopened(self) -> None:
        """Write to the descriptor that came through `further` from now on."""
        assert self._further is not None
        try:
            for fresh in socket.recv_fds(self._further, 1, 1)[1]:
                os.dup2(fresh, self._descriptor, inheritable=False)
                os.close(fresh)
        except BlockingIOError:
            pass  # none came, or an earlier message has brought it

    def flush(self) -> None:
        """If the window has ended, write how many refusals of it have no line."""
        if (now := self._monotonic()) < self._ends:
            return
        self._ends, self._lines = now + WINDOW_S, 0
        if self._suppressed:
            self._put({"time": _now(), "event": "suppressed", "refused": self._suppressed})
            self._suppressed = 0

    def _write(self, event: str, operation: Operation | None, names: list[str], request: Request, status: int) -> None:
        self._put(
            {
                "time": _now(),
                "event": event,
                "key": request.key.digest.hex()[:8] if request.key is not None and request.key.digest else None,
                "operation": operation.name if operation is not None else None,
                "names": [name[:MOST_NAME] for name in names[:MOST_NAMES]],
                "status": status,
                "peer": request.peer(),
            }
        )

    def _put(self, fields: dict[str, Any]) -> None:
        line = visible(msgspec.json.encode(fields).decode()).encode() + b"\n"
        try:
            os.write(self._descriptor, line)
        except OSError as error:
            _log.error("audit_not_written", error=os.strerror(error.errno or 0))


def _changes(operation: Operation, status: int) -> bool:
    grave = operation.scope is not None and bool(operation.scope & _GRAVE)
    return grave or (operation.creates and status == 201)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
