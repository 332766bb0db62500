"""Claims about the propagation of W3C Trace Context."""

from __future__ import annotations

import pytest

from proto.ipc.message import Request, unpack
from proto.ipc.operations import StateGet
from proto.process import trace
from tests.support.packed import pack

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_valid_header_is_taken_and_one_of_a_later_version_too() -> None:
    assert trace.valid(GOOD.encode()) == GOOD
    later = "01" + GOOD[2:] + "-what-comes-later"
    assert trace.trace_id(trace.valid(later.encode())) == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "ff" + GOOD[2:],
        GOOD + "-more",
        GOOD.upper(),
        GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        GOOD.replace("00f067aa0ba902b7", "0" * 16),
        GOOD[:-1],
        "01" + GOOD[2:] + "-" + "x" * 500,
        GOOD + "\n",
        GOOD + ", " + GOOD,
    ],
)
def test_an_invalid_one_is_none(header: str) -> None:
    assert trace.valid(header.encode()) == ""


def test_it_travels_in_a_request_and_costs_one_byte_without() -> None:
    (found,) = unpack(pack([Request(1, StateGet(), "t", b"", GOOD)])).messages
    assert isinstance(found, Request)
    assert found.traceparent == GOOD
    bare = pack([Request(1, StateGet(), "t")])
    assert len(bare[0]) == len(pack([Request(1, StateGet(), "t", b"", GOOD)])[0]) - len(GOOD) - 1


def test_lines_have_the_id_of_the_trace_they_are_written_for() -> None:
    assert trace.with_trace(None, "info", {}) == {}
    trace.begin(GOOD)
    try:
        assert trace.with_trace(None, "info", {}) == {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
    finally:
        trace.begin("")
