"""The blocking client has what the other one has, with the same parameters."""

from __future__ import annotations

import inspect
import typing

import httpx
import pytest

from tests.unit.topics_client.fake import Fake, answer, appended, page
from topics_client import AsyncClient, Client, Work

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
