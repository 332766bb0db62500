"""Request bodies: decodes a client's bytes into a typed value, or raises `400 invalid_request`.

msgspec checks UTF-8 only where it builds strings, so the UTF-8 of the whole body is checked first. Lone surrogate
escapes are grammatical JSON and may occur in values kept as JSON text; see `proto.model.surrogates`.

Unknown fields:

    in a configuration    refused; the error names the field and its closest known name. A typo must not silently
                          change retention or durability.
    in any other body     ignored, because clients of later releases may send them; the answer lists them in `ignored`,
                          see `proto.model.unknown_fields`.

A body without unknown fields is decoded once.

A body, with all that is in it, may be nested `MAX_LEVELS` deep, see `proto.model.nesting`. The parsers' own bound is
higher, depends on the caller and was all that earlier releases had: stored records may be deeper.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from proto.model.enum_choices import allowed
from proto.model.errors import TopicsError, invalid
from proto.model.nesting import check, too_deep
from proto.model.surrogates import MAX_MASKED_BYTES, Mask, apply
from proto.model.unknown_fields import MAX_SHOWN, UNKNOWN, Names, strict

T = TypeVar("T")
MAX_COLONS = 200_000
"""Bodies with more colons are not split into fields, to bound the memory this takes."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")

_PIECE_BYTES = 1 << 20
"""Bytes checked for UTF-8 at a time. As text, a body may take four times its size."""
_utf8 = codecs.getincrementaldecoder("utf-8")
_members = msgspec.json.Decoder(dict[str, Raw]).decode


def parse(decode: Callable[[bytes], T], body: bytes) -> T:
    """Apply a msgspec decoder to a body. Raises `400 invalid_request`.

    An empty body counts as `{}`. The caller has the nesting of what it keeps checked.
    """
    try:
        return _decoded(decode, body, MAX_MASKED_BYTES)[0]
    except msgspec.DecodeError as error:
        raise _refused(error, decode) from None


class Form(Generic[T]):
    """Decoder for bodies of one type. `configuration` is the type of the configuration in the body, if any. It must
    forbid unknown fields, and may be the body's type itself. With `keeps_values`, the caller has the nesting of the
    values that stay JSON text checked, so that the body is not gone through for it."""

    def __init__(self, kind: type[T], configuration: type[Struct] | None = None, *, keeps_values: bool = False) -> None:
        assert issubclass(kind, Struct)
        self._loose: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
        self._strict: Callable[[bytes], T] = msgspec.json.Decoder(strict(kind)).decode
        self._configuration = configuration
        self._whole = configuration is kind
        self._names = None if self._whole else Names(kind)
        self._keeps_values = keeps_values

    def read(self, body: bytes, most: int = MAX_MASKED_BYTES) -> tuple[T, list[str]]:
        """The value and the names of ignored fields. A body with lone surrogate escapes may have up to `most` bytes.
        Raises `400 invalid_request`."""
        try:
            value, _ = _decoded(self._strict, body, most)
            if not self._keeps_values:
                check(body)
            return value, []
        except msgspec.DecodeError as error:
            if not str(error).startswith(UNKNOWN):
                raise _refused(error, self._strict) from None
        try:
            value, mask = _decoded(self._loose, body, most)
        except msgspec.DecodeError as error:  # of the configuration, or of the syntax after the unknown field
            if self._configuration is None or not str(error).startswith(UNKNOWN):
                raise _refused(error, self._loose) from None
            raise self._misspelt(body, self._configuration) from None
        check(body)
        assert self._names is not None
        return value, self._names.found(*((body, str) if mask is None else (mask.text, _written(mask))))

    def _misspelt(self, body: bytes, configuration: type[Struct]) -> TopicsError:
        """The error for an unknown field of the configuration, or for a syntax error after it."""
        try:
            members = _named(body) if body.count(b":") <= MAX_COLONS else {}
            if not self._whole and "config" in members:
                members = _named(bytes(members["config"]))
        except msgspec.DecodeError as error:
            return _refused(error, _members)
        except RecursionError:
            return too_deep()
        known = configuration.__struct_encode_fields__
        found = next((name for name in members if name not in known), None)
        return invalid("a configuration names an unknown field") if found is None else unknown_field(found, known)


def unknown_field(name: str, known: tuple[str, ...]) -> TopicsError:
    """`400 invalid_request` for a configuration with an unknown field `name`; `known` are the fields there are."""
    name = name[:MAX_SHOWN]
    near = get_close_matches(name.lower().replace("-", "_"), known, 1)
    message = f"{name!r} is no field of a configuration"
    if near:
        return invalid(f"{message}; did you mean {near[0]}?", field=name, did_you_mean=near[0])
    return invalid(f"{message}; there are {', '.join(known)}", field=name)


def _named(body: bytes) -> dict[str, Raw]:
    """The members of a JSON object by name. Lone surrogates in names appear as their escapes."""
    members, mask = apply(_members, body)
    if mask is None:
        return members
    written = _written(mask)
    return {written(name): Raw(mask.undone(bytes(member))) for name, member in members.items()}


def _written(mask: Mask) -> Callable[[str], str]:
    return lambda name: mask.undone(name.encode()).decode()


def _decoded(decode: Callable[[bytes], T], body: bytes, most: int) -> tuple[T, Mask | None]:
    """The value, and the mask if the body needed one. Raises msgspec's errors, and `400 invalid_request` for invalid
    UTF-8 or nesting that the parser does not take."""
    if not body or body.isspace():
        body = b"{}"
    try:
        if not body.isascii():
            _check_utf8(body)
        value, mask = apply(decode, body, most)
        return (value if mask is None else mask.restored(value)), mask
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise too_deep() from None


def _refused(error: msgspec.DecodeError, decode: Callable[[bytes], Any]) -> TopicsError:
    if isinstance(error, msgspec.ValidationError):
        missing = _MISSING.fullmatch(str(error))
        detail = {} if missing is None else {"field": missing[1]}
        return invalid(f"the body has the wrong shape: {error}{allowed(decode, error)}", **detail)
    return invalid(f"the body is not JSON: {error}")


def _check_utf8(body: bytes) -> None:
    if len(body) <= _PIECE_BYTES:
        body.decode()
        return
    decoder = _utf8()
    for at in range(0, len(body), _PIECE_BYTES):
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(body[at : at + _PIECE_BYTES], at + _PIECE_BYTES >= len(body))
        except UnicodeDecodeError as error:
            error.start += at - held
            raise
