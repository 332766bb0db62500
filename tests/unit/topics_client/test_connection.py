"""Requests: which errors are told, which requests are repeated, and after what pause. Time is trio's fake clock."""

from __future__ import annotations

import gc
import logging

import httpx
import pytest
import trio
import trio.testing

import topics_client
from tests.unit.topics_client.fake import Fake, answer, appended, error
from topics_client import AsyncClient, TopicsError, Unavailable


async def test_a_name_of_dots_is_not_taken_for_a_folder() -> None:
    """A URL has no segments `.` and `..`: `/v0/topics/t/cursors/..` is the topic itself."""
    fake = Fake([answer(200, {"deleted": True}) for _ in range(4)] + [answer(200, {"seq": 1})])
    async with fake.client() as client:
        for name in ("..", ".", "...", "a/../b"):
            await client.delete_cursor("t", name)
        await client.set_cursor("..", "c", 1)
    assert [request.url.raw_path.decode() for request in fake.requests] == [
        "/v0/topics/t/cursors/%2E%2E",
        "/v0/topics/t/cursors/%2E",
        "/v0/topics/t/cursors/%2E%2E%2E",
        "/v0/topics/t/cursors/a%2F..%2Fb",
        "/v0/topics/%2E%2E/cursors/c",
    ]


async def test_an_error_shows_which_service_was_asked_and_where_a_key_is_given() -> None:
    fake = Fake([httpx.ConnectError("refused"), error(401, "unauthorized")])
    async with AsyncClient("http://me:secret@fake/base/", transport=httpx.MockTransport(fake), patience_s=0) as client:
        with pytest.raises(Unavailable) as away:
            await client.state("t")
        with pytest.raises(topics_client.Unauthorized) as raised:
            await client.state("t")
    assert away.value.__notes__ == ["asked: http://fake"]
    (note,) = raised.value.__notes__
    assert note.startswith("asked: http://fake. A key is given as token=, or in TOPICS_TOKEN")


async def test_a_redirect_is_told_and_not_followed() -> None:
    """Followed, a write would become a read, whose answer would pass for the write's."""
    fake = Fake([httpx.Response(301, headers={"Location": "https://fake/v0/topics/t"})])
    async with fake.client(token="secret") as client:
        with pytest.raises(topics_client.TopicsError, match="http://fake redirects to https://fake/v0/topics/t: give"):
            await client.publish("t", 1)
    assert [request.method for request in fake.requests] == ["POST"]


