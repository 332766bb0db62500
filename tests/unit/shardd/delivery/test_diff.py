"""Reads from a cursor on: positions, limits, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


def seqs(answer: Any) -> list[int]:
    return [r["$seq"] for r in answer["records"]]


class TestCursor:
    @pytest.mark.parametrize("limit", [1, 2, 7, 256])
    @pytest.mark.parametrize("batch", [1, 5, 50])
    def test_following_next_from_seq_sees_every_record_once_and_in_order(
        self, shard: Harness, limit: int, batch: int
    ) -> None:
        for start in range(0, 50, batch):
            shard.append("a", *range(start, start + batch))
        seen: list[int] = []
        cursor = 0
        while True:
            answer = shard.diff("a", cursor, limit=limit)
            assert answer["lag"] == answer["head_seq"] - answer["next_from_seq"]
            assert answer["caught_up"] is (answer["next_from_seq"] == answer["head_seq"])
            seen += [r["data"] for r in answer["records"]]
            cursor = answer["next_from_seq"]
            if answer["caught_up"]:
                break
            assert len(answer["records"]) == limit
        assert seen == list(range(50))

    def test_from_seq_is_exclusive_and_the_head_tails(self, shard: Harness) -> None:
        """Records with `$seq > from_seq`; `next_seq - 1` reads only what is new."""
        shard.append("a", 1, 2, 3)
        assert seqs(shard.diff("a", 1)) == [2, 3]
        tail = shard.call("state", "a")["next_seq"] - 1
        assert seqs(shard.diff("a", tail)) == []
        shard.append("a", 4)
        assert seqs(shard.diff("a", tail)) == [4]

    def test_a_read_changes_nothing_and_may_be_repeated(self, shard: Harness) -> None:
        """The client owns its cursor; the server keeps nothing."""
        shard.append("a", 1, 2, 3)
        assert shard.diff("a", 1) == shard.diff("a", 1)

    def test_a_read_counts_as_consumption(self, shard: Harness) -> None:
        """A read updates the topic's time of last use."""
        shard.append("a", 1)
        shard.clock.advance(5)
        shard.diff("a")
        assert shard.call("state", "a", touch=False)["last_read_ts"] == shard.clock.ms

    @pytest.mark.parametrize(("limit", "expected"), [(0, 256), (None, 256), (1, 1), (1000, 1000), (1001, 1000)])
    def test_limits(self, shard: Harness, limit: int | None, expected: int) -> None:
        """Default 256, 0 the default, clamped to 1000."""
        shard.append("a", *range(1200))
        assert len(shard.diff("a", limit=limit)["records"]) == expected

    def test_the_configured_limit_clamps(self) -> None:
        """`TOPICS_MAX_LIMIT`."""
        shard = Harness(max_limit=10)
        shard.append("a", *range(20))
        assert len(shard.diff("a")["records"]) == 10
        assert len(shard.diff("a", limit=15)["records"]) == 10

    def test_a_long_wait_is_clamped(self, shard: Harness) -> None:
        """30 000 ms at most."""
        shard.append("a", 1)
        ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 10**9})
        shard.clock.advance(29_999)
        shard.shard.reads.expire()
        assert shard.parked(ident)
        shard.clock.advance(1)
        shard.shard.reads.expire()
        assert not shard.parked(ident)

    def test_a_long_poll_does_not_wait_when_there_is_something(self, shard: Harness) -> None:
        """Blocks only if nothing is available."""
        shard.append("a", 1)
        assert not shard.parked(shard.send("diff", "a", {"wait_ms": 1000}))

    def test_an_empty_body_reads_from_the_beginning(self, shard: Harness) -> None:
        """Every field has a default."""
        shard.append("a", 1)
        assert seqs(shard.call("diff", "a", b"")) == [1]

    @pytest.mark.parametrize("from_seq", [2**53 + 1, 2**63, 2**64 - 1])
    def test_any_u64_is_a_cursor(self, shard: Harness, from_seq: int) -> None:
        """`from_seq` is a u64."""
        shard.append("a", 1)
        assert shard.diff("a", from_seq)["tombstone"]["reason"] == "recreated"

    def test_absent_fields_are_absent_and_data_never_is(self, shard: Harness) -> None:
        """Absence, not null; `data` may be null."""
        shard.call("append", "a", {"records": [{"data": None}]})
        assert set(shard.diff("a", include_tags=True)["records"][0]) == {"$seq", "$ts", "data"}


