"""Claims about deadlines: a request that arrives after its deadline is not carried out, and is answered so."""

from __future__ import annotations

import pytest

from proto.ipc.message import Message, Reply, Request, unpack
from proto.ipc.operations import DeleteRecords
from proto.model.errors import ErrorCode, TopicsError
from tests.support.asked import operation
from tests.support.harness import Harness
from tests.support.packed import pack

WRITE = b'{"records":[{"data":1}]}'


def sent(shard: Harness, op: str, topic: str, body: bytes, deadline_s: float) -> list[Reply]:
    replies: list[Reply] = []

    def respond(message: object) -> None:
        assert isinstance(message, Reply)
        replies.append(message)

    request = Request(7, operation(op, {}), topic, body, deadline_ns=int(deadline_s * 1e9))
    (again,) = unpack(pack([request])).messages
    assert isinstance(again, Request)
    shard.shard.handle(again, "gateway", respond)
    shard.shard.flush()
    shard.shard.commits.sync_now()
    return replies


@pytest.fixture
def shard() -> Harness:
    made = Harness()
    made.clock.advance(100_000)
    made.append("t", 0)
    return made


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("append", WRITE),
        ("configure", b'{"priority":3}'),
        ("delete_records", b'{"before_seq":2}'),
        ("delete_topic", b""),
    ],
)
def test_what_comes_too_late_changes_nothing(shard: Harness, op: str, body: bytes) -> None:
    before = shard.call("state", "t", touch=False), shard.shard.log.next_no
    (reply,) = sent(shard, op, "t", body, 99.0)
    assert reply.error is not None
    assert (reply.error.code, reply.error.detail) == (ErrorCode.NOT_READY, {"outcome": "not_done"})
    assert (shard.call("state", "t", touch=False), shard.shard.log.next_no) == before
    assert shard.restarted().call("state", "t", touch=False)["head_seq"] == 1


def test_what_comes_in_time_is_carried_out(shard: Harness) -> None:
    (reply,) = sent(shard, "append", "t", WRITE, 101.0)
    assert reply.error is None
    assert shard.call("state", "t")["head_seq"] == 2


def test_a_deletion_that_had_to_wait_for_the_index_beyond_its_deadline_deletes_nothing(
    shard: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardd.operations.tag_indexing.AT_ONCE", 0)
    shard.call("append", "t", {"records": [{"data": n, "tag": "x"} for n in range(3)]})
    replies: list[Message] = []
    request = Request(7, DeleteRecords(), "t", b'{"match":["tag","Eq","x"]}', deadline_ns=101 * 10**9)
    shard.shard.handle(request, "gateway", replies.append)
    assert replies == [], "it waits for the index"
    shard.clock.advance(5_000)
    shard.shard.flush()
    shard.shard.commits.sync_now()
    (reply,) = replies
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.detail == {"outcome": "not_done"}
    assert shard.call("state", "t")["count"] == 4


def test_a_ping_is_answered_whatever_else_is(shard: Harness) -> None:
    shard.shard.restoring.restored = False
    (reply,) = sent(shard, "ping", "", b"", 1.0)
    assert reply.error is None
    with pytest.raises(TopicsError):
        shard.call("state", "t")
