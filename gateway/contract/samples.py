"""Samples: how a program sends the example of an operation, with curl, in Python and in TypeScript.

All three are made from the example that the OpenAPI document gives: values of parameters, and a body. The tables only
say which method of a client carries out which operation, and which fields are its first arguments. An operation that
has no method in a client has no sample there; in TypeScript, `call` carries out any that answers with JSON.

The samples take the address of the service and the key from the environment: `TOPICS_URL`, `TOPICS_TOKEN`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

from gateway.contract.operation import Operation

WIDTH = 88
"""Columns of a line, beyond which a call has one argument a line."""
LEASED = "jobs"
"""Stands for the jobs that a claim before leased, in place of `seqs` and `lease_ids`."""


@dataclass(frozen=True, slots=True)
class Example:
    """The values of a request by name of parameter, and its body, None if there is none."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None

    def target(self, template: str) -> str:
        for name, value in self.path.items():
            template = template.replace(f"{{{name}}}", quote(value, safe=":"))
        return template + (f"?{urlencode(self.query)}" if self.query else "")


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a client. The fields named in `first` come first, in this order, the others by their names.

    `each`: it is looped over.
    """

    method: str
    first: tuple[str, ...] = ()
    each: bool = False


def _in_camel_case(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


PYTHON: dict[str, Call] = {
    "configure_topic": Call("configure", ("topic",)),
    "append": Call("publish", ("topic",)),
    "topic_state": Call("state", ("topic",)),
    "diff": Call("read", ("topic",), each=True),
    "list_topics": Call("topics", each=True),
    "delete_records": Call("delete_records", ("topic",)),
    "delete_topic": Call("delete_topic", ("topic",)),
    "claim": Call("claim", ("topic", "node")),
    "ack": Call("ack", ("topic", "node", LEASED)),
    "nack": Call("nack", ("topic", "node", LEASED)),
    "extend": Call("extend", ("topic", "node", LEASED)),
    "peek": Call("peek", ("topic",), each=True),
    "redrive": Call("redrive", ("topic", "queue")),
    "put_cursor": Call("set_cursor", ("topic", "cursor", "seq")),
    "get_cursor": Call("cursor", ("topic", "cursor")),
    "list_cursors": Call("cursors", ("topic",), each=True),
    "delete_cursor": Call("delete_cursor", ("topic", "cursor")),
    "put_router": Call("set_router", ("router",)),
    "get_router": Call("router", ("router",)),
    "list_routers": Call("routers", each=True),
    "delete_router": Call("delete_router", ("router",)),
}
TYPESCRIPT: dict[str, Call] = {
    **{name: replace(call, method=_in_camel_case(call.method)) for name, call in PYTHON.items()},
    "append": Call("publishAll", ("topic", "records")),
    "extend": Call("extend", ("topic", "node", LEASED, "lease_ms")),
    "peek": Call("peek", ("topic",)),
    "make_ticket": Call("ticket", ("path",)),
}


def samples(operation: Operation, example: Example, *, keyed: bool) -> list[dict[str, str]]:
    """The samples of an operation, as `x-codeSamples` has them. `keyed`: it needs a key."""
    made = {
        "curl": ("Shell", None if operation.upgrades else _curl(operation, example, keyed=keyed)),
        "Python": ("Python", _python(operation, example)),
        "TypeScript": ("TypeScript", _typescript(operation, example)),
    }
    return [{"label": label, "lang": lang, "source": text} for label, (lang, text) in made.items() if text]


def _curl(operation: Operation, example: Example, *, keyed: bool) -> str:
    method = "" if operation.method == "GET" else f" -X {operation.method}"
    parts = [f'curl -sS{"N" if operation.streams else ""}{method} "$TOPICS_URL{example.target(operation.path)}"']
    if keyed:
        parts.append('-H "Authorization: Bearer $TOPICS_TOKEN"')
    if example.body is not None:
        parts += ['-H "Content-Type: application/json"', f"-d {shlex.quote(_json(example.body))}"]
    return " \\\n  ".join(parts)


def _python(operation: Operation, example: Example) -> str | None:
    if (call := PYTHON.get(operation.name)) is None:
        return None
    first, others = _arguments(call, example)
    named = [f"{name}={_in_python(value)}" for name, value in others.items()]
    made = _called(f"client.{call.method}", [_in_python(value) for value in first] + named, "    ")
    lines = ["from topics_client import Client", "", "with Client() as client:"]
    if LEASED in call.first:
        lines.append(f"    {LEASED} = client.claim({', '.join(map(_in_python, first[:2]))})")
    if call.each:
        lines += [f"    for each in {made}:", "        print(each)"]
    else:
        lines.append(f"    print({made})")
    return "\n".join(lines)


def _typescript(operation: Operation, example: Example) -> str | None:
    if (call := TYPESCRIPT.get(operation.name)) is not None:
        first, others = _arguments(call, example)
        arguments = [_in_typescript(value) for value in first]
        if others:
            arguments.append(_in_typescript({_in_camel_case(name): value for name, value in others.items()}))
        made = _called(f"client.{call.method}", arguments, "")
    elif operation.streams or operation.answer is None:
        return None
    else:
        parts = {"path": example.path, "query": example.query, "body": example.body}
        given = {name: value for name, value in parts.items() if value}
        made = _called("client.call", [_in_typescript(operation.name), _in_typescript(given)], "")
    lines = ['import { Topics } from "topics-client";', "", "const client = new Topics();"]
    if call is not None and LEASED in call.first:
        lines.append(f"const {LEASED} = await client.claim({', '.join(map(_in_typescript, first[:2]))});")
    if call is not None and call.each:
        lines.append(f"for await (const each of {made}) console.log(each);")
    else:
        lines.append(f"console.log(await {made});")
    return "\n".join(lines)


class _Name(str):
    """A name of the program, which is not quoted."""

    __slots__ = ()


def _arguments(call: Call, example: Example) -> tuple[list[Any], dict[str, Any]]:
    """The first arguments, and the others by name."""
    fields = {**example.path, **example.query, **(example.body or {})}
    if LEASED in call.first:
        fields = {name: value for name, value in fields.items() if name not in ("seqs", "lease_ids")}
        fields[LEASED] = _Name(LEASED)
    first = [fields.pop(name) for name in call.first]
    return first, fields


def _called(function: str, arguments: Iterable[str], indent: str) -> str:
    """A call on one line if it fits, else with one argument a line."""
    arguments = list(arguments)
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    return f"{function}(\n" + "".join(f"{indent}    {each},\n" for each in arguments) + f"{indent})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _in_python(value: Any) -> str:
    return _literal(value, {None: "None", True: "True", False: "False"}, "{", "}", _json)


def _in_typescript(value: Any) -> str:
    return _literal(value, {}, "{ ", " }", lambda name: name if re.fullmatch(r"[A-Za-z_]\w*", name) else _json(name))


def _literal(value: Any, words: Mapping[Any, str], head: str, tail: str, key: Callable[[str], str]) -> str:
    if isinstance(value, _Name):
        return str(value)
    if isinstance(value, Mapping):
        fields = [f"{key(name)}: {_literal(each, words, head, tail, key)}" for name, each in value.items()]
        return head + ", ".join(fields) + tail if fields else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_literal(each, words, head, tail, key) for each in value)}]"
    return words.get(value, _json(value)) if value is None or isinstance(value, bool) else _json(value)
