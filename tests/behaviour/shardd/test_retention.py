"""Claims about retention: which records caps and age remove, and what readers are told."""

from __future__ import annotations

from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import RECORD_OVERHEAD
from tests.support.harness import Harness

RECORD = RECORD_OVERHEAD + 1
"""Bytes that a record counts whose `data` is one digit."""


@pytest.fixture
def shard() -> Harness:
    return Harness()


def seqs(shard: Harness, topic: str = "a", from_seq: int = 0, **fields: Any) -> list[int]:
    return [r["$seq"] for r in shard.diff(topic, from_seq, **fields)["records"]]


def position(shard: Harness, topic: str = "a") -> tuple[int, int, int, int]:
    """earliest_seq, head_seq, count, bytes."""
    state = shard.call("state", topic)
    return state["earliest_seq"], state["head_seq"], state["count"], state["bytes"]


def floor(shard: Harness, topic: str = "a") -> int:
    """The evict floor as a reader can find it: the lowest cursor that gets no tombstone, plus one."""
    head = position(shard, topic)[1]
    return next(at for at in range(1, head + 2) if shard.diff(topic, at - 1)["tombstone"] is None)


def restarted(shard: Harness, how: str) -> Harness:
    """The shard after a restart: after a clean stop, or after the death of the process."""
    if how == "clean":
        shard.shard.close()
    elif how == "checkpoint":
        shard.shard.commits.sync_now()
        shard.shard.checkpoint_now()
    return shard.restarted()


HOW = pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])


class TestCaps:
    def test_the_floor_is_exact_right_after_the_write_that_overflows(self, shard: Harness) -> None:
        """On overflow the oldest records go, and no more than needed."""
        shard.call("configure", "a", {"cap_records": 5})
        for n in range(1, 40):
            shard.append("a", 0)
            first = max(1, n - 4)
            assert position(shard) == (first, n, min(n, 5), min(n, 5) * RECORD)
            assert seqs(shard, limit=100) == list(range(first, n + 1))

    def test_a_batch_is_cut_in_the_middle(self, shard: Harness) -> None:
        """Caps count records, not writes."""
        shard.call("configure", "a", {"cap_records": 5})
        shard.append("a", *[0] * 4)
        shard.append("a", *[0] * 3)
        assert position(shard) == (3, 7, 5, 5 * RECORD)
        shard.append("a", *[0] * 12)
        assert position(shard) == (15, 19, 5, 5 * RECORD)

    def test_bytes_are_capped_exactly(self, shard: Harness) -> None:
        """Data, meta and framing count. No more records go than needed."""
        shard.call("configure", "a", {"cap_bytes": 100})
        sizes = []
        for n in [1, 30, 5, 60, 1, 1, 1, 20, 2]:
            shard.append("a", "x" * n)
            sizes.append(n + 2 + RECORD_OVERHEAD)
            kept = next(k for k in range(len(sizes)) if sum(sizes[k:]) <= 100)
            assert position(shard) == (kept + 1, len(sizes), len(sizes) - kept, sum(sizes[kept:]))

    def test_meta_tag_and_node_count_towards_bytes(self, shard: Harness) -> None:
        """`cap_bytes` counts everything that is stored for a record."""
        record = {"data": 1, "meta": {"k": 1}, "tag": "é", "node": "n1"}
        shard.call("append", "a", {"records": [record]})
        assert position(shard)[3] == 1 + len('{"k":1}') + 2 + 2 + RECORD_OVERHEAD

    def test_whichever_cap_is_hit_first_evicts(self, shard: Harness) -> None:
        shard.call("configure", "a", {"cap_records": 3, "cap_bytes": 10 * RECORD})
        shard.append("a", *[0] * 5)
        assert position(shard)[2] == 3
        big = "x" * (9 * RECORD - RECORD_OVERHEAD - 2)
        shard.append("a", big)
        assert position(shard) == (5, 6, 2, 10 * RECORD)

    @pytest.mark.parametrize("cap", [{"cap_bytes": 1}, {"cap_records": 1}, {"cap_records": 1, "cap_bytes": 1}])
    def test_the_newest_record_always_stays(self, shard: Harness, cap: dict[str, int]) -> None:
        """At least the newest record of the write is kept, whatever its size."""
        shard.call("configure", "a", cap)
        shard.append("a", 1, 2, 3)
        assert seqs(shard) == [3]
        shard.append("a", "x" * 1000)
        assert seqs(shard) == [4]
        assert position(shard)[:3] == (4, 4, 1)

    def test_the_newest_live_record_stays_when_a_cap_is_lowered_behind_deletions(self, shard: Harness) -> None:
        """The cap does not evict the last live record, also if later ones were deleted."""
        shard.append("a", 1, 2)
        shard.call("append", "a", {"records": [{"data": 3, "tag": "t"}]})
        shard.call("delete_records", "a", {"match": "t"})
        shard.call("configure", "a", {"cap_bytes": 1})
        assert seqs(shard) == [2]

    def test_deleted_records_do_not_fill_a_cap(self, shard: Harness) -> None:
        """A deleted record is gone from count and bytes at once."""
        shard.call("configure", "a", {"cap_records": 4})
        shard.call(
            "append", "a", {"records": [{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 5)]}
        )
        shard.call("delete_records", "a", {"match": "even"})
        shard.append("a", 5, 6)
        assert seqs(shard) == [1, 3, 5, 6]
        assert shard.diff("a")["tombstone"] is None
        shard.append("a", 7)
        assert seqs(shard) == [3, 5, 6, 7]
        assert shard.diff("a")["tombstone"]["gap_to"] == 2

    @HOW
    def test_floors_survive_a_restart(self, shard: Harness, how: str) -> None:
        """`evict_floor` and `earliest_seq` stay the same."""
        shard.call("configure", "a", {"cap_records": 3})
        for n in range(10):
            shard.call("append", "a", {"records": [{"data": n, "tag": f"t{n}"}, {"data": n}]})
        shard.call("delete_records", "a", {"match": "t9"})
        before = position(shard), floor(shard), shard.diff("a", 2)
        assert before[1] == 18
        again = restarted(shard, how)
        assert (position(again), floor(again), again.diff("a", 2)) == before


