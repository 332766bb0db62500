"""JSON Schemas of Structs, as the OpenAPI and the AsyncAPI document show them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from proto.api import answers, frames
from proto.model.fields import DEFAULT
from proto.model.limits import Limits

Schema = dict[str, Any]
REF = "#/components/schemas/{name}"
_ANSWERED = {
    name: kind
    for module in (answers, frames)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Struct)
}


def of_structs(answered: Iterable[type[Struct]], asked: Iterable[type[Struct]]) -> dict[str, Schema]:
    """The schemas of Structs and of all in them, by name: of those that the service sends, and of those it is sent."""
    found: dict[str, Schema] = {}
    asked = set(asked)
    for kinds, always in ((set(answered), True), (asked, False)):
        _, parts = msgspec.json.schema_components(sorted(kinds, key=lambda kind: kind.__name__), ref_template=REF)
        for name, part in parts.items():
            assert name not in found, f"two Structs are called {name}"
            found[name] = _tidied(part)
            if always and name in _ANSWERED:
                found[name]["required"] = _always(_ANSWERED[name])
    for kind in asked:
        found[kind.__name__] |= getattr(kind, "SCHEMA", {})
    return found


def _always(kind: type[Struct]) -> list[str]:
    """The fields that no answer lacks."""
    types = get_type_hints(kind)
    found = [each.encode_name for each in msgspec.structs.fields(kind) if UnsetType not in get_args(types[each.name])]
    tag = kind.__struct_config__.tag_field
    return found if tag is None else [tag, *found]


def _tidied(schema: Any) -> Any:
    """A schema without what only repeats its name, with `null` among the types instead of beside them."""
    if isinstance(schema, list):
        return [_tidied(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {name: _tidied(value) for name, value in schema.items() if name != "title"}
    if "description" in tidy:
        tidy["description"] = inspect.cleandoc(tidy["description"])
    if "default" in tidy and tidy["default"] is None:
        del tidy["default"]
    if DEFAULT in tidy:
        tidy["default"] = tidy.pop(DEFAULT)
    tidy = _merged(tidy)
    if "type" in tidy and all("type" in each for each in tidy.get("anyOf", [{}])):
        del tidy["type"]
    if "object" in tidy.get("type", ()) and not {"properties", "additionalProperties"} & tidy.keys():
        tidy["additionalProperties"] = True  # without it, generators of types take such an object for an empty one
    return tidy


def _merged(schema: Schema) -> Schema:
    kinds = schema.get("anyOf", [])
    if {"type": "null"} not in kinds or len(kinds) != 2:
        return schema
    inner: Schema = next(kind for kind in kinds if kind != {"type": "null"})
    if "$ref" in inner or "anyOf" in inner:
        return schema
    outer = {name: value for name, value in schema.items() if name != "anyOf"}
    merged = {**inner, **outer}
    if "enum" in merged:
        merged["enum"] = [*merged["enum"], None]
    elif isinstance(merged["type"], str) and "type" not in outer:
        merged["type"] = [merged["type"], "null"]
    return merged


def of_service(value: Any, limits: Limits) -> Any:
    """A part of the document with the service's limits in the place of their names."""
    if isinstance(value, dict):
        return {name: of_service(each, limits) for name, each in value.items()}
    if isinstance(value, list):
        return [of_service(each, limits) for each in value]
    if isinstance(value, str):
        if (whole := _LIMIT.fullmatch(value)) is not None:
            return getattr(limits, whole[1])
        return _LIMIT.sub(lambda found: str(getattr(limits, found[1])), value)
    return value


_LIMIT = re.compile("{(" + "|".join(Limits.__struct_fields__) + ")}")


def example(schema: Schema, schemas: dict[str, Schema]) -> Any:
    """A value that fits the schema, made of the examples of its parts."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema and "type" not in schema:
        return example(schema["anyOf"][0], schemas)
    kind = schema["type"]
    if kind == "object":
        shown = schema.get("required", ())
        fields = schema.get("properties", {}).items()
        return {name: example(each, schemas) for name, each in fields if name in shown or "examples" in each}
    if kind == "array":
        return [example(schema["items"], schemas)]
    return schema.get("default", _PLAIN[kind] if isinstance(kind, str) else None)


_PLAIN: Schema = {"boolean": False, "integer": 0, "number": 0.0, "string": "text"}
