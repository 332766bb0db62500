"""Claims about the page at /docs, in headless Chromium: it shows all of both documents, and asks no other host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from gateway.contract.samples import PYTHON
from gateway.server.page_paths import FILES
from tests.e2e.test_http_api import raw
from tests.support.browser import Page, Transfer, tab
from tests.support.service import Service

KEY = "s3cret"


@contextmanager
def shown(url: str, profile: Path) -> Iterator[Page]:
    with tab(profile) as page:
        page.listen()
        page.visit(url)
        page.shows("document.getElementById('state')?.innerText.startsWith('Version')")
        yield page


@pytest.fixture
def page(keyed: Service, tmp_path: Path) -> Iterator[Page]:
    """The page of a service with keys, without errors to its end."""
    with shown(f"{keyed.url}/docs/", tmp_path / "profile") as found:
        yield found
        assert found.errors == []


@pytest.fixture
def keyed(new_service: Callable[..., Service]) -> Service:
    return new_service(TOPICS_API_KEYS=KEY).start()


def sent(page: Page, method: str = "") -> list[Transfer]:
    """What the page sent beside its own files and documents."""
    return [each for each in page.transfers.values() if "/v0/topics/" in each.url and method in each.method]


def answer(page: Page, operation: str, said: str) -> str:
    """Wait until the answer that is shown has this text."""
    page.shows(f"document.querySelector('#{operation} .answer')?.textContent.includes({json.dumps(said)})")
    return page.text(f"{operation}")


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
        assert "0 to 2^64 - 1" in page.js("document.getElementById('configure_topic').textContent")
        text = page.js("document.getElementById('channel-websocket').textContent")
        assert all(f"{name} " in text for name in channels["websocket"]["messages"])
        assert "undefined" not in page.js("document.body.textContent")
        page.js("filter.value = 'CURSOR put'; filter.dispatchEvent(new Event('input'))")
        visible = page.js("[...document.querySelectorAll('article:not([hidden])')].map(each => each.id)")
        assert visible == ["put_cursor"]
        assert page.errors == []
        ours = [path for path in FILES if path.startswith("/docs")]
        allowed = {f"{service.url}{path}" for path in (*ours, "/icon.svg", "/v0/openapi.json", "/v0/asyncapi.json")}
        assert {transfer.url for transfer in page.transfers.values()} <= allowed
        assert {transfer.status for transfer in page.transfers.values()} <= {200}, "nothing that it asks for is missing"


def test_operations_are_in_the_order_of_a_reader(page: Page) -> None:
    titles = page.js("[...document.querySelectorAll('nav h2')].map(each => each.textContent)")
    assert titles == ["Topics", "Queues", "Streams", "Cursors", "Routers", "Service", "Events and messages"]
    names = page.js("[...document.querySelectorAll('nav ul')].slice(0, 2).map(each => each.innerText.split('\\n'))")
    assert names[0][:5] == ["configure_topic", "append", "topic_state", "diff", "list_topics"]
    assert names[0][-1] == "delete_topic"
    assert names[1][0] == "claim"


def test_a_language_that_is_chosen_once_is_shown_everywhere(keyed: Service, page: Page) -> None:
    assert f"{keyed.url}/v0/topics/jobs" in page.js("document.querySelector('#append .samples pre').textContent")
    page.click("#append .tabs button:nth-child(2)")
    shown_now = page.js("[...document.querySelectorAll('.samples pre')].map(each => each.textContent)")
    assert len([each for each in shown_now if each.startswith("from topics_client import")]) == len(PYTHON)
    assert len([each for each in shown_now if each.startswith("curl ")]) == len(shown_now) - len(PYTHON)
    assert sent(page) == []


def test_a_request_is_tried_with_the_key_of_the_page(keyed: Service, page: Page) -> None:
    page.click("#append .try summary")
    page.click("#append .send")
    answer(page, "append", "unauthorized")
    page.type("#key", KEY)
    number = "18446744073709551615"
    body = json.dumps({"records": [{"data": [1, 2.5, '" {,']}]}).replace("1,", f"{number},").replace("2.5", "1.50")
    page.type("#append .try textarea", body)
    page.type("#append .try input", "a:b")
    page.click("#append .send")
    answer(page, "append", '"first_seq": 1')
    page.click("#diff .try summary")
    page.type("#diff .try input", "a:b")
    page.click("#diff .send")
    told = answer(page, "diff", '"caught_up": true')
    assert number in told
    assert "1.50" in told
    page.type("#diff .try input", "../a?b/c")
    page.click("#diff .send")
    answer(page, "diff", "invalid_request")
    assert sent(page)[-1].url == f"{keyed.url}/v0/topics/..%2Fa%3Fb%2Fc/diff"
    assert all(KEY not in transfer.url for transfer in page.transfers.values())
    assert page.js("localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_what_removes_data_is_sent_after_a_question_only(page: Page) -> None:
    page.type("#key", KEY)
    page.click("#append .try summary")
    page.click("#append .send")
    answer(page, "append", '"first_seq": 1')
    for name in ("delete_topic", "ack", "delete_records", "redrive", "delete_cursor", "delete_router"):
        page.click(f"#{name} .try summary")
        before = len(page.transfers)
        page.click(f"#{name} .send")
        page.click(f"#{name} .ask button:not(.sure)")
        page.shows(f"!document.querySelector('#{name} .send').disabled")
        assert len(page.transfers) == before
    page.click("#delete_topic .send")
    page.click("#delete_topic .sure")
    answer(page, "delete_topic", '"deleted": true')
    assert [each.status for each in sent(page, "DELETE")] == [200]


def test_a_stream_shows_events_until_it_is_stopped(page: Page) -> None:
    page.type("#key", KEY)
    for name in ("configure_topic", "append", "work"):
        page.click(f"#{name} .try summary")
        page.click(f"#{name} .send")
        answer(page, name, {"work": "event: job"}.get(name, '"created"'))
    page.shows("!document.querySelector('#work .try button[type=button]').hidden")
    page.click("#work .try p button[type=button]")
    answer(page, "work", "Stopped.")
    page.click("#peek .try summary")
    page.click("#peek .send")
    answer(page, "peek", '"in_flight": 0')


def test_its_files_are_served_with_a_strict_policy(shared: Service) -> None:
    for path, (content_type, name) in FILES.items():
        status, headers, body = raw(shared, "GET", path)
        content = files("gateway.server").joinpath(name).read_bytes()
        assert (status, body, headers["content-type"]) == (200, content, content_type)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
    assert raw(shared, "GET", "/favicon.ico")[2] == raw(shared, "GET", "/icon.svg")[2]
    assert raw(shared, "POST", "/docs", b"")[0] == 405
    assert raw(shared, "GET", "/docs/index.html")[0] == 404
