"""Reading: positions, gaps, and what a loop that is left commits."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
import trio.testing

from tests.unit.topics_client.fake import Fake, answer, error, frame, page, records, session, stream
from topics_client import Forbidden, Gap, GapError, Record
from topics_client.tailing import COMMIT_S, EventLines

LOST = {"gap_from": 1, "gap_to": 4, "reason": "cap", "earliest_seq": 5, "head_seq": 6}
Clock = trio.testing.MockClock


async def test_a_read_goes_to_the_head() -> None:
    fake = Fake([page(1, 2, 3), page(3, 3, 3)])
    async with fake.client() as client:
        reading = client.read("t", limit=2)
        seen = []
        async for record in reading:
            assert isinstance(record, Record)
            assert reading.seq == record.seq
            seen.append(record.data)
    assert seen == [1, 2, 3]
    assert [body["from_seq"] for body in fake.bodies] == [0, 2]


async def test_records_that_leave_no_room_on_the_stack_are_read() -> None:
    old = httpx.Response(200, content=page(1, 1, 1).content.replace(b'"data":1', b'"data":' + b"[" * 970 + b"]" * 970))
    async with Fake([old]).client() as client:
        async for record in client.read("t"):
            assert isinstance(record, Record)
            value, levels = record.data, 1
            while value:
                value, levels = value[0], levels + 1
            assert levels == 970


async def test_a_read_that_waits_ends_when_nothing_comes() -> None:
    fake = Fake([page(1, 2, 2), page(3, 2, 2)])
    async with fake.client() as client:
        assert len([record async for record in client.read("t", wait_ms=50)]) == 2


async def test_a_read_may_wait_for_longer_than_one_request() -> None:
    quiet = [page(3, 2, 2), page(3, 2, 2)]
    fake = Fake([page(1, 1, 1), page(2, 1, 1), page(2, 2, 2), *quiet, page(3, 2, 2), page(3, 3, 3), page(4, 3, 3)])
    async with fake.client() as client:
        reading = client.read("t", wait_ms=50_000)
        assert [record.seq async for record in reading] == [1, 2]
        assert [body["wait_ms"] for body in fake.bodies] == [30_000, 30_000, 20_000, 30_000, 20_000]
        assert await anext(reading) == Record("t", 3, 1, 3)
        assert [body["wait_ms"] for body in fake.bodies[5:]] == [30_000, 20_000], "the next iteration waits as long"


async def test_a_read_of_a_cursor_begins_there() -> None:
    fake = Fake([page(8, 8, 9), page(9, 9, 9)])
    async with fake.client() as client:
        assert [record.seq async for record in client.read("t", cursor="c")] == [8, 9]
    assert [(body.get("cursor"), body.get("from_seq")) for body in fake.bodies] == [("c", None), (None, 8)]


async def test_a_gap_is_given_or_raised_and_the_read_goes_on_behind_it() -> None:
    async with Fake([page(5, 6, 6, LOST)]).client() as client:
        items = [item async for item in client.read("t", gaps="yield")]
    assert items[0] == Gap("t", 1, 4, "cap", 5)
    assert [item.seq for item in items] == [4, 5, 6]
    async with Fake([page(5, 6, 6, LOST)]).client() as client:
        reading = client.read("t")
        with pytest.raises(GapError, match="records 1 to 4 are lost"):
            await anext(reading)
        assert reading.seq == 4
        assert [item.seq async for item in reading] == [5, 6]


def test_events_may_come_in_any_pieces() -> None:
    content = b"retry: 2000\n\n: hb 1\n\nid: a\nevent: record\ndata: {\ndata: }\n\r\nevent: x\ndata:1\n\n"
    events = EventLines()
    found = [each for at in range(len(content)) for each in events.feed(content[at : at + 1])]
    assert found == [("record", "a", "{\n}"), ("x", None, "1")]
    assert list(EventLines().feed(content)) == found


async def divided_after(tail: Any, number: int) -> float:
    await take(tail, number)
    return 1 / 0


async def take(tail: Any, number: int) -> list[Any]:
    return [await anext(tail) for _ in range(number)]


async def test_a_cursor_is_committed_after_each_batch(autojump_clock: Clock) -> None:
    fake = Fake(
        [
            answer(200, {"seq": 3}),
            session(t=3),
            stream(records("t", 4, 5), records("t", 6, 6)),
            answer(200, {"seq": 5}),
            answer(200, {"seq": 6}),
            stream(records("t", 7, 7)),
        ]
    )
    async with fake.client() as client, client.tail("t", cursor="c") as tail:
        await take(tail, 4)
    assert fake.bodies[1]["topics"] == {"t": {"from_seq": 3}}
    assert [body["seq"] for body in fake.bodies if body and "seq" in body] == [5, 6]


async def test_a_cursor_that_was_never_set_begins_at_from_seq_and_is_committed_by_the_caller() -> None:
    fake = Fake(
        [error(404, "cursor_not_found"), session(t=2), stream(records("t", 3, 4), b""), answer(200, {"seq": 3})]
    )
    async with fake.client() as client, client.tail("t", from_seq=2, cursor="c", commit="manual") as tail:
        await anext(tail)
        await tail.commit()
        await tail.commit()
    assert fake.bodies[3] == {"seq": 3}
    assert len(fake.requests) == 4


def commits(fake: Fake) -> list[tuple[str, int]]:
    found = [
        (path.split("/")[3], body["seq"]) for path, body in zip(fake.paths, fake.bodies, strict=True) if "PUT" in path
    ]
    assert fake.answers == []
    return found


def started(*answers: Any) -> Fake:
    """A tail of `t` with the cursor `c` at 3, and three records after it in one frame."""
    return Fake([answer(200, {"seq": 3}), session(t=3), stream(records("t", 4, 6)), *answers])


@pytest.mark.parametrize("ending", ["break", "error", "cancellation"])
async def test_leaving_a_loop_commits_the_items_before_the_one_in_hand(ending: str, autojump_clock: Clock) -> None:
    fake = started(answer(200, {"seq": 4}))
    async with fake.client() as client:
        with trio.CancelScope() as scope:
            try:
                async with client.tail("t", cursor="c") as tail:
                    async for item in tail:
                        if item.seq == 5 and ending == "break":
                            break
                        if item.seq == 5 and ending == "error":
                            raise ZeroDivisionError
                        if item.seq == 5:
                            scope.cancel()
                            await trio.lowlevel.checkpoint()
            except ZeroDivisionError:
                assert ending == "error"
    assert commits(fake) == [("t", 4)]


async def test_an_item_in_hand_is_committed_if_the_caller_says_that_it_is_done() -> None:
    fake = started(answer(200, {"seq": 5}))
    async with fake.client() as client, client.tail("t", cursor="c") as tail:
        async for item in tail:
            if item.seq == 5:
                await tail.commit()
                break
    assert commits(fake) == [("t", 5)]


async def test_leaving_at_the_first_item_and_before_any_commits_nothing() -> None:
    fake = started()
    async with fake.client() as client, client.tail("t", cursor="c") as tail:
        await anext(tail)
    assert commits(fake) == []
    fake = Fake([answer(200, {"seq": 3}), session(t=3)])
    async with fake.client() as client, client.tail("t", cursor="c"):
        pass
    assert commits(fake) == []


async def test_a_manual_tail_and_one_without_a_cursor_commit_nothing_at_their_end() -> None:
    fake = started()
    async with fake.client() as client, client.tail("t", cursor="c", commit="manual") as tail:
        await take(tail, 3)
    assert commits(fake) == []
    fake = Fake([session(t=3), stream(records("t", 4, 6))])
    async with fake.client() as client, client.tail("t", from_seq=3) as tail:
        await take(tail, 3)
    assert commits(fake) == []


async def test_a_cancellation_while_the_caller_waits_finds_all_items_done(autojump_clock: Clock) -> None:
    fake = Fake([answer(200, {"seq": 3}), session(t=3), stream(records("t", 4, 5), httpx.ReadError("cut"))])
    fake.answers += [answer(200, {"seq": 5})]
    async with fake.client() as client:
        with trio.move_on_after(0.01):  # shorter than the pause after the stream broke
            async with client.tail("t", cursor="c") as tail:
                async for _ in tail:
                    pass
    assert commits(fake) == [("t", 5)]


async def test_a_gap_that_is_raised_is_not_done_and_raised_again_next_time() -> None:
    gap = frame("tombstone", topic="t", gap_from=6, gap_to=8, reason="cap", earliest_seq=9)
    fake = Fake([answer(200, {"seq": 3}), session(t=3), stream(records("t", 4, 5) + gap), answer(200, {"seq": 5})])
    async with fake.client() as client:
        with pytest.raises(GapError):
            async with client.tail("t", cursor="c") as tail:
                await take(tail, 3)
    assert commits(fake) == [("t", 5)]


async def test_topics_of_a_tail_are_committed_apart() -> None:
    both = stream(records("a", 1, 2) + records("b", 7, 8))
    fake = Fake([error(404, "cursor_not_found"), answer(200, {"seq": 6}), session(a=0, b=6), both])
    fake.answers += [answer(200, {}), answer(200, {})]
    async with fake.client() as client, client.tail(["a", "b"], cursor="c") as tail:
        await take(tail, 4)
    assert commits(fake) == [("a", 2), ("b", 7)]


async def test_a_commit_that_fails_is_raised_but_hides_no_error_of_the_caller(autojump_clock: Clock) -> None:
    fake = started(error(403, "forbidden"))
    async with fake.client() as client:
        with pytest.raises(Forbidden):
            async with client.tail("t", cursor="c") as tail:
                await take(tail, 2)
    fake = started(*[error(503, "not_ready")] * 50)
    start = trio.current_time()
    async with fake.client() as client:
        tail = client.tail("t", cursor="c")
        with pytest.raises(ZeroDivisionError):
            async with tail:
                await divided_after(tail, 2)
    assert trio.current_time() - start == pytest.approx(COMMIT_S, abs=3)
