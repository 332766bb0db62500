"""Byte parser: parses a binary protocol without I/O, as a generator that asks for bytes.

The generator yields the number of bytes it wants, and the caller sends all of them at once. Or it yields a `Skip` for
bytes that the caller must drop; then the caller sends b"". The generator returns one command, or raises
`ProtocolError`. The same generator serves a socket, a buffer and a fuzzer.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from proto.errors import ProtoError

MAX_SKIP_BYTES = 16 << 20
"""A larger announced size ends the connection, because skipping it would take too long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skip:
    size: int


Steps = Generator[int | Skip, bytes, T]


class ProtocolError(ProtoError):
    """The peer's bytes are not a command; the message is the answer to it. `fatal` means that the start of the next
    command is unknown or too far away."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.fatal = fatal


def too_much(size: int, message: str) -> Generator[int | Skip, bytes, None]:
    """Skip `size` bytes that exceed a limit, then raise `ProtocolError`; fatal at once beyond `MAX_SKIP_BYTES`."""
    if size > MAX_SKIP_BYTES:
        raise ProtocolError(message, fatal=True)
    yield Skip(size)
    raise ProtocolError(message)
