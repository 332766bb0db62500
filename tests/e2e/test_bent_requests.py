"""Requests that are bent at random are refused if the OpenAPI document says so, and only then; answers fit it, too.

Each is the valid example of an operation (`tests/mutation/examples.py`) with one or two of its values replaced, removed
or added. A validator of JSON Schema and the service judge it. A failure says its seed; `TOPICS_TEST_SEED` sets it.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random, randrange
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pytest
from jsonschema import Draft202012Validator, ValidationError, validators

from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from tests.mutation.examples import EXAMPLES, LEASE, Example
from tests.support.service import Service, ask
from tests.support.untold import IN_BYTES, UNTOLD

SEED = int(os.environ.get("TOPICS_TEST_SEED", "11"))
EACH = 150
"""Bent requests of an example."""
FRESH = 25
"""Bent requests after which what the example needs is made again."""
MOST = 2**64 - 1


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    """`$` is the end, as JSON Schema says, and not also what is before a last line break, as in Python."""
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


Validator = validators.extend(Draft202012Validator, {"pattern": _pattern})
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 100, 1001, MOST, MOST + 1, -(2**63), 2**63, 1.5, -0.5),
    *("", "a", "m-log", "-", "a b", "é", "x" * 200, "x" * 300, "tag*", "*", "1", "true", "\n", "m-log\n", "a>b"),
    *(
        [],
        [1],
        ["a"],
        [""],
        [None],
        [[]],
        ["tag", "Eq"],
        ["tag", "Eq", "t"],
        ["tag", "Glob", "t"],
        ["tag", "Glob", "t*"],
    ),
    *({}, {"a": 1}, {"from_seq": 1}, {"a": None}, {"-": {}}, {"m-log": {"tail": "x"}}, {"type": "queue"}),
)
WORDS = (
    *("", "0", "1", "-1", "5000", str(MOST), str(MOST + 1), "1.5", "1e3", "+1", " 1"),
    *("true", "false", "True", "x", "é", "\n"),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values are, by keys and indices, but not inside of `data` and `meta`."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*at, key)
        if key not in ("data", "meta"):
            yield from places(each, (*at, key))


def bent(body: Any, random: Random) -> Any:
    body = copy.deepcopy(body)
    for _ in range(random.choice((1, 1, 2))):
        at = random.choice([*places(body)] or [()])
        if not at:
            return copy.deepcopy(random.choice(VALUES))
        inner = body
        for key in at[:-1]:
            inner = inner[key]
        how = random.randrange(6)
        if how == 0:
            del inner[at[-1]]
        elif how == 1 and isinstance(inner, list):
            inner += copy.deepcopy(inner)
        elif how == 2 and isinstance(inner, dict):
            inner["unknown"] = copy.deepcopy(random.choice(VALUES))
        else:
            inner[at[-1]] = copy.deepcopy(random.choice(VALUES))
    return body


class Bender:
    """Sends bent requests to a service and compares its judgement with that of its document."""

    def __init__(self, service: Service, connection: http.client.HTTPConnection, random: Random) -> None:
        self._connection = connection
        self._document = service.request("GET", "/v0/openapi.json")[1]
        self._random = random
        self._made = 0
        self.mismatches: dict[str, str] = {}
        self.refused = self.taken = 0

    def sweep(self, operation: Operation, example: Example, each: int) -> None:
        names: dict[str, str] = {}
        for number in range(each):
            if number % FRESH == 0:
                names = self._prepared(example)
            described = self._document["paths"][operation.path][operation.method.lower()]
            body = json.loads(json.dumps(example.body).replace(LEASE, names.get(LEASE, LEASE)))
            query = dict(parse_qsl(example.query))
            if body is not None and (not query or self._random.random() < 0.8):
                body = bent(body, self._random)
            elif query:
                query[self._random.choice([*query])] = self._random.choice(WORDS)
            if isinstance(body, dict) and isinstance(body.get("wait_ms"), int):
                body["wait_ms"] = min(body["wait_ms"], 2)
            text = None if example.body is None else json.dumps(body)
            self._compare(operation, described, self._path(operation, example), query, text)

    def _prepared(self, example: Example) -> dict[str, str]:
        """Send what is before the example; the leases that it got."""
        leases = {}
        for method, path, body in example.before:
            told = ask(self._connection, method, path, body)[1]
            if "claimed" in told:
                leases[LEASE] = told["claimed"][0]["lease_id"]
        return leases

    def _path(self, operation: Operation, example: Example) -> str:
        path = operation.path
        for value in example.values:
            if operation.name in ("append", "configure_topic") and value != "m-queue":
                self._made += 1  # a topic that exists has a type, and an append to it ignores `config`
                value = f"fresh-{value}-{self._made}"
            path = path[: path.index("{")] + quote(value) + path[path.index("}") + 1 :]
        return path

    def _compare(
        self, operation: Operation, described: Any, path: str, query: dict[str, str], text: str | None
    ) -> None:
        whole = path + (f"?{urlencode(query)}" if query else "")
        try:
            status, answer = ask(self._connection, operation.method, whole, text)
        except json.JSONDecodeError:
            return self._tell(operation, "the answer is no JSON", whole, text)
        complaint = self._complaint(described, query, text)
        if status == 400:
            self.refused += 1
            field = answer["error"].get("detail", {}).get("field", "")
            told = (operation.name, field) in UNTOLD or field.rpartition(".")[2] in IN_BYTES
            if complaint is None and not told and answer["error"]["code"] != "record_too_large":
                self._tell(operation, f"refused: {answer['error']['message']}", whole, text)
        elif status < 400:
            self.taken += 1
            if complaint is not None:
                self._tell(operation, f"taken with {status}: {complaint}", whole, text)
        if str(status) not in described["responses"]:
            return self._tell(operation, f"status {status} is not in the document", whole, text)
        response = self._resolved(described["responses"][str(status)])
        if wrong := self._wrong(response["content"]["application/json"]["schema"], answer):
            self._tell(operation, f"the answer does not fit: {wrong}", whole, text)
        return None

    def _complaint(self, described: Any, query: dict[str, str], text: str | None) -> str | None:
        """What the document has against a request, None if nothing."""
        for parameter in described["parameters"]:
            if parameter["in"] == "query" and parameter["name"] in query:
                value = as_typed(query[parameter["name"]], parameter["schema"]["type"])
                if wrong := self._wrong(parameter["schema"], value):
                    return f"{parameter['name']}: {wrong}"
        if "requestBody" not in described or text is None:
            return None
        return self._wrong(described["requestBody"]["content"]["application/json"]["schema"], json.loads(text))

    def _wrong(self, schema: Any, value: Any) -> str | None:
        errors = Validator({**schema, "components": self._document["components"]}).iter_errors(value)
        found = next(errors, None)
        return None if found is None else f"{found.json_path}: {found.message[:200]}"

    def _resolved(self, part: Any) -> Any:
        return self._document["components"]["responses"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part

    def _tell(self, operation: Operation, what: str, path: str, text: str | None) -> None:
        known = f"{operation.name}: {what.partition(':')[0]} {what.rpartition(':')[0][-40:]}"
        self.mismatches.setdefault(known, f"{operation.name} {path}\n  {(text or '')[:400]}\n  {what}")


def as_typed(word: str, kind: str) -> Any:
    """The value that a word of a query stands for, as the document says of booleans; itself if it stands for none."""
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(word.lower(), word)
    if kind == "integer" and word.lstrip("-").isdecimal() and word.isascii():
        return int(word)
    return word


def swept(service: Service, seed: int, each: int) -> Bender:
    with closing(service.connect()) as connection:
        bender = Bender(service, connection, Random(seed))
        for operation in OPERATIONS:
            for example in EXAMPLES[operation.name]:
                if not operation.streams and (example.body is not None or example.query):
                    bender.sweep(operation, example, each)
    assert bender.mismatches == {}, "\n".join([f"TOPICS_TEST_SEED={seed}", *bender.mismatches.values()])
    return bender


def roomy(new_service: Callable[..., Service]) -> Service:
    """A service whose watches may have all the topics that the bent requests make."""
    return new_service(TOPICS_MAX_WATCH_TOPICS="10000").start()


def test_bent_requests_are_refused_if_the_document_says_so_and_only_then(new_service: Callable[..., Service]) -> None:
    bender = swept(roomy(new_service), SEED, EACH)
    assert bender.refused > 500
    assert bender.taken > 500


@pytest.mark.long
def test_many_bent_requests_are_refused_if_the_document_says_so(new_service: Callable[..., Service]) -> None:
    swept(roomy(new_service), int(os.environ.get("TOPICS_TEST_SEED", randrange(2**32))), 5 * EACH)
