"""The OpenAPI document, generated from the table of operations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from gateway.contract.operations import OPERATIONS, Body, Operation
from proto import __version__
from proto.model.durability import BY_NAME
from proto.model.errors import STATUS
from proto.model.keys import ALL_SCOPES
from proto.model.limits import MAX_PUBLISH_DELAY_MS
from proto.model.names import ROUTER, TOPIC, WATCH_SESSION

_REQUESTS: dict[str, dict[str, Any]] = {
    "configure_topic": {"$ref": "#/components/schemas/TopicConfig"},
    "append": {"$ref": "#/components/schemas/Append"},
    "diff": {"$ref": "#/components/schemas/Diff"},
    "delete_records": {"$ref": "#/components/schemas/Delete"},
    "put_cursor": {"$ref": "#/components/schemas/Position"},
    "put_router": {"$ref": "#/components/schemas/Router"},
    "make_ticket": {"$ref": "#/components/schemas/Ticket"},
    "watch": {"$ref": "#/components/schemas/Watch"},
    "claim": {"$ref": "#/components/schemas/Claim"},
    "ack": {"$ref": "#/components/schemas/Jobs"},
    "nack": {"$ref": "#/components/schemas/Nack"},
    "extend": {"$ref": "#/components/schemas/Extend"},
    "peek": {"$ref": "#/components/schemas/Peek"},
    "redrive": {"$ref": "#/components/schemas/Redrive"},
}
_CREATES = {"configure_topic", "append", "put_router"}
"""Operations that answer 201 when they created something."""

_U64 = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
_BOOLEAN = {"type": "boolean"}
_STRING = {"type": "string"}
_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {
                    "code": {"type": "string", "enum": sorted(code.value for code in STATUS)},
                    "message": _STRING,
                    "detail": {"type": "object"},
                },
            },
            "performance": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    },
    "TopicConfig": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["log", "queue"]},
            "ttl_ms": _U64,
            "cap_records": _U64,
            "cap_bytes": _U64,
            "discard": {"type": "string", "enum": ["old", "reject"]},
            "durable": _BOOLEAN,
            "durability": {"type": "string", "enum": list(BY_NAME)},
            "priority": {"type": ["integer", "null"]},
            "auto_priority": _BOOLEAN,
            "auto_create": _BOOLEAN,
            "idempotency_window_ms": _U64,
            "dedupe_node": _BOOLEAN,
            "lease_ms": _U64,
            "claim_jitter_ms": _U64,
            "max_deliveries": _U64,
            "dead_letter": {"type": ["string", "null"]},
            "leases_durable": _BOOLEAN,
        },
    },
    "Record": {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {},
            "tag": _STRING,
            "node": _STRING,
            "meta": {"type": "object"},
            "delay_ms": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_PUBLISH_DELAY_MS,
                "description": "jobs of a queue only (an extension): hand it out no earlier",
            },
        },
    },
    "Append": {
        "type": "object",
        "required": ["records"],
        "properties": {
            "records": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Record"}},
            "node": _STRING,
            "idempotency_key": {"type": "string", "maxLength": 256},
            "create": _BOOLEAN,
            "config": {"$ref": "#/components/schemas/TopicConfig"},
            "disable_backpressure": _BOOLEAN,
        },
    },
    "Diff": {
        "type": "object",
        "properties": {
            "from_seq": _U64,
            "cursor": _STRING,
            "limit": {"type": "integer", "minimum": 0},
            "node": {"anyOf": [_STRING, {"type": "array", "items": _STRING}]},
            "include_tags": _BOOLEAN,
            "include_meta": _BOOLEAN,
            "wait_ms": {"type": "integer", "minimum": 0},
        },
    },
    "Delete": {
        "type": "object",
        "anyOf": [{"required": ["before_seq"]}, {"required": ["match"]}],
        "properties": {
            "before_seq": _U64,
            "match": {
                "anyOf": [
                    _STRING,
                    {
                        "type": "array",
                        "prefixItems": [{"const": "tag"}, {"enum": ["Eq", "Glob"]}, _STRING],
                        "minItems": 3,
                        "maxItems": 3,
                    },
                ]
            },
        },
    },
    "Position": {
        "type": "object",
        "required": ["seq"],
        "properties": {"seq": _U64, "force": _BOOLEAN},
    },
    "Watch": {
        "type": "object",
        "required": ["topics"],
        "properties": {
            "topics": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"type": "object", "properties": {"from_seq": _U64, "tail": _BOOLEAN}},
            },
            "cursor": _STRING,
            "node": {"anyOf": [_STRING, {"type": "array", "items": _STRING}]},
            "limit": {"type": "integer", "minimum": 0},
            "max_batch_bytes": {"type": "integer", "minimum": 0},
            "heartbeat_ms": {"type": "integer", "minimum": 0},
            "include_meta": _BOOLEAN,
            "include_tags": _BOOLEAN,
            "include_data": _BOOLEAN,
            "consistency": {"type": "string", "enum": ["eventual", "strong"]},
        },
    },
}
_JOBS = {
    "node": {"type": "string", "minLength": 1},
    "seqs": {"type": "array", "items": _U64, "minItems": 1},
    "lease_ids": {"type": "array", "items": _STRING},
}
_SCHEMAS["Claim"] = {
    "type": "object",
    "required": ["node"],
    "properties": {
        "node": _JOBS["node"],
        "max": {"type": "integer"},
        "lease_ms": {"type": "integer"},
        "wait_ms": {
            "type": "integer",
            "description": "how long to wait for a job when there is none (an extension), at most 30 000",
        },
    },
}
_SCHEMAS["Jobs"] = {"type": "object", "required": ["node", "seqs"], "properties": _JOBS}
_SCHEMAS["Nack"] = {
    "type": "object",
    "required": ["node", "seqs"],
    "properties": {**_JOBS, "delay_ms": {"type": "integer"}},
}
_SCHEMAS["Extend"] = {
    "type": "object",
    "required": ["node", "seqs", "lease_ms"],
    "properties": {**_JOBS, "lease_ms": {"type": "integer"}},
}
_OLD_NAME = {**_U64, "deprecated": True}
_SCHEMAS["Peek"] = {
    "type": "object",
    "properties": {
        "first_seq": {**_U64, "description": "the first one, inclusive"},
        "from_seq": _OLD_NAME,
        "max": {"type": "integer"},
    },
}
_SCHEMAS["Redrive"] = {
    "type": "object",
    "required": ["queue"],
    "properties": {
        "queue": {"type": "string", "description": "where the jobs came from, and go back to"},
        "first_seq": {**_U64, "description": "the first one, inclusive"},
        "last_seq": {**_U64, "description": "the last one, inclusive"},
        "from_seq": _OLD_NAME,
        "to_seq": _OLD_NAME,
        "match": _SCHEMAS["Delete"]["properties"]["match"],
        "max": {"type": "integer"},
    },
}
_SCHEMAS["Ticket"] = {
    "type": "object",
    "required": ["path"],
    "properties": {"path": {"type": "string", "description": "of the stream or WebSocket that it is for"}},
}
_SCHEMAS["Router"] = {
    "type": "object",
    "properties": {
        "source": _STRING,
        "dest": _STRING,
        "preserve_node": _BOOLEAN,
        "preserve_tag": _BOOLEAN,
        "create_dest": _BOOLEAN,
        "filter": {"anyOf": [*_SCHEMAS["Delete"]["properties"]["match"]["anyOf"], {"type": "null"}]},
        "allow_cycle": _BOOLEAN,
        "guarantee": {"enum": ["at_least_once", "exactly_once"]},
    },
}
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "router": {"type": "string", "pattern": f"^{ROUTER.pattern}$"},
    "topic": {"type": "string", "pattern": f"^{TOPIC.pattern}$"},
    "wid": {"type": "string", "pattern": f"^{WATCH_SESSION.pattern}$"},
    "cursor": {"type": "string", "minLength": 1, "description": "up to 255 bytes of UTF-8, percent-encoded"},
}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, schema in _PATH_PARAMETERS.items():
        if f"{{{name}}}" in operation.path:
            found.append({"name": name, "in": "path", "required": True, "schema": schema})
    for param in operation.query:
        of_param: dict[str, Any] = {"type": param.type}
        if param.default is not None:
            of_param["default"] = param.default
        found.append({"name": param.name, "in": "query", "description": param.summary, "schema": of_param})
    return found


def _described(operation: Operation) -> dict[str, Any]:
    error = {
        "description": "The canonical error body",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    answer = {"content": {"application/json": {"schema": {"type": "object"}}}}
    responses: dict[str, Any] = {"200": {"description": "Done", **answer}, "default": error}
    if operation.name in _CREATES:
        responses["201"] = {"description": "Done, and this call created it", **answer}
    if operation.name == "metrics":
        responses["200"]["content"]["text/plain"] = {"schema": _STRING}
    if operation.streams:
        responses["200"]["content"] = {"text/event-stream": {"schema": _STRING}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": responses,
    }
    if operation.scope is not None:
        described["x-scope"] = "+".join(operation.scope.words)
        described["security"] = [{"key": []}]
    if operation.body is not Body.NONE:
        described["requestBody"] = {
            "required": operation.body is Body.REQUIRED,
            "content": {"application/json": {"schema": _REQUESTS.get(operation.name, {"type": "object"})}},
        }
    return described


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "description": f"A persistent event engine. Scopes of keys: {', '.join(ALL_SCOPES.words)}.",
        },
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


@cache
def rendered() -> bytes:
    return msgspec.json.encode(document(OPERATIONS))
