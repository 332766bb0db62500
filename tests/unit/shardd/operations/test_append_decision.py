"""Claims about the decision on a write: it comes from the values alone, and changes none of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proto.ipc.message import Request
from proto.ipc.operations import Append, Arrived
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import RECORD_OVERHEAD, Limits
from proto.model.topic_config import TopicConfig
from shardd.changes.admission import Growth
from shardd.operations.append_decision import Plan, Repeated, decide
from shardd.operations.append_request import parse_write
from shardd.topic.outbox import arrival_key, source_id
from shardd.topic.topic import Topic

LIMITS = Limits(max_topics=2, max_total_bytes=1000)
SOURCE = source_id("source", 1)


def decision(topic: Topic | None, count: int = 1, *, limits: Limits = LIMITS, **asked: Any) -> Any:
    options = {name: asked.pop(name) for name in list(asked) if name in Append.__struct_fields__}
    records = [{"data": "x" * 8, **asked.pop("record", {})}] * count
    request = Request(1, Append(**options), "t", msgspec.json.encode({"records": records, **asked}))
    return decide(request, parse_write(request, limits), topic, limits)


def refused(*args: Any, **asked: Any) -> tuple[ErrorCode, Any]:
    with pytest.raises(TopicsError) as caught:
        decision(*args, **asked)
    return caught.value.code, (caught.value.detail or {}).get("limit")


def topic(**config: Any) -> Topic:
    return Topic("t", 1, 1, TopicConfig(**config))


def test_a_plan_has_the_configuration_and_the_sizes() -> None:
    there = topic()
    assert decision(there, 3, limits=Limits()) == Plan(there.assigned_config, 30, 30 + 3 * RECORD_OVERHEAD, None)
    assert decision(there, 3).grows == Growth(30 + 3 * RECORD_OVERHEAD, 30 + 3 * RECORD_OVERHEAD)
    new = decision(None, 1, config={"cap_records": 7})
    assert (new.config.cap_records, new.size) == (7, 10 + RECORD_OVERHEAD)


def test_what_the_topic_refuses_is_known_before_the_caps_of_all_topics_are_asked() -> None:
    full = {"discard": "reject", "cap_records": 1}
    assert refused(None, 2, config=full)[0] is ErrorCode.RECORD_TOO_LARGE
    assert refused(topic(**full), 2)[0] is ErrorCode.RECORD_TOO_LARGE
    assert refused(None, create=False)[0] is ErrorCode.TOPIC_NOT_FOUND
    assert refused(None, record={"delay_ms": 5})[0] is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("committed", [False, True])
def test_a_key_that_was_used_shares_the_answer_whatever_has_room(committed: bool) -> None:
    there = topic(discard="reject", cap_records=1)
    assert isinstance(decision(there, idempotency_key="k"), Plan)
    there.keys.begin(b"k")
    if committed:
        there.keys.done(b"k", 1, 1, 5)
    assert decision(there, 2, idempotency_key="k") == Repeated(there)
    assert refused(there, 2, idempotency_key="other")[0] is ErrorCode.RECORD_TOO_LARGE


def test_letters_are_answered_with_those_that_are_here() -> None:
    there = topic()
    letters = (SOURCE, (4, 5, 6))
    assert isinstance(decision(there, 3, letters=letters), Plan)
    there.arrivals.add(arrival_key(SOURCE, (2, 4, 6)))
    assert decision(there, 3, letters=letters) == Arrived((4, 6))
    there.arrivals.pending.add(SOURCE)
    assert refused(there, 3, letters=letters)[0] is ErrorCode.NOT_READY
    assert refused(there, 3, letters=letters, jobs=True)[0] is ErrorCode.NOT_A_QUEUE


def test_a_key_of_letters_is_no_key_of_a_client() -> None:
    """A source's name is in its letters' key, so a client cannot spell one; letters share no write's answer."""
    there = topic()
    there.keys.done(arrival_key(SOURCE, (4,)), 1, 1, 5)
    assert isinstance(decision(there, 1, letters=(SOURCE, (4,))), Plan)
