"""A buffer of commands of a binary protocol, read by its byte parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from proto.wire.byte_parser import ProtocolError, Skip, Steps

T = TypeVar("T")


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
