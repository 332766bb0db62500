"""Logs of Rog: one that cannot be made whole is none. Acks of a connection: each means the message that was fetched."""

from __future__ import annotations

from itertools import count

from gateway.protocols.rog import MAX_FETCHED
from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Step
from proto.model.errors import ErrorCode, TopicsError
from proto.wire import rog
from tests.behaviour.gateway.test_protocol_refusals import rog_says
from tests.support.gateway_stage import Script


async def test_a_create_that_fails_halfway_is_no_log() -> None:
    def script(request: Request) -> list[Message]:
        if request.op == "configure" and request.topic == "log:2":
            error = TopicsError(ErrorCode.THROTTLED, "there are as many topics as TOPICS_MAX_TOPICS allows")
            return [Reply(request.id, error=error)]
        assert request.op != "log_create"
        return [Reply(request.id, extra={"partitions": 0})]

    (said,) = await rog_says(script, rog.Create("log", 4))
    assert "TOPICS_MAX_TOPICS" in said


def remembering(moves: list[tuple[str, int | None]], *, failures: int = 0) -> Script:
    """A shard whose fetches find 1, 2, 3 and so on. It appends each ack to `moves`, as the group and the seq that it
    names, and refuses the first of them."""
    seqs = count(1)

    def script(request: Request) -> list[Message]:
        if isinstance(request.options, Step):
            moves.append((request.options.cursor, request.options.seq))
            refused = TopicsError(ErrorCode.NOT_READY, "the shard was restarted") if len(moves) <= failures else None
            return [Reply(request.id, error=refused)]
        if request.op == "peek":
            return [Reply(request.id, b'"x"', extra={"seq": next(seqs)})]
        return [Reply(request.id, extra={"partitions": 1})]

    return script


async def test_an_ack_names_the_message_that_was_fetched_for_its_group() -> None:
    moves: list[tuple[str, int | None]] = []
    a, b = ("log", 0, "a"), ("log", 0, "b")
    await rog_says(remembering(moves), rog.Fetch(*a), rog.Fetch(*b), rog.Ack(*b), rog.Ack(*a), rog.Ack(*a))
    assert moves == [("b", 2), ("a", 1), ("a", None)]


async def test_an_ack_that_failed_and_is_repeated_names_the_same_message() -> None:
    """The first may have been done: without the seq, the second would skip a message."""
    moves: list[tuple[str, int | None]] = []
    group = ("log", 0, "g")
    said = await rog_says(remembering(moves, failures=1), rog.Fetch(*group), rog.Ack(*group), rog.Ack(*group))
    assert said[1:] == ["the shard was restarted", ""]
    assert moves == [("g", 1), ("g", 1)]


async def test_a_connection_remembers_a_bounded_number_of_groups() -> None:
    moves: list[tuple[str, int | None]] = []
    groups = [("log", 0, f"g{n}") for n in range(MAX_FETCHED)]
    fetched = [*groups, groups[0], ("log", 0, "one more")]
    await rog_says(
        remembering(moves), *(rog.Fetch(*each) for each in fetched), *(rog.Ack(*each) for each in groups[:3])
    )
    assert moves == [("g0", MAX_FETCHED + 1), ("g1", None), ("g2", 3)]
