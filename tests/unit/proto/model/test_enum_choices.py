"""A value that is not allowed is told with those that are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Struct

from gateway.streams.watch_request import WATCH_REQUEST
from proto.model import router
from proto.model import topic_config as config
from proto.model.body import parse
from proto.model.errors import TopicsError
from shardd.operations import append_request


class Inner(Struct):
    way: Literal["up", "down"] | None = None


class Outer(Struct):
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    number: Literal[1, 2] = 1


decode_outer = msgspec.json.Decoder(Outer).decode


@pytest.mark.parametrize(
    ("decode", "body", "allowed"),
    [
        (config.PATCH.read, b'{"durability":"fast"}', "$.durability`; allowed are disk, ephemeral, fsync, memory"),
        (config.PATCH.read, b'{"discard":"`$.type`"}', "$.discard`; allowed are old, reject"),
        (
            append_request._FORM.read,
            b'{"records":[],"config":{"type":"stack"}}',
            "$.config.type`; allowed are log, queue",
        ),
        (router.PATCH.read, b'{"guarantee":"once"}', "allowed are at_least_once, exactly_once"),
        (WATCH_REQUEST.read, b'{"topics":{},"consistency":"some"}', "$.consistency`; allowed are eventual, strong"),
        (decode_outer, b'{"many":[{},{"way":"left"}]}', "$.many[1].way`; allowed are down, up"),
        (decode_outer, b'{"named":{"a.b]":{"way":"left"}}}', "allowed are down, up"),
        (decode_outer, b'{"number":3}', "$.number`; allowed are 1, 2"),
    ],
)
def test_a_value_that_is_not_allowed_is_told_with_those_that_are(
    decode: Callable[[bytes], Any], body: bytes, allowed: str
) -> None:
    with pytest.raises(TopicsError) as caught:
        decode(body) if getattr(decode, "__name__", "") == "read" else parse(decode, body)
    assert caught.value.message.endswith(allowed)
