"""Claims about the AsyncAPI document. tests/e2e/test_asyncapi.py holds real frames against it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from gateway.streams import websocket_commands
from gateway.streams.asyncapi import COMMANDS, document, op_of, rendered
from gateway.streams.states import STREAM
from proto.api import answers
from proto.model.limits import Limits

LIMITS = Limits(max_limit=77)


@cache
def whole(*, keys: bool = True) -> dict[str, Any]:
    return document(LIMITS, keys=keys)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("keys", [True, False])
def test_what_it_refers_to_is_there(keys: bool) -> None:
    for reference in references(whole(keys=keys)):
        part: Any = whole(keys=keys)
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    assert json.loads(rendered(LIMITS, keys=keys)) == whole(keys=keys)


def test_commands_have_the_fields_that_the_service_reads() -> None:
    read = {
        "subscribe": websocket_commands.Subscribe,
        "unsubscribe": websocket_commands.Unsubscribe,
        "publish": websocket_commands.Publish,
        "ping": websocket_commands.Command,
        "auth": websocket_commands.Auth,
    }
    assert read.keys() == {op_of(kind) for kind in COMMANDS}
    for documented in COMMANDS:
        names = {field.encode_name for field in msgspec.structs.fields(documented)}
        known = {field.encode_name for field in msgspec.structs.fields(read[op_of(documented)])}
        assert names | {"op"} == known, op_of(documented)


def test_every_field_is_described_and_every_example_fits() -> None:
    schemas = whole()["components"]["schemas"]
    for name, schema in schemas.items():
        for key, field in schema.get("properties", {}).items():
            refers = "$ref" in field or "$ref" in field.get("items", {}) or "$ref" in str(field.get("anyOf"))
            assert refers or field.get("description") or "enum" in field, f"{name}.{key}"
    for channel in whole()["channels"].values():
        for message in channel["messages"].values():
            schema = {**message["payload"], "components": {"schemas": schemas}}
            for each in message["examples"]:
                Draft202012Validator(schema).validate(each["payload"])


@pytest.mark.parametrize("name", ["RecordFrame", "RecordMessage"])
def test_records_of_a_stream_without_data_are_as_documented(name: str) -> None:
    schemas = whole()["components"]["schemas"]
    shown = schemas[schemas[name]["properties"]["records"]["items"]["$ref"].rpartition("/")[2]]
    assert shown["required"] == ["$seq", "$ts"]
    assert {field.encode_name for field in msgspec.structs.fields(answers.Record)} == shown["properties"].keys()


def test_it_has_keys_limits_and_states() -> None:
    assert "securitySchemes" not in whole(keys=False)["components"]
    scheme = "#/components/securitySchemes/"
    ways = {
        name: [each["$ref"].removeprefix(scheme) for each in found["security"]]
        for name, found in whole()["operations"].items()
    }
    assert ways["watch_stream"] == ["key", "ticket", "token"]
    assert ways["subscribe"] == ["key", "ticket"]
    assert "1..77" in json.dumps(whole())
    assert "{max_" not in json.dumps(whole())
    assert whole()["x-states"]["stream"] == {
        state.value: {event.value: after.value for event, after in table.items()} for state, table in STREAM.items()
    }