class TestPut:
    def test_a_tightened_cap_takes_existing_records_at_once(self, shard: Harness) -> None:
        """Counts are exact for readers, also while files still have the records."""
        shard.append("a", *[0] * 10)
        shard.call("configure", "a", {"cap_records": 4})
        assert position(shard) == (7, 10, 4, 4 * RECORD)
        shard.call("configure", "a", {"cap_bytes": 2 * RECORD})
        assert position(shard) == (9, 10, 2, 2 * RECORD)
        assert shard.diff("a")["tombstone"]["reason"] == "cap"

    @HOW
    def test_a_relaxed_cap_brings_nothing_back(self, shard: Harness, how: str) -> None:
        """Changes apply going forward."""
        shard.call("configure", "a", {"cap_records": 2})
        shard.append("a", *[0] * 6)
        shard.call("configure", "a", {"cap_records": 0})
        assert position(shard)[:3] == (5, 6, 2)
        assert position(restarted(shard, how))[:3] == (5, 6, 2)

    @HOW
    @pytest.mark.parametrize("read_before", [True, False])
    def test_a_relaxed_ttl_brings_nothing_back(self, shard: Harness, how: str, read_before: bool) -> None:
        """This holds also if no request came while the old TTL was in force."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1)
        shard.clock.advance(60)
        shard.append("a", 2)
        shard.clock.advance(41)
        if read_before:
            assert seqs(shard) == [2]
        shard.call("configure", "a", {"ttl_ms": 0})
        assert seqs(shard) == [2]
        again = restarted(shard, how)
        assert seqs(again) == [2]
        assert again.diff("a")["tombstone"]["reason"] == "ttl"

    def test_what_expires_while_a_longer_ttl_is_on_its_way_stays(self, shard: Harness) -> None:
        """A PUT counts from the time of its request; else a restart would bring expired records back."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1)
        shard.clock.advance(100)
        shard.send("configure", "a", {"ttl_ms": 1000})
        shard.clock.advance(1)
        assert seqs(shard) == [1]
        shard.shard.commits.sync_now()
        assert seqs(shard) == [1]
        assert seqs(shard.restarted()) == [1]
        shard.clock.advance(900)
        assert seqs(shard) == []

    def test_a_longer_ttl_that_fails_to_be_set_holds_nothing_up(self, shard: Harness) -> None:
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1)
        shard.disk.fail["write"] = OSError(5, "injected")  # type: ignore[attr-defined]
        assert shard.reply("configure", "a", {"ttl_ms": 0}).error is not None
        shard.disk.fail.clear()  # type: ignore[attr-defined]
        shard.clock.advance(101)
        assert seqs(shard) == []

    def test_stored_records_are_not_rewritten(self, shard: Harness) -> None:
        """Seqs, times and contents stay."""
        shard.call("append", "a", {"records": [{"data": {"x": 1}, "tag": "t", "meta": {"m": 1}}]})
        before = shard.diff("a", include_tags=True)["records"]
        shard.call("configure", "a", {"ttl_ms": 10_000, "cap_records": 5, "durability": "fsync", "priority": 3})
        assert shard.diff("a", include_tags=True)["records"] == before


