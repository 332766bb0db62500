"""JSON with exact numbers: what a record has is printed with the digits that it was written with."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(decimal_format="number").encode
INT64_DIGITS = 18
"""Integers of more digits may not fit into 64 bits, which the encoder needs."""


def loads(content: bytes | str) -> Any:
    """Raises `ValueError`."""
    return json.loads(content, parse_float=Decimal, parse_int=_integer)


def dumps(value: Any) -> str:
    """One line of JSON, without spaces."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value, separators=(",", ":"), default=float)


def text(value: Any) -> str:
    """A text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else dumps(value)


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= INT64_DIGITS else Decimal(text)
