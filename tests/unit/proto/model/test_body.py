"""Invalid bodies: where only some values are allowed, the error lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Struct

from proto.model import router
from proto.model import topic_config as config
from proto.model.body import parse
from proto.model.errors import ErrorCode, TopicsError
from shardd.operations import append_request


class Inner(Struct):
    way: Literal["up", "down"] | None = None


class Outer(Struct):
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    number: Literal[1, 2] = 1


def test_a_missing_field_is_named_in_the_detail() -> None:
    with pytest.raises(TopicsError) as caught:
        append_request._FORM.read(b'{"node":"n"}')
    assert caught.value.detail == {"field": "records"}


def test_other_errors_are_told_as_before() -> None:
    with pytest.raises(TopicsError, match=r"wrong shape: Expected `int \| null`, got `str` - at `\$\.ttl_ms`$"):
        config.PATCH.read(b'{"ttl_ms":"x"}')
    with pytest.raises(TopicsError, match=r"wrong shape: Invalid enum value 3$"):
        parse(_plain, b"3")


def _plain(body: bytes) -> None:
    raise msgspec.ValidationError(f"Invalid enum value {body.decode()}")


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (config.PATCH.read, b'{"cap_record":5,}'),
        (config.PATCH.read, b'{"x":'),
        (config.PATCH.read, b'{"x":1'),
        (config.PATCH.read, b'{"x":"\\ud800'),
        (config.PATCH.read, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        (router.PATCH.read, b'{"x":'),
        (append_request._FORM.read, b'{"records":[{"data":1}],"config":{"x":1},'),
        (append_request._FORM.read, b'{"records":[{"data":1}],"config":{"\\ud800":1}}'),
        (append_request._FORM.read, b'{"records":[{"data":1}],"config":{"x":' + b"[" * 100_000),
    ],
)
def test_a_syntax_error_after_an_unknown_field_is_refused(read: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(TopicsError) as caught:
        read(body)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
