"""Allocator: returns freed memory to the system.

A shard's memory is mostly frames of about a thousand records, allocated all the time and freed in bulk by checkpoints.
The C library keeps freed blocks in its heap, where longer-lived blocks fragment them. Without trimming, a shard would
keep its peak memory for ever. Trimming takes time, and reused pages must be cleared again. So the heap is trimmed only
when much of it is free.
"""

from __future__ import annotations

import ctypes
import resource

KEPT_BYTES = 8 << 20
"""Free bytes that may stay in the heap."""
AGAIN_BYTES = 8 << 20
"""How many more bytes must be free, or resident, before the heap is trimmed again. The C library still counts returned
memory as free, and would return all of it once more."""


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
    """State after the last trim, in bytes."""

    free = 0
    resident = 0


def free_bytes() -> int:
    """Free bytes in the heap; 0 if the C library does not report them."""
    return 0 if _mallinfo2 is None else int(_mallinfo2().fordblks)


def resident_bytes() -> int:
    """Resident bytes of this process, shared pages included."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def trim_heap() -> bool:
    """Trim the heap if much was freed since the last trim, or much of the returned memory was used again.

    Returns whether memory was returned. Blocks for about 0.2 ms per MB, other threads too.
    """
    free = free_bytes()
    _After.free = min(_After.free, free)
    if free <= KEPT_BYTES:
        return False
    if free <= _After.free + AGAIN_BYTES and resident_bytes() <= _After.resident + AGAIN_BYTES:
        return False
    given = bool(_c.malloc_trim(0))
    _After.free, _After.resident = free_bytes(), resident_bytes()
    return given
