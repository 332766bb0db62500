"""Payloads: values of a program as JSON, and JSON as values of a type.

    value                      in JSON                                   by its type
    datetime, date, time       text, ISO 8601                            `fromisoformat`
    Decimal, UUID              text: all digits are kept                 the class; a Decimal also of a number
    Enum                       its value                                 the class
    set, frozenset, tuple      an array                                  the class
    dataclass                  an object                                 its fields; others are passed over
    pydantic                   `model_dump(mode="json", by_alias=True)`  its validator
    msgspec.Struct             `msgspec.to_builtins`                     `msgspec.convert`

Neither pydantic nor msgspec is imported: a program that has such a model has imported it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from topics_client.items import Json

Encode = Callable[[Any], Any]
Decode = Callable[[Any, Any], Any]
Reader = Callable[[Any], Any]


def to_json(value: Any) -> Any:
    """A value that JSON has, in place of one that it has not; what that contains may be such values again.

    It is the `encode` of a client. Raises `TypeError` for a value of a class that it does not know.
    """
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case Enum():
            return value.value
        case set() | frozenset():
            return list(value)
    kind = type(value)
    if hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(kind, "__struct_fields__"):
        return sys.modules["msgspec"].to_builtins(value, str_keys=True, enc_hook=to_json)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    raise TypeError(f"a value of {kind.__qualname__} is not JSON: make it a dataclass, or give the client encode=")


def writer(encode: Encode) -> Callable[[Any], bytes]:
    """The function that writes values as JSON in UTF-8, with `encode` for those that JSON does not have."""
    compact: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False, "default": encode}
    text = json.JSONEncoder(ensure_ascii=False, **compact).encode
    escaped = json.JSONEncoder(**compact).encode

    def write(value: Any) -> bytes:
        if isinstance(value, Json):
            return value
        try:
            return text(value).encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can be
            return escaped(value).encode()

    return write


def from_json(data: Any, type: Any) -> Any:
    """`data` of a record or a job as a value of `type`.

    It is the `decode` of a client. Raises `TypeError` for a type that it does not know, and `ValueError` or what
    pydantic or msgspec raises for data that does not fit.
    """
    return reader(type)(data)


def decoder(decode: Decode, kind: Any) -> Reader | None:
    """The function that makes values of a type; None without. Raises `TypeError` if `from_json` does not know it."""
    if kind is None:
        return None
    return reader(kind) if decode is from_json else lambda data: decode(data, kind)


_readers: dict[Any, Reader] = {}
_making = threading.RLock()


def reader(kind: Any) -> Reader:
    """The functions that make values of a type, made once."""
    with _making:
        if kind not in _readers:
            _readers[kind] = partial(_made_by_now, kind)  # for a type that contains itself
            try:
                _readers[kind] = _made(kind)
            except BaseException:
                del _readers[kind]
                raise
        return _readers[kind]


def _made_by_now(kind: Any, data: Any) -> Any:
    return _readers[kind](data)


def _made(kind: Any) -> Reader:
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(kind, NewType):
        return reader(kind.__supertype__)
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return reader(arguments[0])
    if origin is Literal:
        return partial(_one_of, arguments)
    if origin in (Union, UnionType):
        return partial(_first_that_fits, [reader(each) for each in arguments])
    if validator := getattr(origin, "__pydantic_validator__", None):
        read: Reader = validator.validate_python
        return read
    if hasattr(origin, "__struct_fields__"):
        return partial(sys.modules["msgspec"].convert, type=kind, str_keys=True)
    if dataclasses.is_dataclass(origin):
        return _of_dataclass(origin)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return origin
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return partial(_tuple, [reader(each) for each in arguments])
    if origin in _ARRAYS:
        return partial(_array, _ARRAYS[origin], reader(arguments[0] if arguments else Any))
    if origin in (dict, Mapping):
        name, value = arguments or (str, Any)
        return partial(_object, int if name is int else reader(name), reader(value))  # names in JSON are text
    raise TypeError(f"{kind!r} cannot be made of JSON: give a dataclass or a model, or give the client decode=")


def _same(data: Any) -> Any:
    return data


def _exactly(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise ValueError(f"{type(data).__name__} in place of {kind.__name__}")
    return data


def _number(kind: type, data: Any) -> Any:
    """A float or a Decimal. Its text is that of JSON, so a Decimal has the digits that were read."""
    if isinstance(data, bool) or not isinstance(data, int | float | Decimal | (str if kind is Decimal else int)):
        raise ValueError(f"{type(data).__name__} in place of {kind.__name__}")
    try:
        return kind(str(data))
    except ArithmeticError:
        raise ValueError(f"{data!r} in place of a number") from None


def _text(make: Reader, data: Any) -> Any:
    return make(_exactly(str, data))


_SCALARS: dict[Any, Reader] = {
    Any: _same,
    object: _same,
    None: partial(_exactly, NoneType),
    NoneType: partial(_exactly, NoneType),
    **{kind: partial(_exactly, kind) for kind in (bool, int, str)},
    **{kind: partial(_number, kind) for kind in (float, Decimal)},
    **{kind: partial(_text, kind.fromisoformat) for kind in (datetime, date, time)},
    UUID: partial(_text, UUID),
}
_ARRAYS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    **{kind: kind for kind in (list, set, frozenset, tuple)},
    Sequence: list,
    Iterable: list,
}


def _one_of(values: Sequence[Any], data: Any) -> Any:
    for value in values:
        if type(value) is type(data) and value == data:
            return value
    raise ValueError(f"{data!r} in place of one of {', '.join(map(repr, values))}")


def _first_that_fits(readers: Sequence[Reader], data: Any) -> Any:
    told = []
    for read in readers:
        try:
            return read(data)
        except Exception as error:
            told.append(str(error))
    raise ValueError("; ".join(told))


def _array(make: Callable[[Iterable[Any]], Any], read: Reader, data: Any) -> Any:
    return make([read(each) for each in _exactly(list, data)])


def _tuple(readers: Sequence[Reader], data: Any) -> Any:
    if len(_exactly(list, data)) != len(readers):
        raise ValueError(f"{len(data)} values in place of {len(readers)}")
    return tuple(read(each) for read, each in zip(readers, data, strict=True))


def _object(read_name: Reader, read: Reader, data: Any) -> Any:
    return {read_name(name): read(each) for name, each in _exactly(dict, data).items()}


def _of_dataclass(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    readers = {field.name: reader(hints[field.name]) for field in fields}
    absent = dataclasses.MISSING
    required = {field.name for field in fields if field.default is absent and field.default_factory is absent}

    def read(data: Any) -> Any:
        if lacking := required - _exactly(dict, data).keys():
            raise ValueError(f"{kind.__qualname__} lacks {', '.join(sorted(lacking))}")
        values = {}
        for name, read_field in readers.items():
            if name in data:
                try:
                    values[name] = read_field(data[name])
                except Exception as error:
                    raise ValueError(f"{kind.__qualname__}.{name}: {error}") from error
        return kind(**values)

    return read
