"""Claims about the samples of operations in the OpenAPI document: they are its examples, as three kinds of program.

That they run is a claim of `tests/e2e/test_samples.py`.
"""

from __future__ import annotations

import ast
import inspect
import json
import shlex
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from gateway.contract.openapi import document
from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from gateway.contract.samples import PYTHON, TYPESCRIPT, Example, samples
from proto.model.keys import Scope
from proto.model.limits import Limits
from topics_client import Client

BY_NAME = {operation.name: operation for operation in OPERATIONS}


@cache
def whole(*, keys: bool = True) -> dict[str, Any]:
    return document(OPERATIONS, Limits(), keys=keys)


def described(operation: Operation, *, keys: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = whole(keys=keys)["paths"][operation.path][operation.method.lower()]
    return found


def sample(operation: Operation, label: str, *, keys: bool = True) -> str | None:
    found = {each["label"]: each["source"] for each in described(operation, keys=keys)["x-codeSamples"]}
    return found.get(label)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_curl_sends_the_example_of_the_document(operation: Operation) -> None:
    text = sample(operation, "curl")
    if operation.upgrades:
        assert text is None
        return
    assert text is not None
    words = shlex.split(text.replace("\\\n", " "))
    assert (words[words.index("-X") + 1] if "-X" in words else "GET") == operation.method
    path = urlsplit(next(word for word in words if word.startswith("$TOPICS_URL"))).path.removeprefix("$TOPICS_URL")
    examples = {each["name"]: each["schema"].get("examples", [""])[0] for each in described(operation)["parameters"]}
    assert unquote(path) == operation.path.format_map(examples)
    assert ("-d" in words) == (operation.request is not None)
    if operation.request is not None:
        schema = whole()["components"]["schemas"][operation.request.__name__]
        assert json.loads(words[words.index("-d") + 1]) == schema["examples"][0]


def test_a_key_is_shown_where_the_service_asks_for_one() -> None:
    for operation in OPERATIONS:
        if not operation.upgrades:
            assert ("TOPICS_TOKEN" in (sample(operation, "curl") or "")) == (operation.scope is not None)
            assert "TOPICS_TOKEN" not in (sample(operation, "curl", keys=False) or "")


def test_every_operation_but_the_websocket_has_a_sample() -> None:
    assert [each.name for each in OPERATIONS if not described(each)["x-codeSamples"]] == ["websocket"]
    assert PYTHON.keys() | TYPESCRIPT.keys() <= BY_NAME.keys()


@pytest.mark.parametrize("name", PYTHON)
def test_python_calls_a_method_that_takes_these_arguments(name: str) -> None:
    text = sample(BY_NAME[name], "Python")
    assert text is not None
    calls = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call)]
    methods = {each.func.attr: each for each in calls if isinstance(each.func, ast.Attribute)}
    called = methods[PYTHON[name].method]
    inspect.signature(getattr(Client, PYTHON[name].method)).bind(
        None, *called.args, **{str(each.arg): each.value for each in called.keywords}
    )


def test_quotes_and_words_of_each_language_are_its_own() -> None:
    value = {"it's": None, "a": [True, 1.5, '"\u00e9$HOME`']}
    example = Example({"topic": "a>b c"}, {"touch": "x&y"}, value)
    found = {each["label"]: each["source"] for each in samples(BY_NAME["configure_topic"], example, keyed=False)}
    words = shlex.split(found["curl"].replace("\\\n", " "))
    assert words[4] == "$TOPICS_URL/v0/topics/a%3Eb%20c?touch=x%26y"
    assert json.loads(words[-1]) == value
    assert found["TypeScript"].endswith(
        """client.configure("a>b c", { touch: "x&y", "it's": null, a: [true, 1.5, "\\"\u00e9$HOME`"] }));"""
    )


def test_what_takes_something_away_for_good_is_marked() -> None:
    marked = {each.name for each in OPERATIONS if described(each).get("x-deletes")}
    wanted = {each.name for each in OPERATIONS if each.method == "DELETE" or (each.scope or Scope(0)) & Scope.DELETE}
    assert marked == wanted | {"ack"}