class TestTtl:
    def test_a_record_expires_when_it_is_older_than_the_ttl_not_as_old(self, shard: Harness) -> None:
        """Strictly, `now - $ts > ttl_ms`."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1)
        shard.clock.advance(100)
        assert position(shard) == (1, 1, 1, RECORD)
        shard.clock.advance(1)
        assert position(shard) == (2, 1, 0, 0)
        answer = shard.diff("a")
        assert answer["records"] == []
        assert answer["caught_up"] is True
        assert answer["tombstone"] == {
            "gap_from": 1,
            "gap_to": 1,
            "reason": "ttl",
            "missed_estimate": 1,
            "earliest_seq": 2,
            "head_seq": 1,
        }

    @pytest.mark.parametrize("ask", ["state", "list", "stats", "diff"])
    def test_every_answer_leaves_out_what_has_expired(self, shard: Harness, ask: str) -> None:
        """Expired records are counted nowhere, even before their space is reclaimed."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1, 2, 3)
        shard.clock.advance(50)
        shard.append("a", 4)
        shard.clock.advance(51)
        if ask == "state":
            assert position(shard) == (4, 4, 1, RECORD)
        elif ask == "list":
            entry = shard.call("list", page_size=10)[0]
            assert (entry["earliest_seq"], entry["count"], entry["bytes"]) == (4, 1, RECORD)
        elif ask == "stats":
            stats = shard.call("stats", per_topic=10)
            assert (stats["records_live"], stats["bytes_live"]) == (1, RECORD)
            assert stats["per_topic"] == [["a", 4, 4, 1, RECORD]]
        else:
            assert seqs(shard) == [4]

    def test_records_of_merged_writes_expire_one_by_one(self, shard: Harness) -> None:
        """Each record expires by its own `$ts`, however it is stored."""
        shard.call("configure", "a", {"ttl_ms": 1000})
        for _ in range(200):
            shard.append("a", 0)
            shard.clock.advance(1)
        shard.clock.advance(801)
        for n in range(1, 200):
            assert position(shard)[:3] == (n + 1, 200, 200 - n)
            shard.clock.advance(1)

    def test_a_reader_that_waits_is_not_woken_by_expiry_but_told_afterwards(self, shard: Harness) -> None:
        """The gap is in the next answer to a reader whose cursor was below it."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1, 2)
        shard.clock.advance(101)
        assert shard.diff("a", 2)["tombstone"] is None
        assert shard.diff("a", 1)["tombstone"]["gap_from"] == 2

    def test_the_clock_stepping_back_revives_nothing(self, shard: Harness) -> None:
        """`earliest_seq` is monotonic."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1)
        shard.clock.advance(101)
        assert position(shard)[0] == 2
        shard.clock.advance(-101)
        assert position(shard)[:3] == (2, 1, 0)

    def test_age_takes_from_a_topic_that_refuses_what_is_too_much(self, shard: Harness) -> None:
        """`discard` applies to caps, not to age. Expired records make room."""
        shard.call("configure", "a", {"ttl_ms": 100, "cap_records": 2, "discard": "reject"})
        shard.append("a", 1, 2)
        shard.clock.advance(101)
        assert shard.append("a", 3)["first_seq"] == 3


