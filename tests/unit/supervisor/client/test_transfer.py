"""Imports: how long a batch without an answer is sent again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio.testing
from anyio.from_thread import start_blocking_portal

from proto.model.topic_config import TopicConfig
from supervisor.client.jsonlines import batches
from supervisor.client.python_client import AsyncClient, Unavailable
from supervisor.client.transfer import Client, Done, load
from tests.unit.topics_client.fake import Fake, appended


def test_a_batch_is_not_sent_again_after_the_service_may_have_forgotten_its_key() -> None:
    """However long the patience of the command is."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    fake = Fake([appended(1, 1)])
    asked: list[float] = []

    def unheard(request: httpx.Request) -> httpx.Response:
        asked.append(clock.current_time())
        fake.answers.append(unheard)
        raise httpx.ReadError("the connection broke")  # the service may have written the batch

    fake.answers.append(unheard)
    parts = batches([(1, [b"1\n", b"2\n"])], "t", whole=True, max_records=1, max_bytes=1000)
    done = Done()
    options: Any = {"transport": httpx.MockTransport(fake), "patience_s": 3600}
    with (
        start_blocking_portal("trio", {"clock": clock}) as portal,
        portal.wrap_async_context_manager(AsyncClient("http://fake", **options)) as client,
        pytest.raises(Unavailable),
    ):
        list(load(Client(portal, client), parts, done, configure=False))
    assert done.lines == 1, "from where the command says how to continue"
    assert 60 < asked[-1] - asked[0] < TopicConfig().idempotency_window_ms / 1000
