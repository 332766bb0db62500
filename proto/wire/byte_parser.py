"""Byte parser: parses a binary protocol without I/O, as a generator that asks for bytes.

The generator yields the number of bytes it wants, and the caller sends all of them at once. Or it yields a `Skip` for
bytes that the caller must drop; then the caller sends b"". The generator returns one command, or raises
`ProtocolError`. The same generator serves a socket, a buffer and a fuzzer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
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


def parse_all(read: Callable[[], Steps[T]], data: bytes) -> tuple[list[T | ProtocolError], int]:
    """Parse a buffer up to the first fatal error. Returns commands and errors in order, and the bytes they took; an
    incomplete command at the end is left."""
    found: list[T | ProtocolError] = []
    done = 0
    while done < len(data):
        at = done
        steps = read()
        try:
            wanted = next(steps)
            while True:
                size = wanted.size if isinstance(wanted, Skip) else wanted
                if at + size > len(data):
                    return found, done
                piece = b"" if isinstance(wanted, Skip) else data[at : at + size]
                at += size
                wanted = steps.send(piece)
        except StopIteration as end:
            found.append(end.value)
        except ProtocolError as error:
            found.append(error)
            if error.fatal:
                return found, at
        done = at
    return found, done
