"""How freed memory goes back to the system.

A shard's memory is mostly frames of around a thousand records, made all the time and let go in bulk by checkpoints. The
C library keeps what is freed in its heap, where longer-lived blocks settle between, so that a shard would hold for ever
what its busiest minute needed. Giving back takes a while, and what is asked for again must be cleared again; so it is
done only when there is much of it.
"""

from __future__ import annotations

import ctypes
import resource

KEPT_BYTES = 32 << 20
"""What may stay free in the heap."""
AGAIN_BYTES = 8 << 20
"""How much more must be free, or resident, before the heap is looked through again. The C library counts what it gave
back as free still, and would clear all of it once more."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


_c = ctypes.CDLL(None)
_mallinfo2 = getattr(_c, "mallinfo2", None)  # glibc from 2.33 on
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2


class _After:
    """How the last time left it, in bytes."""

    free = 0
    resident = 0


def free_bytes() -> int:
    """Bytes that the heap holds and nobody uses; 0 if the C library does not tell."""
    return 0 if _mallinfo2 is None else int(_mallinfo2().fordblks)


def resident_bytes() -> int:
    """Bytes of this process that are in memory, shared ones included."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def trim_heap() -> bool:
    """Give free memory back if much was freed, or much of what had been given back was used again, since this was last
    done. Takes about 0.2 ms per MB, and other threads may have to wait for it."""
    free = free_bytes()
    _After.free = min(_After.free, free)
    if free <= KEPT_BYTES:
        return False
    if free <= _After.free + AGAIN_BYTES and resident_bytes() <= _After.resident + AGAIN_BYTES:
        return False
    given = bool(_c.malloc_trim(0))
    _After.free, _After.resident = free_bytes(), resident_bytes()
    return given
