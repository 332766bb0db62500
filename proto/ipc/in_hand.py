"""In hand: the requests that a shard works on, in memory that outlives it.

The supervisor makes the memory and a shard writes to it, so that after a death of the shard, however sudden, it is
known which requests it died over. Numbers are u64 in the byte order of the machine:

    offset  size  field
    0       8     n, the number of requests in hand; 0 between two turns
    8       8     1 while all of them are written, answered and delivered; 0 while the last one is handled
    16      16·n  of each request its id and its `deadline_ns`, which together are those of no other request

A turn begins with an empty memory. A request counts from the moment at which it is handled to the end of its turn, and
again during each step that a task takes for it later.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from proto.ipc.message import Request

MOST = 1024
"""Requests of a turn that are noted. Later ones of a larger turn take the place of the last one."""
_HEAD = 2
_BYTES = 8 * (_HEAD + 2 * MOST)
Mark = tuple[int, int]
"""A request's id and its `deadline_ns`."""
_ORIGIN: ContextVar[Mark | None] = ContextVar("origin", default=None)


def make() -> int:
    """Make the memory of one shard. Returns its descriptor."""
    descriptor = os.memfd_create("in-hand", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _BYTES)
    return descriptor


def empty(descriptor: int) -> None:
    """Forget what an earlier process had in hand."""
    os.pwrite(descriptor, bytes(8 * _HEAD), 0)


def read(descriptor: int) -> list[Mark]:
    """The requests of which one may have ended the process: the one that it handled, or all of its turn."""
    data = os.pread(descriptor, _BYTES, 0)
    count, ending = struct.unpack_from("=2Q", data)
    marks = list(struct.iter_unpack("=2Q", data[8 * _HEAD : 8 * (_HEAD + 2 * min(count, MOST))]))
    found: list[Mark] = [(ident, deadline) for ident, deadline in marks]
    return found if ending else found[-1:]


def continue_with(request: Request) -> None:
    """The current task works on a request of an earlier turn: `InHand.step` notes it."""
    _ORIGIN.set((request.id, request.deadline_ns))


class InHand:
    """The shard's side."""

    def __init__(self, descriptor: int = -1) -> None:
        """Without a descriptor, for a shard without a supervisor, it is memory of this process."""
        raw = bytearray(_BYTES) if descriptor < 0 else mmap.mmap(descriptor, _BYTES)
        self._words = memoryview(raw).cast("Q")
        self._count = 0

    def take(self, request: Request) -> None:
        """A request is handled from now on."""
        place = min(self._count, MOST - 1)
        self._count = place + 1
        words = self._words
        words[2 * place + _HEAD] = request.id
        words[2 * place + _HEAD + 1] = request.deadline_ns
        words[0] = self._count

    def end(self) -> None:
        """All requests of the turn are handled; their changes are written, answered and delivered from now on."""
        self._words[1] = 1

    def clear(self) -> None:
        """The turn is over."""
        self._words[0] = self._words[1] = self._count = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Inside, the request that the current task continues with is handled, if there is one. Not within a turn that
        takes requests."""
        mark = _ORIGIN.get()
        if mark is not None:
            self._words[_HEAD], self._words[_HEAD + 1] = mark
            self._words[0] = 1
        try:
            yield
        finally:
            if mark is not None:
                self.clear()
