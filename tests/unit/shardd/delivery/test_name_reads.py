"""Claims about name reads: lists of a prefix's topics, and the names that have changed since a version."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import ChangedNames, Listed, NameChanges, WatchNames
from shardd.delivery import name_reads
from shardd.delivery.name_reads import LONGEST_S
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    harness = Harness()
    for name in ("a:1", "a:2", "b:1"):
        harness.append(name, 1)
    return harness


def listed(shard: Harness, prefix: str = "a:", most: int = 9, prefixes: Any = ()) -> Listed:
    reply = shard.replies[shard.send(WatchNames(prefix, prefixes, most))]
    assert isinstance(reply, Reply)
    assert isinstance(reply.extra, Listed)
    return reply.extra


def ask(shard: Harness, since: int | None = None) -> int:
    return shard.send(NameChanges(since))


def changed(shard: Harness, ident: int) -> ChangedNames:
    reply = shard.replies[ident]
    assert isinstance(reply, Reply)
    assert isinstance(reply.extra, ChangedNames)
    return reply.extra


def version(shard: Harness) -> int:
    return changed(shard, ask(shard)).version


def test_a_list_has_the_first_topics_of_a_prefix_that_a_key_may_see(shard: Harness) -> None:
    assert list(listed(shard).epochs) == ["a:1", "a:2"]
    assert list(listed(shard, "").epochs) == ["a:1", "a:2", "b:1"]
    assert list(listed(shard, "", most=2).epochs) == ["a:1", "a:2"]
    assert list(listed(shard, "", prefixes=("b", "c")).epochs) == ["b:1"]
    assert not listed(shard, prefixes=("b",)).epochs
    assert listed(shard).version == version(shard)


def test_the_first_answer_is_the_version_alone(shard: Harness) -> None:
    first = changed(shard, ask(shard))
    assert not first.known
    assert not first.epochs


def test_a_request_waits_for_a_name_and_is_told_only_that(shard: Harness) -> None:
    waiting = ask(shard, version(shard))
    shard.append("a:1", 2)
    assert shard.parked(waiting)
    shard.append("a:3", 1)
    found = changed(shard, waiting)
    assert found.known
    assert found.epochs == {"a:3": listed(shard).epochs["a:3"]}
    again = ask(shard, found.version)
    shard.call("delete_topic", "a:2")
    assert changed(shard, again).epochs == {"a:2": 0}
    assert not len(shard.shard.names)


def test_a_list_is_as_old_as_its_version_says(shard: Harness) -> None:
    before = listed(shard)
    shard.append("a:3", 1)
    missed = changed(shard, ask(shard, before.version))
    assert {**before.epochs, **missed.epochs} == listed(shard).epochs


def test_a_topic_that_comes_and_goes_is_told_once_as_it_is(shard: Harness) -> None:
    since = version(shard)
    for _ in range(50):
        shard.append("a:3", 1)
        shard.call("delete_topic", "a:3")
    assert changed(shard, ask(shard, since)).epochs == {"a:3": 0}
    shard.append("a:3", 1)
    assert changed(shard, ask(shard, since)).epochs == {"a:3": listed(shard).epochs["a:3"]}


def test_a_version_that_is_too_old_or_of_another_process_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_reads, "KEPT", 20)
    shard = Harness()
    since = version(shard)
    for n in range(10):
        shard.append(f"c:{n}", 1)
    for n in range(10):
        shard.call("delete_topic", f"c:{n}")
    assert changed(shard, ask(shard, since)).known
    shard.append("c:last", 1)
    missed = changed(shard, ask(shard, since))
    assert not missed.known
    assert not missed.epochs
    again = shard.restarted()
    assert not changed(again, ask(again, missed.version)).known


def test_changes_of_one_flush_come_together(shard: Harness) -> None:
    waiting = ask(shard, version(shard))
    for n in range(3, 6):
        shard.send("append", f"a:{n}", {"records": [{"data": 1}]})
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert sorted(changed(shard, waiting).epochs) == [f"a:{n}" for n in range(3, 6)]


def test_parked_requests_end(shard: Harness) -> None:
    known = version(shard)
    cancelled, kept = ask(shard, known), ask(shard, known)
    shard.shard.cancel("peer", cancelled)
    assert len(shard.shard.names) == 1
    shard.clock.advance(int(LONGEST_S * 1000))
    shard.shard.maintain()
    assert changed(shard, kept) == ChangedNames({}, known)
    assert not len(shard.shard.names)
    assert shard.parked(cancelled)
