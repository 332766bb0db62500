"""What tests and the tool for pictures do with the console: data to look at, a load, and checks of the whole tab."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.browser import Page
from tests.support.service import Service

AXE = Path(__file__).parent / "axe" / "axe.min.js"
MOST_BYTES = 200_000
MOST_ROWS = 1000
ROUTERS = (
    ("shop:orders", "audit:orders"),
    ("shop:orders", "analytics:orders"),
    ("audit:orders", "archive"),
    ("analytics:orders", "dashboard"),
    ("shop:payments", "ledger"),
    ("mail.dead", "alerts"),
)


class Client:
    """Requests on one connection, with a key or without."""

    def __init__(self, service: Service, key: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def must(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status < 300, answer
        return answer

    def append(self, topic: str, records: list[dict[str, Any]]) -> Any:
        return self.must("POST", f"/v0/topics/{topic}", {"records": records})


def order(number: int) -> dict[str, Any]:
    data = {
        "id": number,
        "total": number % 9973 / 100,
        "currency": "EUR",
        "lines": [{"sku": f"A-{number % 97}", "n": 2}],
    }
    tag = f"{'vip' if number % 3 else 'std'}:{number % 50}"
    return {"data": data, "tag": tag, "node": f"web-{number % 3}", "meta": {"trace": f"{number * 7919:08x}"}}


def furnish(client: Client) -> None:
    """Topics, queues, cursors and routers, some of each kind."""
    client.must("PUT", "/v0/topics/shop:orders", {"durability": "fsync"})
    client.must("PUT", "/v0/topics/mail", {"type": "queue", "max_deliveries": 1, "dead_letter": "mail.dead"})
    client.must("PUT", "/v0/topics/thumbnails", {"type": "queue", "lease_ms": 60000})
    client.must("PUT", "/v0/topics/sensor.05", {"cap_records": 100})
    for name in ("shop:payments", "shop:returns", *(f"sensor.{n:02d}" for n in range(20))):
        client.append(name, [order(n) for n in range(300)])
    client.append("shop:orders", [order(n) for n in range(1000)])
    client.append("thumbnails", [{"data": {"url": f"s3://photos/{n}.jpg", "width": 256}} for n in range(30)])
    client.append("mail", [{"data": {"to": f"user{n}@example.org", "template": "welcome"}} for n in range(12)])
    client.append("mail", [{"data": {"to": "later@example.org"}, "delay_ms": 600_000}])
    claimed = client.must("POST", "/v0/topics/mail/claim", {"node": "worker-1", "max": 3})["claimed"]
    client.must("POST", "/v0/topics/mail/nack", {"node": "worker-1", "seqs": [job["$seq"] for job in claimed]})
    client.must("POST", "/v0/topics/mail/claim", {"node": "worker-2", "max": 5, "lease_ms": 600_000})
    for source, dest in ROUTERS:
        guarantee = "exactly_once" if dest == "ledger" else "at_least_once"
        client.must("PUT", f"/v0/routers/{source}-%3E{dest}", {"source": source, "dest": dest, "guarantee": guarantee})
    client.must("PUT", "/v0/topics/shop:orders/cursors/billing", {"seq": 990})
    client.must("PUT", "/v0/topics/shop:orders/cursors/search", {"seq": 640})


@contextmanager
def load(service: Service, key: str = "", topics: Sequence[str] = ("shop:orders", "shop:payments")) -> Iterator[None]:
    """Writes to the topics, and jobs that are done, until the block ends. Refusals are passed over."""
    over = threading.Event()

    def work() -> None:
        number = 1000
        while not over.wait(0.1):
            number += 20
            try:
                with Client(service, key) as client:
                    _some_work(client, topics, number)
            except (OSError, http.client.HTTPException):
                continue  # the gateway is away

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def _some_work(client: Client, topics: Sequence[str], number: int) -> None:
    for topic in topics:
        client.ask("POST", f"/v0/topics/{topic}", {"records": [order(number + n) for n in range(20)]})
    client.ask("POST", "/v0/topics/thumbnails", {"records": [{"data": {"url": f"s3://photos/{number}.jpg"}}] * 2})
    _, answer = client.ask("POST", "/v0/topics/thumbnails/claim", {"node": "worker-3", "max": 2})
    if seqs := [job["$seq"] for job in answer.get("claimed", ())]:
        client.ask("POST", "/v0/topics/thumbnails/ack", {"node": "worker-3", "seqs": seqs})


# -- checks


def accessible(page: Page) -> None:
    """Check what the tab shows now with axe-core: no violation of any rule."""
    if not page.js("typeof axe === 'object'"):
        page.call("Runtime.evaluate", expression=AXE.read_text())
    # Half-faded colours would be measured otherwise.
    page.js("Promise.all(document.getAnimations().map(each => each.finished.catch(() => {}))).then(() => true)")
    found = page.js(
        """axe.run(document, {resultTypes: ["violations"]}).then(done => done.violations.map(
            each => [each.id, each.help, ...each.nodes.map(node => [node.html, node.failureSummary])].join("; ")))"""
    )
    assert found == [], f"{page.js('location.hash')}: {found}"


def check_tab(page: Page, service: Service, key: str = "") -> None:
    """Check all that the tab did so far: no error, no other host, no large answer or request, no trace of the key."""
    assert page.errors == []
    transfers = list(page.transfers.values())
    assert len(transfers) > 20
    assert [each.url for each in transfers if not each.url.startswith(service.url + "/")] == []
    assert [(each.size, each.url) for each in transfers if each.size > MOST_BYTES] == []
    assert [
        (rows, each.url) for each in transfers for rows in asked_rows(each.url, each.body) if rows > MOST_ROWS
    ] == []
    if key:
        assert [each.url for each in transfers if key in each.url or key in each.body] == []
        kept = page.js(
            """(async () => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href,
                history.state, await indexedDB.databases(), await caches.keys()]))()"""
        )
        assert key not in kept


def asked_rows(url: str, body: str) -> Iterator[int]:
    for size in parse_qs(urlsplit(url).query).get("page_size", ()):
        yield int(size)
    for size in re.findall(r'"(?:limit|max)":(\d+)', body):
        yield int(size)
