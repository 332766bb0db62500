"""Claims about the console, by click paths in headless Chromium."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from proto.model.names import shard_of
from tests.e2e.test_forwarding import started
from tests.e2e.test_roles import machine
from tests.support.browser import DESKTOP, PHONE, Page, tab
from tests.support.console import Client, accessible, check_tab, furnish, load
from tests.support.service import Service, until

DOWN = "(document.querySelector('.rows').scrollTop = 1e6)"
KEY = "0123456789abcdef0123456789abcdef"
NEAR = next(f"near{n}" for n in range(99) if shard_of(f"near{n}", 2) == 0)
FAR = next(f"far{n}" for n in range(99) if shard_of(f"far{n}", 2) == 1)


def place(page: Page, name: str) -> None:
    page.click(f"nav[aria-label='Console'] a[href='#/{name}']")
    page.shows(f"location.hash === '#/{name}'")


def tab_of(page: Page, name: str) -> None:
    page.click(f".tabs a[href$='/{name}']")


def rows(page: Page) -> list[int]:
    return [int(each) for each in page.js("[...document.querySelectorAll('button.seq')].map(each => each.innerText)")]


def test_every_panel_with_a_key_under_load(new_service: Callable[..., Service], tmp_path: Path) -> None:
    with new_service(TOPICS_API_KEYS=KEY) as service, tab(tmp_path / "profile") as page:
        with Client(service, KEY) as client:
            furnish(client)
        page.listen()
        with load(service, KEY):
            _give_the_key(page, service)
            _overview(page)
            _topics(page)
            _records(page)
            _live(page)
            _publish(page)
            _search_and_tree(page)
            _readers_and_settings(page)
            _make_and_delete(page)
            _queues(page)
            _consumers(page)
            _routers(page)
            _make_and_delete_a_router(page)
            _keyboard(page)
            _phone_and_dark(page)
            _forget_the_key(page)
        check_tab(page, service, KEY)


def _give_the_key(page: Page, service: Service) -> None:
    page.visit(service.url + "/")
    page.shows("document.getElementById('asking').hidden === false")
    page.click("a.open")
    page.shows("document.querySelector('dialog#key')?.open")
    page.reads("This service asks for a key.")
    accessible(page)
    page.type("dialog#key input", "not-the-key")
    page.click("dialog#key button.primary")
    page.shows("document.querySelector('dialog#key').open && document.querySelector('dialog#key .notice.bad')")
    page.type("dialog#key input", KEY)
    page.click("dialog#key button.primary")
    page.shows("document.getElementById('state').innerText === 'ready'")
    page.shows("!document.querySelector('dialog[open]')")


def _overview(page: Page) -> None:
    for text in (
        "Records written",
        "Latency of a small request",
        "Sync of the log",
        "Log and disk",
        "shard 1",
        "fsync",
    ):
        page.reads(text)
    page.shows("document.querySelectorAll('line-chart path.line').length >= 10")
    page.shows(
        "[...document.querySelectorAll('path.line')].filter(line => line.getAttribute('d').includes('L')).length > 6"
    )
    page.shows("/^[1-9]/.test(document.querySelector('.tile .value').innerText)")  # records a second
    accessible(page)


def _topics(page: Page) -> None:
    place(page, "topics")
    page.reads("shop:orders")
    accessible(page)
    page.press("/")
    page.type("[data-search]", "sensor.")
    page.shows("document.querySelectorAll('tbody tr').length === 20")
    page.type("[data-search]", "*orders")
    page.shows("document.querySelectorAll('tbody tr').length === 3")
    page.click("th:nth-child(2) button")
    page.shows("document.querySelector('th[aria-sort=descending]')?.innerText === 'records'")
    page.shows("document.querySelector('tbody a').innerText === 'shop:orders'")
    page.type("[data-search]", "nothing-is-called-so")
    page.reads("No topic matches")
    page.js("location.hash = '#/topics/%'")
    page.shows("location.hash.endsWith('%') && document.querySelector('main h1').innerText.startsWith('Topics')")
    page.type("[data-search]", "sensor.05")
    page.shows("document.querySelectorAll('tbody tr').length === 1")


def _records(page: Page) -> None:
    page.click("tbody a[data-row]")
    page.shows("document.querySelectorAll('button.seq').length > 10")
    assert rows(page)[0] == 300
    page.click("form button:nth-of-type(2)")  # the oldest
    page.shows(f"{DOWN} && document.querySelector('tr.gap.lost')?.innerText.includes('1 to 200 are lost (cap)')")
    page.visit(page.js("location.origin") + "/console#/topics/shop%3Aorders/records")
    page.shows("document.querySelectorAll('button.seq').length > 20")
    page.js("location.hash = '#/topics/mail/records'")  # the same tab of another topic shows that one's
    page.shows("document.querySelector('td.data')?.innerText.includes('example.org')")
    page.js("location.hash = '#/topics/shop%3Aorders/records'")
    page.shows("document.querySelectorAll('button.seq').length > 20")
    page.click("tbody tr:nth-child(4) td.data")
    page.shows("document.querySelector('.detail .json')?.innerText.includes('currency')")
    page.shows("document.querySelector('.detail').innerText.includes('trace')")
    accessible(page)
    page.type("input[name=seq]", "500")
    page.press("Enter")
    page.shows("document.querySelector('button.seq').innerText === '500'")
    page.shows(f"{DOWN} && document.querySelector('.foot').innerText.includes('beginning of the topic')")
    page.shows("[...document.querySelectorAll('button.seq')].at(-1).innerText === '1'")
    assert page.js("document.querySelectorAll('.rows tr').length") < 100, "only those in sight are drawn"
    page.click("[aria-label='Close the record']")
    page.type("input[name=tag]", "std:48")
    page.press("Enter")
    page.shows(
        "document.querySelector('td.tag')"
        " && [...document.querySelectorAll('td.tag')].every(each => each.innerText === 'std:48')"
    )


def _live(page: Page) -> None:
    tab_of(page, "live")
    page.shows("document.getElementById('live-state').innerText.includes('live')")
    page.shows("document.querySelectorAll('button.seq').length > 5")
    seen = rows(page)[0]
    page.shows(f"Number(document.querySelector('button.seq').innerText) > {seen}")
    page.click("#pause")
    page.shows("/Go on \\(\\d/.test(document.getElementById('pause').innerText)")
    still = rows(page)[0]
    page.shows("Number(/\\((\\d+)/.exec(document.getElementById('pause').innerText)[1]) >= 40")
    assert rows(page)[0] == still, "nothing moves while it is paused"
    accessible(page)
    page.click("#pause")
    page.shows(f"Number(document.querySelector('button.seq').innerText) > {still}")
    streams = [each.url for each in page.transfers.values() if "/v0/watch/" in each.url]
    assert streams
    assert all("?ticket=" in each for each in streams)


def _publish(page: Page) -> None:
    tab_of(page, "publish")
    page.type("textarea[name=data]", '{"price": 9.90')
    page.click("#publish")
    page.reads("The data is not JSON")
    page.type("textarea[name=data]", '{"price": 9.90, "exact": 123456789012345678901234567890}')
    page.type("input[name=tag]", "by:hand")
    page.click("#publish")
    page.reads("Published as seq ")
    accessible(page)
    tab_of(page, "records")
    page.type("topic-records input[name=tag]", "by:hand")  # the form that publishes has a field of this name, too
    page.press("Enter")
    page.shows("document.querySelectorAll('button.seq').length === 1")
    page.click("button.seq")
    page.shows("document.querySelector('.json').innerText.includes('\"price\": 9.90')")
    page.shows("document.querySelector('.json').innerText.includes('123456789012345678901234567890')")


def _search_and_tree(page: Page) -> None:
    page.type("topic-records input[name=tag]", "")
    page.press("Enter")
    page.type("topic-records input[name=text]", '9.90, "EXACT')
    page.press("Enter")
    page.shows("/^1 record found in seqs [\\d,]+ to [\\d,]+/.test(document.querySelector('.foot').innerText)")
    page.shows("document.querySelectorAll('button.seq').length === 1")
    page.type("topic-records input[name=text]", "no such text")
    page.press("Enter")
    page.reads("No such record so far")
    page.shows("/what is older was not searched|back to the beginning/.test(document.querySelector('.foot').innerText)")
    page.type("topic-records input[name=text]", '"sku":')
    page.press("Enter")
    page.shows("document.querySelectorAll('button.seq').length > 20")
    page.click("button.seq")
    page.shows("document.querySelector('.detail .json').innerText.includes('\"sku\": \"A-')")
    page.js("document.querySelectorAll('.detail summary')[1].focus()")
    page.press("ArrowLeft")
    page.shows("/\"lines\": \\[ 1 item \\]/.test(document.querySelector('.detail .json').innerText)")
    accessible(page)
    page.press("ArrowRight")
    page.shows("document.querySelector('.detail .json').innerText.includes('\"sku\"')")
    page.type("topic-records input[name=text]", "")
    page.press("Enter")


def _readers_and_settings(page: Page) -> None:
    tab_of(page, "cursors")
    page.shows("document.querySelectorAll('tbody tr').length === 2")
    page.reads("billing")
    accessible(page)
    tab_of(page, "routers")
    page.reads("Out of this topic")
    page.reads("audit:orders")
    accessible(page)
    tab_of(page, "settings")
    page.type("input[name=cap_records]", "123456")
    page.click("#save")
    page.reads("Saved: cap_records.")
    accessible(page)
    page.type("input[name=cap_records]", "-5")
    page.click("#save")
    page.shows("document.querySelector('.notice.bad b')?.innerText.includes('cap_records')")


def _make_and_delete(page: Page) -> None:
    place(page, "topics")
    page.click("#new-topic")
    page.type("dialog[open] input[name=name]", "made.here")
    accessible(page)
    page.click("dialog[open] button.primary")
    page.reads("No records")
    accessible(page)
    tab_of(page, "publish")
    page.click("#publish")
    page.reads("Published as seq 1,")
    tab_of(page, "settings")
    page.click(".card button.danger:nth-of-type(1)")
    page.type("dialog[open] input[name=before]", "2")
    accessible(page)
    page.click("dialog[open] button.danger")
    page.reads("1 record deleted.")
    page.click(".card button.danger:nth-of-type(2)")
    page.type("dialog[open] input[name=name]", "made.here")
    accessible(page)
    page.click("dialog[open] button.danger")
    page.shows("location.hash === '#/topics' && !document.querySelector('dialog[open]')")
    page.visit(page.js("location.origin + '/console#/topics/made.here'"))
    page.shows("document.querySelector('.notice.bad code')?.innerText === 'topic_not_found'")


def _queues(page: Page) -> None:
    place(page, "queues")
    page.reads("thumbnails")
    cells = "[...document.querySelectorAll('tbody tr')].find(row => /^mail/.test(row.innerText)).cells"
    page.shows(f"{cells}[3].innerText === '1' && {cells}[5].innerText === '3'")  # delayed, dead letters
    accessible(page)
    page.click("a[data-row][href='#/topics/mail']")
    page.reads("in flight")
    page.shows("document.querySelectorAll('.pill.warn').length >= 1")  # the delayed job
    page.click(".segments button:nth-child(4)")
    page.shows("document.querySelectorAll('button.seq').length === 1")
    page.reads("later@example.org")
    page.click(".segments button:nth-child(3)")
    page.shows("document.querySelectorAll('button.seq').length === 5")
    page.type("[data-search]", "USER4@")
    page.shows("document.querySelectorAll('button.seq').length === 1")
    page.reads("searched, seqs")
    accessible(page)
    page.type("[data-search]", "")
    page.click("#redrive")
    page.shows("/3 dead letters went back/.test(document.querySelector('.notice.good')?.innerText)")


def _consumers(page: Page) -> None:
    place(page, "consumers")
    page.shows("document.querySelectorAll('tbody tr').length === 2")
    assert page.js("[...document.querySelectorAll('a[data-row]')].map(each => each.innerText)") == ["search", "billing"]
    page.reads("2 consumers are behind")
    accessible(page)
    page.click("th:nth-child(1) button")
    page.shows("document.querySelector('a[data-row]').innerText === 'billing'")
    page.type("[data-search]", "sear")
    page.shows("document.querySelectorAll('tbody tr').length === 1")
    page.click("a[data-row]")
    page.shows("location.hash === '#/topics/shop%3Aorders/cursors'")


def _make_and_delete_a_router(page: Page) -> None:
    place(page, "routers")
    page.type("[data-search]", "")
    page.click("#new-router")
    page.type("dialog[open] input[name=source]", "dashboard")
    page.type("dialog[open] input[name=dest]", "shop:orders")
    page.type("dialog[open] input[name=filter]", "vip:*")
    accessible(page)
    page.click("dialog[open] button.primary")
    page.shows("document.querySelector('dialog[open] .notice.bad code')?.innerText === 'router_cycle'")
    page.click("dialog[open] input[name=allow_cycle]")
    page.click("dialog[open] button.primary")
    page.shows("!document.querySelector('dialog[open]')")
    made = "[...document.querySelectorAll('delete-router button')].find(each => /dashboard->/.test(each.ariaLabel))"
    page.shows(made)
    asked = json.loads(next(each.body for each in reversed(page.transfers.values()) if each.method == "PUT"))
    assert (asked["filter"], asked["allow_cycle"]) == (["tag", "Glob", "vip:*"], True)
    page.js(f"{made}.click()")
    page.shows("document.querySelector('dialog[open] h2').innerText === 'Delete the router dashboard->shop:orders?'")
    accessible(page)
    page.click("dialog[open] button.danger")
    page.shows(f"!document.querySelector('dialog[open]') && !{made}")
    page.click("#new-router")
    page.press("Escape")


def _routers(page: Page) -> None:
    place(page, "routers")
    page.shows("document.querySelectorAll('.edge').length === 6 && document.querySelectorAll('.node').length === 9")
    page.shows("document.querySelectorAll('.edge.busy').length >= 3")
    accessible(page)
    page.type("[data-search]", "ledger")
    page.shows("document.querySelectorAll('.edge').length === 1")


def _keyboard(page: Page) -> None:
    page.press("Escape", "g", "t")
    page.shows("document.querySelectorAll('topics-list a[data-row]').length > 5")  # the view before has rows, too
    page.press("j", "j", "k", "j")
    assert page.js("[...document.querySelectorAll('[data-row]')].indexOf(document.activeElement)") == 1
    page.press("?")
    page.shows("document.querySelector('dialog#help').open")
    accessible(page)
    page.press("Escape")
    page.shows("!document.querySelector('dialog[open]')")
    page.press("Enter")
    page.shows("location.hash.startsWith('#/topics/')")
    page.press("g", "o")
    page.shows("location.hash === '#/'")


def _phone_and_dark(page: Page) -> None:
    page.size(PHONE)
    page.colours("dark")
    for where in ("", "topics", "queues", "consumers", "routers"):
        place(page, where)
        page.shows("!!document.querySelector('main h1')")
        accessible(page)
        assert page.js("document.documentElement.scrollWidth") <= PHONE["width"], where
    page.size(DESKTOP)


def _forget_the_key(page: Page) -> None:
    page.click("#open-key")
    page.click("dialog#key button[type=button]")
    page.reads("This service asks for a key.")
    page.shows("document.querySelector('dialog#key').open")
    page.shows("!document.querySelector('.tile') && document.getElementById('state').innerText === 'key needed'")


HOSTILE = "<img src=x onerror=\"document.title='taken'\">\u202e</script>{{7*7}}${'a'}"
REASON = f"SMTP 550\n{HOSTILE}"


def test_what_others_wrote_is_text_in_every_view(new_service: Callable[..., Service], tmp_path: Path) -> None:
    with new_service() as service, tab(tmp_path / "profile") as page:
        with Client(service) as client:
            client.append("evil", [{"data": {HOSTILE: HOSTILE}, "tag": HOSTILE, "node": HOSTILE, "meta": {HOSTILE: 1}}])
            for name in (HOSTILE, "x" * 255):
                client.must("PUT", f"/v0/topics/evil/cursors/{quote(name, safe='')}", {"seq": 0})
            client.must("PUT", "/v0/topics/jobs", {"type": "queue", "dead_letter": "dead", "max_deliveries": 1})
            stamps = {"$dead_letter_from": "../evil?a#b", "$dead_letter_deliveries": 3, "$dead_letter_reason": REASON}
            client.append("dead", [{"data": HOSTILE, "meta": stamps}])
            client.append(
                "dead", [{"data": 1, "meta": {"$dead_letter_from": 5, "$dead_letter_reason": {"a": [HOSTILE]}}}]
            )
            client.append("jobs", [{"data": HOSTILE, "meta": stamps}])
        page.listen()
        page.visit(f"{service.url}/console#/")
        for where, sign in (
            ("consumers", "document.querySelectorAll('a[data-row]').length === 2"),
            ("topics/evil/cursors", "document.querySelectorAll('td.name').length === 2"),
            ("topics/evil/records", "!!document.querySelector('button.seq')"),
            ("topics/dead/records", "document.querySelectorAll('button.seq').length === 2"),
            ("topics/jobs", "!!document.querySelector('button.seq')"),
            ("topics/evil/live", "document.getElementById('live-state').innerText.includes('live')"),
        ):
            page.js(f"location.hash = '#/{where}'")
            page.shows(sign)
            shown = "document.querySelector('main').textContent.includes('<img src=x onerror=')"
            for row in range(page.js("document.querySelectorAll('button.seq').length")):
                page.js(f"document.querySelectorAll('button.seq')[{row}].click()")
                page.shows("!!document.querySelector('.detail .json')")
            if "live" not in where:
                page.shows(shown)
            assert page.js("document.querySelectorAll('main img, main script').length") == 0, where
            assert page.js("document.title").startswith(("evil", "dead", "jobs", "Consumers")), where
            page.size(PHONE)
            page.shows(f"document.documentElement.scrollWidth <= {PHONE['width']}")
            page.size(DESKTOP)
        page.js("location.hash = '#/topics/dead/records'")
        page.shows("document.querySelectorAll('button.seq').length === 2")
        page.js("document.querySelectorAll('button.seq')[1].click()")
        page.shows(
            f"[...document.querySelectorAll('.detail dd')].some(each => each.textContent === {json.dumps(REASON)})"
        )
        page.shows("document.querySelector('.detail dd a').hash === '#/topics/..%2Fevil%3Fa%23b'")
        page.shows("document.querySelector('.detail dl').innerText.includes('3 times')")
        page.js("document.querySelectorAll('button.seq')[0].click()")
        page.shows("!document.querySelector('.detail dl').innerText.includes('failed because')")
        assert page.errors == []


def test_the_plots_of_a_page_that_is_opened_later_have_what_was_before(
    new_service: Callable[..., Service], tmp_path: Path
) -> None:
    with new_service() as service, tab(tmp_path / "profile") as page:
        with Client(service) as client, load(service):

            def kept() -> bool:
                history = client.must("GET", "/v0/metrics/history")
                return len(history["ago_ms"]) >= 2 and history["records"][-1] > 0

            until(kept, "two samples", 60)
            page.listen()
            page.visit(f"{service.url}/console#/")
            page.shows("!!document.getElementById('history')")
            since = "/^[2-9]\\d s ago/.test(document.querySelector('.plot .since').innerText)"
            page.shows(since)
            page.click(".segments button:nth-child(1)")
            page.shows("document.querySelector('.segments button').ariaPressed === 'true'")
        assert page.errors == []


def test_a_shard_that_is_killed_shows_as_such_and_the_rest_stays_usable(
    new_service: Callable[..., Service], tmp_path: Path
) -> None:
    with new_service() as service, tab(tmp_path / "profile") as page:
        with Client(service) as client:
            for name in (NEAR, FAR):
                client.append(name, [{"data": n} for n in range(50)])
        page.listen()
        page.visit(f"{service.url}/console#/topics/{FAR}/live")
        page.shows("document.getElementById('live-state')?.innerText.includes('live')")
        with load(service, topics=[NEAR, FAR]):
            page.shows("document.querySelectorAll('button.seq').length > 5")
            dead = _Dead(service, page)
            dead.until("document.getElementById('shards-down')?.innerText.includes('shard 0')")
            seen = rows(page)[0]
            dead.until(f"Number(document.querySelector('button.seq').innerText) > {seen}")
            page.click("nav[aria-label='Console'] a[href='#/']")
            dead.until("document.querySelector('.attention')?.innerText.includes('Shard 0 does not serve')")
            page.click("nav[aria-label='Console'] a[href='#/topics']")
            dead.until("document.querySelector('main .notice.bad')?.innerText.includes('not_ready')")
            dead.until(f"[...document.querySelectorAll('a[data-row]')].some(each => each.innerText === '{FAR}')")
            accessible(page)
            page.visit(f"{service.url}/console#/topics/{NEAR}/records")
            dead.until("document.querySelector('topic-view .notice.bad')?.innerText.includes('not_ready')")
            until(service.is_ready, "the shard's successor")
            page.shows("!document.querySelector('.notice.bad') && !document.getElementById('shards-down')")
            page.shows("document.querySelectorAll('button.seq').length > 20")
            tab_of(page, "live")
            page.shows("document.getElementById('live-state').innerText.includes('live')")
            page.shows("document.querySelectorAll('button.seq').length > 5")
            service.kill_child("gateway")
            page.shows("document.getElementById('live-state').innerText.includes('reconnecting')")
            page.shows("document.getElementById('live-state').innerText.includes('live')")
            seen = rows(page)[0]
            page.shows(f"Number(document.querySelector('button.seq').innerText) > {seen}")
            assert rows(page) == list(range(rows(page)[0], rows(page)[-1] - 1, -1)), "none lost, none twice"
        check_tab(page, service)


class _Dead:
    """Keeps shard 0 down: each successor is killed as soon as it is there."""

    def __init__(self, service: Service, page: Page) -> None:
        self._service = service
        self._page = page

    def until(self, expression: str) -> None:
        def shown() -> bool:
            if self._service.child("shard-00")["pid"]:
                try:
                    self._service.kill_child("shard-00")
                except ProcessLookupError:
                    pass
            return bool(self._page.js(f"!!({expression})"))

        try:
            until(shown, expression, 30)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self._page.js('document.body.innerText')}") from None


@pytest.mark.long
def test_ten_thousand_topics_and_a_million_records_stay_fluid(
    new_service: Callable[..., Service], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    took: dict[str, float] = {}
    with new_service() as service, tab(tmp_path / "profile") as page:
        with Client(service) as client:
            for n in range(10_000):
                client.append(f"load:{n % 100:02d}:{n:05d}", [{"data": n}])
            for n in range(100):
                client.append("million", [{"data": {"n": n * 10_000 + i}, "tag": f"t{i % 100}"} for i in range(10_000)])
        page.listen()

        def timed(what: str, act: Callable[[], None], shown: str) -> None:
            begun = time.monotonic()
            act()
            page.shows(shown)
            took[what] = round(1000 * (time.monotonic() - begun))

        count = "document.querySelectorAll('tbody tr').length"
        timed("the list", lambda: page.visit(f"{service.url}/console#/topics"), f"{count} === 100")
        timed(
            "next page",
            lambda: page.click(".pages button:last-child"),
            "/page 2/.test(document.querySelector('.pages').innerText)",
        )
        timed(
            "a prefix",
            lambda: page.type("[data-search]", "load:42:"),
            "document.querySelector('tbody a').innerText === 'load:42:00042'",
        )
        timed("a part", lambda: page.type("[data-search]", "*:09999"), f"{count} === 1")
        timed("by size", lambda: page.type("[data-search]", ""), f"{count} === 100")
        timed(
            "sorted",
            lambda: page.click("th:nth-child(2) button"),
            "document.querySelector('tbody a').innerText === 'million'",
        )
        timed(
            "a million records",
            lambda: page.click("tbody a[data-row]"),
            "document.querySelector('button.seq')?.innerText === '1000000'",
        )
        timed(
            "a seq",
            lambda: (page.type("input[name=seq]", "500000"), page.press("Enter"))[0],
            "document.querySelector('button.seq')?.innerText === '500000'",
        )
        for step in range(10):
            timed(
                f"scroll {step}",
                lambda: page.js("document.querySelector('.rows').scrollTop = 1e9"),
                "document.querySelector('.foot').innerText.includes('records;')",
            )
        timed(
            "a tag",
            lambda: (page.type("input[name=tag]", "t7"), page.press("Enter"))[0],
            "document.querySelector('td.tag')?.innerText === 't7'",
        )
        timed(
            "overview",
            lambda: page.click("nav[aria-label='Console'] a[href='#/']"),
            "!!document.querySelector('.tile')",
        )
        assert page.js("document.querySelectorAll('*').length") < 3000
        check_tab(page, service)
        heavy = sorted(((each.size, each.url) for each in page.transfers.values()), reverse=True)[:5]
    with capsys.disabled():
        print(json.dumps(took), heavy)  # noqa: T201


def test_the_overview_tells_which_machine_holds_which_shards(tmp_path: Path) -> None:
    one, two = (machine(tmp_path, name, TOPICS_CLUSTER_LISTEN="127.0.0.1:0") for name in ("one", "two"))
    try:
        started(one, two)
        with tab(tmp_path / "profile") as page:
            page.listen()
            page.visit(f"{two.url}/console#/")
            page.shows("document.querySelectorAll('#machines tbody tr').length === 2")
            cells = "each => [...each.cells].map(cell => cell.innerText)"
            rows = sorted(page.js(f"[...document.querySelectorAll('#machines tbody tr')].map({cells})"))
            assert [machine for machine, _, _ in rows] == ["http://one.example:4000", "http://two.example:4000"]
            assert sorted(node for _, node, _ in rows) == ["1", "2"]
            held = ", ".join(shards for _, _, shards in rows if shards != "none")
            assert sorted(held.split(", ")) == ["0", "1"]
            accessible(page)
            check_tab(page, two, "")
    finally:
        one.close()
        two.close()
