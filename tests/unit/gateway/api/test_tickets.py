"""Claims about pages that cannot send headers: tickets, and keys in the first message of a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from wsproto.events import CloseConnection, TextMessage

from gateway.api import entry, sockets, tickets
from gateway.contract.openapi import document
from gateway.contract.operations import OPERATIONS
from proto.ipc.control import ShardState
from proto.ipc.message import Message, Request
from proto.model.keys import Scope
from proto.model.limits import Limits
from tests.support.gateway_stage import Answer, Stage, key, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.support.websocket import UPGRADE
from tests.unit.gateway.http.test_websocket import Socket, connected

KEYS = [key("full"), key("reader", Scope.READ, "tenant:")]
FULL = {"Authorization": "Bearer full"}
READER = {"Authorization": "Bearer reader"}
BROWSER = {"Accept": "text/event-stream"}


@asynccontextmanager
async def staged(**limits: int) -> AsyncIterator[Stage]:
    async with stage(keys=KEYS, **limits) as there:
        shard = Harness(**limits)
        shard.append("a", 1)
        shard.call("configure", "tenant:q", {"type": "queue"})
        await start_real(there, shard)
        yield there


def kept(there: Stage, index: int = 0) -> Harness:
    """The shard behind the stage."""
    harness: Harness = there.shards[index].harness  # type: ignore[attr-defined]
    return harness


async def ticket(there: Stage, path: str, headers: dict[str, str] = FULL) -> Answer:
    async with there.client() as client:
        return await client.ask("POST", "/v0/tickets", json.dumps({"path": path}).encode(), headers)


async def watched(there: Stage) -> str:
    async with there.client() as client:
        made = await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', FULL)
        return str(made.json["stream_url"])


async def opened(there: Stage, url: str, headers: dict[str, str] = BROWSER) -> int:
    async with there.client() as client:
        return (await client.ask("GET", url, headers=headers)).status


async def test_a_ticket_opens_what_it_is_for_once() -> None:
    async with staged() as there:
        path = await watched(there)
        given = await ticket(there, path)
        assert given.status == 200
        assert (given.json["path"], given.json["ttl_ms"]) == (path, 60_000)
        assert given.json["url"] == f"{path}?ticket={given.json['ticket']}"
        assert await opened(there, given.json["url"]) == 200
        assert await opened(there, given.json["url"]) == 401, "used"
        assert await opened(there, path) == 401
        for path, headers in (("/v0/topics/tenant:q/work", BROWSER), ("/v0/ws", UPGRADE)):
            url = (await ticket(there, path)).json["url"]
            assert await opened(there, f"{url}&node=n", headers) in (200, 101)
            assert await opened(there, f"{url}&node=n", headers) == 401
        assert kept(there).shard.tickets._unused == {}


async def test_a_ticket_is_for_its_path_only_and_for_streams_only() -> None:
    async with staged() as there:
        path = await watched(there)
        given = (await ticket(there, path)).json["ticket"]
        assert await opened(there, f"/v0/topics/tenant:q/work?node=n&ticket={given}") == 401
        assert await opened(there, f"{path}?ticket={given}") == 401, "used up by that"
        given = (await ticket(there, path)).json["ticket"]
        assert await opened(there, f"/v0/topics/a?ticket={given}") == 401
        for path in ("/v0/topics/a", "/nothing", "", "/v0/topics", "/v0/ws%"):
            answer = await ticket(there, path)
            assert (answer.status, answer.json["error"]["detail"]["field"]) == (400, "path")
        assert (await ticket(there, "/v0/ws", {})).status == 401


async def test_a_ticket_is_no_broader_than_its_key_and_ends_with_it() -> None:
    async with staged() as there:
        assert (await ticket(there, "/v0/topics/tenant:q/work", READER)).code == "forbidden"
        assert (await ticket(there, "/v0/topics/other/work")).status == 200
        path = await watched(there)
        url = (await ticket(there, path, READER)).json["url"]
        assert await opened(there, url) == 401, "the session is of another key"
        url = (await ticket(there, path)).json["url"]
        there.gateway.keyring.replace([KEYS[1], key("full", Scope.READ)])
        assert await opened(there, url) == 401


async def test_tickets_run_out_and_are_bounded_per_key() -> None:
    async with staged(max_tickets_per_key=2) as there:
        urls = [(await ticket(there, "/v0/ws")).json["url"] for _ in range(2)]
        refused = await ticket(there, "/v0/ws")
        assert (refused.status, refused.json["error"]["detail"]) == (429, {"limit": "max_tickets_per_key", "max": 2})
        assert (await ticket(there, "/v0/ws", READER)).status == 200
        assert await opened(there, urls[0], UPGRADE) == 101
        kept(there).clock.advance(60_000)
        assert await opened(there, urls[1], UPGRADE) == 401
        assert kept(there).shard.tickets._unused == {}
        assert (await ticket(there, "/v0/ws")).status == 200


async def test_any_gateway_uses_a_ticket_and_one_of_them_only() -> None:
    async with staged() as there, stage(keys=KEYS) as other:
        await start_real(other, kept(there))
        urls = [(await ticket(there, "/v0/ws")).json["url"] for _ in range(2)]
        assert await opened(other, urls[0], UPGRADE) == 101
        assert await opened(there, urls[0], UPGRADE) == 401
        assert await opened(there, urls[1], UPGRADE) == 101
        assert await opened(other, urls[1], UPGRADE) == 401


async def test_a_gateway_that_does_not_know_the_key_any_more_uses_up_its_ticket() -> None:
    async with staged() as there:
        url = (await ticket(there, "/v0/ws")).json["url"]
        there.gateway.keyring.replace(KEYS[1:])
        assert await opened(there, url, UPGRADE) == 401
        there.gateway.keyring.replace(KEYS)
        assert await opened(there, url, UPGRADE) == 401


async def test_tickets_of_a_key_are_counted_by_one_shard() -> None:
    async with stage(shards=2, keys=KEYS) as there:
        for index in range(2):
            await start_real(there, Harness(max_tickets_per_key=2), index=index)
        assert [(await ticket(there, "/v0/ws")).status for _ in range(3)] == [200, 200, 429]
        assert sorted(len(kept(there, index).shard.tickets._unused) for index in range(2)) == [0, 2]


async def test_a_home_shard_that_is_away_is_503_and_one_that_is_new_401() -> None:
    async with staged() as there:
        urls = [(await ticket(there, "/v0/ws")).json["url"] for _ in range(2)]
        harness, state = kept(there), there.states[0]
        there.gateway.shards.update([ShardState(0, "failed")])
        assert (await ticket(there, "/v0/ws")).status == 503
        assert await opened(there, urls[0], UPGRADE) == 503
        assert len(harness.shard.tickets._unused) == 2, "it is not used up by that"
        await start_real(there, harness, incarnation=state.incarnation + 1)
        assert await opened(there, urls[0], UPGRADE) == 101
        await start_real(there, harness.restarted(), incarnation=state.incarnation + 2)
        assert await opened(there, urls[1], UPGRADE) == 401
        assert (await ticket(there, "/v0/ws")).status == 200


async def test_a_ticket_that_names_no_shard_asks_none() -> None:
    async with staged() as there:
        there.gateway.shards.update([ShardState(0, "failed")])
        for text in ("ticket_" + "_" * 32, "ticket_AAE" + "A" * 29):
            assert await opened(there, f"/v0/ws?ticket={text}", UPGRADE) == 401


async def test_made_up_tickets_for_a_shard_that_hangs_are_few_and_keep_no_ticket_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tickets, "MOST_USES", 2)
    asked: list[int] = []

    def hanging(request: Request) -> list[Message]:
        asked.append(request.id)
        return []

    async with stage(shards=2, keys=KEYS) as there, trio.open_nursery() as nursery:
        await start_real(there, Harness(), index=1)
        there.shards[0].script = hanging
        made_up = "/v0/ws?ticket=ticket_AAA" + "A" * 29
        for count in (1, 2):
            nursery.start_soon(opened, there, made_up, UPGRADE)
            await until(lambda count=count: len(asked) == count)  # type: ignore[misc]
        async with there.client() as client:
            refused = await client.ask("GET", made_up, headers=UPGRADE)
        assert (refused.status, refused.json["error"]["detail"]["limit"]) == (429, "max_ticket_uses")
        assert await opened(there, "/v0/ws?ticket=ticket_AAE" + "A" * 29, UPGRADE) == 401
        nursery.cancel_scope.cancel()


async def test_a_path_that_no_ticket_can_be_for_uses_it_up() -> None:
    async with staged() as there:
        given = (await ticket(there, "/v0/ws")).json["ticket"]
        assert await opened(there, f"/v0/topics/%C3%A4/work?node=n&ticket={given}") == 401
        assert kept(there).shard.tickets._unused == {}


async def test_a_ticket_is_not_given_for_what_is_no_name_of_a_session() -> None:
    async with staged() as there:
        assert (await ticket(there, await watched(there))).status == 200
        refused = await ticket(there, await watched(there) + "*")
        assert (refused.status, refused.json["error"]["detail"]["field"]) == (400, "path")


async def test_what_is_no_ticket_by_its_form_is_400() -> None:
    async with staged() as there:
        for text in ("x", "ticket_", "ticket_" + "A" * 31, "ticket_" + "A" * 33, "ticket_" + "%2B" * 32):
            for headers in (UPGRADE, {**UPGRADE, **FULL}):
                assert await opened(there, f"/v0/ws?ticket={text}", headers) == 400
        assert await opened(there, "/v0/ws?ticket=ticket_" + "A" * 32, UPGRADE) == 401


async def test_without_keys_a_ticket_is_given_and_changes_nothing() -> None:
    async with stage() as there:
        await start_real(there, Harness())
        async with there.client() as client:
            given = await client.ask("POST", "/v0/tickets", b'{"path":"/v0/ws"}')
            assert given.status == 200
            for _ in range(2):
                async with there.client() as other:
                    assert (await other.ask("GET", given.json["url"], headers=UPGRADE)).status == 101


def test_tickets_are_documented() -> None:
    paths = document(OPERATIONS, Limits())["paths"]
    assert paths["/v0/tickets"]["post"]["requestBody"]["required"]
    for path in ("/v0/ws", "/v0/watch/{wid}", "/v0/topics/{topic}/work"):
        assert any("ticket" in each for each in paths[path]["get"]["security"])


# -- a key in the first message


async def test_a_socket_may_send_its_key_first() -> None:
    async with staged() as there, connected(there) as socket:
        assert there.gateway.api.entry.unproven.open == 1
        await socket.command("auth", token="full", request_id="1")
        assert await socket.answer() == {"op": "authenticated", "request_id": "1"}
        entry = there.gateway.api.entry
        assert (entry.unproven.open, entry.streams._by_key[KEYS[0].digest]) == (0, 1)
        await socket.command("publish", topic="a", records=[{"data": 1}])
        assert (await socket.answer())["op"] == "ack"
        await socket.command("auth", token="full")
        assert (await socket.answer())["code"] == "invalid_request"
        there.gateway.keyring.replace(KEYS[1:])
        assert (await socket.answer())["code"] == "unauthorized"


async def test_its_key_says_what_it_may_do() -> None:
    async with staged() as there, connected(there) as socket:
        await socket.command("auth", token="reader")
        await socket.answer()
        await socket.command("publish", topic="a", records=[{"data": 1}])
        assert (await socket.answer())["code"] == "forbidden"


async def ends(socket: Socket, code: int, error: str) -> None:
    assert (await socket.answer())["code"] == error
    event = await socket.next()
    assert isinstance(event, CloseConnection)
    assert event.code == code
    await socket.say(event.response())  # else the gateway waits for it


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"op": "auth", "token": "wrong"}, "unauthorized"),
        ({"op": "auth"}, "invalid_request"),
        ({"op": "auth", "token": ""}, "unauthorized"),
        ({"op": "publish", "token": "full", "topic": "a", "records": [{"data": 1}]}, "unauthorized"),
        ({"op": "publish", "topic": "a", "records": [{"data": 1}]}, "unauthorized"),
    ],
)
async def test_any_other_first_message_ends_the_socket(message: dict[str, object], error: str) -> None:
    async with staged() as there, connected(there) as socket:
        await socket.say(TextMessage(json.dumps(message)))
        await ends(socket, 1008, error)
        await until(lambda: not there.gateway.api.entry.unproven.open)


async def test_silence_and_large_messages_end_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged() as there, connected(there) as socket:
        await socket.say(TextMessage("x" * 10_000))
        event = await socket.next()
        assert isinstance(event, CloseConnection)
        assert event.code == 1009
    monkeypatch.setattr(sockets, "AUTH_S", 0.05)
    async with staged() as there, connected(there) as socket:
        await ends(socket, 1008, "unauthorized")
        await until(lambda: not there.gateway.api.entry.unproven.open)


@pytest.mark.parametrize("more", [False, True], ids=["auth", "auth-and-a-command"])
async def test_a_socket_whose_key_comes_while_the_service_stops_ends_at_once(more: bool) -> None:
    async with staged(drain_timeout_ms=60_000) as there, connected(there) as socket:
        over = trio.Event()

        async def drain() -> None:
            await there.gateway.drain()
            over.set()

        there.nursery.start_soon(drain)
        await until(lambda: there.gateway.api.live._draining)
        messages = [{"op": "auth", "token": "full"}, {"op": "ping"}][: 1 + more]
        texts = [socket.connection.send(TextMessage(json.dumps(each))) for each in messages]
        with trio.fail_after(30):
            await socket.stream.send_all(b"".join(texts))
            assert (await socket.answer())["op"] == "authenticated"
            await ends(socket, 1012, "shutting_down")
            await socket.stream.aclose()
            await over.wait()


async def test_sockets_without_a_key_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "MAX_UNPROVEN", 1)
    async with staged() as there, connected(there):
        async with there.client() as client:
            answer = await client.ask("GET", "/v0/ws", headers=UPGRADE)
            assert answer.json["error"]["detail"]["limit"] == "max_unauthenticated_sockets"
        async with connected(there, Authorization="Bearer full"):
            pass


async def test_pages_of_other_sites_open_no_socket_even_with_a_ticket() -> None:
    async with staged() as there:
        url = (await ticket(there, "/v0/ws")).json["url"]
        assert await opened(there, url, UPGRADE | {"Origin": "https://evil.example"}) == 403
        assert await opened(there, url, UPGRADE | {"Origin": "http://localhost"}) == 101


async def test_without_keys_the_first_message_may_be_one_all_the_same() -> None:
    async with stage() as there:
        await start_real(there, Harness())
        async with connected(there) as socket:
            await socket.command("auth", token="any")
            assert (await socket.answer())["op"] == "authenticated"
