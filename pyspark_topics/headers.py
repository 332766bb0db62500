"""Headers: the members of a record's meta as a column, in their order, with values as JSON text as written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


def headers(meta: Any) -> Any:
    """The column `headers` for an array of meta (JSON objects, binary, with nulls). Each distinct meta is parsed
    once."""
    encoded = meta.dictionary_encode()
    apart = pa.array(map(_members, encoded.dictionary.to_pylist()), HEADERS)
    return apart.take(encoded.indices)


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(parse_int=len, parse_float=len).scan_once  # type: ignore[attr-defined]
"""Scans the value at a position and returns it with the position of its end; only the end is used."""
_SPACE = re.compile(r"[ \t\n\r]*")
_LONE = re.compile(r"[\ud800-\udfff]")
"""A surrogate without its other half, which JSON can escape and a string of Arrow cannot hold."""


def _members(meta: bytes) -> list[tuple[str, bytes]]:
    """Name and JSON text of each member of an object. A name with a lone surrogate stays as it was written, with its
    escapes. All scanning is done in C."""
    text = meta.decode()
    found: list[tuple[str, bytes]] = []
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        begin = at
        name, at = _scan(text, at)
        if _LONE.search(name):
            name = text[begin + 1 : at - 1]
        start = _skip(text, _skip(text, at) + 1)
        _, end = _scan(text, start)
        found.append((name, text[start:end].encode()))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
