"""Claims about the decision on a write: it comes from the values alone, and changes none of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from proto.ipc.message import Request
from proto.ipc.operations import Append, Arrived
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import RECORD_OVERHEAD, Limits
from proto.model.topic_config import TopicConfig
from shardd.changes.transactions import Staging
from shardd.operations.append_decision import Plan, Repeated, decide
from shardd.operations.append_request import parse_write
from shardd.topic.outbox import arrival_key, source_id
from shardd.topic.topic import Topic

LIMITS = Limits(max_topics=2, max_total_bytes=1000)
SOURCE = source_id("source", 1)


def decision(topic: Topic | None, count: int = 1, *, held: tuple[int, int] = (0, 0), **asked: Any) -> Any:
    options = {name: asked.pop(name) for name in list(asked) if name in Append.__struct_fields__}
    records = [{"data": "x" * 8, **asked.pop("record", {})}] * count
    request = Request(1, Append(**options), "t", msgspec.json.encode({"records": records, **asked}))
    known = SimpleNamespace(limits=LIMITS, topics_held=held[0], bytes_held=held[1])
    return decide(request, parse_write(request, LIMITS), topic, cast(Staging, known))


def refused(*args: Any, **asked: Any) -> tuple[ErrorCode, Any]:
    with pytest.raises(TopicsError) as caught:
        decision(*args, **asked)
    return caught.value.code, (caught.value.detail or {}).get("limit")


def topic(**config: Any) -> Topic:
    return Topic("t", 1, 1, TopicConfig(**config))


def test_a_plan_has_the_configuration_and_the_sizes() -> None:
    there = topic()
    assert decision(there, 3) == Plan(there.assigned_config, 30, 30 + 3 * RECORD_OVERHEAD, None)
    assert decision(there, 3, most_bytes=500).grows_by == 30 + 3 * RECORD_OVERHEAD
    new = decision(None, 1, config={"cap_records": 7})
    assert (new.config.cap_records, new.size) == (7, 10 + RECORD_OVERHEAD)


def test_what_a_write_needs_beyond_the_caps_of_all_topics_is_refused() -> None:
    assert refused(None, most_topics=2, held=(2, 0)) == (ErrorCode.THROTTLED, "max_topics")
    assert isinstance(decision(topic(), most_topics=2, held=(2, 0)), Plan), "the topic exists"
    assert refused(topic(), most_bytes=100, held=(1, 95)) == (ErrorCode.THROTTLED, "max_total_bytes")


def test_what_the_topic_refuses_comes_before_what_the_caps_of_all_topics_refuse() -> None:
    full = {"discard": "reject", "cap_records": 1}
    assert refused(None, 2, config=full, most_topics=0, held=(9, 0))[0] is ErrorCode.RECORD_TOO_LARGE
    assert refused(topic(**full), 2, most_bytes=0)[0] is ErrorCode.RECORD_TOO_LARGE
    assert refused(None, create=False, most_topics=0)[0] is ErrorCode.TOPIC_NOT_FOUND
    assert refused(None, record={"delay_ms": 5}, most_topics=0)[0] is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("committed", [False, True])
def test_a_key_that_was_used_shares_the_answer_whatever_has_room(committed: bool) -> None:
    there = topic(discard="reject", cap_records=1)
    assert isinstance(decision(there, idempotency_key="k"), Plan)
    there.keys.begin(b"k")
    if committed:
        there.keys.done(b"k", 1, 1, 5)
    assert decision(there, 2, idempotency_key="k", most_bytes=0) == Repeated(there)
    assert refused(there, 2, idempotency_key="other")[0] is ErrorCode.RECORD_TOO_LARGE


def test_letters_are_answered_with_those_that_are_here() -> None:
    there = topic()
    letters = (SOURCE, (4, 5, 6))
    assert isinstance(decision(there, 3, letters=letters, most_bytes=0), Plan), "the allowance decides of bytes"
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
