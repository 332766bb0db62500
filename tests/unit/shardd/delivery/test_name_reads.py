"""Claims about name reads: the list of a prefix's topics comes when it differs from the one that is known."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import Listed, WatchNames
from shardd.delivery.name_reads import LONGEST_S
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    harness = Harness()
    for name in ("a:1", "a:2", "b:1"):
        harness.append(name, 1)
    return harness


def ask(shard: Harness, known: int | None = None, prefix: str = "a:", most: int = 9, prefixes: Any = ()) -> int:
    return shard.send(WatchNames(prefix, prefixes, most, known))


def listed(shard: Harness, ident: int) -> Listed:
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert isinstance(reply.extra, Listed)
    return reply.extra


def names(shard: Harness, ident: int) -> list[str]:
    return list(listed(shard, ident).epochs)


def test_the_first_answer_is_the_list(shard: Harness) -> None:
    assert names(shard, ask(shard)) == ["a:1", "a:2"]
    assert names(shard, ask(shard, prefix="")) == ["a:1", "a:2", "b:1"]
    assert names(shard, ask(shard, prefix="", most=2)) == ["a:1", "a:2"]
    assert names(shard, ask(shard, prefix="", prefixes=("b", "c"))) == ["b:1"]
    assert names(shard, ask(shard, prefixes=("b",))) == []


def test_a_known_list_waits_for_a_change_of_its_own(shard: Harness) -> None:
    waiting = ask(shard, listed(shard, ask(shard)).digest)
    assert shard.parked(waiting)
    shard.append("a:1", 2)
    shard.append("b:2", 1)
    assert shard.parked(waiting)
    shard.append("a:3", 1)
    assert names(shard, waiting) == ["a:1", "a:2", "a:3"]
    again = ask(shard, listed(shard, waiting).digest)
    shard.call("delete_topic", "a:2")
    assert names(shard, again) == ["a:1", "a:3"]
    assert not len(shard.shard.names)


def test_a_topic_made_again_is_another_one(shard: Harness) -> None:
    known = listed(shard, ask(shard))
    shard.call("delete_topic", "a:2")
    shard.append("a:2", 1)
    found = listed(shard, ask(shard, known.digest))
    assert list(found.epochs) == list(known.epochs)
    assert found.epochs["a:2"] != known.epochs["a:2"]


def test_topics_behind_the_last_listed_one_wake_no_asker(shard: Harness) -> None:
    waiting = ask(shard, listed(shard, ask(shard, most=2)).digest, most=2)
    shard.append("a:3", 1)
    assert shard.parked(waiting)
    shard.call("delete_topic", "a:1")
    assert names(shard, waiting) == ["a:2", "a:3"]


def test_a_restarted_shard_has_the_same_digest(shard: Harness) -> None:
    known = listed(shard, ask(shard)).digest
    again = shard.restarted()
    assert again.parked(ask(again, known))


def test_changes_of_one_flush_come_together(shard: Harness) -> None:
    waiting = ask(shard, listed(shard, ask(shard)).digest)
    for n in range(3, 6):
        shard.send("append", f"a:{n}", {"records": [{"data": 1}]})
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert names(shard, waiting) == [f"a:{n}" for n in range(1, 6)]


def test_parked_requests_end(shard: Harness) -> None:
    known = listed(shard, ask(shard)).digest
    cancelled, kept = ask(shard, known), ask(shard, known)
    shard.shard.cancel("peer", cancelled)
    assert len(shard.shard.names) == 1
    shard.clock.advance(int(LONGEST_S * 1000))
    shard.shard.maintain()
    assert listed(shard, kept).digest == known
    assert not len(shard.shard.names)
    assert shard.parked(cancelled)
