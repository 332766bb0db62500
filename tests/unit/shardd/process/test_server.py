"""Claims about the server of a shard: what leaves a machine that may not answer, and long work that lets others run."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from types import SimpleNamespace

import trio

from proto.ipc.askers import Census
from proto.ipc.message import Cancel, Message, Packet, Parked, Reply, Request, Status, Taken
from proto.ipc.operations import Append, Claim, Diff
from proto.ipc.send_window import Window
from proto.model.errors import ErrorCode, moving, not_ready, not_renewed
from proto.model.limits import Limits
from shardd.process.server import Server, _send_if, _status_if, _to_the_end, in_slices
from tests.support.harness import Harness
from tests.support.queues import claim, queue


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
    undone = Reply(10, error=not_renewed("not_done"))
    send(undone, b"g0.1")
    partly = Reply(11, error=not_ready("x", **(undone.error.detail or {}), redriven=2))  # type: ignore[union-attr]
    send(partly, b"g0.1")
    last, _ = sent.pop()
    assert isinstance(last, Reply)
    assert last.error is not None
    assert last.error.detail == not_renewed("unknown").detail, "some of it was done"
    assert [message for message, _ in sent[3:]] == [moved, undone], "not done, whichever machine holds the shard"


def test_a_machine_that_may_not_answer_leases_no_job() -> None:
    shard = queue(Harness())
    shard.append("q", 0)
    sent: list[tuple[Message, bytes]] = []
    serving = False
    socket = SimpleNamespace(send=lambda message, peer: sent.append((message, peer)))
    served = Server(shard.shard, socket, Limits(), serving=lambda: serving, census=Census({"g0": 1}))  # type: ignore[arg-type]
    ask = Request(1, Claim(), "q", b'{"node":"w","max":1}')
    served._handle([(b"g0.1", Packet([ask]))])
    ((refusal, _),) = sent
    assert isinstance(refusal, Reply)
    assert refusal.error is not None
    assert refusal.error.detail == {"reason": "term_not_renewed", "outcome": "not_done"}
    serving = True
    assert [job["deliveries"] for job in claim(shard)] == [1]


def test_a_deferred_request_that_is_cancelled_gives_its_window_back() -> None:
    shard = Harness()
    shard.append("log", "x" * 5000)
    sent: list[Message] = []
    socket = SimpleNamespace(send=lambda message, peer: sent.append(message))
    served = Server(shard.shard, socket, Limits(), census=Census({"g0": 1}))  # type: ignore[arg-type]
    served._replies.most = 5000
    peer, window = b"g0.1", Window()

    def say(*messages: Message) -> None:
        for message in messages:
            if isinstance(message, Request):
                window.sent(message.id, len(message.body))
            elif isinstance(message, Cancel):
                window.given_up(message.id)
        served._handle([(peer, Packet([*messages]))])
        shard.shard.commits.sync_now()

    say(*(Request(ident, Diff(), "log", b'{"from_seq":0}') for ident in (1, 2)))
    assert served._replies.full(peer)
    write = b'{"records":[{"data":"%b"}]}' % (b"y" * 50_000)
    say(Request(3, Append(), "log", write), Request(4, Append(), "log", write))
    say(Cancel(4), Cancel(1))
    assert window.bytes == 2 * len(write), "the asker is full, and the write before it is not answered"
    say(Cancel(3), Taken(1 << 20))
    for message in sent:
        window.answered(message.id)
    assert [message.id for message in sent if message.body] == [1, 2]
    assert window.bytes == 0, "no later request was answered"
    assert shard.shard.directory.find("log").records.head_seq == 1
    say(Cancel(3), Cancel(9))
    assert len(sent) == 4, "each is answered once"


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
