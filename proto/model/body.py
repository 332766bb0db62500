"""Request bodies: from a client's bytes to a typed value, or to `400 invalid_request`.

msgspec checks JSON syntax everywhere but UTF-8 only where it builds strings, so the UTF-8 of the whole body is checked
first. Lone surrogate escapes are grammatical JSON: what is kept as JSON text may have them, see
`proto.model.surrogates`.

Fields that a type does not have:

    in a configuration    refused, with the name of the field and of the one that was probably meant: a typo must not
                          cost retention or durability
    in any other body     passed over, because clients of later releases may send them; the answer names them in
                          `ignored`. Only the fields of the body itself are looked at, not those of objects in it

A body without unknown fields is decoded once, whatever its type.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from difflib import get_close_matches
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from proto.model.enum_choices import allowed
from proto.model.errors import TopicsError, invalid
from proto.model.surrogates import MAX_MASKED_BYTES, apply

T = TypeVar("T")
MAX_IGNORED = 32
"""Names of ignored fields that an answer lists, at most."""
MAX_SHOWN = 64
"""Characters of such a name that are shown."""
MAX_COLONS = 200_000
"""Of a body whose fields are looked at by name."""
_UNKNOWN = "Object contains unknown field"

_PIECE_BYTES = 1 << 20
"""Looked at in one go. As text, a body may take four times its size."""
_utf8 = codecs.getincrementaldecoder("utf-8")
_members = msgspec.json.Decoder(dict[str, Raw]).decode


def parse(decode: Callable[[bytes], T], body: bytes, most: int = MAX_MASKED_BYTES) -> T:
    """Apply a msgspec decoder to a body. An empty body counts as `{}`; lone surrogates may be in up to `most` bytes."""
    try:
        return _decoded(decode, body, most)
    except msgspec.DecodeError as error:
        raise _refused(error, decode) from None


class Form(Generic[T]):
    """The type of a body. `configuration` is the type of the configuration in it, if it has any: that type must forbid
    unknown fields itself, and may be the body's."""

    def __init__(self, kind: type[T], configuration: type[Struct] | None = None) -> None:
        assert issubclass(kind, Struct)
        self._loose: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
        strict: Any = msgspec.defstruct(kind.__name__, [], bases=(kind,), forbid_unknown_fields=True)
        self._strict: Callable[[bytes], T] = msgspec.json.Decoder(strict).decode
        self._names = frozenset(kind.__struct_encode_fields__)
        self._configuration = configuration
        self._whole = configuration is kind

    def read(self, body: bytes, most: int = MAX_MASKED_BYTES) -> tuple[T, list[str]]:
        """The value, and the names of what was ignored; `most` as in `parse`. Raises `400 invalid_request`."""
        try:
            return _decoded(self._strict, body, most), []
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN):
                raise _refused(error, self._strict) from None
        except msgspec.DecodeError as error:
            raise _refused(error, self._strict) from None
        try:
            value = _decoded(self._loose, body, most)
        except msgspec.ValidationError as error:
            if self._configuration is None or not str(error).startswith(_UNKNOWN):
                raise _refused(error, self._loose) from None
            raise self._misspelt(body, self._configuration) from None
        except msgspec.DecodeError as error:  # behind the unknown field
            raise _refused(error, self._loose) from None
        unknown = (name[:MAX_SHOWN] for name in _few_members(body) if name not in self._names)
        return value, list(islice(unknown, MAX_IGNORED))

    def _misspelt(self, body: bytes, configuration: type[Struct]) -> TopicsError:
        members = _few_members(body)
        if not self._whole and "config" in members:
            members = _named(members["config"])
        known = configuration.__struct_encode_fields__
        found = next((name for name in members if name not in known), None)
        return invalid("a configuration names an unknown field") if found is None else unknown_field(found, known)


def unknown_field(name: str, known: tuple[str, ...]) -> TopicsError:
    """`400` for a configuration that names a field there is none of."""
    name = name[:MAX_SHOWN]
    near = get_close_matches(name.lower().replace("-", "_"), known, 1)
    message = f"{name!r} is no field of a configuration"
    if near:
        return invalid(f"{message}; did you mean {near[0]}?", field=name, did_you_mean=near[0])
    return invalid(f"{message}; there are {', '.join(known)}", field=name)


def _few_members(body: bytes) -> dict[str, Raw]:
    """The body's own fields; none if there may be so many that naming one is not worth the memory."""
    return _named(body) if body.count(b":") <= MAX_COLONS else {}


def _named(body: bytes) -> dict[str, Raw]:
    """Its members by their names, in which lone surrogates are shown as their escapes."""
    members, mask = apply(_members, body)
    if mask is None:
        return members
    return {mask.undone(name.encode()).decode(): Raw(mask.undone(bytes(member))) for name, member in members.items()}


def _decoded(decode: Callable[[bytes], T], body: bytes, most: int) -> T:
    """Raises msgspec's errors, and `400` for what is not even text."""
    if not body or body.isspace():
        body = b"{}"
    try:
        if not body.isascii():
            _check_utf8(body)
        value, mask = apply(decode, body, most)
        return value if mask is None else mask.restored(value)
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def _refused(error: msgspec.DecodeError, decode: Callable[[bytes], Any]) -> TopicsError:
    if isinstance(error, msgspec.ValidationError):
        return invalid(f"the body has the wrong shape: {error}{allowed(decode, error)}")
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
