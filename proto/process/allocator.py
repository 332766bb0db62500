"""How freed memory goes back to the system.

A shard's memory is mostly frames of around a thousand records, made all the time and let go in bulk by checkpoints. The
C library keeps what is freed in its heap, where longer-lived blocks settle between, so that a shard would hold for ever
what its busiest minute needed. Giving back takes a while, and what is asked for again must be cleared again; so it is
done only when there is much of it.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 32 << 20
"""What may stay free in the heap."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


_c = ctypes.CDLL(None)
_mallinfo2 = getattr(_c, "mallinfo2", None)  # glibc from 2.33 on
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2


def free_bytes() -> int:
    """Bytes that the heap holds and nobody uses; 0 if the C library does not tell."""
    return 0 if _mallinfo2 is None else int(_mallinfo2().fordblks)


def give_back() -> bool:
    """Give free memory back if there is much. Takes about 0.2 ms per MB, and other threads may have to wait for it."""
    if free_bytes() <= KEPT_BYTES:
        return False
    return bool(_c.malloc_trim(0))
