"""Claims about idempotency keys: a retry writes nothing twice."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


def write(shard: Harness, key: str | None = "k", data: object = 1, topic: str = "a", **options: Any) -> Any:
    body: dict[str, Any] = {"records": [{"data": data}, {"data": data}]}
    if key is not None:
        body["idempotency_key"] = key
    return shard.call("append", topic, body, **options)


def count(shard: Harness, topic: str = "a") -> int:
    return int(shard.call("state", topic)["count"])


class TestControlPlane:
    def test_an_identical_put_is_a_no_op(self, shard: Harness) -> None:
        first = shard.reply("configure", "a", {"ttl_ms": 5})
        assert first.created
        writes = len(shard.disk.calls)  # type: ignore[attr-defined]
        again = shard.reply("configure", "a", {"ttl_ms": 5})
        assert (again.created, again.error) == (False, None)
        assert len(shard.disk.calls) == writes  # type: ignore[attr-defined]

    def test_a_changed_put_applies_the_difference(self, shard: Harness) -> None:
        shard.call("configure", "a", {"ttl_ms": 5, "priority": 1})
        config = shard.call("configure", "a", {"ttl_ms": 6})["config"]
        assert (config["ttl_ms"], config["priority"]) == (6, 1)

    def test_deleting_what_is_absent_succeeds(self, shard: Harness) -> None:
        answer = {"topic": "a", "deleted": False, "routers_removed": []}
        assert shard.call("delete_topic", "a") == answer
        shard.append("a", 1)
        assert shard.call("delete_topic", "a")["deleted"] is True
        assert shard.call("delete_topic", "a") == answer


class TestWrites:
    def test_a_retry_gets_the_original_seqs_and_appends_nothing(self, shard: Harness) -> None:
        first = write(shard)
        shard.append("a", "between")
        again = write(shard)
        assert (first["deduped"], again["deduped"]) == (False, True)
        assert (again["seqs"], again["first_seq"], again["last_seq"], again["count"]) == ([1, 2], 1, 2, 2)
        assert (again["head_seq"], again["created"]) == (3, False)
        assert count(shard) == 3

    def test_a_retry_of_the_write_that_created_the_topic_did_not_create_it(self, shard: Harness) -> None:
        """201 for the first, 200 for the second."""
        body = {"records": [{"data": 1}], "idempotency_key": "k"}
        assert shard.reply("append", "a", body).created
        assert not shard.reply("append", "a", body).created

    def test_the_key_alone_decides(self, shard: Harness) -> None:
        """A write with the same key is a retry, also with other records."""
        write(shard, data=1)
        assert write(shard, data="something else")["deduped"] is True

    def test_keys_belong_to_their_topic(self, shard: Harness) -> None:
        """`(topic, idempotency_key)`."""
        write(shard, topic="a")
        assert write(shard, topic="b")["deduped"] is False

    def test_other_keys_and_no_key_are_other_writes(self, shard: Harness) -> None:
        for key in ("k", "K", "k ", None, None, ""):
            assert write(shard, key)["deduped"] is False

    def test_seqs_of_a_retry_may_be_left_out_too(self, shard: Harness) -> None:
        """`return_seqs=false`."""
        write(shard)
        assert "seqs" not in write(shard, return_seqs=False)

    def test_a_header_counts_and_the_body_wins(self, shard: Harness) -> None:
        """Body field wins."""
        write(shard, None, idempotency_key="header")
        assert write(shard, None, idempotency_key="header")["deduped"] is True
        assert write(shard, "header")["deduped"] is True
        assert write(shard, "body", idempotency_key="header")["deduped"] is False
        assert write(shard, "body")["deduped"] is True

    @pytest.mark.parametrize("key", ["é" * 256, "x" * 256])
    def test_a_key_has_up_to_256_characters(self, shard: Harness, key: str) -> None:
        """Characters, not bytes; also in a header that the body's key goes before."""
        write(shard, key)
        assert write(shard, key)["deduped"] is True
        long = key + "y"
        for options in ({"key": long}, {"key": None, "idempotency_key": long}, {"key": key, "idempotency_key": long}):
            with pytest.raises(TopicsError) as caught:
                write(shard, **options)
            assert caught.value.code == ErrorCode.INVALID_REQUEST
        assert count(shard) == 2

    def test_a_retry_is_recognised_when_the_topic_is_full(self, shard: Harness) -> None:
        """The records of the first attempt are written, so a 422 would be wrong."""
        shard.call("configure", "a", {"cap_records": 2, "discard": "reject"})
        write(shard)
        assert write(shard)["deduped"] is True

    def test_a_retry_is_recognised_when_its_records_are_gone(self, shard: Harness) -> None:
        """Seqs are remembered, not records."""
        write(shard)
        shard.call("delete_records", "a", {"before_seq": 100})
        assert write(shard)["seqs"] == [1, 2]
        assert count(shard) == 0

    def test_the_keys_of_a_deleted_topic_go_with_it(self, shard: Harness) -> None:
        """Dedupe state is removed."""
        write(shard)
        shard.call("delete_topic", "a")
        assert write(shard)["deduped"] is False
        assert count(shard.restarted()) == 2

    def test_a_refused_write_leaves_no_key(self, shard: Harness) -> None:
        """Only a write that appended records can have a duplicate."""
        shard.call("configure", "a", {"cap_records": 3, "discard": "reject"})
        shard.append("a", 1, 2)
        with pytest.raises(TopicsError):
            write(shard)
        shard.call("delete_records", "a", {"before_seq": 100})
        assert write(shard)["deduped"] is False

    def test_a_write_the_disk_refused_leaves_no_key(self, shard: Harness) -> None:
        write(shard, "other")
        shard.disk.fail["write"] = OSError(28, "injected")  # type: ignore[attr-defined]
        with pytest.raises(TopicsError):
            write(shard)
        shard.disk.fail.clear()  # type: ignore[attr-defined]
        assert write(shard)["seqs"] == [3, 4]
        assert write(shard)["deduped"] is True


