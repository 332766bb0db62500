"""Stamps of dead letters in a record's `meta`: added at its end, and taken out again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from shardd.queues.dead_letter_meta import body, origin


def found(meta: str | None, tag: Any = UNSET) -> Any:
    """A job as `shardd.queues` finds it."""
    return (7, 1, UNSET, tag, Raw(b'{"n":1.50}'), UNSET if meta is None else Raw(meta.encode()))


def stamped(meta: str | None, deliveries: int = 3, reason: str | None = None, tag: Any = UNSET) -> dict[str, Any]:
    raw = body("q", [found(meta, tag)], [deliveries], {} if reason is None else {7: reason}, True)
    assert b'"data":{"n":1.50}' in raw, "the data is not touched"
    content = json.loads(raw)
    assert content["create"] is True
    (record,) = content["records"]
    return dict(record)


STAMPS = {"$dead_letter_from": "q", "$dead_letter_deliveries": 3, "$dead_letter_src_seq": 7}


@pytest.mark.parametrize("meta", [None, "null", "{}", " { } ", ""])
def test_a_record_without_members_has_the_stamps_alone(meta: str | None) -> None:
    assert stamped(meta)["meta"] == STAMPS


@pytest.mark.parametrize("meta", ['{"a":1}', ' {"a":1} ', '{"a":1 }'])
def test_stamps_come_after_the_members_of_the_record(meta: str) -> None:
    assert list(stamped(meta)["meta"].items()) == [("a", 1), *STAMPS.items()]


def test_a_reason_is_a_stamp_only_where_one_was_told() -> None:
    assert stamped("{}", reason='it "broke"')["meta"]["$dead_letter_reason"] == 'it "broke"'
    assert "$dead_letter_reason" not in stamped("{}")["meta"]


def test_a_redrive_takes_the_stamps_out_and_leaves_the_rest() -> None:
    meta = json.dumps({"a": 1, **STAMPS, "$dead_letter_reason": "late", "$other": 2})
    assert stamped(meta, deliveries=0)["meta"] == {"a": 1, "$other": 2}
    assert "meta" not in stamped(json.dumps(STAMPS), deliveries=0)


def test_a_tag_goes_along() -> None:
    assert stamped(None, tag="x")["tag"] == "x"
    assert "tag" not in stamped(None)


@pytest.mark.parametrize(
    ("meta", "queue"),
    [
        (None, None),
        ("{}", None),
        ('{"a":"$dead_letter_from"}', None),
        ('{"$dead_letter_from":"q"}', "q"),
        ('{"a":1,"\\u0024dead_letter_from":"q"}', "q"),
        ('{"$dead_letter_from":7}', None),
        ('{"$dead_letter_from":null}', None),
    ],
)
def test_the_origin_is_a_text_of_that_name_and_nothing_that_a_client_wrote_in_its_place(
    meta: str | None, queue: str | None
) -> None:
    assert origin(found(meta)) == queue
