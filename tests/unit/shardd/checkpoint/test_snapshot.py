"""A topic's fields in the catalog: each attribute is listed once, and what is listed comes back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cbor2
import pytest

from proto.model.durability import Durability
from proto.model.router import RouterConfig
from proto.model.topic_config import TopicConfig
from shardd.checkpoint.snapshot import FIELDS, UNLOADED, dump, exact, kept, load, topic_of
from shardd.topic.cursors import Cursor
from shardd.topic.gaps import Gaps
from shardd.topic.lane import Lane, Router
from shardd.topic.outbox import Transfer, arrival_key, source_id
from shardd.topic.tombstones import Losses
from shardd.topic.topic import Topic
from tests.support.harness import Harness

REBUILT = {
    "batches": "segments",
    "sequence": "segments",
    "segments": "segments",
    "count": "segments",
    "bytes": "segments",
    "_topic_id": "the topic",
    "unchecked": "segments",
    "unloaded": "segments that cannot be read",
    "damage": "segments that cannot be read",
    "deferred": "the log",
    "held_at": "the deferred frames",
    "totals": "the directory",
    "durable_head": "the head at the start",
    "logged_seq": "the head at the start",
    "ahead_ms": "the last commit time and the clock",
    "_tags": "the records, on demand",
}
"""Attributes that a start makes again, and from what."""
TRANSIENT = frozenset(
    {
        "block",
        "catalogued",
        "copies_staged",
        "counted_in",
        "holes",
        "last_read_ts",
        "logged_no",
        "moving",
        "pending_bytes",
        "pending_count",
        "promise",
        "reserving",
        "sync_required_no",
    }
)
"""Attributes that end with the process."""


def attributes(topic: Topic) -> set[str]:
    parts = {"records": topic.records, "position": topic.position}
    return {*vars(topic), *(name for part in parts.values() for name in vars(part))} - parts.keys()


def test_each_attribute_of_a_topic_is_kept_rebuilt_or_transient() -> None:
    listed = Counter([*(name for field in FIELDS for name in field.attributes), *REBUILT, *TRANSIENT])
    assert listed.keys() == attributes(Topic("t", 1, 1, TopicConfig())), "list it in `FIELDS`, or here"
    assert max(listed.values()) == 1


def topic_with_everything() -> Topic:
    """A topic in which each attribute that is kept differs from that of a new topic."""
    topic = Topic("t", 7, 5, TopicConfig(type="queue", ttl_ms=9, durability=Durability.FSYNC))
    topic.restored(20, 21)
    topic.records.load("losses", Losses([(3, "cap"), (20, "ttl")]))
    topic.records.load("gaps", Gaps([(15, 16, "restart")]))
    topic.position.commit_time(1_000)
    topic.last_write_ts = 900
    topic.position.reserve(4_000, "boot")
    topic.position.load("as_of", 33)
    topic.keys.done(b"key", 4, 2, 800)
    assert topic.queue is not None
    topic.queue.lease([11], "node", [77], 5_000, "")
    topic.queue.dead_lettered = 3
    topic.cursors = {"c": Cursor(12, 700, b"12345678"), "d": Cursor(1, 2)}
    router = Router("r", RouterConfig("source", "t", allow_cycle=True), since=2, made_ms=3, forwarded=4)
    topic.lane = topic.lane_visible = Lane("source", 2, 15, 15, 6, {"r": router}, settled=False)
    topic.outbox.transfers[12] = Transfer("target", 2)
    topic.queue.order(12)
    topic.arrivals.add(arrival_key(source_id("source", 1), (1, 2)))
    return topic


def entry_of(topic: Topic, state: Any = None) -> dict[str, Any]:
    topic.records.alive = lambda seq: True  # type: ignore[method-assign]
    entry: dict[str, Any] = cbor2.loads(cbor2.dumps(dump(topic, state or exact(topic))))
    return entry


def test_what_is_listed_comes_back() -> None:
    topic = topic_with_everything()
    entry = entry_of(topic, kept(topic, last=True, now_ms=4_500, as_of=33))
    assert list(entry) == [field.name for field in FIELDS]
    back = topic_of(entry)
    load(back, entry)
    assert entry_of(back, kept(back, last=True, now_ms=4_500, as_of=33)) == entry
    for name in ("assigned_config", "lane", "cursors"):
        assert getattr(back, name) == getattr(topic, name), name
    assert (back.records.head_seq, back.records.floor) == (20, 21)
    assert vars(back.position) == vars(topic.position)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_that_is_not_loaded_is_missed(field: Any) -> None:
    """The topic above leaves none of the fields as it is in a new topic."""
    topic = topic_with_everything()
    new = Topic("", 0, 0, TopicConfig(type="queue"))
    state, blank = kept(topic, True, 4_500, 33), kept(new, True, 0)
    assert field.dump(topic, state) != field.dump(new, blank)


def test_optional_fields_are_left_out_and_may_be_missing() -> None:
    entry = entry_of(Topic("t", 1, 1, TopicConfig()))
    assert {field.name for field in FIELDS} - entry.keys() == {
        "makers",
        "routers",
        "letters",
        "arrivals",
        "gaps",
        "as_of",
    }
    del entry["reserved_in"]  # as in catalogs of the first releases
    load(topic_of(entry), entry)
    del entry["losses"]
    with pytest.raises(KeyError):
        load(topic_of(entry), entry)


def test_an_unloaded_topic_shows_fields_of_the_list() -> None:
    assert {field.name for field in FIELDS} > UNLOADED


def test_a_queue_without_durable_leases_keeps_them_at_a_graceful_stop_only() -> None:
    topic = topic_with_everything()
    assert topic.queue is not None
    topic.queue.unlogged = True
    rows = [row[0] for row in entry_of(topic, kept(topic, last=False, now_ms=1))["queue"]["rows"]]
    assert rows == [12]  # its transfer is in the outbox
    rows = [row[0] for row in entry_of(topic, kept(topic, last=True, now_ms=1))["queue"]["rows"]]
    assert rows == [11, 12]


def test_a_real_topic_has_no_attribute_beside_the_lists() -> None:
    shard = Harness()
    shard.append("t", "x")
    topic = shard.shard.directory.find("t")
    assert attributes(topic) == {*(name for field in FIELDS for name in field.attributes), *REBUILT, *TRANSIENT}
