"""Reading a binary protocol without I/O: a generator says what it wants next and is sent it.

It yields the number of bytes that it wants, all of which it is then sent at once, or a `Skip`, for bytes that whoever
reads shall drop; for those it is sent b"". It returns one command, or raises `ProtocolError`. The same generator thus
serves a socket, a buffer and a fuzzer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

MAX_SKIP_BYTES = 16 << 20
"""What is announced larger than this is not waited for: the connection ends."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skip:
    size: int


Steps = Generator[int | Skip, bytes, T]


class ProtocolError(Exception):
    """What a peer sent makes no command; the text is the answer to it. `fatal`: where the next command would begin
    is not known, or too far away."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.fatal = fatal


def too_much(size: int, message: str) -> Generator[int | Skip, bytes, None]:
    """Drop `size` bytes that are more than is taken, then refuse them."""
    if size > MAX_SKIP_BYTES:
        raise ProtocolError(message, fatal=True)
    yield Skip(size)
    raise ProtocolError(message)


def parse_all(read: Callable[[], Steps[T]], data: bytes) -> tuple[list[T | ProtocolError], int]:
    """All that a buffer holds, up to the first fatal error, and how many bytes of it whole commands took."""
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
