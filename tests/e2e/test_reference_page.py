"""Claims about the page at /docs, in headless Chromium: it shows all of both documents, and asks no other host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from gateway.server.page_paths import PAGES
from gateway.server.reference_page import FILES
from tests.e2e.test_browser import FLAGS
from tests.e2e.test_http_api import raw
from tests.e2e.test_status_page import PATIENCE_S, Page
from tests.support.programs import running, tool
from tests.support.service import Service, until


class Watching(Page):
    """A tab that notes the addresses that the page asks, and what its console says."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.asked_for: list[str] = []
        self.complaints: list[Any] = []

    def noted(self, told: dict[str, Any]) -> None:
        kind, what = told.get("method"), told.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.asked_for.append(what["request"]["url"])
        elif kind in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(what)

    def call(self, method: str, **parameters: Any) -> Any:
        self._asked += 1
        self._connection.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while (answer := json.loads(self._connection.recv(PATIENCE_S))).get("id") != self._asked:
            self.noted(answer)
        assert "error" not in answer, answer
        return answer["result"]


@contextmanager
def shown(url: str, profile: Path) -> Iterator[Watching]:
    command = [tool("chromium", "chromium-browser"), *FLAGS, f"--user-data-dir={profile}"]
    with running([*command, "--remote-debugging-port=0", "about:blank"]):
        port = profile / "DevToolsActivePort"
        until(lambda: port.exists() and port.read_text().count("\n") == 1, "chromium", PATIENCE_S)
        number, path = port.read_text().split()
        with connect(f"ws://127.0.0.1:{number}{path}", max_size=None, proxy=None) as browser:
            target = Page(browser).call("Target.createTarget", url="about:blank")["targetId"]
        with connect(f"ws://127.0.0.1:{number}/devtools/page/{target}", max_size=None, proxy=None) as tab:
            page = Watching(tab)
            for domain in ("Network", "Runtime", "Log"):
                page.call(f"{domain}.enable")
            page.call("Emulation.setDeviceMetricsOverride", width=1200, height=800, deviceScaleFactor=1, mobile=False)
            page.call("Page.navigate", url=url)
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
        assert page.complaints == []
        allowed = {f"{service.url}{path}" for path in ("/docs", "/docs/reference.css", "/docs/reference.js")}
        allowed |= {f"{service.url}/v0/openapi.json", f"{service.url}/v0/asyncapi.json", "data:,", "about:blank"}
        assert set(page.asked_for) <= allowed


def test_its_files_are_served_with_a_strict_policy(shared: Service) -> None:
    assert {"/", *FILES} == PAGES
    for path, (content_type, content) in FILES.items():
        status, headers, body = raw(shared, "GET", path)
        assert (status, body, headers["content-type"]) == (200, content, content_type)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
    assert raw(shared, "POST", "/docs", b"")[0] == 405
    assert raw(shared, "GET", "/docs/index.html")[0] == 404
