"""Topics: creation, configuration, state, listing, deletion and writes."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


def refused(shard: Harness, op: str, topic: str, body: object = b"", **options: Any) -> TopicsError:
    """The request's error. Asserts that the request changed nothing."""
    names = list(shard.shard.directory.visible)
    before = [shard.call("state", name, touch=False) for name in names]
    with pytest.raises(TopicsError) as caught:
        shard.call(op, topic, body, **options)
    assert list(shard.shard.directory.visible) == names
    assert [shard.call("state", name, touch=False) for name in names] == before
    return caught.value


class TestNames:
    @pytest.mark.parametrize("name", ["a", "9", "A.b_c:d-e", "render-queue:tenantA", "x" * 255])
    def test_good_ones(self, shard: Harness, name: str) -> None:
        assert shard.call("configure", name)["topic"] == name
        assert shard.append(name, 1)["topic"] == name

    @pytest.mark.parametrize("name", ["", ".a", "-a", ":a", "_a", "a b", "a/b", "é", "a\n", "x" * 256, "../a"])
    @pytest.mark.parametrize("op", ["configure", "append"])
    def test_bad_ones_never_become_topics(self, shard: Harness, name: str, op: str) -> None:
        body = {"records": [{"data": 1}]} if op == "append" else {}
        assert refused(shard, op, name, body).code == ErrorCode.INVALID_REQUEST

    def test_they_are_case_sensitive(self, shard: Harness) -> None:
        """Byte-exact."""
        shard.append("a", 1)
        assert shard.append("A", 1)["created"] is True
        assert shard.call("state", "a")["head_seq"] == 1


class TestConfigure:
    def test_created_is_true_only_for_the_call_that_creates(self, shard: Harness) -> None:
        """201 once, 200 after."""
        created = []
        for body in ({}, {}, {"priority": 5}):
            reply = shard.reply("configure", "a", body)
            created.append(reply.created)
        assert created == [True, False, False]
        shard.append("b", 1)
        assert shard.call("configure", "b")["created"] is False

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("ttl_ms", 5),
            ("cap_records", 5),
            ("cap_bytes", 5000),
            ("discard", "reject"),
            ("durability", "memory"),
            ("durable", True),
            ("priority", -7),
            ("auto_priority", False),
            ("auto_create", False),
            ("idempotency_window_ms", 0),
            ("dedupe_node", False),
            ("lease_ms", 500),
            ("claim_jitter_ms", 50),
            ("max_deliveries", 3),
            ("dead_letter", "other"),
            ("leases_durable", True),
            ("ttl_ms", 2**64 - 1),
        ],
    )
    def test_every_field_is_mutable_kept_by_later_puts_and_by_restarts(
        self, shard: Harness, field: str, value: object
    ) -> None:
        """All but `type`; what a PUT does not name stays."""
        before = shard.call("configure", "a")["config"]
        assert before[field] != value
        changed = shard.call("configure", "a", {field: value})["config"]
        assert changed[field] == value
        assert {k for k in changed if changed[k] != before[k]} <= {field, "durable", "durability"}
        other = "auto_create" if field != "auto_create" else "dedupe_node"
        assert shard.call("configure", "a", {other: False})["config"][field] == value
        assert shard.restarted().call("state", "a")["config"][field] == value

    def test_the_type_cannot_change(self, shard: Harness) -> None:
        """409, and nothing else of the PUT applies."""
        shard.call("configure", "a")
        error = refused(shard, "configure", "a", {"type": "queue", "priority": 5})
        assert (error.code, error.status) == (ErrorCode.TOPIC_EXISTS_INCOMPATIBLE, 409)

    def test_a_topic_may_not_be_its_own_dead_letter(self, shard: Harness) -> None:
        assert refused(shard, "configure", "a", {"dead_letter": "a"}).code == ErrorCode.INVALID_REQUEST


