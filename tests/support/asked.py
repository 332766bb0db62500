"""Operations and answers between processes, from the names and values a test says them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proto.ipc.operations import BY_NAME, Answer, Figures, Operation


def operation(op: str, options: Mapping[str, Any]) -> Operation[Any]:
    """The operation of this name. Fields it does not have are an error, as is one that is missing."""
    return BY_NAME[op].request(**{name: _fixed(value) for name, value in options.items()})


def answer(op: str, extra: Mapping[str, Any]) -> Answer | None:
    """What the operation of this name is answered with; of fields for several operations those that it has."""
    made = BY_NAME[op].answer
    if made is Figures:
        return Figures(dict(extra))
    if made is None or not set(made.__struct_fields__).intersection(extra):
        return None
    return made(**{name: _fixed(extra[name]) for name in made.__struct_fields__ if name in extra})


def said(struct: msgspec.Struct | None) -> dict[str, Any] | None:
    """The fields of an operation or answer that say something, lists as lists."""
    if struct is None:
        return None
    if isinstance(struct, Figures):
        return struct.figures
    fields = msgspec.structs.asdict(struct).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields if value is not None}


def _fixed(value: Any) -> Any:
    return tuple(map(_fixed, value)) if isinstance(value, list | tuple) else value
