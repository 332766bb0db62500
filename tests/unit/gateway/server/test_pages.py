"""Claims about the pages: what they allow, over which protocols, and how their errors look."""

from __future__ import annotations

import re

import pytest
import trio

from gateway.server.pages import PAGES, Pages
from gateway.server.status_page import HTML
from tests.support.gateway_stage import Stage, stage, until
from tests.unit.gateway.server.test_http2_handover import Http2


async def test_the_status_page_is_served_and_the_connection_serves_on() -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("GET", "/")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.raw.decode() == HTML
        assert (await client.ask("GET", "/v0/health")).status == 200
        assert (await client.ask("GET", "/icon.svg")).headers["content-type"] == "image/svg+xml"


async def test_a_client_that_shuts_down_its_side_gets_the_page_too() -> None:
    async with stage() as there:
        for _ in range(5):
            async with there.client() as client:
                await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await client.stream.send_eof()
                assert (await client.receive()).raw.decode() == HTML
                assert await client.ended()
            stream = await trio.open_tcp_stream(*there.address)
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await stream.aclose()  # the client is gone, and no end of file is passed on
        async with there.client() as client:
            await client.ask("GET", "/v0/health")  # so all earlier connections have been accepted
            await until(lambda: len(there.gateway.server.connections) == 1)


@pytest.mark.parametrize("path", ["/", "/docs", "/console"])
async def test_no_page_has_code_in_it_or_may_be_framed(path: str) -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("GET", path)
    page = answer.raw.decode()
    assert not re.search(r"<style|<script(?![^>]* src=)|\son[a-z]+=|\sstyle=|javascript:", page)
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    links = re.findall(r'<(?:script|link rel="stylesheet")[^>]* (?:src|href)="([^"]+)"', page)
    async with stage() as there:
        for link in links:
            async with there.client() as client:
                assert (await client.ask("GET", link)).status == 200, link
    assert links


async def test_every_answer_says_that_its_type_is_right() -> None:
    async with stage() as there:
        asked = [("GET", path) for path in ("/", "/docs", "/console", "/console/nothing", "/v0/health", "/v0/metrics")]
        asked += [
            ("GET", "/v0/topics/a"),
            ("GET", "/nothing"),
            ("POST", "/"),
            ("PUT", "/v0/topics/a"),
            ("GET", "/v0/ws"),
        ]
        for method, path in asked:
            async with there.client() as client:
                answer = await client.ask(method, path, b"{}" if method != "GET" else None)
                assert answer.headers["x-content-type-options"] == "nosniff", path
            async with there.client() as client:
                http2 = Http2(client.stream)
                await http2.ask(method, path)
                assert http2.headers.count(("x-content-type-options", "nosniff")) == 1, path
        async with there.client() as client:
            await client.send(b"GET / HTTP/1.1\r\nbroken\r\n\r\n")
            assert (await client.receive()).headers["x-content-type-options"] == "nosniff"


async def test_a_page_asked_with_the_wrong_method_is_a_canonical_405() -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("POST", "/", b"{}")
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert "get" in answer.headers["allow"]


async def test_pages_that_many_ask_for_first_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Pages] = []
    load = Pages._load

    def counted(pages: Pages) -> None:
        loaded.append(pages)
        load(pages)

    monkeypatch.setattr(Pages, "_load", counted)
    statuses: list[int] = []

    async def ask(there: Stage) -> None:
        async with there.client() as client:
            statuses.append((await client.ask("GET", "/")).status)

    async with stage() as there, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, there)
    assert statuses == [200] * 5
    assert len(loaded) == 1


async def test_pages_that_cannot_be_read_are_a_canonical_500_and_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = Pages._load

    def failing(_: Pages) -> None:
        raise OSError(24, "injected")

    async with stage() as there, there.client() as client:
        monkeypatch.setattr(Pages, "_load", failing)
        answer = await client.ask("GET", "/")
        assert (answer.status, answer.code) == (500, "internal")
        monkeypatch.setattr(Pages, "_load", load)
        assert (await client.ask("GET", "/")).status == 200


async def test_a_request_sent_behind_one_of_a_page_is_answered_and_a_body_is_not_read_as_one() -> None:
    page = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with stage() as there, there.client() as client:
        await client.send(page + b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.receive()).raw.decode() == HTML
        assert (await client.receive()).json["status"] == "ok"
    async with stage() as there, there.client() as client:
        body = b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body + page)
        assert (await client.receive()).raw.decode() == HTML
        assert (await client.receive()).raw.decode() == HTML
        assert there.shards[0].requests == []


async def test_a_page_is_in_flight_and_a_draining_service_still_shows_it() -> None:
    async with stage() as there, there.client() as client:
        there.gateway.flight.drain()
        answer = await client.ask("GET", "/")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended()
        assert there.gateway.flight.count == 0


@pytest.mark.parametrize("path", ["/console/x", "/console//x", "/console/%2e%2e/status_page.py", "/console/../x/y"])
async def test_below_the_console_nothing_but_its_files_is_found(path: str) -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("GET", path)
        assert (answer.status, answer.code) == (404, "not_found")


async def test_the_paths_of_the_pages_are_those_that_have_a_response() -> None:
    pages = Pages()
    pages._load()
    assert {*pages._fixed, "/console"} == PAGES