class TestTombstones:
    def test_its_fields_are_exact(self, shard: Harness) -> None:
        shard.call("configure", "a", {"cap_records": 3})
        shard.append("a", *range(10))
        answer = shard.diff("a", 4, limit=1)
        assert answer["tombstone"] == {
            "gap_from": 5,
            "gap_to": 7,
            "reason": "cap",
            "missed_estimate": 3,
            "earliest_seq": 8,
            "head_seq": 10,
        }
        assert [r["$seq"] for r in answer["records"]] == [8]
        assert (answer["next_from_seq"], answer["earliest_seq"], answer["lag"]) == (8, 8, 2)

    def test_it_comes_iff_the_cursor_is_below_the_evict_floor(self, shard: Harness) -> None:
        """`from_seq + 1 < evict_floor`, not a seq earlier or later."""
        shard.call("configure", "a", {"cap_records": 3})
        shard.append("a", *range(10))
        assert [shard.diff("a", at)["tombstone"] is not None for at in range(11)] == [True] * 7 + [False] * 4

    def test_a_fresh_topic_has_none(self, shard: Harness) -> None:
        shard.call("configure", "a")
        assert shard.diff("a")["tombstone"] is None
        shard.append("a", 1)
        assert shard.diff("a")["tombstone"] is None

    def test_a_purely_deleted_gap_is_silent(self, shard: Harness) -> None:
        """The cursor passes the gap without a tombstone."""
        shard.append("a", *range(10))
        shard.call("delete_records", "a", {"before_seq": 8})
        answer = shard.diff("a")
        assert answer["tombstone"] is None
        assert answer["earliest_seq"] == 8
        assert [r["$seq"] for r in answer["records"]] == [8, 9, 10]

    def test_a_gap_of_losses_and_deletions_reaches_up_to_the_first_live_record(self, shard: Harness) -> None:
        """`gap_to` is `earliest_seq - 1`. Gaps below the evict floor are told, deletions above it are not."""
        shard.call("configure", "a", {"cap_records": 6})
        shard.append("a", *range(10))
        shard.call("delete_records", "a", {"before_seq": 8})
        told = shard.diff("a", 1)["tombstone"]
        assert (told["gap_from"], told["gap_to"], told["earliest_seq"]) == (2, 7, 8)
        assert [shard.diff("a", at)["tombstone"] is None for at in (3, 4, 6)] == [False, True, True]

    def test_a_deletion_does_not_move_the_evict_floor(self, shard: Harness) -> None:
        """Only losses raise it."""
        shard.call("configure", "a", {"cap_records": 6})
        shard.append("a", *range(10))
        assert floor(shard) == 5
        shard.call("delete_records", "a", {"before_seq": 9})
        assert floor(shard) == 5
        shard.call("delete_records", "a", {"before_seq": 100})
        assert floor(shard) == 5
        assert position(shard)[:3] == (11, 10, 0)

    @pytest.mark.parametrize(
        ("from_seq", "reason"),
        [(0, "mixed"), (1, "mixed"), (2, "ttl"), (3, "ttl"), (4, "ttl")],
    )
    @HOW
    def test_the_reason_is_that_of_the_records_in_the_gap(
        self, shard: Harness, from_seq: int, reason: str, how: str
    ) -> None:
        """The cap evicted 1 and 2, and 3 to 5 expired."""
        shard.call("configure", "a", {"cap_records": 3, "ttl_ms": 100})
        shard.append("a", 1, 2)
        shard.append("a", 3, 4)
        shard.append("a", 0)
        assert position(shard)[0] == 3
        shard.clock.advance(101)
        shard.append("a", 6)
        assert position(shard)[0] == 6
        again = restarted(shard, how)
        assert again.diff("a", from_seq)["tombstone"]["reason"] == reason
        assert again.diff("a", 5)["tombstone"] is None

    def test_records_begin_at_the_earliest_and_the_cursor_goes_on_from_there(self, shard: Harness) -> None:
        """At most one tombstone, then a read like any other."""
        shard.call("configure", "a", {"cap_records": 3})
        shard.append("a", *range(10))
        first = shard.diff("a", 0, limit=2)
        assert first["tombstone"] is not None
        second = shard.diff("a", first["next_from_seq"], limit=2)
        assert second["tombstone"] is None
        assert [r["$seq"] for r in second["records"]] == [10]

    def test_a_tombstone_ends_a_long_poll_at_once(self, shard: Harness) -> None:
        """A read that finds a loss is answered at once, and does not wait."""
        shard.call("configure", "a", {"ttl_ms": 10})
        shard.append("a", 1)
        shard.clock.advance(11)
        ident = shard.send("diff", "a", {"from_seq": 0, "wait_ms": 1000})
        assert not shard.parked(ident)

    @HOW
    def test_recreated(self, shard: Harness, how: str) -> None:
        """The cursor belongs to an earlier topic of the same name."""
        shard.append("a", *range(10))
        shard.call("delete_topic", "a")
        shard.append("a", "x", "y", config={"cap_records": 1})
        again = restarted(shard, how)
        answer = again.diff("a", 7)
        assert answer["tombstone"] == {
            "gap_from": 1,
            "gap_to": 2,
            "reason": "recreated",
            "missed_estimate": 2,
            "earliest_seq": 2,
            "head_seq": 2,
        }
        assert [r["data"] for r in answer["records"]] == ["y"]
        assert answer["next_from_seq"] == 2

    def test_recreated_and_still_empty(self, shard: Harness) -> None:
        """The cursor starts over with the topic."""
        shard.append("a", 1)
        shard.call("delete_topic", "a")
        shard.call("configure", "a")
        answer = shard.diff("a", 1)
        assert answer["tombstone"]["reason"] == "recreated"
        assert (answer["next_from_seq"], answer["caught_up"]) == (0, True)

    def test_lazy_reclaim_never_shows(self, shard: Harness) -> None:
        """Checkpoints move and drop whole segments. Floors, counts and answers stay the same."""
        shard = Harness(segment_max_events=7, cache_bytes=0, wal_segment_bytes=4096)
        shard.call("configure", "a", {"cap_records": 10})
        for n in range(60):
            shard.append("a", n, n)
            before = position(shard), shard.diff("a")
            assert before[0][:3] == (max(1, 2 * n - 7), 2 * n + 2, min(2 * n + 2, 10))
            if n % 5 == 0:
                shard.shard.commits.sync_now()
                shard.shard.checkpoint_now()
                assert (position(shard), shard.diff("a")) == before


