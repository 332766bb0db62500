"""Claims about web pages: which may use the service, with and without keys, and their CORS headers."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gateway.contract.operations import OPERATIONS
from gateway.contract.origins import Rule, Verdict, decide, name_of
from proto.model.keys import Key
from tests.support.gateway_stage import Answer, Client, key, stage
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.support.websocket import UPGRADE
from tests.unit.gateway.server.test_hypercorn_bridge import Http2, prepared

EVIL = "https://evil.example"
APP = "https://app.example"
HOME = ("localhost", "localhost:4000", "LOCALHOST:4000", "app.localhost", "localhost.", "127.0.0.1:4000", "127.9.8.7")
HOME += ("[::1]", "[::1]:4000", "[::ffff:127.0.0.1]:4000", "")
ABROAD = ("evil.example", "evil.example:4000", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost")
ABROAD += ("localhost:4000.evil.example", "[::2]", "10.0.0.5:4000", "0.0.0.0", "[evil", "a@localhost.example")


class Asked(NamedTuple):
    """The headers of a request that name its origin."""

    host: bytes
    origin: bytes = b""
    site: bytes = b""
    websocket: bool = False
    keyed: bool = False
    changes: bool = False


def asked(host: str, origin: str = "", site: str = "", **more: bool) -> Asked:
    return Asked(host.encode(), origin.encode(), site.encode(), **more)


@pytest.mark.parametrize("host", HOME)
def test_names_of_this_machine_are_accepted(host: str) -> None:
    assert decide(Rule(open=True), *asked(host)) is Verdict.OWN


@pytest.mark.parametrize("host", ABROAD)
def test_any_other_name_may_have_been_rebound(host: str) -> None:
    assert decide(Rule(open=True), *asked(host)) is Verdict.FOREIGN_HOST


@pytest.mark.parametrize("host", ABROAD)
def test_with_keys_any_name_may_be_used(host: str) -> None:
    assert decide(Rule(open=False), *asked(host, site="cross-site")) is Verdict.OWN


def test_a_listener_beyond_loopback_takes_addresses_and_names_that_no_public_domain_has() -> None:
    rule = Rule(open=True, loopback=False, hosts=frozenset({"topics.lan"}))
    for host in ("10.0.0.5:4000", "[fe80::1]:4000", "topics", "my-host:4000", "TOPICS.lan:80", "localhost"):
        assert decide(rule, *asked(host)) is Verdict.OWN, host
    for host in ("evil.example", "a b", "topics.lan.evil.example"):
        assert decide(rule, *asked(host)) is Verdict.FOREIGN_HOST, host


def test_names_of_hosts_lose_their_port_and_nothing_else() -> None:
    found = [name_of(each) for each in ("A.B:80", "[::1]:80", "[::1]", "a:b", "a.", "a:")]
    assert found == ["a.b", "::1", "::1", "a:b", "a", "a"]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (asked("localhost:4000", "http://localhost:4000", "same-origin"), Verdict.OWN),
        (asked("localhost", "http://localhost:80"), Verdict.OWN),
        (asked("localhost", "https://localhost"), Verdict.OWN),
        (asked("localhost:4000", "http://localhost:3000", "same-site"), Verdict.FOREIGN_ORIGIN),
        (asked("localhost:4000", EVIL), Verdict.FOREIGN_ORIGIN),
        (asked("localhost:4000", "null"), Verdict.FOREIGN_ORIGIN),
        (asked("localhost:4000", "http://[broken"), Verdict.FOREIGN_ORIGIN),
        (asked("localhost:4000", "file://localhost:4000"), Verdict.FOREIGN_ORIGIN),
        (asked("localhost:4000", APP, "cross-site"), Verdict.LISTED),
        (asked("localhost:4000", APP.upper(), "cross-site"), Verdict.LISTED),
        (asked("evil.example", APP), Verdict.FOREIGN_HOST),
        (asked("localhost:4000", "", "cross-site"), Verdict.CROSS_SITE),
        (asked("localhost:4000", "", "same-site"), Verdict.OWN),
        (asked("localhost:4000", "", "same-site", changes=True), Verdict.CROSS_SITE),
        (asked("localhost:4000", "", "Same-Site", changes=True), Verdict.CROSS_SITE),
        (asked("localhost:4000", "", "same-origin", changes=True), Verdict.OWN),
        (asked("localhost:4000", "", "none", changes=True), Verdict.OWN),
        (asked("localhost:4000", APP, "same-site", changes=True), Verdict.LISTED),
        (asked("localhost:4000", "", "none"), Verdict.OWN),
    ],
)
def test_without_keys_the_origin_decides(given: Asked, verdict: Verdict) -> None:
    assert decide(Rule(open=True, origins=frozenset({APP})), *given) is verdict


def test_with_keys_only_websockets_of_browsers_are_refused() -> None:
    rule = Rule(open=False, origins=frozenset({APP}))
    assert decide(rule, *asked("h", EVIL)) is Verdict.OWN
    assert decide(rule, *asked("h", EVIL, websocket=True)) is Verdict.FOREIGN_ORIGIN
    assert decide(rule, *asked("h", EVIL, websocket=True, keyed=True)) is Verdict.OWN, "no browser sends this"
    assert decide(rule, *asked("h", APP, websocket=True)) is Verdict.LISTED


# -- asked of everything


FOREIGN = {
    "host": {"Host": "evil.example:4000"},
    "origin": {"Origin": EVIL},
    "cross_site": {"Sec-Fetch-Site": "cross-site"},
}


def refused(answer: Answer, reason: str) -> None:
    assert (answer.status, answer.code) == (403, "forbidden")
    assert answer.json["error"]["detail"] == {"reason": reason}
    assert "TOPICS_" in answer.json["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("reason", FOREIGN)
async def test_every_operation_is_refused_to_other_sites(reason: str) -> None:
    async with prepared() as there:
        paths = [(operation.method, path) for operation in OPERATIONS for path in operation.paths]
        for method, path in [*paths, ("GET", "/"), ("GET", "/nothing"), ("OPTIONS", "/v0/topics"), ("POST", "/")]:
            for name, value in (("{topic}", "q"), ("{router}", "r"), ("{cursor}", "c"), ("{wid}", "wid_x")):
                path = path.replace(name, value)
            async with there.client() as client:
                body = b"{}" if method in ("POST", "PUT") else None
                headers = FOREIGN[reason] | (UPGRADE if path == "/v0/ws" else {})
                refused(await client.ask(method, path, body, headers), reason)
        assert there.shards[0].requests == []


@pytest.mark.parametrize("path", ["/", "/v0/topics/a", "/v0/topics/q/work?node=n"])
async def test_http_2_is_asked_the_same(path: str) -> None:
    async with prepared() as there, there.client() as client:
        http2 = Http2(client.stream)
        assert (await http2.ask("GET", path, authority="evil.example"))[0] == 403
        assert (await http2.ask("GET", path, headers=[("origin", EVIL)]))[0] == 403
        assert (await http2.ask("GET", path, headers=[("sec-fetch-site", "cross-site")]))[0] == 403
        assert there.shards[0].requests == []


async def test_a_page_of_another_site_leases_nothing() -> None:
    async with stage() as there:
        shard = Harness()
        shard.call("configure", "jobs", {"type": "queue"})
        shard.append("jobs", 1)
        await start_real(there, shard)
        async with there.client() as client:
            refused(await client.ask("GET", "/v0/topics/jobs/work?node=n", headers=FOREIGN["cross_site"]), "cross_site")
            state = await client.ask("GET", "/v0/topics/jobs")
            assert state.json["queue"]["in_flight"] == 0


async def test_an_image_of_a_page_at_another_port_leases_nothing() -> None:
    site = {"Host": "localhost:4000", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "image"}
    async with stage() as there:
        shard = Harness()
        shard.call("configure", "jobs", {"type": "queue"})
        shard.append("jobs", 1)
        await start_real(there, shard)
        async with there.client() as client:
            for path in ("/v0/topics/jobs/work?node=n&max=5", "/v0/topics/jobs", "/v0/watch/wid_" + 22 * "x"):
                for _ in range(2):  # a head that repeats is remembered
                    refused(await client.ask("GET", path, headers=site), "cross_site")
            assert (await client.ask("GET", "/v0/topics/jobs")).json["queue"]["in_flight"] == 0
            assert (await client.ask("GET", "/v0/health", headers=site)).status == 200
            assert (await client.ask("GET", "/v0/routers", headers=site)).status == 200, "a link that changes nothing"


async def test_the_status_page_and_its_requests_go_on() -> None:
    async with prepared() as there:
        async with there.client() as client:
            assert (await client.ask("GET", "/", headers={"Sec-Fetch-Site": "none"})).status == 200
        async with there.client() as client:
            own = {"Host": "localhost:4000", "Origin": "http://localhost:4000", "Sec-Fetch-Site": "same-origin"}
            assert (await client.ask("GET", "/v0/ready", headers=own)).status == 200


# -- CORS


async def preflight(client: Client, path: str, origin: str, method: str = "POST") -> Answer:
    asking = {"Origin": origin, "Access-Control-Request-Method": method, "Sec-Fetch-Site": "cross-site"}
    return await client.ask("OPTIONS", path, headers=asking | {"Access-Control-Request-Headers": "authorization"})


@pytest.mark.parametrize("keys", [None, [key("secret")]])
async def test_a_listed_origin_is_told_what_it_may_send_and_may_read_the_answers(keys: list[Key] | None) -> None:
    async with stage(keys=keys, cors_origins=[APP]) as there, there.client() as client:
        told = await preflight(client, "/v0/topics/a", APP)
        assert (told.status, told.raw) == (204, b"")
        assert "content-length" not in told.headers
        assert told.headers["access-control-allow-origin"] == APP
        assert told.headers["access-control-allow-methods"] == "delete, get, head, post, put"
        allowed = told.headers["access-control-allow-headers"].split(", ")
        assert {"authorization", "content-type", "last-event-id", "idempotency-key"} <= set(allowed)
        assert int(told.headers["access-control-max-age"]) > 0
        assert "origin" in told.headers["vary"]
        assert (await preflight(client, "/nothing", APP)).status == 404
        asking = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Authorization": "Bearer secret"}
        for answer in (
            await client.ask("POST", "/v0/topics/a", b"{}", asking),
            await client.ask("GET", "/v0/topics/!", headers=asking),
        ):
            assert answer.headers["access-control-allow-origin"] == APP
            assert {"retry-after", "topics-holder"} <= set(answer.headers["access-control-expose-headers"].split(", "))
            assert "access-control-allow-credentials" not in answer.headers
            assert answer.headers["vary"] == "origin"
        plain = await client.ask("GET", "/v0/metrics", headers={"Authorization": "Bearer secret"})
        assert plain.headers["vary"] == "accept-encoding, origin"
        assert "access-control-allow-origin" not in plain.headers


async def test_other_origins_are_told_nothing() -> None:
    async with stage(keys=[key("secret")], cors_origins=[APP]) as there, there.client() as client:
        told = await preflight(client, "/v0/topics/a", EVIL)
        refused(told, "origin")
        answer = await client.ask("GET", "/v0/topics/a", headers={"Origin": EVIL, "Authorization": "Bearer secret"})
        assert answer.status == 200
        assert "access-control-allow-origin" not in told.headers | answer.headers
    async with stage(keys=[key("secret")]) as there, there.client() as client:
        refused(await preflight(client, "/v0/topics/a", APP), "origin")
        answer = await client.ask("GET", "/v0/health", headers={"Origin": APP})
        assert not {"access-control-allow-origin", "vary"} & set(answer.headers)


@pytest.mark.parametrize(("origin", "status"), [(APP, 101), (EVIL, 403), ("http://localhost", 101)])
async def test_the_list_is_for_websockets_too(origin: str, status: int) -> None:
    async with stage(cors_origins=[APP]) as there, there.client() as client:
        await start_real(there, Harness())
        answer = await client.ask("GET", "/v0/ws", headers=UPGRADE | {"Origin": origin})
        assert answer.status == status
