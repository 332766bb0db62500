"""The OpenAPI document of a service, made from the table of operations and the Structs of its bodies.

Nothing about a field is written here: types come from the Structs that parse the requests and make the answers,
descriptions and bounds from their annotations (`proto.model.fields`). The document shows the limits of the service that
serves it, and asks for keys only if the service does.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from gateway.contract.json_schemas import REF, Schema, example, of_service, of_structs
from gateway.contract.operation import Header, Operation, Param
from gateway.contract.operations import OPERATIONS
from gateway.contract.samples import Example, samples
from proto import __version__
from proto.api import answers
from proto.model.errors import STATUS, ErrorCode
from proto.model.keys import ALL_SCOPES
from proto.model.limits import Limits
from proto.model.names import ROUTER, TOPIC, WATCH_SESSION
from proto.model.unknown_fields import MAX_NAMED

Codes = frozenset[ErrorCode]

PATH_PARAMETERS: dict[str, tuple[str, Schema]] = {
    "router": ("name of a router", {"type": "string", "pattern": f"^{ROUTER.pattern}$", "examples": ["jobs>audit"]}),
    "topic": ("name of a topic", {"type": "string", "pattern": f"^{TOPIC.pattern}$", "examples": ["jobs"]}),
    "wid": (
        "name of a watch session",
        {"type": "string", "pattern": f"^{WATCH_SESSION.pattern}$", "examples": ["wid_Zm9vYmFyYmF6cXV4MTIzNA"]},
    ),
    "cursor": (
        "name of a cursor, 1 to 255 bytes of UTF-8, percent-encoded",
        {"type": "string", "minLength": 1, "maxLength": 255, "examples": ["billing"]},
    ),
}
_OTHER_EXAMPLES = {("redrive", "topic"): "jobs:dead"}
_RETRY_AFTER = {
    "Retry-After": {"description": "seconds after which to try again", "schema": {"type": "integer", "minimum": 1}}
}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "the scheme, Bearer", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
MEANINGS: dict[ErrorCode, str] = {
    ErrorCode.INVALID_REQUEST: "the request is malformed, or a value is not allowed",
    ErrorCode.BATCH_TOO_LARGE: "more entries than one request may have",
    ErrorCode.RECORD_TOO_LARGE: "a record is larger than allowed, or can never fit into the topic",
    ErrorCode.UNAUTHORIZED: "the key is missing, or not known",
    ErrorCode.FORBIDDEN: "the key may not do this, or the web page may not use the service",
    ErrorCode.NOT_FOUND: "there is nothing of this name",
    ErrorCode.TOPIC_NOT_FOUND: "the topic does not exist",
    ErrorCode.ROUTER_NOT_FOUND: "the router does not exist",
    ErrorCode.CURSOR_NOT_FOUND: "the cursor does not exist",
    ErrorCode.METHOD_NOT_ALLOWED: "the path has other methods; the header Allow names them",
    ErrorCode.NOT_ACCEPTABLE: "the answer is an event stream, which the header Accept excludes",
    ErrorCode.REQUEST_TIMEOUT: "the request came too slowly",
    ErrorCode.ROUTER_CYCLE: "the router would close a cycle",
    ErrorCode.TOPIC_EXISTS_INCOMPATIBLE: "a topic is of another type, or has another source",
    ErrorCode.TOPIC_NOT_EMPTY: "the topic has records",
    ErrorCode.NOT_A_QUEUE: "the topic is a log and has no jobs",
    ErrorCode.PAYLOAD_TOO_LARGE: "the body is larger than allowed",
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: "the body is not JSON, or its encoding is not known",
    ErrorCode.TOPIC_FULL: "the topic is at a cap, and refuses what is beyond it",
    ErrorCode.THROTTLED: "a cap is reached, or the service is under load",
    ErrorCode.HEADERS_TOO_LARGE: "the head of the request is larger than allowed",
    ErrorCode.INTERNAL: "a bug, or damaged files",
    ErrorCode.NOT_READY: "a shard does not serve at this time",
    ErrorCode.SHUTTING_DOWN: "the service ends",
}
WAYS = {
    "key": {"type": "http", "scheme": "bearer", "description": f"Scopes: {', '.join(ALL_SCOPES.words)}"},
    "ticket": {"type": "apiKey", "in": "query", "name": "ticket", "description": "of POST /v0/tickets"},
    "token": {"type": "apiKey", "in": "query", "name": "token", "description": "a key, for development only"},
}
"""Ways to bring a key."""
_ANY_REQUEST = {
    ErrorCode.INVALID_REQUEST,
    ErrorCode.FORBIDDEN,
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.HEADERS_TOO_LARGE,
    ErrorCode.INTERNAL,
}
_BODY = {ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.UNSUPPORTED_MEDIA_TYPE}
_UPGRADED = "The connection speaks the WebSocket protocol from here on, with JSON in text messages"
_TAGS = {
    "topics": ("Topics and their records", ("topics",)),
    "queues": ("Jobs, leased to workers", ("claim", "ack", "nack", "extend", "peek", "redrive", "work")),
    "streams": ("Records as they are written", ("watch", "ws", "tickets")),
    "cursors": ("Named positions in topics, kept by the service", ("cursors",)),
    "routers": ("Copies of records from topic to topic", ("routers",)),
    "service": ("The service itself", ()),
}
"""Tag → what it is about, and segments of the paths of its operations. The last tag that fits counts. The order is that
of the page at `/docs`."""


def errors_of(operation: Operation, *, keyed: bool) -> Codes:
    """The codes that an operation answers with. `keyed`: it needs a key."""
    codes = _ANY_REQUEST | set(operation.errors)
    if keyed:
        codes |= {ErrorCode.UNAUTHORIZED}
    if operation.scope is not None:
        codes |= {ErrorCode.THROTTLED}
    if operation.request is not None:
        codes |= _BODY
    if not operation.always:
        codes |= {ErrorCode.NOT_READY, ErrorCode.SHUTTING_DOWN}
    return frozenset(codes)


# Operations


def _tag(operation: Operation) -> str:
    segments = operation.path.split("/")
    fitting = [tag for tag, (_, words) in _TAGS.items() if not {*words}.isdisjoint(segments)]
    return fitting[-1] if fitting else "service"


def _parameters(operation: Operation) -> list[Schema]:
    found: list[Schema] = []
    for name, (text, schema) in PATH_PARAMETERS.items():
        if f"{{{name}}}" in operation.path:
            if (operation.name, name) in _OTHER_EXAMPLES:
                schema = {**schema, "examples": [_OTHER_EXAMPLES[operation.name, name]]}
            found.append({"name": name, "in": "path", "required": True, "description": text, "schema": schema})
    found += [_query(param) for param in operation.query if param.name not in WAYS]
    return found + [_header(header) for header in operation.headers]


def _header(header: Header) -> Schema:
    schema = {"type": "string", **header.schema}
    return {"name": header.name, "in": "header", "description": header.summary, "schema": schema}


def _query(param: Param) -> Schema:
    schema: Schema = {"type": param.type, **param.schema}
    if param.default is not None and not param.required:
        schema["default"] = param.default
    query = {"name": param.name, "in": "query", "description": param.summary, "schema": schema}
    return {**query, "required": True} if param.required else query


def _success(operation: Operation) -> Schema:
    """The responses that are no error."""
    if operation.upgrades:
        return {"101": {"description": _UPGRADED}}
    if operation.streams:
        text = f"Events, until either side ends the stream: {operation.events}"
        return {"200": {"description": text, "content": {"text/event-stream": {}}}}
    content: Schema = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
    if operation.answer is not None:
        content = {"application/json": {"schema": {"$ref": REF.format(name=operation.answer.__name__)}}}
    if operation.name == "metrics":
        content["text/plain"] = {"schema": {"type": "string"}}
    found: Schema = {"200": {"description": "Done", "content": content}}
    if operation.creates:
        found["201"] = {"description": "Done, and this request created it", "content": content}
    return found


def _failures(codes: Codes, shared: dict[str, Schema]) -> Schema:
    """The responses that are errors. Each is made once for all operations and put into `shared`."""
    by_status: dict[int, list[ErrorCode]] = {}
    for code in STATUS:
        if code in codes:
            by_status.setdefault(STATUS[code], []).append(code)
    found: Schema = {}
    for status, those in by_status.items():
        name = f"{status}_{'_'.join(those)}"
        shared.setdefault(name, _failure(status, those))
        found[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found


def _failure(status: int, codes: list[ErrorCode]) -> Schema:
    return {
        "description": "; ".join(f"`{code.value}`: {MEANINGS[code]}" for code in codes),
        "x-error-codes": [code.value for code in codes],
        **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        "content": {
            "application/json": {
                "schema": {"$ref": REF.format(name="ErrorAnswer")},
                "examples": {
                    code.value: {"value": {"error": {"code": code.value, "message": MEANINGS[code]}}} for code in codes
                },
            }
        },
    }


def _security(operation: Operation) -> list[Schema]:
    words = list(operation.scope.words) if operation.scope else []
    ways = ["key"]
    if operation.streams:
        ways.append("ticket")
    if operation.event_stream:
        ways.append("token")
    return [{way: words} for way in ways]


def _described(operation: Operation, shared: dict[str, Schema], *, keys: bool, probe_auth: bool) -> Schema:
    needs_key = keys and (operation.scope is not None or (operation.probe and probe_auth))
    text = f"{operation.summary}."
    if operation.aliases:
        text += f" Also at {', '.join(operation.aliases)}."
    if needs_key and operation.scope:
        words = operation.scope.words
        text += f" Needs a key with the scope{'s' if len(words) > 1 else ''} {' and '.join(words)}."
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": text,
        "tags": [_tag(operation)],
        "parameters": _parameters(operation),
        "responses": {**_success(operation), **_failures(errors_of(operation, keyed=needs_key), shared)},
        "security": _security(operation) if needs_key else [],
    }
    if operation.request is not None:
        schema = {"$ref": REF.format(name=operation.request.__name__)}
        described["requestBody"] = {
            "required": not operation.body_optional,
            "content": {"application/json": {"schema": schema}},
        }
    if operation.deletes:
        described["x-deletes"] = True
    return described


def _example(described: Schema, body: Any) -> Example:
    """The values that the document gives as examples. A parameter without one is left out."""
    given: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}}
    for each in described["parameters"]:
        if "examples" in each["schema"]:
            given[each["in"]][each["name"]] = each["schema"]["examples"][0]
    return Example(given["path"], given["query"], body)


def _added(operations: Iterable[Operation], schemas: dict[str, Schema]) -> None:
    """Add what the service adds to answers: `performance`, and `ignored` where there is a body."""
    for operation in operations:
        if operation.answer is None:
            continue
        schema = schemas[operation.answer.__name__]
        if not operation.always:
            schema["properties"]["performance"] = {"$ref": REF.format(name="Performance")}
            schema["required"] = sorted({*schema["required"], "performance"})
        if operation.request is not None and not operation.request.__struct_config__.forbid_unknown_fields:
            schema["properties"]["ignored"] = {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": MAX_NAMED,
                "description": "fields of the body that the service does not know, at any level of it; at most "
                f"{MAX_NAMED}, absent if there are none",
            }


def document(operations: Iterable[Operation], limits: Limits, *, keys: bool = True, probe_auth: bool = False) -> Schema:
    """The document of a service. `keys`: it has keys; `probe_auth`: its probes need one too."""
    operations = tuple(operations)
    asked = {operation.request for operation in operations if operation.request is not None}
    answered = {operation.answer for operation in operations if operation.answer is not None} | {answers.ErrorAnswer}
    schemas = of_structs(answered, asked)
    _added(operations, schemas)
    paths: dict[str, Schema] = {}
    shared: dict[str, Schema] = {}
    for operation in operations:
        described = _described(operation, shared, keys=keys, probe_auth=probe_auth)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    components: Schema = {"schemas": dict(sorted(schemas.items())), "responses": dict(sorted(shared.items()))}
    if keys:
        components["securitySchemes"] = WAYS
    for operation in operations:
        for kind in (operation.request, operation.answer):
            if kind is not None:
                schemas[kind.__name__]["examples"] = [example(schemas[kind.__name__], schemas)]
        described = paths[operation.path][operation.method.lower()]
        body = None if operation.request is None else schemas[operation.request.__name__]["examples"][0]
        described["x-codeSamples"] = samples(operation, _example(described, body), keyed=bool(described["security"]))
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "description": "A persistent event engine. An integer is written without a fraction: 1, not 1.0. "
            "A boolean of a query is true or false, in any case, or 1 or 0.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "where this document is"}],
        "tags": [{"name": name, "description": text} for name, (text, _) in _TAGS.items()],
        "paths": paths,
        "components": components,
    }
    found: Schema = of_service(whole, limits)
    return found


@cache
def rendered(limits: Limits, *, keys: bool, probe_auth: bool) -> bytes:
    return msgspec.json.encode(document(OPERATIONS, limits, keys=keys, probe_auth=probe_auth))
