"""Claims about nesting: levels are counted exactly, and fast enough for hostile bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.streams.watch_request import WATCH_REQUEST
from proto.ipc.message import Request
from proto.ipc.operations import Append
from proto.model import nesting, topic_config
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.operations import delete_request
from shardd.operations.append_request import parse_write
from tests.support.lines import lines_of

TEXTS = st.text('[{}]"\\\\a ', max_size=6)
VALUES = st.recursive(
    st.none() | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def depth(value: Any) -> int:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.sampled_from([1, 3, 7, 1 << 20]))
def test_levels_are_counted_exactly(value: Any, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_PIECE_BYTES", piece)
        assert nesting.levels(json.dumps(value).encode()) == depth(value)


@pytest.mark.parametrize("arrays", range(0, 127, 9))
def test_a_value_is_checked_however_short_its_levels_are(arrays: int) -> None:
    for levels in (125, 126):
        objects = max(levels - arrays, 0)
        text = b"[" * (levels - objects) + b'{"":' * objects + b"1" * bool(objects) + b"}" * objects
        text += b"]" * (levels - objects)
        values = [b"1", text, b'"[[[{{{"'] * 20
        if levels == 125:
            nesting.check_values(values, len(text), above=3)
        else:
            with pytest.raises(TopicsError, match="at most 128 levels"):
                nesting.check_values(values, len(text), above=3)


def parse_append(body: bytes) -> None:
    parse_write(Request(1, Append(), "t", body), Limits(max_batch_records=5))


MANY = b'{"data":1},' * 30
PLACES: list[tuple[Callable[[bytes], Any], bytes, int]] = [
    (parse_append, b'{"records":[{"data":%b}]}', 3),
    (parse_append, b'{"records":[{"data":1},{"data":1,"meta":{"m":%b}}]}', 4),
    (parse_append, b'{"records":[{"data":1,"unknown":%b}]}', 3),
    (parse_append, b'{"records":[{"data":1}],"unknown":%b}', 1),
    (parse_append, b'{"records":[{"data":["\\ud800",%b]}]}', 4),
    (parse_append, b'{"records":[{"data":["\\ud800"],"unknown":%b}]}', 3),
    (WATCH_REQUEST.read, b'{"topics":{"t":{"x":%b}}}', 3),
    (delete_request._FORM.read, b'{"match":["tag","Eq",%b]}', 2),
]


@pytest.mark.parametrize(("read", "form", "above"), PLACES)
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"k":', b"}")])
def test_the_128th_level_of_a_body_is_taken_and_the_129th_refused(
    read: Callable[[bytes], Any], form: bytes, above: int, opening: bytes, closing: bytes
) -> None:
    def body(levels: int) -> bytes:
        return form % (opening * (levels - above) + b"1" + closing * (levels - above))

    read(body(128))
    for levels in (129, 5_000):
        with pytest.raises(TopicsError, match="nested too deeply") as caught:
            read(body(levels))
        assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_REQUEST, {"max": 128})


def test_values_of_a_body_with_many_records_are_checked() -> None:
    with pytest.raises(TopicsError, match="nested too deeply"):
        parse_append(b'{"records":[%b{"data":%b}]}' % (b'{"data":"\\u0064\\u0061"},' * 4, b"[" * 126 + b"]" * 126))


def test_records_that_the_service_copies_may_be_deeper() -> None:
    body = b'{"records":[{"data":%b}]}' % (b"[" * 500 + b"]" * 500)
    parse_write(Request(1, Append(stamped=True), "t", body), Limits())


def test_a_configuration_is_refused_for_its_nesting_or_its_field() -> None:
    with pytest.raises(TopicsError, match="'x' is no field of a configuration"):
        topic_config.PATCH.read(b'{"x":%b}' % (b"[" * 200 + b"]" * 200))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (8 << 20),
        b'{"a":' * (2 << 20),
        b'{"records":[{"data":' + b"[" * (8 << 20),
        b'{"records":[{"data":1}],"x":' + b"[" * (4 << 20) + b"]" * (4 << 20) + b"}",
    ],
)
def test_a_body_of_brackets_is_refused_without_a_walk_over_them(body: bytes) -> None:
    def refused() -> None:
        with pytest.raises(TopicsError):
            parse_append(body)

    assert lines_of(refused) < 1000


def test_a_flat_value_with_many_brackets_passes() -> None:
    value = msgspec.json.encode([{"a": ["[[[", {}]}] * 20_000)
    nesting.check(value)
    nesting.check(msgspec.json.encode("[" * 100_000))
