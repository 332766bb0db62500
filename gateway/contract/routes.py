"""Routing: finds the operation for a method and path, and parses a query string into typed values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from gateway.contract.operation import Operation, Param, QueryValue
from proto.model.errors import ErrorCode, TopicsError, invalid

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"-?[0-9]{1,40}", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def percent_decode(text: str, what: str) -> str:
    """Return `text` with its percent escapes resolved. Raises `400` for malformed escapes and bytes not UTF-8."""
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise invalid(f"{what} has a malformed percent escape; write a literal % as %25")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise invalid(f"{what} is not UTF-8 after percent-decoding") from None


@dataclass(slots=True, eq=False)
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    operations: dict[str, Operation] = field(default_factory=dict)


class Routes:
    """The operations as a tree of path segments."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            for path in operation.paths:
                self._add(path, operation)

    def _add(self, path: str, operation: Operation) -> None:
        node = self._root
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        assert operation.method not in node.operations, f"two operations at {operation.method} {path}"
        node.operations[operation.method] = operation
        if operation.method == "GET":
            node.operations["HEAD"] = operation

    def find(self, method: str, path: str) -> tuple[Operation, list[str]]:
        """Return the operation and the decoded, unchecked path parameters. Raises `404`, `405`, `400`."""
        node, values = self._node(path)
        operation = node.operations.get(method)
        if operation is None:
            raise method_not_allowed(method, sorted(node.operations))
        return operation, values

    def methods(self, path: str) -> list[str]:
        """Return the methods served at a path, sorted. Raises `404`, `400`."""
        return sorted(self._node(path)[0].operations)

    def _node(self, path: str) -> tuple[_Node, list[str]]:
        node = self._root
        values: list[str] = []
        for segment in path.split("/")[1:]:
            if "%" in segment:
                segment = percent_decode(segment, "path")
            following = node.literals.get(segment)
            if following is None:
                following = node.parameter
                if following is None:
                    raise unknown_path(path)
                values.append(segment)
            node = following
        if not node.operations:
            raise unknown_path(path)
        return node, values


def unknown_path(path: str) -> TopicsError:
    shown = path if len(path) <= 128 else path[:128] + "…"
    return TopicsError(
        ErrorCode.NOT_FOUND, f"nothing is served at {shown}; /v0/openapi.json lists what is", {"path": shown}
    )


def method_not_allowed(method: str, allowed: list[str]) -> TopicsError:
    return TopicsError(
        ErrorCode.METHOD_NOT_ALLOWED, f"{method[:32]} is not served here, only {', '.join(allowed)}", {"allow": allowed}
    )


def defaults(operation: Operation) -> dict[str, QueryValue]:
    return {param.name: param.default for param in operation.query if param.default is not None}


def parse_query(operation: Operation, query: str) -> dict[str, QueryValue]:
    """Return the values of the operation's query parameters, defaults included. Unknown parameters are ignored. Raises
    `400` for a value of the wrong type, and for a parameter given twice, because either could be meant."""
    values = defaults(operation)
    params = {param.name: param for param in operation.query}
    seen: set[str] = set()
    for pair in query.split("&"):
        raw_name, _, raw_value = pair.partition("=")
        param = params.get(percent_decode(raw_name.replace("+", " "), "query"))
        if param is None:
            continue
        if param.name in seen:
            raise invalid(f"query parameter {param.name} is given twice", field=param.name)
        seen.add(param.name)
        values[param.name] = _value(param, percent_decode(raw_value.replace("+", " "), f"query parameter {param.name}"))
    return values


def _value(param: Param, text: str) -> QueryValue:
    if param.type == "boolean":
        if (flag := _BOOLEANS.get(text.lower())) is None:
            raise invalid(f"query parameter {param.name} must be true or false", field=param.name)
        return flag
    if param.type == "integer":
        if _INTEGER.fullmatch(text) is None:
            raise invalid(f"query parameter {param.name} must be an integer", field=param.name)
        return int(text)
    return text
