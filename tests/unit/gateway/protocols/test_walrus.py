"""Errors of Walrus: when to try again, and why."""

from __future__ import annotations

from proto.model.errors import ErrorCode, TopicsError, not_ready, topic_not_found
from proto.wire import walrus
from tests.behaviour.gateway.test_protocol_refusals import ALL, failing, walrus_says


async def test_walrus_clients_know_when_to_try_again() -> None:
    for error in (not_ready("shard 0 is starting"), TopicsError(ErrorCode.SHUTTING_DOWN, "bye")):
        for said in await walrus_says(failing(error), *ALL):
            assert said.startswith("ERR NotLeaderForPartition")


async def test_walrus_errors_have_one_line_and_say_why() -> None:
    full = TopicsError(ErrorCode.TOPIC_FULL, 'topic "t" is full:\nit holds 5 of 5 records')
    assert await walrus_says(failing(full), walrus.Put("t", "x")) == ['ERR topic "t" is full: it holds 5 of 5 records']
    for said in await walrus_says(failing(topic_not_found("t")), *ALL[1:]):
        assert said == "ERR unknown topic"
