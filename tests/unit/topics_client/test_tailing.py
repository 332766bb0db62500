"""Tailing: how a tail continues after a break, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from tests.unit.topics_client.fake import Fake, answer, error, frame, records, session, stream
from topics_client import Forbidden, Gap, InvalidRequest, TopicDeleted, TopicNotFound, Unavailable

NEW = {"gap_from": 1, "gap_to": 9, "reason": "recreated", "earliest_seq": 1, "head_seq": 9}


Clock = trio.testing.MockClock


async def take(tail: Any, number: int) -> list[Any]:
    return [await anext(tail) for _ in range(number)]


def committed(fake: Fake) -> list[int]:
    """The positions of a cursor that were sent."""
    return [body["seq"] for body, path in zip(fake.bodies, fake.paths, strict=True) if path.startswith("PUT")]


async def test_a_tail_that_breaks_goes_on_with_the_id_of_its_last_frame(autojump_clock: Clock) -> None:
    fake = Fake(
        [
            session(t=0),
            stream(records("t", 1, 2), httpx.ReadError("cut")),
            httpx.ConnectError("refused"),
            stream(records("t", 2, 3)),
        ]
    )
    async with fake.client() as client, client.tail("t") as tail:
        assert [item.seq for item in await take(tail, 3)] == [1, 2, 3]  # 2 came twice, and is given once
        assert tail.seq == 3
    assert fake.paths == ["POST /v0/watch", *["GET /v0/watch/w"] * 3]
    assert [request.headers.get("Last-Event-ID") for request in fake.requests] == [None, None, "t2", "t2"]


async def test_a_session_that_is_gone_is_made_again_from_the_positions(autojump_clock: Clock) -> None:
    fake = Fake(
        [
            session(a=0, b=7),
            stream(records("a", 1, 2)),
            error(404, "not_found"),
            session("new", a=2, b=7),
            stream(frame("error", code=410, error="gone")),
            session("newer", a=2, b=7),
            stream(records("b", 8, 8)),
        ]
    )
    async with fake.client() as client, client.tail({"a": 0, "b": None}) as tail:
        assert [(item.topic, item.seq) for item in await take(tail, 3)] == [("a", 1), ("a", 2), ("b", 8)]
    assert [body["topics"] for body in fake.bodies if body] == [
        {"a": {"from_seq": 0}, "b": {"tail": True}},
        {"a": {"from_seq": 2}, "b": {"from_seq": 7}},
        {"a": {"from_seq": 2}, "b": {"from_seq": 7}},
    ]


async def test_a_stream_that_breaks_before_a_frame_has_its_session_made_again(autojump_clock: Clock) -> None:
    fake = Fake([session(t=4), stream(b": hb 1\n\n"), session("x", t=4), stream(records("t", 5, 5))])
    async with fake.client() as client, client.tail("t", from_seq=4) as tail:
        assert (await anext(tail)).seq == 5


async def test_a_tail_waits_as_long_as_a_service_that_stops_asks_for(autojump_clock: Clock) -> None:
    ends = b"retry: 2000\n\n", frame("error", code=503, error="shutting down", retry_after_ms=1000)
    fake = Fake([session(t=4), *(stream(records("t", 5, 5), *ends) for _ in range(5)), stream(records("t", 6, 6))])
    begun = trio.current_time()
    async with fake.client() as client, client.tail("t", from_seq=4) as tail:
        assert [item.seq for item in await take(tail, 2)] == [5, 6]
    assert trio.current_time() - begun >= 5


async def test_a_tail_that_waits_for_its_service_says_so_once_and_again_when_it_is_back(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "topics_client.connection")
    away = [httpx.ConnectError("refused")] * 20
    fake = Fake([session(t=4), stream(records("t", 5, 5)), *away, stream(records("t", 6, 6))])
    async with fake.client() as client, client.tail("t", from_seq=4) as tail:
        assert [item.seq for item in await take(tail, 2)] == [5, 6]
    first, last = [each.getMessage() for each in caplog.records if each.name == "topics_client.connection"]
    assert first.endswith("ConnectError: refused); trying again")
    assert last.startswith("http://fake: the service answers again, after ")


async def test_a_tail_can_be_closed_while_a_read_of_it_waits(autojump_clock: Clock) -> None:
    """As after Ctrl-C: the blocking client leaves its loop before the read has ended."""

    async def endless() -> AsyncIterator[bytes]:
        yield records("t", 1, 1)
        await trio.sleep(3)
        yield records("t", 2, 2)

    live = httpx.Response(200, content=endless(), headers={"Content-Type": "text/event-stream"})
    fake = Fake([session(t=0), live])
    async with fake.client() as client, client.tail("t") as tail:
        assert (await anext(tail)).seq == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, tail)
            await trio.testing.wait_all_tasks_blocked()
            await tail.aclose()
            nursery.cancel_scope.cancel()


async def test_deleted_topics_are_told_and_the_last_one_ends_the_tail(autojump_clock: Clock) -> None:
    fake = Fake([session(a=0, b=0), stream(frame("topic-deleted", "x", topic="a")), stream(), error(404, "not_found")])
    fake.answers += [error(404, "topic_not_found")]
    async with fake.client() as client, client.tail(["a", "b"]) as tail:
        assert [item async for item in tail] == [TopicDeleted("a"), TopicDeleted("b")]
    assert fake.requests[-1].url.params["lenient"] == "true"


async def test_a_tail_of_a_prefix_takes_topics_as_they_come(autojump_clock: Clock) -> None:
    fake = Fake(
        [
            session(a=7),
            stream(
                records("a", 8, 8), records("ab", 1, 2), frame("topic-deleted", "x", topic="ab"), records("ab", 1, 1)
            ),
            error(404, "not_found"),
            session("new", a=8, ab=1, ac=0),
            stream(records("ac", 1, 1)),
        ]
    )
    async with fake.client() as client, client.tail(prefix="a", from_seq=None) as tail:
        items = [(item.topic, getattr(item, "seq", None)) for item in await take(tail, 6)]
    assert items[:3] == [("a", 8), ("ab", 1), ("ab", 2)]
    assert items[4:] == [("ab", 1), ("ac", 1)]
    first, second = (body for body in fake.bodies if body)
    assert (first["topics"], first["prefix"], first["tail"]) == ({}, "a", True)
    assert (second["topics"], second["tail"]) == ({"a": {"from_seq": 8}, "ab": {"from_seq": 1}}, False)
    with pytest.raises(ValueError, match="no cursor"):
        client.tail(prefix="a", cursor="c")


async def test_a_topic_that_is_not_there_is_an_error_at_the_start() -> None:
    async with Fake([error(404, "topic_not_found")]).client() as client:
        with pytest.raises(TopicNotFound):
            await anext(client.tail("t"))


async def test_a_tail_of_a_topic_made_again_begins_at_its_first_record() -> None:
    fake = Fake([session(t=50), stream(frame("tombstone", "x", topic="t", **NEW), records("t", 1, 2))])
    async with fake.client() as client, client.tail("t", from_seq=50, gaps="yield") as tail:
        assert [item.seq for item in await take(tail, 3)] == [0, 1, 2]


@pytest.mark.parametrize("found", [True, False], ids=["known", "new"])
async def test_a_new_cursor_that_begins_at_the_head_is_stored_before_the_first_record(found: bool) -> None:
    """So that the next run gets the record in hand again, and all that were written meanwhile."""
    cursor = answer(200, {"seq": 100}) if found else error(404, "cursor_not_found")
    stored = [] if found else [answer(200, {})]
    fake = Fake([cursor, session(t=100), *stored, stream(records("t", 101, 101))])
    async with fake.client() as client:
        with suppress(KeyError):
            async with client.tail("t", from_seq=None, cursor="c") as tail:
                assert (await anext(tail)).seq == 101
                raise KeyError
    assert committed(fake) == ([] if found else [100])


def lost(first: int, last: int) -> bytes:
    gap = {"gap_from": first, "gap_to": last, "reason": "cap", "earliest_seq": last + 1, "head_seq": last + 2}
    return frame("tombstone", f"t{last}", topic="t", **gap)


@pytest.mark.parametrize(
    ("repeated", "then"),
    [((1, 11), []), ((1, 12), []), ((1, 13), [(13, 13)]), ((13, 14), [(13, 14)])],
    ids=["delivered", "up to the position", "longer", "new"],
)
async def test_of_a_gap_that_is_repeated_only_what_is_after_the_position_is_given(
    autojump_clock: Clock, repeated: tuple[int, int], then: list[tuple[int, int]]
) -> None:
    """A gap that has grown over records that were delivered does not name them."""
    again = stream(lost(*repeated), records("t", repeated[1] + 1, 15))
    fake = Fake([session(t=0), stream(lost(1, 10), records("t", 11, 12), httpx.ReadError("cut")), again])
    async with fake.client() as client, client.tail("t", gaps="yield") as tail:
        items = [await anext(tail)]
        while items[-1].seq < 15:
            items.append(await anext(tail))
    gaps = [(item.first_seq, item.last_seq) for item in items if isinstance(item, Gap)]
    seqs = [item.seq for item in items if not isinstance(item, Gap)]
    assert gaps == [(1, 10), *then]
    assert seqs == [seq for seq in range(11, 16) if not any(first <= seq <= last for first, last in then)]


async def test_records_that_are_repeated_in_several_frames_are_given_once(autojump_clock: Clock) -> None:
    again = stream(records("t", 1, 2), records("t", 3, 5), records("t", 6, 6))
    fake = Fake([session(t=0), stream(records("t", 1, 5), httpx.ReadError("cut")), again])
    async with fake.client() as client, client.tail("t") as tail:
        assert [item.seq for item in await take(tail, 6)] == [1, 2, 3, 4, 5, 6]


async def test_a_tail_continues_when_a_batch_can_not_be_committed_and_commits_after_the_next_one(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    live = stream(*(records("t", seq, seq) for seq in (1, 2, 3, 4)))
    away = error(503, "not_ready"), httpx.ConnectError("refused")
    fake = Fake([answer(200, {"seq": 0}), session(t=0), live, *away, answer(200, {}), answer(200, {})])
    async with fake.client(patience_s=0) as client, client.tail("t", cursor="c") as tail:
        assert [item.seq for item in await take(tail, 4)] == [1, 2, 3, 4]
        await tail.commit()
    assert committed(fake) == [1, 2, 3, 4]
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "cursor c is stored after a later batch: not_ready",
        "cursor c is stored after a later batch: ConnectError: refused",
    ]


async def test_a_tail_ends_by_a_commit_that_is_refused() -> None:
    fake = Fake([answer(200, {"seq": 0}), session(t=0), stream(records("t", 1, 1)), error(403, "forbidden")])
    async with fake.client() as client:
        tail = client.tail("t", cursor="c")
        assert (await anext(tail)).seq == 1
        with pytest.raises(Forbidden):
            await anext(tail)


async def test_a_topic_that_is_recreated_while_a_batch_is_in_hand_is_read_from_its_first_record(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    new = frame("tombstone", "n", topic="t", **NEW), records("t", 1, 2)
    refused = error(400, "invalid_request", {"field": "seq", "head_seq": 2})
    fake = Fake([answer(200, {"seq": 49}), session(t=49), stream(records("t", 50, 50), *new), refused])
    fake.answers += [answer(200, {})] * 2
    async with fake.client() as client, client.tail("t", cursor="c", gaps="yield") as tail:
        assert [item.seq for item in await take(tail, 4)] == [50, 0, 1, 2]
    assert committed(fake) == [50, 0, 1]
    assert "t was deleted, and its cursor c with it" in caplog.messages


async def test_a_commit_that_is_refused_though_the_topic_is_longer_ends_the_tail(autojump_clock: Clock) -> None:
    refused = error(400, "invalid_request", {"field": "seq", "head_seq": 51})
    fake = Fake([answer(200, {"seq": 49}), session(t=49), stream(records("t", 50, 50)), refused])
    async with fake.client() as client:
        tail = client.tail("t", cursor="c")
        assert (await anext(tail)).seq == 50
        with pytest.raises(InvalidRequest):
            await anext(tail)


async def test_the_commit_at_the_end_of_a_tail_raises(autojump_clock: Clock) -> None:
    fake = Fake([answer(200, {"seq": 0}), session(t=0), stream(records("t", 1, 2)), httpx.ConnectError("refused")])
    async with fake.client(patience_s=0) as client:
        with pytest.raises(Unavailable):
            async with client.tail("t", cursor="c") as tail:
                await take(tail, 2)
