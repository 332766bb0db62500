"""Claims about unknown fields: they are named at every level, in bounds, and never inside of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.streams.watch_request import WATCH_REQUEST
from proto.api.requests import ClaimRequest
from proto.ipc.message import Request
from proto.ipc.operations import Append
from proto.model.body import Form
from proto.model.errors import TopicsError
from proto.model.limits import Limits
from proto.model.unknown_fields import MAX_NAMED, MAX_SHOWN
from shardd.operations.append_request import _BUILT_ANYWAY, most_records, parse_write
from shardd.queues.job_requests import ACK
from tests.support.lines import lines_of


def ignored(body: bytes | dict[str, Any], most: int = 10_000) -> list[str]:
    request = Request(1, Append(), "t", body if isinstance(body, bytes) else json.dumps(body).encode())
    parse_write(request, Limits(max_batch_records=most))
    return list(request.ignored)


def test_fields_of_records_are_named() -> None:
    assert ignored(b'{"records":[{"data":1},{"data":1},{"data":1},{"data":1,"tags":"x"}]}') == ["records[3].tags"]
    assert ignored(b'{"nodes":1,"records":[{"data":1,"a":2}],"config":null}') == ["nodes", "records[0].a"]


def test_values_are_not_looked_into() -> None:
    assert ignored({"records": [{"data": {"tags": 1}, "meta": {"tags": 1}}]}) == []
    assert ignored({"records": [{"data": {"tags": 1}, "meta": {"tags": 1}, "tags": {"tags": 1}}]}) == [
        "records[0].tags"
    ]


def test_fields_of_starting_positions_are_named() -> None:
    body = b'{"topics":{"t":{"fromseq":1},"n":null,"u":{},"v":{"tail":true,"x\\ud800":2}},"heartbeat":1}'
    assert WATCH_REQUEST.read(body)[1] == ["heartbeat", 'topics["t"].fromseq', 'topics["v"].x\\ud800']


def test_fields_of_a_part_are_named() -> None:
    body = b'{"node":"w","x":1,"ack": {"seqs":[1],"lease_id":"y"},"nack":{"seqs":[2],"delay":1,"why":2}}'
    assert Form(ClaimRequest).read(body)[1] == ["x", "ack.lease_id", "nack.delay", "nack.why"]
    assert Form(ClaimRequest).read(b'{"node":"w","ack":null,"nack":{"seqs":[2]},"x":1}')[1] == ["x"]


def test_other_bodies_are_read_as_strictly() -> None:
    assert ACK.read(b'{"node":"n","seqs":[1],"lease_id":"x"}')[1] == ["lease_id"]


def test_fields_of_a_body_with_lone_surrogates_are_named() -> None:
    body = rb'{"records":[{"data":"\ud800"},{"data":1,"ta\\gs\udfff":"x"}]}'
    assert ignored(body) == [r"records[1].ta\\gs\udfff"]


def test_fields_of_a_body_that_may_have_too_many_records_are_named() -> None:
    many = json.dumps('{"data":' * 100).encode().replace(b"d", rb"\u0064")
    body = b'{"nodes":1,"records":[{"data":%b},{"data":1},{"data":1,"tags":"x"}]}' % many
    assert most_records(body) > _BUILT_ANYWAY * 6
    assert ignored(body, 6) == ["nodes", "records[2].tags"]


def test_a_configuration_still_refuses_unknown_fields() -> None:
    with pytest.raises(TopicsError, match="did you mean ttl_ms"):
        ignored({"records": [{"data": 1, "tags": 1}], "config": {"ttl": 1}})


MEMBERS = {f"a{at}": 1 for at in range(500_000)}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"records": [{"data": 1, f"x{at}": 1} for at in range(10_000)]}, [f"records[{at}].x{at}" for at in range(10)]),
        ({"records": [*[{"data": 1}] * 9_999, {"data": 1, "z": 1}]}, ["records[9999].z"]),
        ({"records": [{"data": 1, "q": ":" * (1 << 20)}], "z": 1}, ["z", "records[0].q"]),
        ({"records": [{"data": ":" * (1 << 19)}], "z": ":" * (1 << 20), "y": 1}, ["z"]),
        ({"records": [{"data": 1}], **MEMBERS}, ["a0"]),
        ({"records": [{"data": 1, **MEMBERS}, {"data": 1, "y": 1}]}, ["records[0].a0", "records[1].y"]),
        ({"records": [{"data": 1}], "n" * 1000: 1}, ["n" * MAX_SHOWN]),
    ],
)
def test_hostile_bodies_cost_little(body: dict[str, Any], names: list[str]) -> None:
    text = json.dumps(body).encode()
    found: list[str] = []
    assert lines_of(lambda: found.extend(ignored(text))) < 1000
    assert found == names
    assert len(found) <= MAX_NAMED
