"""Claims about the page at /docs, in headless Chromium: it shows all of both documents, and asks no other host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.server.page_paths import PAGES
from gateway.server.reference_page import FILES
from gateway.server.status_page import FILES as STATUS_PAGE
from tests.e2e.test_http_api import raw
from tests.support.browser import Page, tab
from tests.support.service import Service


@contextmanager
def shown(url: str, profile: Path) -> Iterator[Page]:
    with tab(profile) as page:
        page.listen()
        page.visit(url)
        page.shows("document.getElementById('state')?.innerText.startsWith('Version')")
        yield page


@pytest.mark.parametrize("keys", [{}, {"TOPICS_API_KEYS": "s3cret"}])
def test_it_shows_every_operation_and_message(
    new_service: Callable[..., Service], tmp_path: Path, keys: dict[str, str]
) -> None:
    service = new_service(**keys).start()
    operations = service.request("GET", "/v0/openapi.json")[1]["paths"]
    channels = service.request("GET", "/v0/asyncapi.json")[1]["channels"]
    wanted = {each["operationId"] for methods in operations.values() for each in methods.values()}
    with shown(f"{service.url}/docs", tmp_path / "profile") as page:
        articles = page.js("[...document.querySelectorAll('article')].map(each => each.id)")
        assert set(articles) == wanted | {f"channel-{name}" for name in channels}
        text = page.js("document.getElementById('append').textContent")
        for word in (
            "POST /v0/topics/{topic}",
            "idempotency_key",
            "return_seqs (query)",
            "1 to 10000 items",
            "topic_full",
        ):
            assert word in text
        assert ("Needs a key" in text) == bool(keys)
        text = page.js("document.getElementById('channel-websocket').textContent")
        assert all(f"{name} " in text for name in channels["websocket"]["messages"])
        assert "undefined" not in page.js("document.body.textContent")
        page.js("filter.value = 'CURSOR put'; filter.dispatchEvent(new Event('input'))")
        visible = page.js("[...document.querySelectorAll('article:not([hidden])')].map(each => each.id)")
        assert visible == ["put_cursor"]
        assert page.errors == []
        allowed = {f"{service.url}{path}" for path in ("/docs", "/docs/reference.css", "/docs/reference.js")}
        allowed |= {f"{service.url}/v0/openapi.json", f"{service.url}/v0/asyncapi.json", "data:,", "about:blank"}
        assert {transfer.url for transfer in page.transfers.values()} <= allowed


def test_its_files_are_served_with_a_strict_policy(shared: Service) -> None:
    assert {"/console", *FILES, *STATUS_PAGE} == PAGES
    for path, (content_type, content) in {**FILES, **STATUS_PAGE}.items():
        status, headers, body = raw(shared, "GET", path)
        assert (status, body, headers["content-type"]) == (200, content, content_type)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
    assert raw(shared, "POST", "/docs", b"")[0] == 405
    assert raw(shared, "GET", "/docs/index.html")[0] == 404
