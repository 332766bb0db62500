"""Logs of Rog: one that cannot be made whole is none."""

from __future__ import annotations

from proto.ipc.message import Message, Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from proto.wire import rog
from tests.behaviour.gateway.test_protocol_refusals import rog_says


async def test_a_create_that_fails_halfway_is_no_log() -> None:
    def script(request: Request) -> list[Message]:
        if request.op == "configure" and request.topic == "log:2":
            error = TopicsError(ErrorCode.THROTTLED, "there are as many topics as TOPICS_MAX_TOPICS allows")
            return [Reply(request.id, error=error)]
        assert request.op != "log_create"
        return [Reply(request.id, extra={"partitions": 0})]

    (said,) = await rog_says(script, rog.Create("log", 4))
    assert "TOPICS_MAX_TOPICS" in said
