"""Enum choices: adds the allowed values to msgspec's error "Invalid enum value", which lacks them.

They are found by walking the decoder's type along the path in the error, and only after an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, Metadata, StructType, Type, UnionType, type_info

_WRONG = re.compile(r"Invalid enum value .* - at `\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")


def allowed(decode: Callable[[bytes], Any], error: msgspec.DecodeError) -> str:
    """Text to append to the error. Returns "" for any other error, and if `decode` is not a JSON decoder's method."""
    found = _WRONG.fullmatch(str(error))
    decoder = getattr(decode, "__self__", None)
    if found is None or not isinstance(decoder, msgspec.json.Decoder):
        return ""
    kinds = _alternatives(type_info(decoder.type))
    for step in _STEP.finditer(found[1]):
        kinds = [inner for kind in kinds for inner in _inside(kind, step[1])]
    values = [value for kind in kinds if isinstance(kind, LiteralType) for value in kind.values]
    return "; allowed are " + ", ".join(map(str, values)) if values else ""


def _alternatives(kind: Type) -> list[Type]:
    if isinstance(kind, Metadata):
        return _alternatives(kind.type)
    return [inner for each in kind.types for inner in _alternatives(each)] if isinstance(kind, UnionType) else [kind]


def _inside(kind: Type, field: str | None) -> list[Type]:
    """Types of the member `field` of a struct; if `field` is None, of the values of a map or the items of a list."""
    if field is not None and isinstance(kind, StructType):
        return [inner for each in kind.fields if each.encode_name == field for inner in _alternatives(each.type)]
    if field is None and isinstance(kind, DictType):
        return _alternatives(kind.value_type)
    if field is None and isinstance(kind, ListType):
        return _alternatives(kind.item_type)
    return []