class TestState:
    def test_a_fresh_topic(self, shard: Harness) -> None:
        config = shard.call("configure", "a")["config"]
        state = shard.call("state", "a", touch=False)
        assert state == {
            "topic": "a",
            "type": "log",
            "head_seq": 0,
            "earliest_seq": 1,
            "next_seq": 1,
            "epoch": state["epoch"],
            "count": 0,
            "bytes": 0,
            "config": config,
            "effective_priority": state["effective_priority"],
            "last_write_ts": None,
            "last_read_ts": None,
        }

    def test_it_follows_writes(self, shard: Harness) -> None:
        """`next_seq` is what the next append receives."""
        shard.append("a", 1, 2, 3)
        state = shard.call("state", "a")
        assert (state["head_seq"], state["next_seq"], state["count"]) == (3, 4, 3)
        assert state["last_write_ts"] == shard.clock.ms
        assert shard.append("a", 4)["first_seq"] == state["next_seq"]

    def test_touch_false_leaves_no_trace(self, shard: Harness) -> None:
        """For monitoring."""
        shard.append("a", 1)
        shard.call("state", "a", touch=False)
        assert shard.call("state", "a", touch=False)["last_read_ts"] is None
        shard.call("state", "a")
        assert shard.call("state", "a", touch=False)["last_read_ts"] == shard.clock.ms

    def test_the_epoch_tells_a_topic_from_its_successor(self, shard: Harness) -> None:
        shard.append("a", 1, 2)
        first = shard.call("state", "a")["epoch"]
        shard.append("a", 3)
        assert shard.call("state", "a")["epoch"] == first
        shard.call("delete_topic", "a")
        shard.append("a", 1, 2, 3, 4)
        assert shard.call("state", "a")["epoch"] > first

    def test_it_never_creates(self, shard: Harness) -> None:
        for op in ("state", "diff"):
            assert refused(shard, op, "a").code == ErrorCode.TOPIC_NOT_FOUND
        assert shard.call("list", page_size=5) == []

    @pytest.mark.parametrize("priority", [-1000, 0, 7, 1000])
    def test_a_manual_priority_always_wins(self, shard: Harness, priority: int) -> None:
        shard.call("configure", "a", {"priority": priority, "auto_priority": True})
        assert shard.call("state", "a")["effective_priority"] == priority


class TestList:
    def test_an_entry_is_the_summary_of_the_state(self, shard: Harness) -> None:
        shard.append("a", 1, 2, config={"cap_records": 1, "durable": True, "priority": 4})
        state = shard.call("state", "a", touch=False)
        names = ("topic", "head_seq", "earliest_seq", "epoch", "count", "bytes", "effective_priority")
        entry = {k: state[k] for k in names}
        assert shard.call("list", page_size=5) == [{**entry, "durable": True}]

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    @pytest.mark.parametrize("prefix", ["", "t", "t:1", "z"])
    def test_pages_cover_everything_once(self, shard: Harness, size: int, prefix: str) -> None:
        names = sorted([f"t:{n}" for n in range(12)] + ["a", "t", "u"])
        for name in names:
            shard.call("configure", name)
        found: list[str] = []
        more = True
        while more:
            reply = shard.reply("list", prefix=prefix, page_size=size, after=found[-1] if found else "")
            assert reply.extra is not None
            found += reply.extra.names
            more = reply.extra.more
        assert found == [name for name in names if name.startswith(prefix)]


class TestDelete:
    def test_everything_goes_and_a_new_topic_starts_at_one(self, shard: Harness) -> None:
        """Records, keys, cursors, config; seq restarts."""
        shard.append("a", 1, 2, config={"cap_records": 1, "ttl_ms": 9})
        shard.call("delete_topic", "a")
        assert refused(shard, "diff", "a").code == ErrorCode.TOPIC_NOT_FOUND
        answer = shard.append("a", 3)
        assert (answer["first_seq"], answer["created"]) == (1, True)
        state = shard.call("state", "a")
        assert (state["count"], state["earliest_seq"], state["config"]["cap_records"]) == (1, 1, 0)
        assert shard.diff("a")["tombstone"] is None

    @pytest.mark.parametrize("checkpoint", [True, False])
    def test_it_is_irreversible(self, shard: Harness, checkpoint: bool) -> None:
        shard.append("a", 1, 2)
        if checkpoint:
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        shard.call("delete_topic", "a")
        again = shard.restarted()
        assert again.call("list", page_size=5) == []
        again.append("a", 3)
        assert [r["data"] for r in again.restarted().everything("a")] == [3]

    def test_if_empty_looks_at_live_records(self, shard: Harness) -> None:
        """The condition is `count == 0`: expired and deleted records do not protect the topic, staged ones do."""
        shard.append("a", 1, config={"ttl_ms": 100})
        error = refused(shard, "delete_topic", "a", if_empty=True)
        assert (error.code, error.status) == (ErrorCode.TOPIC_NOT_EMPTY, 409)
        shard.clock.advance(101)
        assert shard.call("delete_topic", "a", if_empty=True)["deleted"] is True
        shard.append("b", 1)
        shard.call("delete_records", "b", {"before_seq": 2})
        assert shard.call("delete_topic", "b", if_empty=True)["deleted"] is True
        assert shard.call("delete_topic", "b", if_empty=True)["deleted"] is False
        shard.call("configure", "c", {"durability": "fsync"})
        shard.send("append", "c", {"records": [{"data": 1}]})
        deletion = shard.send("delete_topic", "c", if_empty=True)
        shard.shard.commits.sync_now()
        assert shard.replies[deletion].error.code == ErrorCode.TOPIC_NOT_EMPTY  # type: ignore[union-attr]


