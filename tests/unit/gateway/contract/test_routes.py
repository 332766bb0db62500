"""Claims about the table of operations and its routes."""

import re

import pytest

from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from gateway.contract.routes import Routes, parse_query
from proto.model.errors import ErrorCode, TopicsError

ROUTES = Routes(OPERATIONS)
BY_NAME = {operation.name: operation for operation in OPERATIONS}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_every_operation_is_found_at_every_path_it_has(operation: Operation) -> None:
    for path in operation.paths:
        parameters = re.findall(r"{\w+}", path)
        found, values = ROUTES.find(operation.method, re.sub(r"{\w+}", "a%2Fb", path))
        assert found is operation
        assert values == ["a/b"] * len(parameters)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_other_methods_are_405_and_name_the_right_ones(operation: Operation) -> None:
    for path in operation.paths:
        with pytest.raises(TopicsError) as caught:
            ROUTES.find("PATCH", path.replace("{topic}", "jobs"))
        assert caught.value.code is ErrorCode.METHOD_NOT_ALLOWED
        assert caught.value.detail is not None
        assert operation.method in caught.value.detail["allow"]


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(OPERATIONS)


def test_head_goes_where_get_goes() -> None:
    assert ROUTES.find("HEAD", "/healthz")[0] is BY_NAME["health"]


@pytest.mark.parametrize(
    "path", ["", "/", "/v0", "/v0/", "/v0/nope", "/v1/topics", "/v0/topics/a/b", "/v0/topics/a/diff/", "//v0/topics"]
)
def test_unknown_paths_are_404(path: str) -> None:
    with pytest.raises(TopicsError) as caught:
        ROUTES.find("GET", path)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_segments_are_percent_decoded_after_they_are_split() -> None:
    assert ROUTES.find("GET", "/v0/topics/a%2Fb")[1] == ["a/b"]
    assert ROUTES.find("GET", "/v0/t%6Fpics/a%3Ab")[1] == ["a:b"]


@pytest.mark.parametrize("path", ["/v0/topics/%", "/v0/topics/%zz", "/v0/topics/%C3%28", "/v0/topics/a%2"])
def test_bad_escapes_are_400(path: str) -> None:
    with pytest.raises(TopicsError) as caught:
        ROUTES.find("GET", path)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_query_values_have_their_types_and_defaults() -> None:
    listing = BY_NAME["list_topics"]
    assert parse_query(listing, "page_size=-5&prefix=a%3A+b&unknown=%C3%A4") == {
        "page_size": -5,
        "prefix": "a: b",
        "cursor": "",
        "touch": False,
    }
    assert parse_query(BY_NAME["topic_state"], "touch=0") == {"touch": False}
    assert parse_query(BY_NAME["topic_state"], "") == {"touch": True}


@pytest.mark.parametrize(
    "query",
    [
        "page_size=",
        "page_size=1.5",
        "page_size=ten",
        "page_size=+5",
        "page_size=٣",
        "touch=yes",
        "touch=yess",
        "touch",
        "prefix=%",
        "prefix=%ff",
        "page_size=1&page_size=1",
    ],
)
def test_bad_query_values_are_400(query: str) -> None:
    with pytest.raises(TopicsError) as caught:
        parse_query(BY_NAME["list_topics"], query)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("text", "value"), [("True", True), ("TRUE", True), ("False", False), ("fAlSe", False)])
def test_booleans_are_of_any_case(text: str, value: bool) -> None:
    assert parse_query(BY_NAME["list_topics"], f"touch={text}")["touch"] is value


def test_the_methods_of_a_path_are_told() -> None:
    assert ROUTES.methods("/v0/topics/a/diff") == ["POST"]
    assert ROUTES.methods("/v0/routers/r") == ["DELETE", "GET", "HEAD", "PUT"]
