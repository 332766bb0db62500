"""XXH3-64, the checksum of the server's files: from the package xxhash, or from a fallback in this module.

`digest(data)` returns the 64-bit number for any bytes-like object. The fallback follows the specification of XXH3 (seed
0, default secret) and uses Arrow for long inputs. It is many times slower, but fast enough for reading, and needs no
package besides pyspark and pyarrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PMX_1, PMX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
START = (P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1)
M32, M64 = 2**32 - 1, 2**64 - 1
STRIPE, STRIPES, BLOCK = 64, 16, 1024
CHUNK = 256
"""Blocks processed by Arrow at a time."""

_U32, _U64, _8U64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<8Q")


def _u64(data: Any, at: int) -> int:
    return int(_U64.unpack_from(data, at)[0])


def _fold(a: int, b: int) -> int:
    product = (a & M64) * (b & M64)
    return (product & M64) ^ (product >> 64)


def _mix(data: Any, at: int, secret: int) -> int:
    return _fold(_u64(data, at) ^ _u64(SECRET, secret), _u64(data, at + 8) ^ _u64(SECRET, secret + 8))


def _avalanche(h: int) -> int:
    h &= M64
    h ^= h >> 37
    h = h * PMX_1 & M64
    return h ^ h >> 32


def _avalanche64(h: int) -> int:
    h ^= h >> 33
    h = h * P64_2 & M64
    h ^= h >> 29
    h = h * P64_3 & M64
    return h ^ h >> 32


def _rotated(h: int, by: int) -> int:
    return (h << by | h >> (64 - by)) & M64


def _short(data: Any, size: int) -> int:
    """Hash of 0 to 16 bytes."""
    if size > 8:
        low = _u64(data, 0) ^ _u64(SECRET, 24) ^ _u64(SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(SECRET, 40) ^ _u64(SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high))
    if size >= 4:
        first, last = (int(_U32.unpack_from(data, at)[0]) for at in (0, size - 4))
        h = (last + (first << 32)) ^ _u64(SECRET, 8) ^ _u64(SECRET, 16)
        h ^= _rotated(h, 49) ^ _rotated(h, 24)
        h = h * PMX_2 & M64
        h ^= (h >> 35) + size
        h = h * PMX_2 & M64
        return h ^ h >> 28
    if size:
        combined = int(data[0] << 16 | data[size >> 1] << 24 | data[size - 1] | size << 8)
        return _avalanche64(combined ^ (_u64(SECRET, 0) & M32) ^ (_u64(SECRET, 0) >> 32))
    return _avalanche64(_u64(SECRET, 56) ^ _u64(SECRET, 64))


def _medium(data: Any, size: int) -> int:
    """Hash of 17 to 240 bytes."""
    h = size * P64_1
    if size <= 128:
        for pair in range((size - 1) // 32, -1, -1):
            h += _mix(data, 16 * pair, 32 * pair) + _mix(data, size - 16 * pair - 16, 32 * pair + 16)
        return _avalanche(h)
    for place in range(8):
        h += _mix(data, 16 * place, 16 * place)
    h = _avalanche(h)
    for place in range(8, size // 16):
        h += _mix(data, 16 * place, 16 * (place - 8) + 3)
    return _avalanche(h + _mix(data, size - 16, 119))


def _stripe(acc: list[int], data: Any, at: int, secret: int) -> None:
    lanes, keys = _8U64.unpack_from(data, at), _8U64.unpack_from(SECRET, secret)
    for lane, (value, key) in enumerate(zip(lanes, keys, strict=True)):
        keyed = value ^ key
        acc[lane ^ 1] += value
        acc[lane] += (keyed & M32) * (keyed >> 32)


@cache
def _order(blocks: int) -> Any:
    """Indices of the numbers of each stripe of all blocks, stripe after stripe."""
    return pa.array(
        [b * 128 + s * 8 + lane for s in range(STRIPES) for b in range(blocks) for lane in range(8)], pa.int32()
    )


@cache
def _keys(stripe: int) -> Any:
    return pa.array(_8U64.unpack_from(SECRET, 8 * stripe) * CHUNK, pa.uint64())


def _blocks(acc: list[int], data: Any, blocks: int) -> None:
    """Accumulate all whole blocks but the last. Arrow computes what each block adds; this loop combines the blocks."""
    ends = _8U64.unpack_from(SECRET, 128)
    mask, half = pa.scalar(M32, pa.uint64()), pa.scalar(32, pa.uint64())
    for first in range(0, blocks, CHUNK):
        count = min(CHUNK, blocks - first)
        width = 8 * count
        raw = pa.py_buffer(data[first * BLOCK : (first + count) * BLOCK])
        numbers = pa.Array.from_buffers(pa.uint64(), 128 * count, [None, raw]).take(_order(count))
        values = products = pa.scalar(0, pa.uint64())
        for stripe in range(STRIPES):
            part = numbers.slice(stripe * width, width)
            keyed = pc.bit_wise_xor(part, _keys(stripe).slice(0, width))
            values = pc.add(part, values)
            products = pc.add(pc.multiply(pc.bit_wise_and(keyed, mask), pc.shift_right(keyed, half)), products)
        added = zip(values.to_pylist(), products.to_pylist(), strict=True)
        for _ in range(count):
            block = [next(added) for _ in range(8)]
            for lane in range(8):
                total = (acc[lane] + block[lane ^ 1][0] + block[lane][1]) & M64
                acc[lane] = (total ^ total >> 47 ^ ends[lane]) * P32_1 & M64


def _long(data: Any, size: int) -> int:
    acc = list(START)
    blocks = (size - 1) // BLOCK
    _blocks(acc, data, blocks)
    at = blocks * BLOCK
    for stripe in range((size - 1 - at) // STRIPE):
        _stripe(acc, data, at + stripe * STRIPE, 8 * stripe)
    _stripe(acc, data, size - STRIPE, 121)
    h = size * P64_1
    for pair in range(4):
        place = 11 + 16 * pair
        h += _fold(acc[2 * pair] ^ _u64(SECRET, place), acc[2 * pair + 1] ^ _u64(SECRET, place + 8))
    return _avalanche(h)


def portable(data: Any) -> int:
    """As `digest`, without the package xxhash."""
    view = memoryview(data)
    size = len(view)
    if size > 240:
        return _long(view, size)
    return _medium(view, size) if size > 16 else _short(view, size)


digest: Callable[[Any], int]
try:
    from xxhash import xxh3_64_intdigest as digest
except ImportError:
    digest = portable
