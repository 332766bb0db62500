"""Claims about the errors of Walrus and Rog when shards refuse, are down, or send unexpected replies."""

from __future__ import annotations

import struct

from proto.ipc.message import Message, Reply, Request
from proto.model.errors import TopicsError
from proto.wire import rog, walrus
from tests.support.gateway_stage import Script, stage


def failing(error: TopicsError) -> Script:
    def script(request: Request) -> list[Message]:
        return [Reply(request.id, error=error)]

    return script


async def walrus_says(script: Script, *commands: walrus.Command) -> list[str]:
    async with stage(script) as s:
        session = s.gateway.walrus.session()
        return [(await session.answer(command))[4:].decode() for command in commands]


async def rog_says(script: Script, *commands: rog.Command) -> list[str]:
    async with stage(script) as s:
        session = s.gateway.rog.session()
        answers = [await session.answer(command) for command in commands]
    for answer in answers:
        assert answer[:1] == b"\0" or struct.unpack_from(">Q", answer, 1)[0] == len(answer) - 9
    return ["" if answer[:1] == b"\0" else answer[9:].decode() for answer in answers]


ALL = (walrus.Register("t"), walrus.Put("t", "x"), walrus.Get("t"), walrus.StateCommand("t"))


async def test_an_answer_that_makes_no_sense_ends_no_connection() -> None:
    def script(request: Request) -> list[Message]:
        return [Reply(request.id, b'"not finished', extra={"seq": 1})]

    (said,) = await walrus_says(script, walrus.Get("t"))
    assert said.startswith("ERR internal error")
    (said,) = await rog_says(script, rog.Fetch("log", 0, "g"))
    assert said.startswith("Internal error")


async def test_a_shard_that_is_away_is_told_of() -> None:
    async with stage() as s:
        s.lose_shard(0)
        assert b"ERR NotLeaderForPartition" in await s.gateway.walrus.session().answer(walrus.Put("t", "x"))
        assert b'"current_leader":null' in await s.gateway.walrus.session().answer(walrus.Metrics())
        answer = await s.gateway.rog.session().answer(rog.Publish("log", 0, b"x"))
        assert answer[:1] == b"\1"
        assert s.gateway.walrus.commands == {("put", "error"): 1, ("metrics", "ok"): 1}
        assert s.gateway.rog.commands == {("publish", "error"): 1}


async def test_what_is_written_is_exactly_what_http_would_write() -> None:
    seen: list[Request] = []

    def script(request: Request) -> list[Message]:
        seen.append(request)
        return [Reply(request.id, b"{}", extra={"partitions": 2})]

    assert await walrus_says(script, walrus.Put("t", 'a"\\\u0001é')) == ["OK"]
    assert await rog_says(script, rog.Publish("log", 1, b"\0\xff")) == [""]
    put, find, publish = seen
    assert (put.op, put.topic, put.body) == (
        "append",
        "t",
        '{"create":false,"records":[{"data":"a\\"\\\\\\u0001é"}]}'.encode(),
    )
    assert (find.op, find.topic) == ("log_find", "log")
    assert (publish.op, publish.topic) == ("append", "log:1")
    assert b'"records":[{"data":"AP8=","meta":{"encoding":"base64"}}]' in publish.body
    assert b'"config":{"durability":"fsync"}' in publish.body
