r"""Nesting: how many levels deep a JSON text is nested, and the bound on what clients send.

    1    "[["    {}    []         levels: 0, 0, 1, 1
    {"records":[{"data":[]}]}     levels: 4, the body itself being the first

A body of exactly `MAX_LEVELS` is taken; parsers of clients rarely go deeper. Values in a body count from the body's own
first level.

A text of n levels has n opening brackets and n closing ones. So a short text is not looked at, and one with few opening
brackets only by `memchr`. The levels of any other text are counted, at 1 to 20 ns for a byte:

1. Escaped quotes and backslashes, then all bytes but brackets and quotes are removed.
2. Every second part between quotes is kept: what is outside of strings. An opening bracket is a 1, a closing one a 0.
3. Eight brackets make a byte. Tables tell how far each byte goes up from its start, and where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import add

from proto.model.errors import TopicsError, invalid

MAX_LEVELS = 128
"""Levels of nesting of a request's body or of a message of a WebSocket."""
_PIECE_BYTES = 1 << 20
_GROUP = 16
"""Values looked at together, because most have few brackets."""
_MARKS = bytes.maketrans(b"[{]}", b"1100")
_OTHERS = bytes(each for each in range(256) if each not in b'[{]}"')


def _steps(byte: int) -> list[int]:
    return list(accumulate((1 if byte >> bit & 1 else -1 for bit in reversed(range(8))), initial=0))


_PEAK = [max(_steps(byte)) for byte in range(256)]
_END = [_steps(byte)[-1] for byte in range(256)]


def too_deep() -> TopicsError:
    return invalid(f"the body is nested too deeply: at most {MAX_LEVELS} levels are allowed", max=MAX_LEVELS)


def most_bytes(above: int = 0) -> int:
    """The bytes that a text may have before it can be nested too deeply, `above` levels inside of a body."""
    return 2 * (MAX_LEVELS - above) + 1


def check(text: bytes, above: int = 0) -> None:
    """Check a text that is JSON, `above` levels inside of a body. Raises `400 invalid_request`."""
    size, most = len(text), MAX_LEVELS - above
    if size > most_bytes(above) and _may_exceed(text, most, size) and levels(text) > most:
        raise too_deep()


def check_values(values: Sequence[bytes], longest: int, above: int) -> None:
    """Check values that are JSON, of at most `longest` bytes, `above` levels inside of a body. Raises `400
    invalid_request`."""
    for at in range(0, len(values), _GROUP):
        group = values[at : at + _GROUP]
        if _may_exceed(b"".join(group), MAX_LEVELS - above, longest):
            for value in group:
                check(bytes(value), above)


def _may_exceed(text: bytes, most: int, longest: int) -> bool:
    """Whether a value in a text may have more than `most` levels, by its brackets, those in strings included. No value
    has more than `longest` bytes."""
    # An object in an object takes five bytes, an array two: a short value of many levels has many arrays.
    arrays = (5 * most + 1 - longest) // 3
    if arrays > 0 and b"[" not in text.replace(b"[", b" ", arrays):
        return False
    return b"{" in text.replace(b"[", b"{", most + 1).replace(b"{", b" ", most)


def levels(text: bytes) -> int:
    """The levels of a text that is JSON."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(_MARKS, _OTHERS).replace(b'""', b"")
    deepest = now = outside = 0
    for at in range(0, len(marks), _PIECE_BYTES):
        parts = marks[at : at + _PIECE_BYTES].split(b'"')
        brackets = b"".join(parts[outside::2])
        outside = (outside + len(parts) - 1) % 2
        padding = -len(brackets) % 8
        if brackets:
            packed = int(brackets + b"0" * padding, 2).to_bytes((len(brackets) + padding) // 8, "big")
            starts = list(accumulate(map(_END.__getitem__, packed), initial=now))
            peak = max(map(add, starts, map(_PEAK.__getitem__, packed)))
            deepest = max(deepest, peak)
            now = starts[-1] + padding
    return deepest
