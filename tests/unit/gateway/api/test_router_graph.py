"""Claims about deleting a topic while a shard is down: a topic unrelated to that shard does not wait for it."""

from __future__ import annotations

import msgspec

from proto.ipc.message import Message, Reply, Request
from proto.model.names import shard_of
from proto.model.router import RouterConfig, as_map
from tests.support.gateway_stage import stage, until

HERE, THERE = (next(name for n in range(40) if shard_of(name := f"d:{n}", 2) == index) for index in (0, 1))
ROUTER = as_map(RouterConfig(source=HERE, dest=THERE))


def answering(request: Request) -> list[Message]:
    if request.op == "router_graph":
        return [Reply(request.id, extra={"routers": []})]
    body = {"topic": request.topic, "deleted": True, "routers_removed": []}
    return [Reply(request.id, msgspec.json.encode(body), extra={})]


def routing(request: Request) -> list[Message]:
    """The script of the other shard, which has a router from the topic."""
    if request.op == "router_graph":
        return [Reply(request.id, extra={"routers": [["r", ROUTER, 1]]})]
    return answering(request)


async def test_a_topic_is_deleted_while_another_shard_is_away() -> None:
    async with stage(answering, shards=2) as there, there.client() as client:
        there.lose_shard(1)
        answer = await client.ask("DELETE", f"/v0/topics/{HERE}")
        assert answer.status == 200, answer.raw
        assert (answer.json["deleted"], answer.json["routers_removed"]) == (True, [])
        assert [request.op for request in there.shards[0].requests][-1] == "delete_topic"
        answer = await client.ask("DELETE", f"/v0/topics/{THERE}")
        assert (answer.status, answer.code) == (503, "not_ready"), "its own shard is away"


async def test_a_shard_that_was_seen_with_a_router_from_it_is_waited_for() -> None:
    """Records that the router copied and has not saved would be lost."""
    async with stage(answering, shards=2) as there, there.client() as client:
        await there.start_shard(1, routing, 2)
        assert (await client.ask("GET", "/v0/routers/r")).status == 200
        there.lose_shard(1)
        answer = await client.ask("DELETE", f"/v0/topics/{HERE}")
        assert (answer.status, answer.code) == (503, "not_ready")
        assert "delete_topic" not in [request.op for request in there.shards[0].requests]


async def test_what_was_learned_without_a_shard_is_not_taken_for_everything() -> None:
    async with stage(answering, shards=2) as there, there.client() as client:
        there.lose_shard(1)
        assert (await client.ask("DELETE", f"/v0/topics/{HERE}")).status == 200
        await there.start_shard(1, routing, 2)
        await until(lambda: there.gateway.shards.serving(1))
        assert (await client.ask("GET", "/v0/routers/r")).status == 200
        answer = await client.ask("DELETE", f"/v0/topics/{HERE}")
        assert answer.json["routers_removed"] == ["r"]