class TestWrite:
    def test_a_write_is_atomic(self, shard: Harness) -> None:
        """If one record is bad, none is stored."""
        shard.append("a", 1)
        records = [{"data": 1}, {"data": 2, "tag": "x" * 257}]
        assert refused(shard, "append", "a", {"records": records}).code == ErrorCode.INVALID_REQUEST
        assert shard.append("a", 2)["first_seq"] == 2

    def test_all_records_of_a_write_share_one_commit_time(self, shard: Harness) -> None:
        shard.append("a", 1, 2)
        shard.clock.advance(7)
        shard.append("a", 3)
        first, second, third = (r["$ts"] for r in shard.everything("a"))
        assert (second, third) == (first, first + 7)

    @pytest.mark.parametrize("create", [None, True])
    def test_a_write_creates_its_topic_unless_told_not_to(self, shard: Harness, create: bool | None) -> None:
        assert shard.append("a", 1, create=create)["created"] is True

    def test_create_false_writes_to_what_is_there(self, shard: Harness) -> None:
        """`create` concerns absent topics only."""
        assert refused(shard, "append", "a", {"records": [{"data": 1}], "create": False}).status == 404
        shard.call("configure", "a")
        assert shard.append("a", 1, create=False)["first_seq"] == 1

    def test_inline_config_applies_only_to_a_topic_it_creates(self, shard: Harness) -> None:
        """The configs of later writes are ignored, also in the same group."""
        for cap in (3, 9):
            shard.send("append", "a", {"records": [{"data": 1}], "config": {"cap_records": cap}})
        shard.shard.commits.sync_now()
        shard.append("a", 1, config={"cap_records": 1})
        state = shard.call("state", "a")
        assert (state["config"]["cap_records"], state["count"]) == (3, 3)

    def test_an_inline_config_without_auto_create_and_without_create_creates_nothing(self, shard: Harness) -> None:
        """The default of `create` is the topic's `auto_create`; `create` overrides it."""
        body = {"records": [{"data": 1}], "config": {"auto_create": False}}
        assert refused(shard, "append", "a", body).code == ErrorCode.TOPIC_NOT_FOUND
        assert shard.call("append", "a", {**body, "create": True})["created"] is True

    @pytest.mark.parametrize(
        ("limits", "records", "code"),
        [
            ({"max_batch_records": 3}, [{"data": 0}] * 4, ErrorCode.BATCH_TOO_LARGE),
            ({"max_record_bytes": 10}, [{"data": "x" * 9}], ErrorCode.RECORD_TOO_LARGE),
            ({"max_record_bytes": 12}, [{"data": 1, "meta": {"k": 123456}}], ErrorCode.RECORD_TOO_LARGE),
            ({"max_meta_bytes": 11}, [{"data": 1, "meta": {"k": 123456}}], ErrorCode.INVALID_REQUEST),
            ({}, [{"data": 1, "meta": {str(n): n for n in range(65)}}], ErrorCode.INVALID_REQUEST),
            ({"max_tag_bytes": 3}, [{"data": 1, "tag": "éé"}], ErrorCode.INVALID_REQUEST),
            ({"max_node_bytes": 3}, [{"data": 1, "node": "éé"}], ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_limits(self, limits: dict[str, Any], records: list[Any], code: ErrorCode) -> None:
        """The documented hard limits are settings; a write at the limit fits."""
        shard = Harness(**limits)
        assert refused(shard, "append", "a", {"records": records}).code == code
        roomier = Harness(**{name: value + 1 for name, value in limits.items()})
        if limits:
            assert roomier.call("append", "a", {"records": records})["count"] == len(records)

    def test_a_full_topic_that_discards_the_old_takes_any_write(self, shard: Harness) -> None:
        """The write succeeds; the eviction is reported to readers."""
        shard.call("configure", "a", {"cap_records": 2})
        assert shard.append("a", 1, 2, 3)["seqs"] == [1, 2, 3]
        assert shard.diff("a")["tombstone"] == {
            "gap_from": 1,
            "gap_to": 1,
            "reason": "cap",
            "missed_estimate": 1,
            "earliest_seq": 2,
            "head_seq": 3,
        }
