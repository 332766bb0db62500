"""Tickets in their home shard: one use, one path, a minute, so many of a key."""

from __future__ import annotations

import hashlib

import pytest

from proto.ipc.operations import TicketHolder, TicketMake, TicketUse
from proto.model.errors import TopicsError
from tests.support.harness import Harness


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


PATH = digest("/v0/ws")
MINUTE = 60_000


def make(shard: Harness, name: str, owner: bytes = b"k") -> TopicsError | None:
    return shard.reply(TicketMake(digest(name), PATH, owner, 3, ("a:", "b:"))).error


def use(shard: Harness, name: str, path: bytes = PATH) -> TicketHolder | None:
    reply = shard.reply(TicketUse(digest(name), path))
    assert reply.error is None
    return reply.extra


def test_a_ticket_is_used_once_and_tells_who_requested_it() -> None:
    shard = Harness()
    assert make(shard, "t") is None
    assert use(shard, "t") == TicketHolder(b"k", 3, ("a:", "b:"))
    assert use(shard, "t") is None
    assert use(shard, "other") is None


def test_a_use_for_another_path_uses_it_up() -> None:
    shard = Harness()
    make(shard, "t")
    assert use(shard, "t", digest("/v0/watch/wid_x")) is None
    assert use(shard, "t") is None


def test_a_ticket_lasts_a_minute() -> None:
    shard = Harness()
    make(shard, "a")
    shard.clock.advance(MINUTE - 1)
    make(shard, "b")
    assert use(shard, "a") is not None
    make(shard, "c")
    shard.clock.advance(MINUTE - 1)
    assert use(shard, "b") is not None
    shard.clock.advance(1)
    assert use(shard, "c") is None


@pytest.mark.parametrize("most", [0, 2])
def test_unused_tickets_of_a_key_are_bounded(most: int) -> None:
    shard = Harness(max_tickets_per_key=most)
    errors = [make(shard, f"t{n}") for n in range(4)]
    assert [error is None for error in errors] == [not most or n < most for n in range(4)]
    if not most:
        return
    assert errors[-1] is not None
    assert errors[-1].message == "max_tickets_per_key is 2, and that many are there; use them, or wait 60 seconds"
    assert make(shard, "theirs", b"another key") is None
    use(shard, "t0")
    assert make(shard, "t4") is None
    assert make(shard, "t5") is not None
    shard.clock.advance(MINUTE)
    assert make(shard, "t6") is None
    assert len(shard.shard.tickets._unused) == 1
    assert dict(shard.shard.tickets._held) == {b"k": 1}


def test_a_restart_voids_tickets_and_the_log_has_nothing_of_them() -> None:
    shard = Harness()
    before = shard.reply("stats").extra.figures.wal.bytes_written_total
    make(shard, "t")
    assert shard.reply("stats").extra.figures.wal.bytes_written_total == before
    assert use(shard.restarted(), "t") is None
