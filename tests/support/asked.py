"""Operations and answers between processes, made from the names and values that a test gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proto.ipc.figures import ShardFigures
from proto.ipc.operations import BY_NAME, Answer, Figures, Operation


def operation(op: str, options: Mapping[str, Any]) -> Operation[Any]:
    """Return the operation of this name. An unknown field raises TypeError, as does a missing one."""
    return BY_NAME[op].request(**{name: _fixed(value) for name, value in options.items()})


def answer(op: str, extra: Mapping[str, Any]) -> Answer | None:
    """Return the answer of this operation. `extra` may have fields of other operations' answers: they are dropped. None
    if it lacks a required field, so that one script may answer several operations."""
    made = BY_NAME[op].answer
    if made is Figures:
        return Figures(msgspec.convert(extra, ShardFigures, strict=False))
    if made is None or not set(made.__struct_fields__).intersection(extra):
        return None
    if any(field.required and field.name not in extra for field in msgspec.structs.fields(made)):
        return None
    return made(**{name: _fixed(extra[name]) for name in made.__struct_fields__ if name in extra})


def said(struct: msgspec.Struct | None) -> dict[str, Any] | None:
    """Return the fields of an operation or answer that are not None, with tuples as lists."""
    if struct is None:
        return None
    if isinstance(struct, Figures):
        return msgspec.json.decode(msgspec.json.encode(struct.figures))
    fields = msgspec.structs.asdict(struct).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields if value is not None}


def _fixed(value: Any) -> Any:
    return tuple(map(_fixed, value)) if isinstance(value, list | tuple) else value