class TestWindow:
    def test_it_is_two_minutes(self, shard: Harness) -> None:
        """120 000 ms unless configured."""
        write(shard)
        shard.clock.advance(120_000)
        assert write(shard)["deduped"] is True
        shard.clock.advance(1)
        assert write(shard)["deduped"] is False

    def test_it_counts_from_the_write_not_from_its_last_retry(self, shard: Harness) -> None:
        shard.call("configure", "a", {"idempotency_window_ms": 100})
        write(shard)
        shard.clock.advance(60)
        assert write(shard)["deduped"] is True
        shard.clock.advance(60)
        assert write(shard)["deduped"] is False

    def test_after_it_the_key_stands_for_the_new_write(self, shard: Harness) -> None:
        shard.call("configure", "a", {"idempotency_window_ms": 100})
        write(shard)
        shard.clock.advance(101)
        assert write(shard)["seqs"] == [3, 4]
        shard.clock.advance(100)
        assert write(shard)["seqs"] == [3, 4]
        assert write(shard.restarted())["seqs"] == [3, 4]

    def test_a_shorter_window_counts_for_keys_there_are(self, shard: Harness) -> None:
        """The window is how long keys are retained."""
        write(shard)
        shard.clock.advance(50)
        shard.call("configure", "a", {"idempotency_window_ms": 49})
        assert write(shard)["deduped"] is False

    def test_expired_keys_take_no_memory(self, shard: Harness) -> None:
        """Keys are kept for the window and no longer, also without requests."""
        for n in range(100):
            write(shard, f"k{n}")
            shard.clock.advance(1)
        topic = shard.shard.directory.find("a")
        assert len(topic.keys.dump()) == 100
        shard.clock.advance(120_000 - 50)
        shard.shard.maintain()
        assert len(topic.keys.dump()) == 50
        shard.clock.advance(100)
        shard.shard.maintain()
        assert not topic.keys
        assert not shard.restarted().shard.directory.find("a").keys


class TestRestart:
    @pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
    def test_a_retry_after_a_restart_is_recognised(self, shard: Harness, how: str) -> None:
        """Keys are kept with their writes."""
        write(shard, "old")
        shard.clock.advance(100_000)
        write(shard, "new")
        if how == "clean":
            shard.shard.close()
        elif how == "checkpoint":
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        shard.clock.advance(20_001)
        again = shard.restarted()
        assert write(again, "new")["seqs"] == [3, 4]
        assert write(again, "old")["seqs"] == [5, 6]
        shard.clock.advance(100_000)
        assert write(again, "new")["deduped"] is False

    def test_a_write_that_was_lost_with_the_machine_may_be_repeated(self, shard: Harness) -> None:
        """A key is exactly as durable as its write."""
        shard.append("a", 0)
        shard.shard.commits.sync_now()
        write(shard)
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        assert write(shard.restarted(disk.after_crash("process")))["deduped"] is True
        lost = shard.restarted(disk.after_crash("drop"))
        assert write(lost)["deduped"] is False
        assert count(lost) == 3


class TestPending:
    """A retry arrives while the first attempt still waits for its sync."""

    BODY: ClassVar = {"records": [{"data": 1}], "idempotency_key": "k"}

    def test_it_shares_the_success(self, shard: Harness) -> None:
        """Both get the same seqs, one record is written."""
        shard.call("configure", "a", {"durability": "fsync"})
        first, second = (shard.send("append", "a", self.BODY) for _ in range(2))
        shard.shard.flush()
        assert not {first, second} & set(shard.replies)
        shard.shard.commits.sync_now()
        bodies = [shard.replies[i].body for i in (first, second)]  # type: ignore[union-attr]
        assert all(b'"seqs":[1]' in body for body in bodies)
        assert [b'"deduped":true' in body for body in bodies] == [False, True]
        assert count(shard) == 1

    def test_it_shares_the_failure_and_the_next_attempt_is_a_first_one(self, shard: Harness) -> None:
        shard.call("configure", "a", {"durability": "fsync"})
        idents = [shard.send("append", "a", self.BODY) for _ in range(3)]
        shard.disk.faults[len(shard.disk.calls) + 1] = OSError(5, "injected")  # type: ignore[attr-defined]
        shard.shard.commits.sync_now()
        replies = [shard.replies[ident] for ident in idents]
        assert all(isinstance(r, Reply) and r.error is not None and r.error.status == 503 for r in replies)
        assert count(shard) == 0
        answer = shard.call("append", "a", self.BODY)
        assert (answer["seqs"], answer["deduped"]) == ([1], False)

    def test_in_one_group_on_a_new_topic(self, shard: Harness) -> None:
        """The topic is created once, the record written once."""
        first, second = (shard.send("append", "new", self.BODY) for _ in range(2))
        shard.shard.commits.sync_now()
        replies = [shard.replies[first], shard.replies[second]]
        assert [reply.created for reply in replies] == [True, False]  # type: ignore[union-attr]
        assert count(shard, "new") == 1
