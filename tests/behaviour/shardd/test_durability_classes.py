"""Durability classes: what an acknowledgement guarantees, and changes of the class."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode
from tests.support.fault_disk import FaultDisk, Survival
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


def crashed(shard: Harness, survival: Survival = "process", seed: int = 0) -> Harness:
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    return shard.restarted(disk.after_crash(survival, seed))


def data(shard: Harness, topic: str = "a") -> list[Any]:
    return [r["data"] for r in shard.everything(topic)]


def calls(shard: Harness, what: str) -> int:
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    return sum(1 for name, _ in disk.calls if name == what)


def put(shard: Harness, durability: str, **fields: Any) -> Any:
    return shard.call("configure", "a", {"durability": durability, **fields})["config"]


def head(shard: Harness) -> int:
    return int(shard.call("state", "a")["head_seq"])


class TestConfig:
    @pytest.mark.parametrize(
        ("sent", "durability"),
        [
            ({}, "disk"),
            ({"durable": False}, "disk"),
            ({"durable": True}, "fsync"),
            ({"durable": None}, "disk"),
            ({"durability": "ephemeral"}, "ephemeral"),
            ({"durability": "memory"}, "memory"),
            ({"durability": "disk"}, "disk"),
            ({"durability": "fsync"}, "fsync"),
            ({"durable": True, "durability": "memory"}, "memory"),
            ({"durable": False, "durability": "fsync"}, "fsync"),
            ({"durable": True, "durability": None}, "fsync"),
        ],
    )
    @pytest.mark.parametrize("lazily", [True, False])
    def test_the_class_is_resolved_and_reported_both_ways(
        self, shard: Harness, sent: dict[str, Any], durability: str, lazily: bool
    ) -> None:
        """An explicit `durability` wins; `durable == (durability == "fsync")` on every answer."""
        if lazily:
            shard.append("a", 1, config=sent)
        else:
            shard.call("configure", "a", sent)
        for config in (shard.call("state", "a")["config"], shard.call("configure", "a")["config"]):
            assert (config["durability"], config["durable"]) == (durability, durability == "fsync")
        assert shard.call("list", page_size=1)[0]["durable"] is (durability == "fsync")

    @pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
    @pytest.mark.parametrize("survival", ["process", "drop"])
    def test_the_config_always_survives(self, shard: Harness, durability: str, survival: Survival) -> None:
        """The config of every class survives a machine's crash."""
        config = put(shard, durability, ttl_ms=5_000_000, cap_records=7, priority=3, dead_letter="dl")
        assert crashed(shard, survival).call("state", "a")["config"] == config

    @pytest.mark.parametrize("first", ["ephemeral", "memory", "disk", "fsync"])
    @pytest.mark.parametrize("second", ["ephemeral", "memory", "disk", "fsync"])
    def test_it_is_freely_mutable_in_place(self, shard: Harness, first: str, second: str) -> None:
        """The change itself loses nothing, and seqs continue."""
        put(shard, first)
        shard.append("a", 1, 2)
        assert put(shard, second)["durability"] == second
        assert shard.append("a", 3)["first_seq"] == 3
        assert data(shard) == [1, 2, 3]


