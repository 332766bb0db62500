"""Parsing writes: the keys of metas are counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proto.ipc.message import Request
from proto.ipc.operations import Append
from proto.model.errors import TopicsError
from proto.model.limits import MAX_META_KEYS, Limits
from shardd.operations.append_request import parse_write

LIMITS = Limits()
LARGE = {f"{number:04}": number for number in range(MAX_META_KEYS)}
TOO_MANY = {**LARGE, "one": "more"}


def asking(records: list[dict[str, Any]]) -> Request[Append]:
    return Request(1, Append(), "a", msgspec.json.encode({"records": records}))


def test_a_meta_with_too_many_keys_is_refused_by_its_index() -> None:
    records = [{"data": 1}, {"data": 1, "meta": LARGE}, {"data": 1, "meta": {}}, {"data": 1, "meta": TOO_MANY}]
    with pytest.raises(TopicsError, match=r"meta of records\[3\] has more than 64 keys") as caught:
        parse_write(asking(records), LIMITS)
    assert caught.value.detail == {"field": "meta", "index": 3}
    assert parse_write(asking(records[:3]), LIMITS).columns.count == 3


def test_a_lone_surrogate_hides_no_key() -> None:
    surrogate = msgspec.json.encode({"records": [{"data": 1, "meta": LARGE}, {"data": 1, "meta": {**LARGE, "@": 1}}]})
    with pytest.raises(TopicsError, match=r"meta of records\[1\] has more than 64 keys"):
        parse_write(Request(1, Append(), "a", surrogate.replace(b'"@"', rb'"\ud800"')), LIMITS)
