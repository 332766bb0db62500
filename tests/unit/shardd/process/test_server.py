"""Claims about the server of a shard: what leaves a machine that may not answer, and long work that lets others run."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import trio

from proto.ipc.message import Message, Parked, Reply, Status
from proto.model.errors import ErrorCode, moving
from shardd.process.server import _send_if, _status_if, _to_the_end, in_slices


def test_a_machine_that_may_not_answer_refuses_in_place_of_each_reply() -> None:
    sent: list[tuple[Message, bytes]] = []
    serving = True
    send = partial(_send_if, lambda: serving, lambda message, peer: sent.append((message, peer)))
    answer, parked = Reply(7, b"{}", created=True), Parked(8)
    send(answer, b"g0.1")
    serving = False
    send(answer, b"g0.1")
    send(parked, b"g0.1")
    assert sent[0] == (answer, b"g0.1")
    refusal, peer = sent[1]
    assert isinstance(refusal, Reply)
    assert (refusal.id, refusal.body, refusal.created, peer) == (7, b"", False, b"g0.1")
    assert refusal.error is not None
    assert refusal.error.code is ErrorCode.NOT_READY
    assert refusal.error.detail == {"reason": "term_not_renewed", "outcome": "unknown"}
    assert sent[2] == (parked, b"g0.1"), "it promises nothing"
    moved = Reply(9, error=moving(3))
    send(moved, b"g0.1")
    assert sent[3] == (moved, b"g0.1"), "it was not done, whichever machine holds the shard"


def test_the_status_says_whether_the_machine_may_answer() -> None:
    status = Status(1, 2, 3)
    assert _status_if(lambda: True, lambda: status) is status
    silent = _status_if(lambda: False, lambda: status)
    assert (silent.topics, silent.records, silent.bytes, silent.silent) == (1, 2, 3, True)


async def test_other_tasks_run_between_slices() -> None:
    seen: list[str] = []

    def slices() -> Generator[None, None, str]:
        for _ in range(3):
            seen.append("slice")
            yield
        return "result"

    async def other() -> None:
        for _ in range(3):
            seen.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await in_slices(slices()) == "result"
    assert sorted(seen) == ["other"] * 3 + ["slice"] * 3
    assert "other" in seen[: len(seen) - seen[::-1].index("slice")], seen


async def test_slices_that_have_to_be_complete_are_run_although_cancelled() -> None:
    done: list[int] = []

    def slices() -> Generator[None, None, None]:
        for number in range(3):
            done.append(number)
            yield

    with trio.CancelScope() as scope:
        scope.cancel()
        await _to_the_end(slices())
    assert done == [0, 1, 2]
