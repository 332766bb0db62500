"""Descriptions of the fields of Structs, for the OpenAPI document. They do not change what a Struct accepts.

A text in braces that names one of `proto.model.limits.Limits`, such as `{max_limit}`, stands for its value in the
service that serves the document, in descriptions and as the value of a schema's keyword.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta

from proto.model.limits import MAX_U64
from proto.model.names import ROUTER, TOPIC

DEFAULT = "x-default"
"""Keyword for what the service takes where a field is absent or null. Its Struct has None there."""


def about(description: str, *, default: Any = UNSET, **schema: Any) -> Meta:
    """The description of a field; `schema` are further keywords of JSON Schema. `default`: see `DEFAULT`."""
    if default is not UNSET:
        schema[DEFAULT] = default
    return Meta(description=description, extra_json_schema=schema or None)


def either(**schemas: dict[str, Any]) -> dict[str, Any]:
    """The rule that a body has one of two fields, or both. A value of the schema of its name counts as having it.

    It is written as `if` and `then`: generators of clients pass over these, but take `anyOf` for two types.
    """
    (first, second) = ({"required": [name], "properties": {name: schema}} for name, schema in schemas.items())
    return {"if": {"not": first}, "then": second}


U64 = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_U64})]
Name = Annotated[str, Meta(extra_json_schema={"pattern": f"^{TOPIC.pattern}$"})]
"""Name of a topic."""
RouterName = Annotated[str, Meta(extra_json_schema={"pattern": f"^{ROUTER.pattern}$"})]
NodeId = Annotated[str, Meta(extra_json_schema={"maxLength": "{max_node_bytes}"})]
Nodes = str | list[str]
_OPERATOR = [{"const": "tag"}, {"enum": ["Eq", "Glob"]}, {"type": "string"}]
_PREFIX = {"type": "string", "pattern": "^[^*]*[*]$"}
Match = (
    str
    | Annotated[
        list[Any],
        Meta(
            extra_json_schema={
                "items": {"type": "string"},
                "prefixItems": _OPERATOR,
                "minItems": 3,
                "maxItems": 3,
                "if": {"prefixItems": [{}, {"const": "Glob"}]},
                "then": {"prefixItems": [{}, {}, _PREFIX]},
            }
        ),
    ]
)
"""What `proto.model.match` reads."""
MATCH = 'a tag, `["tag", "Eq", tag]`, or `["tag", "Glob", "prefix*"]`'
