"""Errors: each code of the service has a class, with what the answer tells."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import topics_client
from proto.model.errors import ErrorCode
from tests.unit.topics_client.fake import Fake, error
from topics_client.errors import BY_CODE


def test_each_code_of_the_service_has_a_class() -> None:
    assert BY_CODE.keys() - {"unavailable"} == {str(code) for code in ErrorCode}
    for kind in BY_CODE.values():
        assert getattr(topics_client, kind.__name__) is kind


async def test_an_error_has_what_the_answer_tells(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake([error(404, "topic_not_found", {"topic": "t"})])
    async with fake.client(token="secret") as client:
        with pytest.raises(topics_client.TopicNotFound) as raised:
            await client.state("t")
    assert (raised.value.code, raised.value.detail, raised.value.status) == ("topic_not_found", {"topic": "t"}, 404)
    assert isinstance(raised.value, topics_client.NotFound)
    assert fake.requests[0].headers["Authorization"] == "Bearer secret"


async def test_an_unknown_code_is_told_as_it_is() -> None:
    fake = Fake([error(418, "teapot")])
    async with fake.client() as client:
        with pytest.raises(topics_client.TopicsError) as raised:
            await client.state("t")
    assert (raised.value.code, type(raised.value)) == ("teapot", topics_client.TopicsError)
