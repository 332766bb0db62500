"""The reference pages of the site, made from the code: HTTP operations, metrics, the Python client."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import topics_client
from gateway.contract import openapi
from gateway.contract.operations import OPERATIONS
from gateway.observe.families import families
from gateway.observe.metrics import Snapshot
from proto.ipc.control import ShardState
from proto.ipc.figures import ShardFigures
from proto.ipc.gateway_figures import GatewayFigures, ProtocolFigures
from proto.model.limits import Limits

ROOT = Path(__file__).parents[2]
Schema = dict[str, Any]


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    return {"http.md": http(), "metrics.md": metrics(), "python.md": python()}


def http() -> str:
    document = openapi.document(OPERATIONS, Limits())
    lines = ["# HTTP operations", "", "Made from the document that the service gives at `/v0/openapi.json`.", ""]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += _operation(method.upper(), path, operation, document)
    lines += ["## Types", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", schema.get("description", ""), "", *_fields(schema, document)]
    return "\n".join(lines)


def _operation(method: str, path: str, operation: Schema, document: Schema) -> Iterator[str]:
    yield from (f"## {method} {path}", "", operation["summary"] + ".", "")
    if scopes := [scope for each in operation.get("security", ()) for scopes in each.values() for scope in scopes]:
        yield from (f"Needs the scope {' and '.join(f'`{scope}`' for scope in scopes)}.", "")
    parameters = [_resolved(each, document) for each in operation.get("parameters", ())]
    if parameters:
        yield from ("| parameter | in | type | |", "| --- | --- | --- | --- |")
        for each in parameters:
            about = _cell(each.get("description", ""))
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {about} |"
        yield ""
    body = _resolved(operation.get("requestBody", {}), document).get("content", {})
    for schema in [each["schema"] for each in body.values()][:1]:
        yield from (f"Body: {_type(schema)}", "")
    yield from ("| status | answer |", "| --- | --- |")
    for status, answer in operation["responses"].items():
        answer = _resolved(answer, document)
        types = {_type(each["schema"]) for each in answer.get("content", {}).values() if "schema" in each}
        yield f"| {status} | {_cell(answer.get('description', ''))} {' '.join(sorted(types))} |"
    yield ""


def _fields(schema: Schema, document: Schema) -> Iterator[str]:
    properties = schema.get("properties", {})
    if not properties:
        yield from (_type(schema), "")
        return
    yield from ("| field | type | |", "| --- | --- | --- |")
    for name, each in properties.items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        about = _cell(each.get("description", ""))
        default = f" Default: `{json.dumps(each['default'])}`." if "default" in each else ""
        yield f"| `{name}`{needed} | {_type(each)} | {about}{default} |"
    yield ""


def _resolved(schema: Schema, document: Schema) -> Schema:
    while "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _type(schema: Schema) -> str:
    """A type in words, with links to the named ones."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    kinds = schema.get("type", "any JSON")
    named = ["array of " + _type(schema["items"]) if k == "array" and "items" in schema else k for k in _list(kinds)]
    return " or ".join(named)


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def metrics() -> str:
    protocols = [ProtocolFigures(name, 0, [("PUT", "ok", 0)]) for name in ("walrus", "rog")]
    nothing = Snapshot(
        states=[ShardState(0, "ready")],
        serving=[True],
        progress=1.0,
        counters=[(0, 0, 0)],
        shard_stats=[ShardFigures()],
        counted={},
        draining=False,
        gateways=GatewayFigures(protocols=protocols),
        max_topics=0,
        several_gateways=True,
    )
    lines = ["# Metrics", "", "`GET /v0/metrics`, for Prometheus, or with `Accept: application/json` as JSON.", ""]
    lines += ["| metric | type | labels | |", "| --- | --- | --- | --- |"]
    for family in families(nothing):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = " ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        lines.append(f"| `{name}` | {family.type} | {labels} | {_cell(family.documentation)} |")
    return "\n".join(lines) + "\n"


def python() -> str:
    lines = [
        "# Python client",
        "",
        "Made from the docstrings of `topics_client`; [Clients](../clients.md) shows it at work:",
        "",
        _first_example(),
        "",
    ]
    shown = [value for value in vars(topics_client).values() if inspect.isclass(value)]
    errors = [each for each in shown if issubclass(each, Exception)]
    for each in [each for each in shown if each not in errors]:
        lines += [f"## {each.__name__}", "", _doc(each), ""]
        for name, member in inspect.getmembers(each, inspect.isroutine):
            if not name.startswith("_") and _doc(member):
                try:
                    text = re.sub(r"\bself(?:, )?|'", "", str(inspect.signature(member)))
                except ValueError:
                    continue
                lines += [f"### {each.__name__}.{name}", "", "```text", f"{name}{text}", "```", "", _doc(member), ""]
    lines += ["## Errors", "", "| class | below | |", "| --- | --- | --- |"]
    lines += [f"| `{e.__name__}` | `{e.__base__.__name__ if e.__base__ else ''}` | {_cell(_doc(e))} |" for e in errors]
    return "\n".join(lines) + "\n"


def _first_example() -> str:
    """The first example of the page of the clients, which a test runs."""
    found = re.search(r"^```python$.*?^```$", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def _doc(value: Any) -> str:
    own = value.__doc__ or ""
    return inspect.cleandoc(own) if "built-in" not in own else ""