class TestAcks:
    @pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
    def test_only_fsync_waits_for_a_sync(self, shard: Harness, durability: str) -> None:
        """Acked when buffered; `fsync_ms` is 0."""
        put(shard, durability)
        shard.append("a", 0)
        syncs = calls(shard, "sync")
        reply = shard.reply("append", "a", {"records": [{"data": 1}]})
        assert reply.performance["fsync_ms"] == 0
        assert calls(shard, "sync") == syncs

    def test_fsync_is_acked_after_its_sync_and_says_how_long_it_took(self, shard: Harness) -> None:
        put(shard, "fsync")
        syncs = calls(shard, "sync")
        ident = shard.send("append", "a", {"records": [{"data": 1}]})
        shard.shard.flush()
        assert ident not in shard.replies
        shard.clock.elapsed += 0.004
        shard.shard.commits.sync_now()
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert reply.performance["fsync_ms"] == pytest.approx(4)
        assert calls(shard, "sync") == syncs + 1

    def test_the_first_write_to_an_ephemeral_topic_reports_no_sync_either(self, shard: Harness) -> None:
        """Never fsync-gated, so `fsync_ms` is 0, though creating the topic was durable."""
        reply = shard.reply("append", "a", {"records": [{"data": 1}], "config": {"durability": "ephemeral"}})
        assert reply.created
        assert reply.performance["fsync_ms"] == 0

    @pytest.mark.parametrize("survival", ["process", "drop", "tear"])
    def test_fsync_survives_everything(self, shard: Harness, survival: Survival) -> None:
        put(shard, "fsync")
        for n in range(10):
            shard.append("a", n)
        for seed in range(5):
            assert data(crashed(shard, survival, seed)) == list(range(10))

    def test_disk_survives_the_process_and_loses_only_a_tail_with_the_machine(self, shard: Harness) -> None:
        """Minus the un-fsynced tail, never a hole."""
        put(shard, "disk")
        for n in range(10):
            shard.append("a", n)
            if n == 4:
                shard.shard.commits.sync_now()
        assert data(crashed(shard)) == list(range(10))
        assert data(crashed(shard, "drop")) == list(range(5))
        for seed in range(10):
            found = data(crashed(shard, "tear", seed))
            assert found == list(range(len(found)))
            assert len(found) >= 5

    def test_memory_reads_and_recovers_like_disk(self, shard: Harness) -> None:
        """The topic is queryable, its config kept; the records after a restart are a part of those written."""
        put(shard, "memory")
        shard.append("a", 1, 2, 3)
        shard.call("delete_records", "a", {"before_seq": 2})
        assert data(shard) == [2, 3]
        found = data(crashed(shard))
        assert found == [2, 3][: len(found)] or found == [2, 3]


class TestEphemeral:
    def test_it_writes_no_payload(self, shard: Harness) -> None:
        """Appends and deletes skip the log, also with a data directory."""
        put(shard, "ephemeral")
        shard.append("a", "first")
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        writes = calls(shard, "write")
        for n in range(200):
            shard.append("a", f"secret-{n}")
        shard.call("delete_records", "a", {"before_seq": 50})
        assert calls(shard, "write") == writes + 2  # reservations of seqs, whose blocks double
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
        shard.shard.close()
        assert not any(b"secret" in bytes(node.data) for node in disk.names.values())

    def test_it_is_fully_queryable_while_it_runs(self, shard: Harness) -> None:
        """Caps, age, deletions, keys, filters, tombstones."""
        put(shard, "ephemeral", cap_records=4, ttl_ms=100)
        shard.append("a", 1, 2, 3, node="me", idempotency_key="k")
        shard.append("a", 4, 5)
        assert shard.append("a", 0, idempotency_key="k")["deduped"] is True
        assert shard.diff("a")["tombstone"]["reason"] == "cap"
        assert [r["data"] for r in shard.diff("a", node="me")["records"]] == [4, 5]
        assert shard.call("delete_records", "a", {"before_seq": 4})["deleted"] == 2
        shard.clock.advance(101)
        assert shard.call("state", "a")["count"] == 0
        assert shard.diff("a")["tombstone"]["reason"] == "mixed"

    @pytest.mark.parametrize("how", ["clean", "checkpoint", "process", "drop", "tear"])
    def test_it_starts_empty_and_never_uses_a_seq_twice(self, shard: Harness, how: str) -> None:
        """The loss is by design and reported to readers; the head is above every acknowledged seq."""
        put(shard, "ephemeral")
        acked = shard.append("a", *range(5))["last_seq"]
        for _ in range(3):
            if how == "clean":
                shard.shard.close()
                shard = shard.restarted()
            elif how == "checkpoint":
                shard.shard.commits.sync_now()
                shard.shard.checkpoint_now()
                shard = crashed(shard)
            else:
                shard = crashed(shard, how)  # type: ignore[arg-type]
            state = shard.call("state", "a")
            assert (state["count"], state["bytes"]) == (0, 0)
            assert state["head_seq"] >= acked
            assert state["earliest_seq"] == state["head_seq"] + 1
            if how == "clean":
                assert state["head_seq"] == acked, "an orderly stop knows how far it was"
            tombstone = shard.diff("a", acked - 1)["tombstone"]
            assert (tombstone["gap_from"], tombstone["gap_to"]) == (acked, state["head_seq"])
            assert (tombstone["reason"], tombstone["cause"]) == ("cap", "restart")
            assert shard.diff("a", state["head_seq"])["tombstone"] is None
            answer = shard.append("a", "next")
            assert answer["first_seq"] == state["head_seq"] + 1
            acked = answer["last_seq"]

    def test_a_restart_costs_no_seqs_when_nothing_was_written(self, shard: Harness) -> None:
        """Only reserved seqs are skipped."""
        put(shard, "ephemeral")
        assert head(crashed(shard)) == 0
        shard.append("a", 1)
        again = crashed(shard)
        first = head(again)
        assert head(crashed(crashed(again))) == first

    def test_a_failed_disk_fails_the_reservation_and_the_write(self, shard: Harness) -> None:
        """Without the reservation, two records could have the same seq."""
        put(shard, "ephemeral")
        shard.disk.fail["sync"] = OSError(5, "injected")  # type: ignore[attr-defined]
        assert shard.reply("append", "a", {"records": [{"data": 1}]}).error is not None
        assert head(shard) == 0