class TestReject:
    def refused(self, shard: Harness, *data: Any, **fields: Any) -> TopicsError:
        before = position(shard)
        with pytest.raises(TopicsError) as caught:
            shard.append("a", *data, **fields)
        assert position(shard) == before, "a refused write changed something"
        return caught.value

    def test_a_full_topic_refuses_and_says_how_full_it_is(self, shard: Harness) -> None:
        """The write is answered 422 and appends nothing."""
        shard.call("configure", "a", {"cap_records": 3, "discard": "reject"})
        shard.append("a", 1, 2)
        error = self.refused(shard, 3, 4)
        assert (error.code, error.status) == (ErrorCode.TOPIC_FULL, 422)
        assert error.detail is not None
        assert error.detail["cap_records"] == 3
        assert error.detail["cap_bytes"] == 0
        assert error.detail["head_seq"] == 2
        assert error.detail["earliest_seq"] == 1
        assert shard.append("a", 3)["first_seq"] == 3

    def test_it_may_be_filled_to_the_last_byte(self, shard: Harness) -> None:
        shard.call("configure", "a", {"cap_bytes": 3 * RECORD, "discard": "reject"})
        shard.append("a", 1, 2, 3)
        assert self.refused(shard, 4).code == ErrorCode.TOPIC_FULL

    @pytest.mark.parametrize(
        ("config", "data"),
        [
            ({"cap_records": 3}, [1, 2, 3, 4]),
            ({"cap_bytes": 3 * RECORD}, ["x" * 3 * RECORD]),
            ({"cap_records": 1, "cap_bytes": RECORD}, ["x" * RECORD]),
        ],
    )
    @pytest.mark.parametrize("filled", [True, False])
    def test_what_can_never_fit_is_too_large(
        self, shard: Harness, config: dict[str, Any], data: list[Any], filled: bool
    ) -> None:
        """No amount of room would help, so the answer is 400 and not 422, whether the topic is full or not."""
        shard.call("configure", "a", {**config, "discard": "reject"})
        if filled:
            shard.append("a", 1)
        error = self.refused(shard, *data)
        assert (error.code, error.status) == (ErrorCode.RECORD_TOO_LARGE, 400)

    def test_a_lazily_created_one_is_checked_too(self, shard: Harness) -> None:
        """An inline config applies to the write that has it."""
        with pytest.raises(TopicsError) as caught:
            shard.append("new", 1, 2, config={"cap_records": 1, "discard": "reject"})
        assert caught.value.code == ErrorCode.RECORD_TOO_LARGE
        assert shard.call("list", page_size=10) == []

    def test_deletions_make_room(self, shard: Harness) -> None:
        """A deleted record stops counting at once."""
        shard.call("configure", "a", {"cap_records": 2, "discard": "reject"})
        shard.append("a", 1, 2)
        shard.call("delete_records", "a", {"before_seq": 2})
        assert shard.append("a", 3)["first_seq"] == 3

    def test_writes_on_their_way_count(self, shard: Harness) -> None:
        """Two writes in one group never share the last place."""
        shard.call("configure", "a", {"cap_records": 1, "discard": "reject", "durability": "fsync"})
        first = shard.send("append", "a", {"records": [{"data": 1}]})
        second = shard.send("append", "a", {"records": [{"data": 2}]})
        shard.shard.commits.sync_now()
        assert shard.replies[first].error is None  # type: ignore[union-attr]
        assert shard.replies[second].error.code == ErrorCode.TOPIC_FULL  # type: ignore[union-attr]

    @HOW
    def test_a_lowered_cap_takes_nothing_from_it(self, shard: Harness, how: str) -> None:
        """Jobs that are not consumed are never dropped. The topic is full, and writes are refused."""
        shard.call("configure", "a", {"discard": "reject"})
        shard.append("a", *range(5))
        shard.call("configure", "a", {"cap_records": 2})
        again = restarted(shard, how)
        assert position(again)[:3] == (1, 5, 5)
        assert self.refused(again, 6).code == ErrorCode.TOPIC_FULL
        again.call("configure", "a", {"discard": "old"})
        assert position(again)[:3] == (4, 5, 2)
        assert position(restarted(again, how))[:3] == (4, 5, 2)
