"""Unknown fields: their names in a body, at every level that its type has Structs at.

    {"records":[{"data":{"x":1},"tags":"a"}],"nodes":1}    `nodes`, `records[0].tags`
    {"topics":{"t":{"fromseq":1}}}                         `topics["t"].fromseq`
    {"node":"w","ack":{"seqs":[1],"lease_id":"x"}}         `ack.lease_id`

Values of no Struct, such as `data`, are not looked into, nor are Structs that forbid unknown fields themselves. Names
are looked for after a strict decoder has refused the body and a loose one has taken it. C code passes over items
without unknown fields; Python looks at those that have one, and at no more than are named.

An object is split into its members unless more than `MAX_SPLIT_BYTES` of it are outside of known fields, which bounds
the memory. Of such an object only the first unknown field is named, which a strict decoder's error has.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice
from operator import is_, length_hint, or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

MAX_NAMED = 10
MAX_SHOWN = 64
"""Characters shown of a name."""
MAX_SPLIT_BYTES = 512 << 10
"""A member takes at least five bytes, and a hundred and more in memory."""
UNKNOWN = "Object contains unknown field"
_FIRST = re.compile(rf"{UNKNOWN} `(.*)`", re.DOTALL)

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_items = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


def strict(kind: Any) -> Any:
    """The type with every Struct in it replaced by one that forbids unknown fields."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        if kind.__struct_config__.forbid_unknown_fields:
            return kind
        fields = [(field, strict(field.type)) for field in msgspec.structs.fields(kind)]
        changed = [(field.name, made, _default(field)) for field, made in fields if made is not field.type]
        return msgspec.defstruct(kind.__name__, changed, bases=(kind,), forbid_unknown_fields=True, kw_only=True)
    inner = get_args(kind)
    made = tuple(map(strict, inner))
    if all(map(is_, inner, made)):
        return kind
    origin: Any = get_origin(kind)
    if origin is Annotated:
        return Annotated[made]
    return reduce(or_, made) if origin in (Union, UnionType) else origin[made]


def _default(field: msgspec.structs.FieldInfo) -> Any:
    given: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
    return msgspec.field(name=field.encode_name, **given)


class Names:
    """Finds the names in texts of one type: a Struct, or a Struct or None."""

    def __init__(self, kind: Any) -> None:
        struct = next(each for each in _alternatives(kind) if _is_loose(each))
        self._strict = msgspec.json.Decoder(strict(kind)).decode
        self._known = struct.__struct_encode_fields__
        raws = [(f"f{at}", Raw, msgspec.field(name=name, default=Raw())) for at, name in enumerate(self._known)]
        outline = msgspec.defstruct("Outline", raws)
        self._outline = msgspec.json.Decoder(outline).decode
        self._only_known = msgspec.json.Decoder(strict(outline)).decode
        self._inner = {
            field.encode_name: Names(inner)
            for field in msgspec.structs.fields(struct)
            for inner in map(_item, _alternatives(field.type))
            if any(map(_is_loose, _alternatives(inner)))
        }
        self._parts = {
            field.encode_name: Names(field.type)
            for field in msgspec.structs.fields(struct)
            if any(map(_is_loose, _alternatives(field.type)))
        }

    def found(self, text: bytes, shown: Callable[[str], str]) -> list[str]:
        """The first `MAX_NAMED` names in a text that is of the type but for them. `shown` makes a name what the client
        wrote."""
        return list(islice(self._walk(text, "", shown), MAX_NAMED))

    def _walk(self, text: bytes, path: str, shown: Callable[[str], str]) -> Iterator[str]:
        fields: dict[str, Raw] = dict(zip(self._known, msgspec.structs.astuple(self._outline(text)), strict=True))
        if len(text) - sum(map(len, fields.values())) <= MAX_SPLIT_BYTES:
            unknown = [name for name in _members(text) if name not in fields]
        else:
            unknown = self._first(text)
        for name in unknown:
            yield path + shown(name)[:MAX_SHOWN]
        for field, names in self._parts.items():
            if (value := bytes(fields[field]))[:1] == b"{":
                yield from names._walk(value, f"{path}{field}.", shown)
        for field, names in self._inner.items():
            value = bytes(fields[field])
            if value[:1] == b"[":
                for index, item in names._odd(_items(value)):
                    yield from names._walk(bytes(item), f"{path}{field}[{index}].", shown)
            elif value[:1] == b"{":
                members = _members(value)
                keys = list(members)
                for index, item in names._odd(list(members.values())):
                    key = _encode(shown(keys[index])[:MAX_SHOWN]).decode()
                    yield from names._walk(bytes(item), f"{path}{field}[{key}].", shown)

    def _odd(self, items: list[Raw]) -> Iterator[tuple[int, Raw]]:
        """The items with unknown fields, and their indexes."""
        left = iter(items)
        while True:
            try:
                deque(map(self._strict, left), 0)
                return
            except msgspec.ValidationError:
                index = len(items) - length_hint(left) - 1
                yield index, items[index]

    def _first(self, text: bytes) -> list[str]:
        try:
            self._only_known(text)
        except msgspec.ValidationError as error:
            return [found[1]] if (found := _FIRST.fullmatch(str(error))) is not None else []
        return []


def _item(kind: Any) -> Any:
    """The type of the items of a list, and of the values of a map; of any other type, None."""
    return get_args(kind)[-1] if get_origin(kind) in (list, dict) else None


def _alternatives(kind: Any) -> list[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        return _alternatives(get_args(kind)[0])
    return [each for one in get_args(kind) for each in _alternatives(one)] if origin in (Union, UnionType) else [kind]


def _is_loose(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct) and not kind.__struct_config__.forbid_unknown_fields
