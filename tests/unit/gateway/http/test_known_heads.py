"""Claims about known heads: equal heads are parsed and allowed once, and never longer than the keys hold."""

from __future__ import annotations

import pytest

from gateway.contract.origins import Rule
from gateway.http.known_heads import LARGEST_BYTES, KnownHeads, cut
from gateway.http.request_head import parse
from proto.model.keys import Key, Scope
from tests.support.gateway_stage import Answer, Client, Stage, key, stage

HEAD = b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: %b\r\nContent-Type: application/json\r\n\r\n"


def test_heads_that_differ_in_their_length_only_are_equal() -> None:
    assert cut(HEAD % b"5")[0] == cut(HEAD % b"12345")[0]
    assert cut(HEAD % b"12345")[1] == 12345
    assert cut(HEAD.lower() % b"007")[1] == 7
    assert cut(HEAD % b"5")[0] != cut(HEAD.replace(b"topics/a", b"topics/b") % b"5")[0]


@pytest.mark.parametrize("value", [b"", b"-1", b"+5", b"5 ", b"1" * 16, b"5, 5", b"x"])
def test_a_length_of_another_form_is_parsed_each_time(value: bytes) -> None:
    assert cut(HEAD % value) == (b"", None)


def test_a_head_without_a_length_and_a_long_one() -> None:
    plain = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert cut(plain) == (plain, None)
    assert cut(plain + b"x" * LARGEST_BYTES) == (b"", None)


def test_a_second_length_is_part_of_what_is_compared() -> None:
    twice = HEAD.replace(b"Host: localhost", b"Host: localhost\r\ncontent-length: 1")
    assert cut(twice % b"2")[0] != cut(HEAD % b"2")[0]
    assert cut(twice % b"2")[0] != cut(twice % b"3")[0]


def test_the_number_and_the_bytes_are_bounded() -> None:
    head = parse(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for heads, key_bytes in ((KnownHeads(most=10), 4), (KnownHeads(most_bytes=1000), 100)):
        for number in range(1000):
            heads.keep(b"%0*d" % (key_bytes, number), head)
            assert len(heads) <= 10
        assert heads.find(b"%0*d" % (key_bytes, 999)) is head
        heads.forget()
        assert len(heads) == 0


def test_a_head_that_is_used_stays() -> None:
    heads = KnownHeads(most=10)
    head = parse(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    heads.keep(b"used", head)
    for number in range(100):
        heads.keep(b"%d" % number, head)
        assert heads.find(b"used") is head


def known(there: Stage) -> int:
    return len(there.gateway.api.heads)


async def ask(client: Client, secret: str, body: bytes = b"{}", **headers: str) -> Answer:
    return await client.ask("POST", "/v0/topics/a", body, {"Authorization": f"Bearer {secret}", **headers})


async def test_only_allowed_requests_are_remembered() -> None:
    keys = [key("one"), key("reader", Scope.READ)]
    async with stage(keys=keys) as there, there.client() as client:
        assert (await ask(client, "unknown")).status == 401
        assert (await ask(client, "reader")).status == 403
        assert known(there) == 0
        for size in (2, 3, 40):
            assert (await ask(client, "one", b"{" + b" " * (size - 2) + b"}")).status == 200
            assert len(there.shards[0].requests[-1].body) == size
        assert known(there) == 1
        assert (await ask(client, "two")).status == 401


REPLACED: dict[str, tuple[list[Key], int]] = {
    "gone": ([key("two")], 401),
    "fewer scopes": ([key("one", Scope.READ)], 403),
    "other names": ([key("one", Scope.READ | Scope.WRITE, "other:")], 403),
    "the same": ([key("one")], 200),
}


@pytest.mark.parametrize("how", REPLACED)
async def test_a_change_of_the_keys_holds_at_once(how: str) -> None:
    keys, status = REPLACED[how]
    async with stage(keys=[key("one"), key("two")]) as there, there.client() as client:
        for _ in range(3):
            assert (await ask(client, "one")).status == 200
        assert known(there) == 1
        there.gateway.keyring.replace(keys)
        assert known(there) == 0
        assert (await ask(client, "one")).status == status


async def test_nothing_is_remembered_of_a_request_whose_keys_changed_meanwhile() -> None:
    async with stage(keys=[key("one"), key("two")]) as there, there.client() as client:
        head = b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await client.send(head + b"Authorization: Bearer one\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.receive()).status == 100  # the key was identified, and the body is awaited
        there.gateway.keyring.replace([key("two")])
        await client.send(b"{}")
        await client.receive()
        assert known(there) == 0
        assert (await ask(client, "one")).status == 401


async def test_a_remembered_head_is_subject_to_limits_and_draining() -> None:
    async with stage(keys=[key("one")], max_body_bytes=100) as there, there.client() as client:
        assert (await ask(client, "one")).status == 200
        assert (await ask(client, "one", b"{" + b" " * 200 + b"}")).status == 413
    async with stage(keys=[key("one")]) as there, there.client() as client:
        assert (await ask(client, "one")).status == 200
        there.gateway.flight.drain()
        assert (await ask(client, "one")).code == "shutting_down"


async def test_origins_are_checked_for_each_different_head() -> None:
    async with stage() as there, there.client() as client:
        assert (await client.ask("GET", "/v0/health")).status == 200
        assert (await client.ask("GET", "/v0/health", headers={"Host": "evil.example"})).status == 403
        assert (await client.ask("GET", "/v0/health", headers={"Origin": "http://evil.example"})).status == 403
        assert (await client.ask("GET", "/v0/health")).status == 200


async def test_a_plan_does_not_outlive_its_keys_or_its_rule_of_origins_even_if_it_is_not_forgotten() -> None:
    async with stage(keys=[key("one"), key("two")]) as there, there.client() as client:
        assert (await ask(client, "one")).status == 200
        there.gateway.keyring.on_change.clear()
        there.gateway.keyring.replace([key("two")])
        assert known(there) == 1
        assert (await ask(client, "one")).status == 401
    async with stage() as there, there.client() as client:
        other = {"Host": "10.1.2.3"}
        there.gateway.api.origins.rule = Rule(open=True, loopback=False)
        assert (await client.ask("GET", "/v0/health", headers=other)).status == 200
        there.gateway.api.origins.rule = Rule(open=True, loopback=True)
        assert (await client.ask("GET", "/v0/health", headers=other)).status == 403
