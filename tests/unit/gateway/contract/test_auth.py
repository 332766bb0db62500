"""Claims about authorization: every operation of the table, every scope, inside and outside a prefix, every token.

The tests walk the table of operations, so they cover a new operation too. Every row must decide which keys may use it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from time import time
from typing import Any

import pytest
import trio
import trio.testing

from gateway.contract.auth import Keyring, restrictions
from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from proto.ipc.control import Control, ControlError, Decoder, Keys, encode
from proto.ipc.message import Message, Parked, Reply, Request
from proto.model.errors import TopicsError
from proto.model.keys import ALL_SCOPES, Key, Scope
from tests.support.gateway_stage import Answer, Client, key, stage, until
from tests.support.websocket import UPGRADE

INSIDE, OUTSIDE = "tenant:a", "tenan"
ROUTER = {"source": "tenant:s", "dest": "tenant:d"}
OPEN = {"health", "ready", "openapi", "asyncapi"}
"""Operations without a key. Adding one is a decision, so the test repeats it here."""
ONLY = {scope: f"only-{scope.words[0]}" for scope in Scope}
EXCEPT = {scope: f"all-but-{scope.words[0]}" for scope in Scope}
KEYS = [
    key("full"),
    key("none-else", ALL_SCOPES, "tenant:", "shared."),
    *(key(secret, scope) for scope, secret in ONLY.items()),
    *(key(secret, ALL_SCOPES & ~scope) for scope, secret in EXCEPT.items()),
]
WID = "wid_" + "a" * 22
SESSION = {
    "options": {
        "limit": 1,
        "budget": 1,
        "nodes": [],
        "tags": False,
        "meta": False,
        "data": False,
        "strong": False,
        "heartbeat_ms": 1000,
    },
    "topics": {},
    "generation": 0,
}
BODIES = {
    "watch": '{"topics": {"NAME": {}}}',
    "put_router": json.dumps(ROUTER),
    "make_ticket": '{"path": "/v0/ws"}',
}
"""Bodies of operations that need more than `{}`; NAME is where they name a topic."""
DONE = {200, 201, 101}
MALFORMED = [
    "",
    "Bearer",
    "Bearer ",
    "Basic ZnVsbA==",
    "full",
    "Bearer full, Bearer full",
    "Bearer full x",
    "Bearer ful",
    "Bearer fulll",
    "Bearer FULL",
    "Token full",
    "Bearer: full",
    "Bearer \x80\xff",
]


def answering(request: Request) -> list[Message]:
    if request.op in ("list", "cursor_list", "all_cursors", "router_list"):
        return [Reply(request.id, b"[]", extra={"names": [], "more": False})]
    if request.op == "router_source":
        return [Reply(request.id, extra={"epoch": 1, "head": 0})]
    if request.op == "router_graph":
        return [Reply(request.id, extra={"routers": [[name, ROUTER, 1] for name in (INSIDE, OUTSIDE)]})]
    if request.op == "watch_resolve":
        return [Reply(request.id, extra={"topics": {name: [1, 0, 1] for name in request.options.names}})]
    if request.op.startswith("session_"):
        return [Reply(request.id, extra={"sessions": 0, "owned": 0, **SESSION})]
    if request.op == "work_take":
        return []  # there are no jobs
    return [Reply(request.id, b"{}", extra={})]


async def ask(client: Client, operation: Operation, name: str, authorization: str | None, path: str = "") -> Answer:
    body = BODIES.get(operation.name, "{}").replace("NAME", name or INSIDE).encode()
    headers = {} if authorization is None else {"Authorization": authorization}
    target = fill(path or operation.path, name)
    if operation.upgrades:
        headers |= UPGRADE
    if operation.name == "work":
        target += "?node=w"
    if operation.streams:  # a stream does not end, so it gets a connection of its own
        async with await trio.open_tcp_stream(*client.stream.socket.getpeername()) as stream:
            return await Client(stream).ask(operation.method, target, None, headers)
    return await client.ask(operation.method, target, body if operation.request is not None else None, headers)


def fill(path: str, name: str) -> str:
    path = path.replace("{wid}", WID)
    return "/".join(name if segment.startswith("{") else segment for segment in path.split("/"))


def names_a_topic(operation: Operation, path: str) -> bool:
    return "{topic}" in path or "{router}" in path or "NAME" in BODIES.get(operation.name, "")


def test_every_operation_says_whom_it_is_for() -> None:
    assert {operation.name for operation in OPERATIONS if operation.scope is None} == OPEN


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
async def test_an_operation_is_for_keys_with_its_scope_and_prefix_only(operation: Operation) -> None:
    async with stage(answering, keys=KEYS) as there, there.client() as client:
        for path in operation.paths:
            for secret, name in product((*ONLY.values(), *EXCEPT.values(), "full", "none-else"), (INSIDE, OUTSIDE)):
                answer = await ask(client, operation, name, f"Bearer {secret}", path)
                who = next(k for k in KEYS if k.digest == key(secret).digest)
                allowed = operation.scope is None or operation.scope in who.scopes
                named = names_a_topic(operation, path)
                if allowed and (not named or who.covers(name)):
                    assert answer.status in DONE, (secret, name, answer.raw)
                else:
                    assert (answer.status, answer.code) == (403, "forbidden"), (secret, name)
                    assert answer.json["error"]["detail"]["reason"] == ("prefix" if allowed else "scope")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
async def test_without_a_known_key_an_operation_is_401_unless_it_is_open(operation: Operation) -> None:
    async with stage(answering, keys=KEYS) as there, there.client() as client:
        for path, token in product(operation.paths, (None, *MALFORMED, "Bearer unknown")):
            answer = await ask(client, operation, INSIDE, token, path)
            if operation.scope is None:
                assert answer.status == 200
                continue
            if operation.upgrades and token is None:
                assert answer.status == 101, "its first message has to bring the key"
                continue
            assert (answer.status, answer.code) == (401, "unauthorized"), token
            assert answer.headers["www-authenticate"].startswith("bearer")
        asked = [request.op for request in there.shards[0].requests]
        assert asked == []


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
async def test_without_keys_everybody_may_do_everything_and_the_header_is_ignored(operation: Operation) -> None:
    async with stage(answering) as there, there.client() as client:
        for token in (None, *MALFORMED, "Bearer unknown"):
            assert (await ask(client, operation, OUTSIDE, token)).status in DONE


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.probe], ids=lambda o: o.name)
async def test_probes_ask_for_any_key_when_they_shall(operation: Operation) -> None:
    async with stage(answering, keys=KEYS, probe_auth=True) as there, there.client() as client:
        for path in operation.paths:
            assert (await ask(client, operation, "", None, path)).status == 401
            assert (await ask(client, operation, "", "Bearer unknown", path)).status == 401
            assert (await ask(client, operation, "", f"Bearer {ONLY[Scope.DELETE]}", path)).status == 200


def test_the_scheme_is_read_in_any_case() -> None:
    ring = Keyring(KEYS)
    assert ring.identify(b"bearer full") is ring.identify(b"BEARER  full ") is KEYS[0]


def test_every_digest_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    ring = Keyring(KEYS)
    for token in (b"full", b"all-but-admin"):
        ring.identify(b"Bearer " + token)
    with pytest.raises(TopicsError):
        ring.identify(b"Bearer unknown")
    assert compared == [each.digest for each in KEYS] * 3


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.grows], ids=lambda o: o.name)
def test_the_shard_is_told_what_it_must_check_and_nothing_of_full_keys(operation: Operation) -> None:
    assert operation.shard_op is not None
    assert operation.shard_op(*restrictions(key("full"))) == operation.shard_op()
    assert operation.shard_op(*restrictions(key("w", Scope.WRITE, "a:", "b"))) == operation.shard_op(
        may_configure=False, prefixes=("a:", "b")
    )


async def test_lists_and_metrics_are_asked_for_within_the_prefixes() -> None:
    rows = [["other", 1, 1, 1, 1], [INSIDE, 2, 1, 2, 2]]
    lags = [["other", "secret", 1], [INSIDE, "c", 2]]

    def script(request: Request) -> list[Message]:
        if request.op in ("list", "cursor_list", "all_cursors"):
            return [Reply(request.id, b"[]", extra={"names": [], "more": False})]
        return [Reply(request.id, extra={"per_topic": rows, "cursor_lag": lags})]

    async with stage(script, keys=KEYS) as there, there.client() as client:
        limited = {"Authorization": "Bearer none-else"}
        await client.ask("GET", "/v0/topics?prefix=ten", headers=limited)
        assert there.shards[0].requests[-1].options.prefixes == ("tenant:", "shared.")
        await client.ask("GET", "/v0/cursors?prefix=ten", headers=limited)
        asked = there.shards[0].requests[-1]
        assert (asked.op, asked.options.prefix, asked.options.prefixes) == (
            "all_cursors",
            "ten",
            ("tenant:", "shared."),
        )
        full = await client.ask("GET", "/v0/metrics", headers={"Authorization": "Bearer full"})
        assert b'topic="other"' in full.raw
        assert b'cursor="secret"' in full.raw
        shown = await client.ask("GET", "/v0/metrics", headers=limited)
        assert there.shards[0].requests[-1].options.prefixes == ("tenant:", "shared.")
        assert b'topic="other"' not in shown.raw
        assert b'topics_topic_head_seq{topic="tenant:a"} 2.0' in shown.raw
        assert b'cursor="secret"' not in shown.raw
        assert b'cursor="c"' in shown.raw
        # A shard that is down counts with its last statistics, which another key asked for.
        there.lose_shard(0)
        shown = await client.ask("GET", "/v0/metrics", headers=limited)
        assert b'topic="other"' not in shown.raw
        assert b'cursor="secret"' not in shown.raw
        assert b'topic="tenant:a"' in shown.raw


async def test_replaced_keys_are_known_at_once_and_the_old_ones_are_not() -> None:
    async with stage(answering, keys=KEYS) as there, there.client() as client:
        there.gateway.keyring.replace([key("new")])
        assert (await client.ask("GET", "/v0/topics", headers={"Authorization": "Bearer full"})).status == 401
        assert (await client.ask("GET", "/v0/topics", headers={"Authorization": "Bearer new"})).status == 200


async def test_a_body_is_not_read_before_the_key_is_known() -> None:
    async with stage(answering, keys=KEYS) as there, there.client() as client:
        headers = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000000\r\n\r\n"
        await client.send(b"POST /v0/topics/a HTTP/1.1\r\n" + headers)
        answer = await client.receive()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert there.gateway.budget.used == 0
        await client.stream.send_eof()
        await until(lambda: not there.gateway.server.connections)


def travelled(*keys: Any) -> Control:
    (message,) = Decoder().feed(encode(Keys(list(keys))))
    return message


def test_keys_survive_the_way_from_the_supervisor_and_rubbish_does_not() -> None:
    ending = replace(KEYS[0], expires_ms=2**40)
    assert travelled(*KEYS, ending) == Keys([*KEYS, ending])
    assert travelled(ending).keys[0].expires_ms == 2**40
    for bad in (Key(b""), Key(KEYS[0].digest, prefixes=("",)), replace(KEYS[0], scopes="all"), {"scopes": 1}):
        with pytest.raises(ControlError):
            travelled(bad)


async def test_a_key_ends_when_its_entry_says() -> None:
    """Requests with a remembered head, a ticket and a waiting request too; not before, and for good."""
    now = [1_000_000]
    ends = replace(key("ends"), expires_ms=2_000_000)

    def script(request: Request) -> list[Message]:
        return [Parked(request.id)] if request.body else [Reply(request.id, b"{}")]

    async with stage(script, keys=[ends, key("other")]) as there, there.client() as client, there.client() as waits:
        keyring = there.gateway.keyring
        keyring._now_ms = lambda: now[0]
        bearer = {"Authorization": "Bearer ends"}
        for _ in range(3):
            assert (await client.ask("GET", "/v0/topics/a", headers=bearer)).status == 200
        ticket = (await client.ask("POST", "/v0/tickets", b'{"path":"/v0/ws"}', bearer)).json["ticket"]
        ended: list[int] = []
        with keyring.while_known(ends, lambda: ended.append(now[0])):
            async with trio.open_nursery() as nursery:

                async def park() -> None:
                    body = b'{"wait_ms":60000}'
                    assert (await waits.ask("POST", "/v0/topics/a/diff", body, bearer)).status == 401

                nursery.start_soon(park)
                await until(lambda: len(there.shards[0].requests) == 5)
                assert keyring.expire() == 1_000_000
                assert not ended
                now[0] = 2_000_000
                assert keyring.expire() is None
                assert ended == [2_000_000]
        for clock in (2_000_000, 1_000_000):  # the clock may be set back
            now[0] = clock
            answer = await client.ask("GET", "/v0/topics/a", headers=bearer)
            assert (answer.status, answer.code) == (401, "unauthorized")
            assert "expired at 1970-01-01T00:33:20Z" in answer.json["error"]["message"]
        assert (await client.ask("GET", "/v0/topics/a", headers={"Authorization": "Bearer other"})).status == 200
        assert (await client.ask("GET", "/v0/ws?ticket=" + ticket, headers=UPGRADE)).status == 401


async def test_the_last_key_that_expires_opens_nothing() -> None:
    async with stage(keys=[replace(key("ends"), expires_ms=1)]) as there, there.client() as client:
        there.nursery.start_soon(there.gateway.expire_keys)
        for headers in ({}, {"Authorization": "Bearer ends"}):
            assert (await client.ask("GET", "/v0/topics/a", headers=headers)).status == 401
        assert there.gateway.keyring._keys == []
        assert there.shards[0].requests == []


async def test_another_end_leaves_streams_open_and_an_end_that_is_near_is_met() -> None:
    ends = replace(key("ends"), expires_ms=int(time() * 1000) + 60_000)
    async with stage(keys=[ends]) as there:
        there.nursery.start_soon(there.gateway.expire_keys)
        ended: list[bool] = []
        with there.gateway.keyring.while_known(ends, lambda: ended.append(True)):
            there.gateway.keyring.replace([replace(ends, expires_ms=0)])
            await trio.testing.wait_all_tasks_blocked()
            there.gateway.keyring.replace([replace(ends, expires_ms=int(time() * 1000) + 100)])
            assert not ended
            await until(lambda: bool(ended))