class TestSkipping:
    """Skipped records still move the cursor."""

    def test_filtered_deleted_and_expired_records_move_it(self, shard: Harness) -> None:
        """All of them; an empty answer may not be caught up."""
        shard.call("configure", "a", {"ttl_ms": 100})
        shard.append("a", 1, 2)
        shard.clock.advance(60)
        shard.append("a", 3, 4, node="me")
        shard.call("append", "a", {"records": [{"data": 5, "tag": "t"}]})
        shard.clock.advance(41)
        shard.call("delete_records", "a", {"match": "t"})
        answer = shard.diff("a", 2, node="me", limit=1)
        assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 3, False)
        answer = shard.diff("a", 3, node="me", limit=5)
        assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 5, True)

    def test_a_reader_of_nothing_but_its_own_records_gets_through(self, shard: Harness) -> None:
        """Otherwise the client would loop for ever."""
        for _ in range(10):
            shard.append("a", *range(10), node="me")
        cursor = steps = 0
        while cursor < 100:
            answer = shard.diff("a", cursor, node="me", limit=9)
            assert answer["records"] == []
            assert answer["next_from_seq"] > cursor
            cursor = answer["next_from_seq"]
            steps += 1
        assert steps == 12

    def test_filtered_records_are_never_scanned_again(self, shard: Harness) -> None:
        """`next_from_seq` is the last examined record."""
        shard.append("a", *range(100), node="me")
        shard.append("a", 1)
        reply = shard.reply("diff", "a", {"from_seq": 0, "node": "me", "limit": 1000})
        assert reply.performance["records_scanned"] == 101
        reply = shard.reply("diff", "a", {"from_seq": 101, "node": "me"})
        assert reply.performance["records_scanned"] == 0

    def test_every_pattern_of_deletions_and_limits(self, shard: Harness) -> None:
        """The window is the next `limit` live records."""
        for pattern in range(1, 128):
            name = f"t{pattern}"
            records = [{"data": n, "tag": "x" if pattern >> n & 1 else "y"} for n in range(7)]
            shard.call("append", name, {"records": records[:3]})
            shard.call("append", name, {"records": records[3:]})
            shard.call("delete_records", name, {"match": "x"})
            live = [n + 1 for n in range(7) if not pattern >> n & 1]
            for from_seq in range(8):
                for limit in (1, 2, 5):
                    answer = shard.diff(name, from_seq, limit=limit)
                    rest = [seq for seq in live if seq > from_seq]
                    assert seqs(answer) == rest[:limit]
                    after = rest[limit] if len(rest) > limit else 8
                    assert max([from_seq, *rest[:limit]]) <= answer["next_from_seq"] < after
                    assert answer["next_from_seq"] == 7 or len(rest) >= limit


NODES: list[str | None] = ["a", "b", None, "ab", "a", "B", "", None, "b"]


@pytest.mark.parametrize(
    ("node", "dropped"),
    [
        (None, set()),
        ("a", {"a"}),
        (["a"], {"a"}),
        (["a", "b"], {"a", "b"}),
        (["a", "a", "zz"], {"a"}),
        ([], set()),
        ("", {""}),
        ("A", set()),
        ("a*", set()),
        ("zz", set()),
    ],
)
@pytest.mark.parametrize("dedupe", [True, False])
@pytest.mark.parametrize("flags", [{}, {"include_tags": True}, {"include_meta": False}])
@pytest.mark.parametrize("batched", [True, False])
def test_a_node_never_gets_back_what_it_wrote(
    shard: Harness, node: object, dropped: set[str], dedupe: bool, flags: dict[str, bool], batched: bool
) -> None:
    """Byte-exact, any of several, silent, per record or per batch; `dedupe_node: false` wants echoes."""
    shard.call("configure", "a", {"dedupe_node": dedupe})
    records = [
        {"data": n, "tag": f"t{n}", "meta": {"n": n}} | ({} if name is None else {"node": name})
        for n, name in enumerate(NODES)
    ]
    for group in [records] if batched else [[record] for record in records]:
        shard.call("append", "a", {"records": group})
    answer = shard.diff("a", node=node, **flags)
    kept = [n for n, name in enumerate(NODES) if not dedupe or name not in dropped]
    assert [r["data"] for r in answer["records"]] == kept
    assert [r.get("$node") for r in answer["records"]] == [NODES[n] for n in kept]
    assert all(("$tag" in r) is flags.get("include_tags", False) for r in answer["records"])
    assert all(("meta" in r) is flags.get("include_meta", True) for r in answer["records"])
    assert (answer["next_from_seq"], answer["caught_up"], answer["tombstone"]) == (len(NODES), True, None)


def test_a_records_node_overrides_that_of_its_batch(shard: Harness) -> None:
    shard.call("append", "a", {"node": "batch", "records": [{"data": 1, "node": "own"}, {"data": 2}]})
    assert [r["$node"] for r in shard.diff("a")["records"]] == ["own", "batch"]
    assert seqs(shard.diff("a", node="batch")) == [1]
    assert seqs(shard.diff("a", node="own")) == [2]


def test_echoes_are_switched_on_and_off_in_place(shard: Harness) -> None:
    """The filter applies to reads, not to stored records."""
    shard.append("a", 1, node="me")
    for dedupe in (True, False, True):
        shard.call("configure", "a", {"dedupe_node": dedupe})
        assert len(shard.diff("a", node="me")["records"]) == (not dedupe)


@pytest.mark.parametrize("again", [False, True], ids=["in memory", "from files"])
def test_few_records_that_are_left_are_read_as_all_of_them_were(again: bool) -> None:
    shard = Harness(cache_bytes=0)
    nodes = [f"n{number % 3}" if number % 7 else None for number in range(1000)]
    records: list[dict[str, Any]] = [
        {"data": "x" * (at % 90), "tag": "keep" if at % 40 == 3 else "go", "node": node}
        for at, node in enumerate(nodes)
    ]
    shard.call("append", "a", {"records": [{k: v for k, v in r.items() if v is not None} for r in records]})
    shard.call("delete_records", "a", {"match": "go"})
    if again:
        shard.shard.close()
        shard = shard.restarted()
    left = list(range(4, 1001, 40))
    for _ in range(2):  # the second time they are in memory
        for limit, size in ((1000, None), (3, None), (1000, 100), (1000, 1)):
            found, cursor, caught_up = [], 0, False
            while not caught_up:
                answer = shard.diff("a", cursor, limit=limit, **({"max_batch_bytes": size} if size else {}))
                assert len(answer["records"]) <= limit
                found += seqs(answer)
                cursor, caught_up = answer["next_from_seq"], answer["caught_up"]
            assert found == left
        others = [seq for seq in left if nodes[seq - 1] not in ("n0", "n1")]
        assert seqs(shard.diff("a", 0, limit=1000, node=["n0", "n1"])) == others
        assert [r["data"] for r in shard.everything("a")] == [records[seq - 1]["data"] for seq in left]
