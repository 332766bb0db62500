"""Claims about the rows of the table of operations: their fields fit together."""

from __future__ import annotations

import pytest

from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from proto.ipc.operations import BY_NAME


def test_names_and_paths_are_given_once() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, path) for operation in OPERATIONS for path in operation.paths}) == sum(
        len(operation.paths) for operation in OPERATIONS
    )


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_a_row_says_of_its_shards_operation_is_true(operation: Operation) -> None:
    fields = operation.shard_op.__struct_fields__ if operation.shard_op is not None else ()
    if operation.shard_op is not None:
        assert BY_NAME[operation.shard_op.__struct_config__.tag].request is operation.shard_op
        assert {param.name for param in operation.query} <= set(fields)
        assert not operation.at_once
    assert {header.option for header in operation.headers} - {""} <= set(fields)
    assert ("maker" in fields) == ("most_made" in fields)
    assert "{cursor}" not in operation.path or "cursor" in fields


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_a_row_says_of_its_request_and_answer_fits_together(operation: Operation) -> None:
    assert operation.request is not None or not operation.body_optional
    assert bool(operation.events) == operation.event_stream
    assert operation.streams or not operation.upgrades
    assert operation.records or not operation.repeatable
    assert operation.scope is not None or not operation.streams
    assert not (operation.deletes and operation.repeatable)
