"""Publishing: batches, their keys, and what a retry repeats."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import trio
import trio.testing

from tests.unit.topics_client.fake import Fake, appended, error
from topics_client import Forbidden, Json, NewRecord, Published, RecordTooLarge, Unavailable
from topics_client.publishing import Publisher


async def test_one_record() -> None:
    fake = Fake([appended(5, 5)])
    async with fake.client() as client:
        done = await client.publish("t", {"a": 1}, tag="x", idempotency_key="k", config={"durability": "fsync"})
    assert done == Published("t", 5, 5, 1)
    record = {"data": {"a": 1}, "tag": "x"}
    assert fake.bodies == [{"idempotency_key": "k", "config": {"durability": "fsync"}, "records": [record]}]
    assert fake.requests[0].url.params["return_seqs"] == "false"


async def test_records_go_in_batches_with_keys_that_a_repetition_has_again() -> None:
    given = [NewRecord(0), {"data": 1, "tag": "t"}, NewRecord(2)]
    for _ in range(2):
        fake = Fake([appended(1, 2), appended(7, 7, deduped=True)])
        async with fake.client() as client:
            done = await client.publish("t", records=given, batch_records=2, idempotency_key="load")
        assert done == Published("t", 1, 7, 3, deduped=True)
        assert [(body["idempotency_key"], len(body["records"])) for body in fake.bodies] == [("load", 2), ("load:1", 1)]


async def test_a_batch_has_its_bytes() -> None:
    fake = Fake([appended(1, 2), appended(3, 3)])
    async with fake.client() as client:
        await client.publish("t", records=[{"data": "x" * 40}] * 3, batch_bytes=110)
    assert [len(body["records"]) for body in fake.bodies] == [2, 1]


async def test_a_retry_after_an_unknown_outcome_has_the_same_key(autojump_clock: trio.testing.MockClock) -> None:
    unknown = error(503, "not_ready", {"outcome": "unknown"}, Retry_After="1")
    fake = Fake([httpx.ReadError("cut"), unknown, appended(1, 1, deduped=True)])
    async with fake.client() as client:
        assert (await client.publish("t", 1)).deduped
    assert len({body["idempotency_key"] for body in fake.bodies}) == 1
    assert len(fake.bodies) == 3


async def test_an_error_says_the_key_for_a_later_repetition(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake([httpx.ReadError("cut") for _ in range(99)])
    async with fake.client(patience_s=1) as client:
        with pytest.raises(Unavailable) as raised:
            await client.publish("t", 1)
    assert (raised.value.outcome, raised.value.idempotency_key) == ("unknown", fake.bodies[0]["idempotency_key"])


async def test_nothing_to_publish_is_an_error() -> None:
    async with Fake([]).client() as client:
        with pytest.raises(ValueError, match="no records"):
            await client.publish("t", records=[])


async def test_a_publisher_gathers_and_flushes_at_its_end() -> None:
    fake = Fake([appended(1, 2), appended(3, 3)])
    async with fake.client() as client, client.publisher("t", batch_records=2) as publisher:
        await publisher.send(1)
        await publisher.send(2)
        assert not fake.requests
        await publisher.send(3, tag="x")
        assert (len(fake.requests), publisher.published) == (1, 2)
    assert [[each["data"] for each in body["records"]] for body in fake.bodies] == [[1, 2], [3]]
    assert publisher.published == 3


async def test_a_publisher_repeats_a_failed_batch_with_its_key() -> None:
    fake = Fake([error(400, "record_too_large"), appended(1, 1), appended(2, 2)])
    async with fake.client() as client, client.publisher("t") as publisher:
        await publisher.send(1)
        with pytest.raises(RecordTooLarge):
            await publisher.flush()
        await publisher.send(2)
    assert [[each["data"] for each in body["records"]] for body in fake.bodies] == [[1], [1], [2]]
    assert fake.bodies[0] == fake.bodies[1]


@pytest.mark.parametrize("linger_s", [None, 60])
async def test_a_publisher_that_is_cancelled_flushes(linger_s: float | None) -> None:
    fake = Fake([appended(1, 1)])
    async with fake.client() as client:
        with trio.CancelScope() as scope:
            async with client.publisher("t", linger_s=linger_s) as publisher:
                await publisher.send(1)
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert publisher.published == 1


async def test_a_publisher_that_is_cancelled_while_its_timer_ends_flushes() -> None:
    fake = Fake([appended(1, 1)])
    async with fake.client() as client:
        with trio.CancelScope() as scope:
            async with client.publisher("t", linger_s=60) as publisher:
                await publisher.send(1)
                scope.cancel()
    assert publisher.published == 1


@pytest.mark.parametrize("linger_s", [None, 60])
def test_a_publisher_whose_task_asyncio_cancels_flushes(linger_s: float | None) -> None:
    """As Ctrl-C does."""
    fake = Fake([appended(1, 1)])

    async def publish(publisher: Publisher, sent: asyncio.Event) -> None:
        async with publisher:
            await publisher.send(1)
            sent.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with fake.client() as client:
            publisher, sent = client.publisher("t", linger_s=linger_s), asyncio.Event()
            task = asyncio.create_task(publish(publisher, sent))
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert publisher.published == 1

    asyncio.run(main())


async def test_tasks_that_share_a_publisher_write_each_record_once() -> None:
    seqs = iter(range(1, 100))
    fake = Fake([lambda request: appended(first := next(seqs), first)] * 20)
    async with (
        fake.client() as client,
        client.publisher("t", batch_records=1) as publisher,
        trio.open_nursery() as tasks,
    ):
        for number in range(10):
            tasks.start_soon(publisher.send, number)
    assert sorted(body["records"][0]["data"] for body in fake.bodies) == list(range(10))


async def test_a_publisher_with_a_linger_writes_what_waits(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake([appended(1, 2), appended(3, 3)])
    async with fake.client() as client, client.publisher("t", linger_s=0.5) as publisher:
        await publisher.send(1)
        await trio.sleep(0.4)
        await publisher.send(2)
        assert publisher.published == 0
        await trio.sleep(0.2)
        assert publisher.done == Published("t", 1, 2, 2)
        await trio.sleep(5)
        await publisher.send(3)
    assert publisher.done == Published("t", 1, 3, 3)
    assert [[record["data"] for record in body["records"]] for body in fake.bodies] == [[1, 2], [3]]


async def test_an_error_of_a_lingering_batch_is_raised_by_the_next_send(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fake = Fake([error(403, "forbidden"), appended(1, 1)])
    async with fake.client() as client, client.publisher("t", linger_s=0.5) as publisher:
        await publisher.send(1)
        await trio.sleep(1)
        with pytest.raises(Forbidden):
            await publisher.send(2)
    assert [[record["data"] for record in body["records"]] for body in fake.bodies] == [[1], [1]]


async def test_json_text_is_sent_as_it_is() -> None:
    fake = Fake([appended(1, 2)])
    async with fake.client() as client:
        text = Json(b'{"total":9.90,"n":123456789012345678901234567890}')
        await client.publish("t", records=[NewRecord(text, tag="a"), NewRecord(None)])
    assert fake.requests[0].content.endswith(b'"records":[{"data":%s,"tag":"a"},{"data":null}]}' % text)


async def test_text_stays_text_and_half_a_surrogate_pair_an_escape() -> None:
    fake = Fake([appended(1, 2)])
    async with fake.client() as client:
        await client.publish("t", records=[NewRecord("K\u00f8ln", tag="\u6771"), NewRecord("\ud800")])
    assert fake.requests[0].content.endswith(
        '"records":[{"data":"K\u00f8ln","tag":"\u6771"},{"data":"\\ud800"}]}'.encode()
    )
