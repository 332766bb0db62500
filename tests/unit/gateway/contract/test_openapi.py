"""Claims about the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.contract.openapi import MEANINGS, document, errors_of, rendered
from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from proto.model.errors import ErrorCode
from proto.model.limits import Limits

LIMITS = Limits(max_limit=77, max_batch_records=55)


@cache
def whole(*, keys: bool = True, probe_auth: bool = False) -> dict[str, Any]:
    return document(OPERATIONS, LIMITS, keys=keys, probe_auth=probe_auth)


def described(operation: Operation, **how: bool) -> dict[str, Any]:
    found: dict[str, Any] = whole(**how)["paths"][operation.path][operation.method.lower()]
    return found


def is_valid(name: str, body: Any) -> bool:
    schemas = whole()["components"]["schemas"]
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    valid: bool = Draft202012Validator(schema).is_valid(body)
    return valid


@pytest.mark.parametrize("keys", [True, False])
def test_it_is_valid(keys: bool) -> None:
    OpenAPIV31SpecValidator(json.loads(json.dumps(whole(keys=keys)))).validate()
    assert json.loads(rendered(LIMITS, keys=keys, probe_auth=False)) == whole(keys=keys)


def test_it_has_every_operation() -> None:
    for operation in OPERATIONS:
        found = described(operation)
        assert found["operationId"] == operation.name
        assert ("requestBody" in found) == (operation.request is not None)
        assert ("201" in found["responses"]) == operation.creates
    assert sum(map(len, whole()["paths"].values())) == len(OPERATIONS)


def test_it_describes_every_variable_of_a_path() -> None:
    for path, methods in whole()["paths"].items():
        for found in methods.values():
            named = [p["name"] for p in found["parameters"] if p["in"] == "path"]
            assert named == [part.strip("{}") for part in path.split("/") if part.startswith("{")]


@pytest.mark.parametrize("part", ["schemas", "responses"])
def test_it_has_every_part_it_refers_to_and_no_others(part: str) -> None:
    text = json.dumps(whole())
    for name in whole()["components"][part]:
        assert f'"#/components/{part}/{name}"' in text, f"nothing uses {name}"


def test_every_field_of_a_struct_is_described() -> None:
    for name, schema in whole()["components"]["schemas"].items():
        for key, field in schema.get("properties", {}).items():
            refers = "$ref" in field or "$ref" in field.get("items", {}) or "$ref" in str(field.get("anyOf"))
            assert refers or field.get("description"), f"{name}.{key}"


def test_the_examples_fit() -> None:
    schemas = whole()["components"]["schemas"]
    examples = [(name, each) for name, schema in schemas.items() for each in schema.get("examples", ())]
    assert len(examples) > 30
    for name, example in examples:
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        Draft202012Validator(schema).validate(example)


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"topics": {"a": None}}, True),
        ({"prefix": "a"}, True),
        ({"topics": {}, "prefix": "a"}, True),
        ({"topics": {}}, False),
        ({"topics": {}, "prefix": None}, False),
        ({}, False),
    ],
)
def test_a_watch_names_topics_or_a_prefix(body: dict[str, Any], fits: bool) -> None:
    assert is_valid("WatchRequest", body) is fits


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"before_seq": 1}, True),
        ({"match": "t"}, True),
        ({"before_seq": 1, "match": None}, True),
        ({"match": ["tag", "Eq", "t*"]}, True),
        ({"match": ["tag", "Glob", "t*"]}, True),
        ({"match": ["tag", "Glob", "*t"]}, False),
        ({"match": ["tag", "Glob", "t"]}, False),
        ({"match": ["tag", "Like", "t*"]}, False),
        ({"match": ["tag", "Eq"]}, False),
        ({"match": ["tag", "Eq", "t", "u"]}, False),
        ({"match": ["tag", "Eq", 1]}, False),
        ({"before_seq": None, "match": None}, False),
        ({}, False),
    ],
)
def test_a_deletion_names_a_seq_or_a_tag(body: dict[str, Any], fits: bool) -> None:
    assert is_valid("DeleteRequest", body) is fits


def test_no_object_is_a_choice_of_objects() -> None:
    """Generators of clients make several types of such a one, or none."""
    for name, schema in whole()["components"]["schemas"].items():
        assert {"anyOf", "oneOf", "allOf"}.isdisjoint(schema), name


def test_arrays_say_what_is_in_them() -> None:
    def arrays(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if ("array" in part.get("type", ()) and "description" in part) or part.get("type") == "array":
                yield part
            for name, each in part.items():
                if name not in ("if", "then", "examples"):
                    yield from arrays(each)
        elif isinstance(part, list):
            for each in part:
                yield from arrays(each)

    found = list(arrays(whole()["components"]["schemas"]))
    assert len(found) > 20
    assert [each for each in found if "items" not in each] == []


def test_topics_come_first() -> None:
    assert [each["name"] for each in whole()["tags"]] == [
        "topics",
        "queues",
        "streams",
        "cursors",
        "routers",
        "service",
    ]
    for name, tag in (("append", "topics"), ("claim", "queues"), ("work", "queues"), ("put_cursor", "cursors")):
        operation = next(each for each in OPERATIONS if each.name == name)
        assert described(operation)["tags"] == [tag]


def test_only_what_every_answer_has_is_required() -> None:
    schemas = whole()["components"]["schemas"]
    for name in ("ClaimedJob", "PeekedJob", "Record"):
        assert {"$tag", "meta"}.isdisjoint(schemas[name]["required"]), name
        assert {"$seq", "$ts"} <= set(schemas[name]["required"]), name


def test_objects_of_any_fields_say_so() -> None:
    schemas = whole()["components"]["schemas"]
    for part in (schemas["Record"]["properties"]["meta"], schemas["Error"]["properties"]["detail"]):
        assert part["additionalProperties"] is True
    assert "additionalProperties" not in schemas["Record"]


def test_it_shows_the_limits_of_the_service() -> None:
    schemas = whole()["components"]["schemas"]
    assert schemas["AppendRequest"]["properties"]["records"]["maxItems"] == 55
    assert "1..77" in schemas["DiffRequest"]["properties"]["limit"]["description"]
    assert "{max_" not in json.dumps(whole())


def test_keys_are_asked_for_where_the_service_asks_for_them() -> None:
    assert "securitySchemes" not in whole(keys=False)["components"]
    for operation in OPERATIONS:
        assert described(operation, keys=False)["security"] == []
        assert "401" not in described(operation, keys=False)["responses"]
        ways = described(operation)["security"]
        assert bool(ways) == (operation.scope is not None)
        if operation.scope is not None:
            assert ways[0] == {"key": operation.scope.words}
            assert "401" in described(operation)["responses"]
        assert bool(described(operation, probe_auth=True)["security"]) == (bool(ways) or operation.probe)
        assert any("ticket" in way for way in ways) == operation.streams


def test_every_error_belongs_to_an_operation_except_one_of_none() -> None:
    everywhere = {code for operation in OPERATIONS for code in errors_of(operation, keyed=True)}
    assert set(ErrorCode) - everywhere == {ErrorCode.METHOD_NOT_ALLOWED}
    assert MEANINGS.keys() == set(ErrorCode)


def test_a_request_with_a_list_that_may_be_too_long_has_the_error_for_it() -> None:
    def lists(part: Any) -> bool:
        if isinstance(part, list):
            return any(map(lists, part))
        if not isinstance(part, dict):
            return False
        if "$ref" in part:
            return lists(whole()["components"]["schemas"][part["$ref"].rpartition("/")[2]])
        return part.get("maxItems") in (LIMITS.max_claim, LIMITS.max_batch_records) or any(map(lists, part.values()))

    asking = {op.name for op in OPERATIONS if lists(described(op).get("requestBody"))}
    assert asking == {op.name for op in OPERATIONS if ErrorCode.BATCH_TOO_LARGE in op.errors}
    assert {"append", "claim", "ack"} <= asking


def test_errors_that_pass_say_when_to_try_again() -> None:
    for name, response in whole()["components"]["responses"].items():
        assert ("Retry-After" in response.get("headers", {})) == (name[:3] in ("429", "503"))