async def test_retry_after_is_honoured(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake(
        [
            error(503, "not_ready", None, Retry_After="3"),
            error(429, "throttled", {"retry_after_ms": 1500}, Retry_After="2"),
            answer(200, {"head_seq": 1}),
        ]
    )
    async with fake.client() as client:
        start = trio.current_time()
        assert (await client.state("t"))["head_seq"] == 1
    assert trio.current_time() - start == pytest.approx(4.5)


async def test_patience_ends(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake([error(503, "not_ready", None, Retry_After="4") for _ in range(9)])
    async with fake.client(patience_s=10) as client:
        with pytest.raises(topics_client.NotReady) as raised:
            await client.state("t")
    assert raised.value.retry_after == 4
    assert len(fake.requests) == 3


async def test_a_proxy_without_connection_is_unavailable(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake([httpx.Response(502, text="<html>"), httpx.ReadError("cut"), answer(200, {"head_seq": 2})])
    async with fake.client() as client:
        assert (await client.state("t"))["head_seq"] == 2


async def test_an_answer_is_returned_as_its_bytes_and_an_error_is_raised(
    autojump_clock: trio.testing.MockClock,
) -> None:
    text = b'{"n": 1.10}'
    fake = Fake([error(503, "not_ready"), httpx.Response(200, content=text), error(404, "topic_not_found")])
    async with fake.client() as client:
        assert await client.connection.call("GET", "/v0/x", raw=True) == text
        with pytest.raises(topics_client.TopicNotFound):
            await client.connection.call("GET", "/v0/x", raw=True)


async def test_a_delete_by_tag_is_never_done_twice(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake([httpx.ConnectError("refused"), httpx.ReadError("cut")])
    async with fake.client() as client:
        with pytest.raises(topics_client.Unavailable) as raised:
            await client.delete_records("t", match="tag")
    assert raised.value.outcome == "unknown"
    assert len(fake.requests) == 2  # the first one was surely not done


async def test_lists_are_read_to_their_last_page() -> None:
    fake = Fake(
        [answer(200, {"topics": [{"topic": "a"}], "next_cursor": "c"}), answer(200, {"topics": [{"topic": "b"}]})]
    )
    async with fake.client() as client:
        assert [each["topic"] for each in await client.topics("p")] == ["a", "b"]
    assert fake.requests[1].url.params["cursor"] == "c"


async def test_names_are_encoded_in_paths() -> None:
    fake = Fake([answer(200, {"seq": 1})])
    async with fake.client() as client:
        await client.cursor("a:b", "n/m ä")
    assert fake.requests[0].url.raw_path == b"/v0/topics/a%3Ab/cursors/n%2Fm%20%C3%A4"


async def test_a_connection_that_breaks_within_a_body_leaves_no_open_generator() -> None:
    """trio warns of an async generator that was begun and thrown away."""

    async def broken(request: httpx.Request) -> httpx.Response:
        async for _ in request.stream:  # type: ignore[union-attr]
            raise httpx.WriteError("broken")
        raise AssertionError

    async with AsyncClient("http://fake", transport=httpx.MockTransport(broken), patience_s=0) as client:
        with pytest.raises(Unavailable):
            await client.publish("t", 1)
    gc.collect()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "topics_client.connection"]


async def test_a_service_that_is_away_is_told_once_within_3_s_and_again_when_it_is_back(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    began, at = trio.current_time(), []

    def refused(request: httpx.Request) -> httpx.Response:
        at.append((trio.current_time() - began, len(told(caplog))))
        raise httpx.ConnectError("refused")

    fake = Fake([refused] * 12 + [answer(200, {"head_seq": 1}), answer(200, {"head_seq": 1})])
    async with fake.client() as client:
        await client.state("t")
        waited = trio.current_time() - began
        await client.state("t")
    assert {lines for seconds, lines in at if seconds >= 3} == {1}
    first, last = told(caplog)
    assert first.startswith("http://fake: no answer yet (ConnectError: refused); trying again for ")
    assert last == f"http://fake: the service answers again, after {waited:.0f} s"


async def test_a_short_pause_and_an_error_that_comes_soon_are_not_told(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fake = Fake([httpx.ConnectError("refused")] * 3 + [answer(200, {"head_seq": 1})])
    async with fake.client() as client:
        await client.state("t")
    fake = Fake([httpx.ConnectError("refused")] * 99)
    async with fake.client(patience_s=3) as client:
        with pytest.raises(Unavailable):
            await client.state("t")
    assert told(caplog) == []


async def test_requests_of_the_client_write_no_line_of_httpx_and_those_of_the_program_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    fake = Fake(
        [answer(200, {"head_seq": 1}), httpx.ConnectError("refused"), answer(200), answer(200, {"head_seq": 1})]
    )
    async with fake.client() as client:
        await client.state("t")
        with pytest.raises(Unavailable):
            async with fake.client(patience_s=0) as hasty:
                await hasty.state("t")
        async with httpx.AsyncClient(transport=httpx.MockTransport(fake)) as own:
            await own.get("http://own/")
        await client.state("t")
    assert [each.getMessage() for each in caplog.records if each.name == "httpx"] == [
        'HTTP Request: GET http://own/ "HTTP/1.1 200 OK"'
    ]


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "HTTPS://127.0.0.1:1"])
async def test_certificates_are_trusted_for_https_and_not_loaded_for_http(url: str) -> None:
    def trusted(client: AsyncClient) -> int:
        context = client.connection._http._transport._pool._ssl_context  # type: ignore[attr-defined]
        return len(context.get_ca_certs())

    async with AsyncClient(url) as secure, AsyncClient("http://127.0.0.1:1") as plain:
        assert trusted(secure) > 50
        assert trusted(plain) == 0


@pytest.mark.parametrize("patience_s", [60.0, 600.0])
async def test_an_append_that_may_be_written_is_not_repeated_when_its_key_may_be_forgotten(
    autojump_clock: trio.testing.MockClock, patience_s: float
) -> None:
    """The patience counts from the first failure, and an attempt may take 90 s until it fails."""
    at: list[float] = []

    async def silent(request: httpx.Request) -> httpx.Response:
        at.append(trio.current_time())
        if len(at) == 1:
            await trio.sleep(90)
            raise httpx.ReadTimeout("silent")
        raise httpx.ConnectError("refused")

    async with AsyncClient("http://fake", transport=httpx.MockTransport(silent), patience_s=patience_s) as client:
        with pytest.raises(Unavailable) as raised:
            await client.publish("t", 1)
    assert 95 < at[-1] - at[0] <= 100
    assert raised.value.outcome == "unknown", "of the first attempt, though the last one was not done"


@pytest.mark.parametrize(
    ("before", "outcome"), [(httpx.ReadError("cut"), "unknown"), (httpx.ConnectError("no"), "not_done")]
)
async def test_a_refusal_after_an_attempt_that_may_have_been_carried_out_is_not_told_as_not_done(
    autojump_clock: trio.testing.MockClock, before: Exception, outcome: str
) -> None:
    answers = [before, httpx.Response(404, json={"error": {"code": "topic_not_found", "message": "no"}})]

    def refused(request: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with AsyncClient("http://fake", transport=httpx.MockTransport(refused)) as client:
        with pytest.raises(TopicsError, match="no") as raised:
            await client.publish("t", 1)
    assert raised.value.outcome == outcome


async def test_an_append_that_was_certainly_not_done_is_repeated_for_the_whole_patience(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began, at = trio.current_time(), []

    def refused(request: httpx.Request) -> httpx.Response:
        at.append(trio.current_time() - began)
        if at[-1] < 200:
            raise httpx.ConnectError("refused")
        if at[-1] < 290:
            raise httpx.ReadError("cut")
        return appended(1, 1)

    async with AsyncClient("http://fake", transport=httpx.MockTransport(refused), patience_s=300) as client:
        await client.publish("t", 1)
    assert 290 <= at[-1] <= 300
