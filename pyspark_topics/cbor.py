"""CBOR (RFC 8949) decoder for the server's files: maps, arrays, text, bytes, numbers, true, false, null.

It supports definite lengths only and no tags, because the server writes nothing else. Anything else is an error.
"""

from __future__ import annotations

import struct
from typing import Any

_FLOATS = {25: ("e", 2), 26: ("f", 4), 27: ("d", 8)}
_SIMPLE = {20: False, 21: True, 22: None}


class CborError(ValueError):
    """The bytes are not CBOR in this subset. The message says what was found and where."""


def loads(data: bytes) -> Any:
    """Decode the first value in `data`; bytes after it (padding) are ignored. Raises `CborError`."""
    try:
        value, _ = _value(data, 0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise CborError(f"broken CBOR: {error}") from error
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if major == 7:
        if info in _FLOATS:
            code, size = _FLOATS[info]
            return struct.unpack_from(f">{code}", data, at)[0], at + size
        if info in _SIMPLE:
            return _SIMPLE[info], at
        raise CborError(f"simple value {info} at byte {at - 1} is not used here")
    if info < 24:
        number = info
    elif info < 28:
        size = 1 << (info - 24)
        if len(data) - at < size:
            raise CborError(f"{len(data) - at} bytes at byte {at} where a number of {size} should be")
        number = int.from_bytes(data[at : at + size], "big")
        at += size
    else:
        raise CborError(f"length form {info} at byte {at - 1} is not used here")
    if major == 0:
        return number, at
    if major == 1:
        return -1 - number, at
    if major in (2, 3):
        chunk = data[at : at + number]
        if len(chunk) != number:
            raise CborError(f"{len(chunk)} bytes at byte {at} where {number} should be")
        return (chunk.decode() if major == 3 else chunk), at + number
    if major == 4:
        items = []
        for _ in range(number):
            item, at = _value(data, at)
            items.append(item)
        return items, at
    if major == 5:
        fields = {}
        for _ in range(number):
            key, at = _value(data, at)
            fields[key], at = _value(data, at)
        return fields, at
    raise CborError(f"tag {number} at byte {at} is not used here")
