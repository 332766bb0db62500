"""Watch sessions: how many of them one of several keys may have."""

from __future__ import annotations

from proto.ipc.message import Message, Reply, Request
from proto.model.errors import cap_reached
from tests.behaviour.gateway.test_stream_caps import ONE, THREE, TWO, refused
from tests.support.gateway_stage import Answer, Script, key, stage
from tests.support.harness import Harness
from tests.support.real_shard import start_real


async def test_one_key_cannot_take_all_watch_sessions() -> None:
    caps = {"max_watch_sessions": 5, "max_watch_sessions_per_key": 2}
    async with stage(keys=[key("one"), key("two"), key("three")], **caps) as there, there.client() as client:
        harness = Harness(**caps, watch_session_ttl_ms=1000)
        harness.append("a", 1)
        await start_real(there, harness)

        async def make(headers: dict[str, str]) -> Answer:
            return await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', headers)

        for each in (ONE, ONE):
            assert (await make(each)).status == 200
        refused(await make(ONE), "max_watch_sessions_per_key", 2)
        for each in (TWO, TWO, THREE):
            assert (await make(each)).status == 200
        refused(await make(TWO), "max_watch_sessions_per_key", 2)
        refused(await make(THREE), "max_watch_sessions", 5)
        await start_real(there, harness.restarted(), incarnation=3)
        refused(await make(ONE), "max_watch_sessions_per_key", 2)
        harness = there.shards[0].harness  # type: ignore[attr-defined]
        harness.clock.advance(2000)
        assert (await make(ONE)).status == 200, "the others have ended"


async def test_sessions_of_a_key_are_counted_over_all_shards() -> None:
    owned = [0, 0]

    def script(index: int) -> Script:
        def answer(request: Request) -> list[Message]:
            if request.op == "watch_resolve":
                topics = dict.fromkeys(request.options.names, (1, 0, 1))
                return [Reply(request.id, extra={"topics": topics})]
            if request.op == "session_make":
                if owned[index] + 1 > request.options.most_owned:
                    error = cap_reached("max_watch_sessions_per_key", 3, "wait")
                    return [Reply(request.id, error=error)]
                owned[index] += 1
            return [Reply(request.id, extra={"sessions": sum(owned), "owned": owned[index]})]

        return answer

    async with stage(shards=2, keys=[key("one")], max_watch_sessions_per_key=3) as there, there.client() as client:
        for index, shard in enumerate(there.shards):
            shard.script = script(index)
        answers = [await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', ONE) for _ in range(20)]
        assert [answer.status for answer in answers].count(200) == sum(owned) == 3
        refused(answers[-1], "max_watch_sessions_per_key", 3)
