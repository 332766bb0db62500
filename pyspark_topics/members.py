"""Members of JSON objects, as text as it was written; and those of a record's meta as the column `headers`.

json.loads would change numbers, order and repeated keys, so only its scanner (in C) is used, to find where each value
ends. This takes a Python step for each member.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
OPEN = re.compile(r"[\s,]*\{")
CLOSE = re.compile(r"\s*\}")
KEY = re.compile(r'[\s,]*"((?:[^"\\]|\\.)*)"\s*:\s*')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_LONE = re.compile(r"[\ud800-\udfff]")
"""A surrogate without its other half, which JSON can escape and a string of Arrow cannot hold."""
# Numbers are skipped and not converted, because int() refuses thousands of digits.
_decoder: Any = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, strict=False)
_scan = _decoder.scan_once


def headers(meta: Any) -> Any:
    """The column `headers` for an array of meta (JSON objects, binary, with nulls). Each distinct meta is parsed
    once."""
    encoded = meta.dictionary_encode()
    apart = [
        [(_name(key), text.encode()) for key, text in members(each.decode())] for each in encoded.dictionary.to_pylist()
    ]
    return pa.array(apart, HEADERS).take(encoded.indices)


def _name(key: str) -> str:
    """The name for a key. One with a lone surrogate stays as it was written, with its escapes."""
    name: str = json.loads(f'"{key}"') if "\\" in key else key
    return key if _LONE.search(name) else name


def members(text: str) -> list[tuple[str, str]]:
    """Key and value of each member of a JSON object, both as they were written, in their order. Raises `ValueError`
    for anything else."""
    pairs = []
    try:
        position = found(OPEN.match(text)).end()
        while key := KEY.match(text, position):
            _, position = scanned(text, key.end())
            pairs.append((key[1], text[key.end() : position]))
        if text[found(CLOSE.match(text, position)).end() :].strip():
            raise ValueError("something follows the object")
    except StopIteration as error:
        raise ValueError("not a JSON object") from error
    return pairs


def found(match: re.Match[str] | None) -> re.Match[str]:
    """What a pattern found. Raises `ValueError` if that is nothing."""
    if match is None:
        raise ValueError("not a JSON object")
    return match


def scanned(text: str, position: int) -> tuple[Any, int]:
    """The value at `position`, with numbers as text, and the position of its end."""
    try:
        value, end = _scan(text, position)
    except RecursionError:
        return None, _end_of_container(text, position)
    return value, end


def _end_of_container(text: str, position: int) -> int:
    """Position of the end of the array or object that begins at `position`, at any depth of nesting."""
    depth = 0
    for token in _TOKEN.finditer(text, position):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError("a value has no end")
