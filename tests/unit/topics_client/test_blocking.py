"""The blocking client has what the other one has, with the same parameters."""

from __future__ import annotations

import inspect
import json
import typing
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.unit.topics_client.fake import Fake, answer, appended, page, records, session, stream
from topics_client import AsyncClient, Client, Work
from topics_client.blocking import _Loop

OTHERWISE = {"aclose", "work", "worker"}
"""`close`, and `work` with an event that stops it."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_each_method_is_there_with_its_parameters() -> None:
    assert public(AsyncClient) - OTHERWISE == public(Client) - {"close", "work"}
    for name in public(AsyncClient) - OTHERWISE:
        blocking, awaited = (inspect.signature(getattr(kind, name)).parameters for kind in (Client, AsyncClient))
        assert blocking == awaited


def test_a_reader_that_raises_at_gaps_is_typed_as_one_of_records() -> None:
    for kind, prefix in ((AsyncClient, ""), (Client, "Blocking")):
        for method, raising, giving in (
            (kind.read, "Reading[Record]", "Reading[Record | Gap]"),
            (kind.tail, "Tail[Record | TopicDeleted]", "Tail[Item]"),
        ):
            told = [each.__annotations__["return"] for each in typing.get_overloads(method)]
            assert told == [prefix + raising, prefix + giving]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_calls_iterators_and_publishers_block(backend: str) -> None:
    fake = Fake([appended(1, 1), appended(2, 2), page(1, 2, 2), answer(200, {"deleted": True})])
    with Client("http://fake", transport=httpx.MockTransport(fake), backend=backend) as client:
        assert client.publish("t", 1).last_seq == 1
        with client.publisher("t") as publisher:
            publisher.send(2)
        assert publisher.published == 1
        assert [record.data for record in client.read("t")] == [1, 2]
        assert client.delete_topic("t")


def test_work_needs_a_handler() -> None:
    with Client("http://fake", transport=httpx.MockTransport(Fake([]))) as client:
        with pytest.raises(TypeError, match="handler"):
            client.work("q")
        assert Work("q", print).queue == "q"


def test_the_loop_is_asked_once_a_batch_not_once_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    call = _Loop.call

    def counted(loop: _Loop, *args: typing.Any, **options: typing.Any) -> typing.Any:
        nonlocal calls
        calls += 1
        return call(loop, *args, **options)

    monkeypatch.setattr(_Loop, "call", counted)
    fake = Fake(
        [appended(1, 500), appended(501, 1000), page(1, 1000, 1000), session(t=0), stream(records("t", 1, 1000))]
    )
    with Client("http://fake", transport=httpx.MockTransport(fake)) as client:
        with client.publisher("t", batch_records=500) as publisher:
            for number in range(1000):
                publisher.send(number)
        assert len(list(client.read("t"))) == 1000
        with client.tail("t") as tail:
            assert [next(tail).seq for _ in range(1000)] == list(range(1, 1001))
    assert calls < 20


def test_threads_that_share_a_publisher_lose_nothing_to_its_timer() -> None:
    written: list[int] = []

    def append(request: httpx.Request) -> httpx.Response:
        told = json.loads(request.content)["records"]
        written.extend(record["data"] for record in told)
        return appended(len(written) - len(told) + 1, len(written))

    with (
        Client("http://fake", transport=httpx.MockTransport(append)) as client,
        client.publisher("t", batch_records=7, linger_s=0.0001) as publisher,
        ThreadPoolExecutor(4) as threads,
    ):
        for _ in threads.map(publisher.send, range(4000)):
            pass
    assert sorted(written) == list(range(4000))
    assert publisher.published == 4000


def test_threads_that_share_an_iterator_get_each_record_once() -> None:
    at_head = [page(2001, 2000, 2000) for _ in range(3)]  # each thread meets the end by itself
    fake = Fake([page(1, 1000, 2000), page(1001, 2000, 2000), *at_head])
    with Client("http://fake", transport=httpx.MockTransport(fake)) as client, ThreadPoolExecutor(4) as threads:
        reading = client.read("t")
        parts = threads.map(lambda _: [record.seq for record in reading], range(4))
        assert sorted(seq for part in parts for seq in part) == list(range(1, 2001))


def test_a_publisher_of_a_closed_client_takes_no_record() -> None:
    client = Client("http://fake", transport=httpx.MockTransport(Fake([])))
    publisher = client.publisher("t")
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.send(1)
