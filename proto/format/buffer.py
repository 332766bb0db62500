"""Buffer: bytes in any of their forms, and what fills them up: each part of a frame starts at a multiple of 8."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
PADDING = [bytes(-n % 8) for n in range(8)]
"""What follows a part of the frame, by its length modulo 8."""


def pad8(size: int) -> int:
    return (size + 7) & ~7