class TestSwitching:
    def test_from_disk_to_ephemeral_the_old_records_keep_what_was_promised(self, shard: Harness) -> None:
        """Changes apply going forward."""
        put(shard, "disk")
        shard.append("a", 1, 2)
        put(shard, "ephemeral")
        again = crashed(shard)
        assert data(again) == [1, 2]
        assert head(again) == 2
        assert again.diff("a")["tombstone"] is None

    @pytest.mark.parametrize("survival", ["process", "drop"])
    def test_from_ephemeral_to_fsync_what_comes_after_is_safe(self, shard: Harness, survival: Survival) -> None:
        """The ephemeral part may be lost; the gap is reported; seqs do not change."""
        put(shard, "ephemeral")
        shard.append("a", 1, 2)
        put(shard, "fsync")
        shard.append("a", 3)
        again = crashed(shard, survival)
        assert [(r["$seq"], r["data"]) for r in again.everything("a")] == [(3, 3)]
        tombstone = again.diff("a")["tombstone"]
        assert (tombstone["gap_from"], tombstone["gap_to"]) == (1, 2)

    @pytest.mark.parametrize("checkpoint", [False, True])
    @pytest.mark.parametrize("middle", [0, 3])
    def test_through_ephemeral_and_back_no_hole_is_silent(self, shard: Harness, checkpoint: bool, middle: int) -> None:
        """Records are either all there or in the gap of the tombstone."""
        put(shard, "disk")
        shard.append("a", 1, 2)
        shard.shard.checkpoint_now()
        put(shard, "ephemeral")
        if middle:
            shard.append("a", *range(middle))
        if checkpoint:
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        put(shard, "disk")
        shard.append("a", "last")
        again = crashed(shard)
        last = 3 + middle
        assert [r["$seq"] for r in again.everything("a")] == [1, 2, last]
        tombstone = again.diff("a", 2)["tombstone"]
        assert (tombstone is None) == (not middle)
        if middle:
            assert (tombstone["gap_from"], tombstone["gap_to"]) == (3, last - 1)
        assert head(again) == last

    @pytest.mark.parametrize("checkpoint", [False, True])
    @pytest.mark.parametrize("body", [{"before_seq": 2}, {"match": "t"}])
    def test_a_deletion_made_while_ephemeral_is_permanent(
        self, shard: Harness, body: dict[str, Any], checkpoint: bool
    ) -> None:
        """The deleted records were logged under another class, so the deletion is logged too."""
        shard.call("append", "a", {"records": [{"data": 1, "tag": "t"}, {"data": 2}]})
        if checkpoint:
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        put(shard, "ephemeral")
        assert shard.call("delete_records", "a", body)["deleted"] == 1
        put(shard, "disk")
        assert data(shard) == [2]
        assert data(crashed(shard)) == [2]

    def test_a_checkpoint_after_the_switch_keeps_what_was_ephemeral(self, shard: Harness) -> None:
        """From then on the records are in files, like any other of their topic."""
        put(shard, "ephemeral")
        shard.append("a", 1, 2)
        put(shard, "disk")
        shard.shard.checkpoint_now()
        assert data(crashed(shard)) == [1, 2]

    def test_a_checkpoint_while_ephemeral_keeps_what_was_logged(self, shard: Harness) -> None:
        """Logged as `disk`, the log trimmed as `ephemeral`, `disk` again, and then a crash."""
        shard.append("a", 1, 2)
        put(shard, "ephemeral")
        for _ in range(3):
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        put(shard, "disk")
        assert data(shard) == [1, 2]
        again = crashed(shard)
        assert data(again) == [1, 2]
        assert again.diff("a")["tombstone"] is None

    @pytest.mark.parametrize("checkpoint", [False, True])
    def test_what_a_restart_took_does_not_come_back(self, shard: Harness, checkpoint: bool) -> None:
        """The loss was reported to readers, and floors are monotonic."""
        put(shard, "ephemeral")
        shard.append("a", 1, 2)
        again = crashed(shard)
        assert data(again) == []
        lost = head(again)
        if checkpoint:
            again.shard.checkpoint_now()
        put(again, "disk")
        again.append("a", 3)
        put(again, "disk", priority=5)
        last = crashed(again)
        assert data(last) == [3]
        assert last.diff("a")["tombstone"]["gap_to"] == lost

    def test_what_a_restart_is_said_to_have_taken_stays_said(self, shard: Harness) -> None:
        """Also if the topic held no record to lose, which a later start cannot know."""
        shard.append("a", 1)
        shard.call("delete_records", "a", {"before_seq": 2})
        put(shard, "ephemeral")
        again = crashed(shard)
        told = again.diff("a")["tombstone"]
        put(again, "disk")
        assert crashed(again).diff("a")["tombstone"] == told

    def test_merging_goes_on_after_a_checkpoint_forgot_batches(self, shard: Harness) -> None:
        """An ephemeral topic's small writes are merged as they age, and keep their seqs."""
        put(shard, "ephemeral")
        expected = []
        for n in range(1, 120):
            tag = "gone" if n % 4 == 0 else "kept"
            shard.call("append", "a", {"records": [{"data": n, "tag": tag}]})
            if n % 20 == 0:
                shard.call("delete_records", "a", {"match": "gone"})
                shard.shard.commits.sync_now()
                shard.shard.checkpoint_now()
            expected = [k for k in range(1, n + 1) if k % 4 or k > n - n % 20]
            assert [(r["$seq"], r["data"]) for r in shard.everything("a")] == [(k, k) for k in expected]

    def test_a_faster_class_never_overtakes(self, shard: Harness) -> None:
        """Commits of one topic keep their order while the class changes under them."""
        put(shard, "fsync")
        idents = []
        for n, durability in enumerate(["disk", "ephemeral", "memory", "fsync", "ephemeral", "disk"]):
            idents.append(shard.send("append", "a", {"records": [{"data": n}]}))
            shard.send("configure", "a", {"durability": durability})
        shard.shard.flush()
        assert data(shard) == []
        shard.shard.commits.sync_now()
        assert data(shard) == list(range(6))
        assert all(shard.replies[i].error is None for i in idents)  # type: ignore[union-attr]
        assert head(crashed(shard)) == 6


def test_a_failed_group_takes_back_seqs_configs_and_names(shard: Harness) -> None:
    """A write is atomic: all N records or none. If none, the writes staged after it fail too."""
    shard.append("a", 1)
    shard.disk.fail["write"] = OSError(5, "injected")  # type: ignore[attr-defined]
    idents = [
        shard.send("append", "a", {"records": [{"data": 2}, {"data": 3}]}),
        shard.send("configure", "a", {"durability": "ephemeral"}),
        shard.send("append", "a", {"records": [{"data": 4}]}),
        shard.send("append", "new", {"records": [{"data": 5}]}),
    ]
    shard.shard.flush()
    shard.disk.fail.clear()  # type: ignore[attr-defined]
    for ident in idents:
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert reply.error is not None
        assert reply.error.code == ErrorCode.NOT_READY
    assert shard.call("state", "a")["config"]["durability"] == "disk"
    assert [entry["topic"] for entry in shard.call("list", page_size=9)] == ["a"]
    assert shard.append("a", 6)["first_seq"] == 2
    assert data(crashed(shard)) == [1, 6]
