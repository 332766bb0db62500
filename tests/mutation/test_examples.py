"""Claims about the tables that mutations are made from: they have every operation, command and field, and their
examples are valid. A new operation, command or field fails here until it has an example."""

from __future__ import annotations

import typing

import msgspec

from gateway.contract.operations import OPERATIONS
from gateway.streams.asyncapi import COMMANDS as DOCUMENTED
from gateway.streams.asyncapi import op_of
from proto.wire import rog, walrus
from tests.mutation import sweeps
from tests.mutation.examples import COMMANDS, EXAMPLES, ROG, WALRUS
from tests.mutation.judge import Judge
from tests.mutation.scene import scene
from tests.support.parsed import parse_all


def test_every_operation_has_an_example_and_there_are_no_others() -> None:
    assert set(EXAMPLES) == {operation.name for operation in OPERATIONS}
    for operation in OPERATIONS:
        assert EXAMPLES[operation.name], f"{operation.name} has no example: give it one in tests/mutation/examples.py"


def test_the_examples_of_an_operation_name_every_field_and_parameter() -> None:
    for operation in OPERATIONS:
        examples = EXAMPLES[operation.name]
        assert operation.path.count("{") == len(examples[0].values)
        if operation.request is not None:
            assert operation.request is not None
            named = {name for example in examples for name in example.body}
            assert named >= set(operation.request.__struct_encode_fields__), operation.name
        asked = {pair.partition("=")[0] for example in examples for pair in example.query.split("&")}
        expected = {param.name for param in operation.query} - {"cursor", "ticket", "touch", "page_size"}
        assert asked >= expected, operation.name


def test_every_command_of_the_websocket_has_an_example_with_every_field() -> None:
    assert set(COMMANDS) == {op_of(kind) for kind in DOCUMENTED}
    for kind in DOCUMENTED:
        named = {name for example in COMMANDS[op_of(kind)] for name in example} - {"op"}
        assert named >= set(typing.cast(type[msgspec.Struct], kind).__struct_encode_fields__)


def test_every_command_of_walrus_and_rog_has_examples_that_are_read_as_such() -> None:
    for table, kinds, read in (
        (WALRUS, walrus.Command, walrus.read),
        (ROG, rog.Command, lambda: rog.read(1 << 20)),
    ):
        assert set(table) == set(typing.get_args(kinds))
        for kind, raws in table.items():
            for raw in raws:
                [found], _ = parse_all(read, raw)
                assert type(found) is kind


async def test_every_example_is_valid() -> None:
    judge = Judge("examples")
    async with scene(judge) as there:
        for operation, example in sweeps.examples():
            statuses = await sweeps.whole(there, operation, example)
            wanted = {101} if operation.upgrades else {200, 201}
            assert statuses, operation.name
            assert wanted.issuperset(statuses), (operation.name, statuses)
