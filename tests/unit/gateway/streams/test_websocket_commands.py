"""Claims about WebSocket commands, over a socket made of two queues."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel

from gateway.http.messages import ClientGone
from gateway.streams import websocket_commands
from gateway.streams.websocket_commands import Conversation, SocketStream
from proto.model.keys import ALL_SCOPES, Key, Scope
from tests.support.gateway_stage import Stage, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import RealShard, start_real


class QueueSocket:
    def __init__(self, key: Key) -> None:
        self.key = key
        self.closed: tuple[int, str] | None = None
        self.got: list[Any] = []
        self.stuck = False
        self._ask, self._asked = trio.open_memory_channel[str](100)

    async def receive(self) -> bytes:
        try:
            return (await self._asked.receive()).encode()
        except trio.EndOfChannel:
            raise ClientGone from None

    async def send(self, text: bytes) -> None:
        while self.stuck:  # noqa: ASYNC110 - set by the test
            await trio.sleep(0.001)
        self.got.append(json.loads(text))
        await trio.lowlevel.checkpoint()

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    # What the test does

    def tell(self, op: str, **fields: Any) -> None:
        self.say(json.dumps({"op": op, **fields}))

    def say(self, text: str) -> None:
        self._ask.send_nowait(text)

    def leave(self) -> None:
        self._ask.close()

    async def wait(self, op: str, times: int = 1) -> Any:
        await until(lambda: len(self.of(op)) >= times)
        return self.of(op)[times - 1]

    def of(self, op: str) -> list[Any]:
        return [each for each in self.got if each["op"] == op]

    def seqs(self, topic: str) -> list[int]:
        return [record["$seq"] for each in self.of("record") if each["topic"] == topic for record in each["records"]]


FULL = key("full")


@asynccontextmanager
async def talking(who: Key = FULL, **limits: Any) -> AsyncIterator[tuple[QueueSocket, Harness, Stage]]:
    async with stage(**limits) as there:
        harness = Harness(**limits)
        await start_real(there, harness)
        socket = QueueSocket(who)
        api = there.gateway.api
        there.nursery.start_soon(Conversation(api.live, there.gateway.shards, socket).run)
        yield socket, harness, there


async def opened(there: Stage) -> SocketStream:
    """The stream of the socket."""
    await until(lambda: bool(there.gateway.api.live.streams))
    stream = next(iter(there.gateway.api.live.streams))
    assert isinstance(stream, SocketStream)
    return stream


def held(there: Stage) -> Callable[[], Awaitable[None]]:
    """Have the shard keep back its answers. Returns what makes it give them, once it has a request."""
    shard = there.shards[0]
    assert isinstance(shard, RealShard)
    settle, asked = shard.settle, trio.Event()
    shard.settle = asked.set  # type: ignore[method-assign]

    async def release() -> None:
        await asked.wait()
        shard.settle = settle  # type: ignore[method-assign]
        settle()

    return release


async def test_publish_is_acked_and_subscribers_get_it() -> None:
    async with talking() as (socket, _, _):
        socket.tell("publish", request_id="p1", topic="a", records=[{"data": 1}, {"data": 2}])
        ack = await socket.wait("ack")
        assert (ack["request_id"], ack["topic"], ack["last_seq"], ack["head_seq"], ack["seqs"]) == (
            "p1",
            "a",
            2,
            2,
            [1, 2],
        )
        assert ack["performance"]["server_total_ms"] >= 0
        socket.tell("subscribe", request_id="s1", topic="a")
        answer = await socket.wait("subscribed")
        assert answer == {
            "op": "subscribed",
            "request_id": "s1",
            "topics": {"a": {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}},
        }
        assert (await socket.wait("caught_up")) == {"op": "caught_up", "topic": "a", "head_seq": 2}
        socket.tell("publish", topic="a", return_seqs=False, records=[{"data": {"x": 1.0}, "node": "n"}])
        await until(lambda: socket.seqs("a") == [1, 2, 3] and len(socket.of("ack")) == 2)
        assert "seqs" not in socket.of("ack")[1]
        assert "request_id" not in socket.of("ack")[1]
        record = socket.of("record")[-1]
        assert (record["from_seq"], record["to_seq"], record["head_seq"]) == (2, 3, 3)
        order = [each["op"] for each in socket.got]
        assert order.index("subscribed") < order.index("record") < order.index("caught_up")


async def test_a_map_of_topics_a_tail_and_an_end() -> None:
    async with talking() as (socket, _, _):
        for topic in ("a", "b"):
            socket.tell("publish", topic=topic, records=[{"data": 1}])
        socket.tell("subscribe", topics={"a": {"tail": True}, "b": {"from_seq": 0}})
        await socket.wait("caught_up", 2)
        assert (socket.seqs("a"), socket.seqs("b")) == ([], [1])
        socket.tell("unsubscribe", request_id=7, topics=["a", "none"])
        assert (await socket.wait("unsubscribed")) == {"op": "unsubscribed", "request_id": 7, "topics": ["a"]}
        for topic in ("a", "b"):
            socket.tell("publish", topic=topic, records=[{"data": 2}])
        await until(lambda: socket.seqs("b") == [1, 2])
        assert socket.seqs("a") == []


async def test_a_deleted_topic_is_told() -> None:
    async with talking() as (socket, harness, there):
        socket.tell("publish", topic="a", records=[{"data": 1}])
        socket.tell("subscribe", topic="a", tail=True)
        await socket.wait("caught_up")
        harness.call("delete_topic", "a")
        there.shards[0].settle()  # type: ignore[attr-defined]
        assert await socket.wait("topic_deleted") == {
            "op": "topic_deleted",
            "topic": "a",
            "head_seq": 1,
            "reason": "deleted",
        }


async def test_answers_name_what_they_ignored() -> None:
    async with talking() as (socket, _, _):
        socket.tell("publish", topic="a", records=[{"data": 1}], colour=1, return_seqs=False)
        assert (await socket.wait("ack"))["ignored"] == ["colour"]
        socket.tell("subscribe", topic="a", limit=-1, heartbeat_ms=-5, colour=1)
        assert (await socket.wait("subscribed"))["ignored"] == ["colour"]
        socket.tell("unsubscribe", topic="a", limit=1)
        assert (await socket.wait("unsubscribed"))["ignored"] == ["limit"]
        socket.tell("ping", request_id=1, topic="a")
        assert await socket.wait("pong") == {"op": "pong", "request_id": 1, "ignored": ["topic"]}
        socket.tell("publish", request_id=2, topic="b", records=[{"data": 1}], config={"ttl": 5})
        error = await socket.wait("error")
        assert error["detail"] == {"field": "ttl", "did_you_mean": "ttl_ms"}


async def test_unknown_fields_are_named_at_every_level() -> None:
    async with talking() as (socket, _, _):
        socket.tell("publish", topic="a", records=[{"data": {"x": 1}}, {"data": 1, "tags": "x"}], nodes=1)
        assert (await socket.wait("ack"))["ignored"] == ["nodes", "records[1].tags"]
        socket.tell("publish", topic="a", records=[{"data": 1, **{f"x{at}": 1 for at in range(20)}}], nodes=1)
        assert len((await socket.wait("ack", 2))["ignored"]) == 10
        socket.tell("subscribe", topics={"a": {"fromseq": 1}})
        assert (await socket.wait("subscribed"))["ignored"] == ['topics["a"].fromseq']


async def test_a_message_may_be_nested_128_levels_deep() -> None:
    async with talking() as (socket, _, _):
        for op, inner, above in (
            ("publish", '"topic":"a","records":[{"data":%s}]', 3),
            ("publish", '"topic":"a","records":[{"data":1,"x":%s}]', 3),
            ("publish", '"topic":"a","records":[{"data":1}],"x":%s', 1),
            ("ping", '"request_id":%s', 1),
            ("ping", '"x":%s', 1),
        ):
            for levels, answer in ((128, "ack" if op == "publish" else "pong"), (129, "error")):
                socket.got.clear()
                value = "[" * (levels - above) + "]" * (levels - above)
                socket.say(f'{{"op":"{op}",{inner % value}}}')
                await until(lambda: bool(socket.got))
                assert socket.got[0]["op"] == answer
        assert socket.got[0]["detail"] == {"max": 128}


async def test_a_subscription_from_a_position_that_no_id_has_is_refused() -> None:
    async with talking() as (socket, _, _):
        socket.tell("publish", topic="a", records=[{"data": 1}])
        for seq in (-1, 2**63, 2**64, 2**70):
            cursor = base64.urlsafe_b64encode(json.dumps({"a": seq}).encode()).decode().rstrip("=")
            socket.got.clear()
            socket.tell("subscribe", prefix="", cursor=cursor)
            assert (await socket.wait("error"))["code"] == "invalid_request"
        socket.tell("subscribe", topic="a", from_seq=2**64 - 1)
        assert (await socket.wait("tombstone"))["reason"] == "recreated"
        await socket.wait("caught_up")


async def test_pings_are_answered() -> None:
    async with talking() as (socket, _, _):
        socket.tell("ping", request_id="x")
        socket.tell("ping")
        assert await socket.wait("pong") == {"op": "pong", "request_id": "x"}
        assert await socket.wait("pong", 2) == {"op": "pong"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_request"),
        ("{", "invalid_request"),
        ("[]", "invalid_request"),
        ('{"op":"dance"}', "invalid_request"),
        ('{"op":1}', "invalid_request"),
        ('{"op":"subscribe"}', "invalid_request"),
        ('{"op":"subscribe","topic":"a","topics":{"a":{}}}', "invalid_request"),
        ('{"op":"subscribe","topics":{}}', "invalid_request"),
        ('{"op":"subscribe","topic":"none"}', "topic_not_found"),
        ('{"op":"subscribe","topic":"/"}', "invalid_request"),
        ('{"op":"publish","topic":"a"}', "invalid_request"),
        ('{"op":"publish","topic":"a","records":[]}', "invalid_request"),
        ('{"op":"publish","topic":"a","records":[{"data":1}],"create":false}', "topic_not_found"),
        ('{"op":"unsubscribe"}', "invalid_request"),
        ('{"op":"ping","request_id":"\\ud80"}', "invalid_request"),
        ('{"op":"\\ud800"}', "invalid_request"),
    ],
)
async def test_a_bad_command_is_answered_and_the_socket_stays(text: str, code: str) -> None:
    async with talking() as (socket, _, _):
        socket.say(text)
        assert (await socket.wait("error"))["code"] == code
        socket.tell("ping")
        await socket.wait("pong")


@pytest.mark.parametrize(
    ("scopes", "command", "missing"),
    [
        (Scope.WRITE, {"op": "subscribe", "topic": "t:a"}, ["read"]),
        (Scope.READ, {"op": "publish", "topic": "t:a", "records": [{"data": 1}]}, ["write"]),
        (Scope.WRITE, {"op": "publish", "topic": "t:a", "records": [{"data": 1}], "config": {}}, ["admin"]),
    ],
)
async def test_each_command_needs_its_scope(scopes: Scope, command: dict[str, Any], missing: list[str]) -> None:
    async with talking(key("k", scopes, "t:")) as (socket, _, _):
        socket.tell(**command, request_id="r")
        error = await socket.wait("error")
        assert (error["code"], error["request_id"], error["detail"]["missing"]) == ("forbidden", "r", missing)


async def test_names_must_be_inside_the_prefixes() -> None:
    async with talking(key("k", ALL_SCOPES, "t:")) as (socket, _, _):
        socket.tell("publish", topic="other", records=[{"data": 1}])
        socket.tell("subscribe", topics={"other": {}})
        await socket.wait("error", 2)
        assert [each["code"] for each in socket.of("error")] == ["forbidden"] * 2
        socket.tell("publish", topic="t:a", records=[{"data": 1}], config={"cap_records": 5})
        assert (await socket.wait("ack"))["created"]


async def test_a_socket_that_does_not_read_is_not_read_from_and_misses_nothing() -> None:
    async with talking() as (socket, harness, there):
        socket.tell("publish", topic="a", records=[{"data": 0}])
        socket.tell("subscribe", topic="a")
        await socket.wait("caught_up")
        socket.stuck = True
        for number in range(50):
            socket.tell("ping", request_id=number)
            harness.append("a", number)
            there.shards[0].settle()  # type: ignore[attr-defined]
            await trio.lowlevel.checkpoint()
        await until(lambda: socket._asked.statistics().current_buffer_used < 50)
        stream = next(iter(there.gateway.api.live.streams))
        assert len(stream.queue) <= stream.most + 1
        assert socket._asked.statistics().current_buffer_used > 30
        socket.stuck = False
        await socket.wait("pong", 50)
        await until(lambda: socket.seqs("a") == list(range(1, 52)))
        assert [each["request_id"] for each in socket.of("pong")] == list(range(50))


async def test_a_socket_that_leaves_leaves_nothing() -> None:
    async with talking() as (socket, _, there):
        socket.tell("publish", topic="a", records=[{"data": 0}])
        socket.tell("subscribe", topic="a")
        await socket.wait("caught_up")
        live = there.gateway.api.live
        assert (len(live.feeds), len(live.streams)) == (1, 1)
        socket.leave()
        await until(lambda: not live.streams)
        await until(lambda: not live.feeds and not there.shards[0].harness.shard.reads)  # type: ignore[attr-defined]
        assert socket.closed is None


async def test_sockets_end_with_their_key() -> None:
    async with talking() as (socket, _, there):
        socket.tell("ping")
        await socket.wait("pong")
        there.gateway.keyring.replace([key("other"), FULL])
        socket.tell("ping")
        await socket.wait("pong", 2)
        there.gateway.keyring.replace([key("other")])
        assert (await socket.wait("error"))["code"] == "unauthorized"
        await until(lambda: socket.closed is not None)


async def test_sockets_are_closed_when_the_service_stops_and_told_to_come_back() -> None:
    async with talking() as (socket, _, there):
        socket.tell("ping")
        await socket.wait("pong")
        await there.gateway.api.live.drain()
        error = await socket.wait("error")
        assert (error["code"], error["retry_after_ms"]) == ("shutting_down", 1000)
        await until(lambda: socket.closed == (1012, ""))


@pytest.mark.parametrize("why", ["the service stops", "its key is revoked"])
async def test_a_publish_in_flight_when_a_socket_ends_is_answered_and_later_ones_are_not_carried_out(why: str) -> None:
    async with talking() as (socket, harness, there):
        stream, release = await opened(there), held(there)
        there.gateway.keyring.replace([key("other"), FULL])
        for request_id in ("p1", "p2"):
            socket.tell("publish", request_id=request_id, topic="a", records=[{"data": 1}])
        await until(lambda: stream.publishing is not None)
        if why == "the service stops":
            there.nursery.start_soon(there.gateway.api.live.drain)
        else:
            there.gateway.keyring.replace([key("other")])
        await until(lambda: stream.ending)
        await release()
        await until(lambda: socket.closed is not None)
        assert [each["op"] for each in socket.got] == ["ack", "error"]
        assert (socket.got[0]["request_id"], socket.got[0]["head_seq"]) == ("p1", 1)
        assert socket.got[1]["code"] == ("shutting_down" if why == "the service stops" else "unauthorized")
        assert harness.call("state", "a")["head_seq"] == 1


async def test_a_publish_whose_shard_takes_longer_than_a_socket_that_ends_may_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_commands, "ANSWER_S", 0.01)
    async with talking() as (socket, _, there):
        stream, release = await opened(there), held(there)
        socket.tell("publish", request_id="p1", topic="a", records=[{"data": 1}])
        await until(lambda: stream.publishing is not None)
        there.nursery.start_soon(there.gateway.api.live.drain)
        await until(lambda: socket.closed is not None)
        await release()
        assert [(each.get("request_id"), each["code"]) for each in socket.got] == [
            ("p1", "not_ready"),
            (None, "shutting_down"),
        ]
        assert socket.got[0]["detail"] == {"outcome": "unknown"}
        assert socket.closed == (1012, "")


async def test_answers_that_wait_for_a_client_are_sent_before_the_last_frame() -> None:
    async with talking() as (socket, _, there):
        stream = await opened(there)
        socket.stuck = True
        for number in range(3):
            socket.tell("ping", request_id=number)
        await until(lambda: len(stream.queue) == 2)
        there.nursery.start_soon(there.gateway.api.live.drain)
        await until(lambda: stream.ending)
        socket.stuck = False
        await until(lambda: socket.closed is not None)
        assert [each["op"] for each in socket.got] == ["pong", "pong", "pong", "error"]


async def test_the_prefixes_of_a_socket_have_a_bound() -> None:
    async with talking(max_watch_topics=2) as (socket, _, _):
        for prefix in ("a", "ab", "a", "abc"):
            socket.tell("subscribe", prefix=prefix)
        assert (await socket.wait("error"))["code"] == "invalid_request"
        assert len(socket.of("subscribed")) == 3
        socket.tell("unsubscribe", prefix="a")
        await socket.wait("unsubscribed")
        socket.tell("subscribe", prefix="abc")
        await socket.wait("subscribed", 4)


async def test_deleted_topics_leave_room_for_others() -> None:
    async with talking(max_watch_topics=2) as (socket, harness, there):
        for topic in ("a", "b", "c", "d", "e"):
            harness.append(topic, 1)
        for number, topic in enumerate(("a", "b"), 1):
            socket.tell("subscribe", topic=topic)
            await socket.wait("caught_up", number)
            harness.call("delete_topic", topic)
            there.shards[0].settle()  # type: ignore[attr-defined]
            await socket.wait("topic_deleted", number)
        for topic in ("c", "d", "e"):
            socket.tell("subscribe", topic=topic, request_id=topic)
        refused = await socket.wait("error")
        assert (refused["request_id"], refused["detail"]["max"]) == ("e", 2)
        assert len(socket.of("subscribed")) == 4
        assert next(iter(there.gateway.api.live.streams)).subscriptions.keys() == {"c", "d"}


async def test_a_prefix_still_knows_the_topics_whose_deletion_was_told() -> None:
    async with talking(max_watch_topics=1) as (socket, harness, there):
        harness.append("a:1", 1)
        socket.tell("subscribe", topic="a:1")
        await socket.wait("caught_up")
        harness.call("delete_topic", "a:1")
        there.shards[0].settle()  # type: ignore[attr-defined]
        await socket.wait("topic_deleted")
        harness.append("b", 1)
        socket.tell("subscribe", topic="b", prefix="a:")
        await until(lambda: len(socket.of("subscribed") + socket.of("error")) == 2)
        assert not socket.of("error")
        # Its list may be older than the deletion, which is not to be told twice.
        assert next(iter(there.gateway.api.live.streams)).subscriptions.keys() == {"a:1", "b"}
