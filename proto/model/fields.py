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


U64 = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_U64})]
Name = Annotated[str, Meta(extra_json_schema={"pattern": f"^{TOPIC.pattern}$"})]
"""Name of a topic."""
RouterName = Annotated[str, Meta(extra_json_schema={"pattern": f"^{ROUTER.pattern}$"})]
NodeId = Annotated[str, Meta(extra_json_schema={"maxLength": "{max_node_bytes}"})]
Nodes = str | list[str]
Match = (
    str
    | Annotated[
        list[Any],
        Meta(
            extra_json_schema={
                "anyOf": [
                    {
                        "type": "array",
                        "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
                        "minItems": 3,
                        "maxItems": 3,
                    },
                    {
                        "type": "array",
                        "prefixItems": [
                            {"const": "tag"},
                            {"const": "Glob"},
                            {"type": "string", "pattern": "^[^*]*[*]$"},
                        ],
                        "minItems": 3,
                        "maxItems": 3,
                    },
                ]
            }
        ),
    ]
)
"""What `proto.model.match` reads."""
MATCH = 'a tag, `["tag", "Eq", tag]`, or `["tag", "Glob", "prefix*"]`'
