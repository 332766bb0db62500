"""Claims about the answers of a shard, without processes in between."""

from __future__ import annotations

import msgspec
import pytest

from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError, moving
from tests.support.asked import said
from tests.support.harness import Harness

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


@pytest.fixture
def shard() -> Harness:
    return Harness()


def refused(shard: Harness, op: str, topic: str, body: object, **options: object) -> TopicsError:
    before = {name: shard.call("state", name, touch=False) for name in list(shard.shard.directory.visible)}
    with pytest.raises(TopicsError) as caught:
        shard.call(op, topic, body, **options)
    after = {name: shard.call("state", name, touch=False) for name in list(shard.shard.directory.visible)}
    assert after == before, "a refused request changed something"
    return caught.value


class TestConfigure:
    def test_an_empty_body_creates_with_every_default(self, shard: Harness) -> None:
        reply = shard.reply("configure", "a")
        assert reply.created
        assert shard.call("state", "a")["config"] == DEFAULTS

    def test_the_config_is_echoed_whole_and_in_order(self, shard: Harness) -> None:
        answer = shard.call("configure", "a", {"priority": 10, "durable": True})
        assert list(answer["config"]) == list(DEFAULTS)
        assert answer["config"]["durability"] == "fsync"
        assert answer["config"]["priority"] == 10

    def test_an_identical_put_changes_nothing(self, shard: Harness) -> None:
        shard.call("configure", "a", {"priority": 10})
        frames = shard.call("stats")["wal"]["frames_total"]
        answer = shard.call("configure", "a", {"priority": 10})
        assert answer["created"] is False
        assert shard.call("stats")["wal"]["frames_total"] == frames

    def test_a_later_put_keeps_what_it_does_not_name(self, shard: Harness) -> None:
        shard.call("configure", "a", {"durability": "fsync", "priority": 7})
        config = shard.call("configure", "a", {"auto_create": False})["config"]
        assert (config["durability"], config["priority"], config["auto_create"]) == ("fsync", 7, False)
        assert shard.call("configure", "a", {"priority": None})["config"]["priority"] is None

    def test_an_explicit_durability_wins_over_durable(self, shard: Harness) -> None:
        config = shard.call("configure", "a", {"durable": True, "durability": "disk"})["config"]
        assert (config["durable"], config["durability"]) == (False, "disk")

    @pytest.mark.parametrize(
        ("field", "sent", "echoed"),
        [
            ("priority", 5000, 1000),
            ("priority", -5000, -1000),
            ("lease_ms", 1, 100),
            ("lease_ms", 10**9, 86_400_000),
            ("lease_ms", -1, 100),
            ("lease_ms", 10**30, 86_400_000),
            ("claim_jitter_ms", 6000, 5000),
            ("claim_jitter_ms", -5, 0),
        ],
    )
    def test_values_out_of_range_are_clamped(self, shard: Harness, field: str, sent: int, echoed: int) -> None:
        assert shard.call("configure", "a", {field: sent})["config"][field] == echoed

    @pytest.mark.parametrize(
        "body",
        [
            b'{"ttl_ms": -1}',
            b'{"ttl_ms": 1.5}',
            b'{"ttl_ms": "1"}',
            b'{"ttl_ms": 18446744073709551616}',
            b'{"durability": "paper"}',
            b'{"durable": 1}',
            b'{"discard": "new"}',
            b'{"type": "set"}',
            b'{"priority": 1e3}',
            b'{"dead_letter": "a"}',
            b'{"dead_letter": "../x"}',
            b"[]",
            b'{"ttl_ms"',
            b"nul",
        ],
    )
    def test_wrong_configs_are_refused(self, shard: Harness, body: bytes) -> None:
        shard.call("configure", "a")
        assert refused(shard, "configure", "a", body).code == ErrorCode.INVALID_REQUEST

    def test_the_type_of_a_topic_cannot_change(self, shard: Harness) -> None:
        shard.call("configure", "a")
        error = refused(shard, "configure", "a", {"type": "queue"})
        assert (error.code, error.status) == (ErrorCode.TOPIC_EXISTS_INCOMPATIBLE, 409)
        shard.call("configure", "a", {"type": "log"})

    @pytest.mark.parametrize(
        ("field", "meant"),
        [
            ("ttl", "ttl_ms"),
            ("capRecords", "cap_records"),
            ("cap-bytes", "cap_bytes"),
            ("Durability", "durability"),
            ("durabilty", "durability"),
            ("color", None),
            ("", None),
            ("…" * 99, None),
        ],
    )
    @pytest.mark.parametrize("inline", [False, True])
    def test_an_unknown_field_is_refused_by_name(
        self, shard: Harness, field: str, meant: str | None, inline: bool
    ) -> None:
        config = {"priority": 1, field: 5, "lease_ms": 500}
        if inline:
            error = refused(shard, "append", "a", {"records": [{"data": 1}], "config": config})
        else:
            error = refused(shard, "configure", "a", config)
        expected = {"field": field[:64]} | ({"did_you_mean": meant} if meant else {})
        assert (error.code, error.detail) == (ErrorCode.INVALID_REQUEST, expected)
        assert (meant or "ttl_ms") in error.message
        assert shard.call("list", page_size=10) == []

    def test_what_a_topic_shows_of_its_config_can_be_sent_back(self, shard: Harness) -> None:
        config = shard.call("configure", "a", {"priority": 3, "dead_letter": "d"})["config"]
        assert shard.call("configure", "a", config)["config"] == config


class TestIgnored:
    """Other bodies may have fields that this release does not know. The answer names them."""

    @pytest.mark.parametrize(
        ("operation", "body"),
        [
            ("append", {"records": [{"data": {"shade": 1}}]}),
            ("diff", {"from_seq": 0}),
            ("delete_records", {"before_seq": 1}),
        ],
    )
    def test_the_answer_names_what_it_did_not_know(
        self, shard: Harness, operation: str, body: dict[str, object]
    ) -> None:
        shard.append("a", 1)
        plain = shard.call(operation, "a", body)
        assert "ignored" not in plain
        answer = shard.call(operation, "a", {"colour": {"a": [1]}, **body, "limitt": 3})
        assert answer["ignored"] == ["colour", "limitt"]
        assert answer.keys() - {"ignored"} == plain.keys()

    @pytest.mark.parametrize(
        ("operation", "body"),
        [
            ("claim", {"node": "w"}),
            ("ack", {"node": "w", "seqs": [1]}),
            ("nack", {"node": "w", "seqs": [1]}),
            ("extend", {"node": "w", "seqs": [1], "lease_ms": 1000}),
            ("peek_jobs", {}),
        ],
    )
    def test_so_do_those_about_jobs(self, shard: Harness, operation: str, body: dict[str, object]) -> None:
        shard.call("configure", "q", {"type": "queue"})
        shard.append("q", 1)
        assert shard.call(operation, "q", {**body, "wait": 1})["ignored"] == ["wait"]

    def test_a_cursor_s_too(self, shard: Harness) -> None:
        shard.append("a", 1)
        answer = shard.call("cursor_put", "a", {"seq": 1, "forced": True}, cursor="c")
        assert (answer["seq"], answer["ignored"]) == (1, ["forced"])

    def test_a_wrong_field_is_refused_beside_an_unknown_one(self, shard: Harness) -> None:
        shard.append("a", 1)
        error = refused(shard, "diff", "a", {"unknown": 1, "limit": "3"})
        assert "$.limit" in error.message

    def test_only_so_many_names_are_told(self, shard: Harness) -> None:
        shard.append("a", 1)
        answer = shard.call("diff", "a", {f"{n:x<200}": n for n in range(1000)})
        assert len(answer["ignored"]) == 10
        assert max(map(len, answer["ignored"])) == 64

    def test_a_long_poll_says_so_when_it_is_answered(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 5000, "later": True})
        assert shard.parked(ident)
        shard.append("a", 2)
        shard.shard.deliver()
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert msgspec.json.decode(reply.body)["ignored"] == ["later"]


class TestAppend:
    def test_seqs_start_at_one_and_are_contiguous(self, shard: Harness) -> None:
        assert shard.append("a", 1, 2, 3)["seqs"] == [1, 2, 3]
        answer = shard.append("a", 4)
        assert answer == {
            "topic": "a",
            "first_seq": 4,
            "last_seq": 4,
            "seqs": [4],
            "head_seq": 4,
            "count": 1,
            "created": False,
            "deduped": False,
        }

    def test_the_first_write_creates_the_topic_with_its_config(self, shard: Harness) -> None:
        reply = shard.reply("append", "a", {"records": [{"data": 1}], "config": {"priority": 3}})
        assert reply.created
        assert shard.call("state", "a")["config"]["priority"] == 3

    def test_the_config_of_a_later_write_is_ignored(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.append("a", 1, config={"priority": 3})
        assert shard.call("state", "a")["config"]["priority"] is None

    def test_a_wrong_config_creates_nothing(self, shard: Harness) -> None:
        error = refused(shard, "append", "a", {"records": [{"data": 1}], "config": {"ttl_ms": -5}})
        assert error.code == ErrorCode.INVALID_REQUEST
        assert shard.call("list", page_size=10) == []

    def test_create_false_never_creates(self, shard: Harness) -> None:
        error = refused(shard, "append", "a", {"records": [{"data": 1}], "create": False})
        assert error.code == ErrorCode.TOPIC_NOT_FOUND
        assert shard.call("list", page_size=10) == []

    def test_seqs_can_be_left_out(self, shard: Harness) -> None:
        answer = shard.call("append", "a", {"records": [{"data": 1}]}, return_seqs=False)
        assert "seqs" not in answer
        assert answer["last_seq"] == 1

    def test_nodes_tags_and_meta_come_back(self, shard: Harness) -> None:
        records = [
            {"data": 1, "node": "n1", "tag": "t1", "meta": {"a": [1, {}]}},
            {"data": 2, "tag": None, "meta": None},
            {"data": 3, "tag": "", "meta": {}},
        ]
        shard.call("append", "a", {"records": records, "node": "batch"})
        got = shard.diff("a", include_tags=True)["records"]
        for record in got:
            del record["$ts"]
        assert got == [
            {"$seq": 1, "$node": "n1", "$tag": "t1", "data": 1, "meta": {"a": [1, {}]}},
            {"$seq": 2, "$node": "batch", "data": 2},
            {"$seq": 3, "$node": "batch", "$tag": "", "data": 3, "meta": {}},
        ]

    @pytest.mark.parametrize(
        "data",
        [b"1.0", b"1e3", b"-0", b"123456789012345678901234567890", b'{"b":1,"a":2,"a":3}', b'"\\u00e9\\/"', b"null"],
    )
    def test_json_text_comes_back_as_it_was_sent(self, shard: Harness, data: bytes) -> None:
        shard.call("append", "a", b'{"records":[{"data":%s}]}' % data)
        assert b'"data":%s}' % data in shard.reply("diff", "a").body

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            b'{"records": []}',
            b'{"records": {}}',
            b'{"records": [{}]}',
            b'{"records": [1]}',
            b'{"records": [{"data": 1}',
            b'{"records": [{"data": NaN}]}',
            b'{"records": [{"data": Infinity}]}',
            b'{"records": [{"data": "\\ud80"}]}',
            b'{"records": [{"data": "\\udc00x\\uDxyz"}]}',
            b'{"records": [{"data": 1, "tag": "\\ud800"}]}',
            b'{"records": [{"data": 1, "node": "\\udc00x"}]}',
            b'{"records": [{"data": 1}], "idempotency_key": "k\\uDFFF"}',
            b'{"records": [{"data": 1}], "node": "\\uD800"}',
            b'{"records": [{"data": "\xff"}]}',
            b'{"records": [{"data": "\xed\xa0\x80"}]}',
            b'{"records": [{"data": 01}]}',
            b'{"records": [{"data": 1}]} {}',
            b'{"records": [{"data": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
            b'{"records": [{"data": 1, "tag": 5}]}',
            b'{"records": [{"data": 1, "node": ["x"]}]}',
            b'{"records": [{"data": 1, "meta": [1]}]}',
            b'{"records": [{"data": 1, "meta": "x"}]}',
            b'{"records": [{"data": 1}], "create": "yes"}',
        ],
    )
    def test_bad_bodies_are_refused_whole(self, shard: Harness, body: bytes) -> None:
        shard.append("a", 1)
        assert refused(shard, "append", "a", body).code == ErrorCode.INVALID_REQUEST
        error = refused(shard, "append", "fresh", body)
        assert error.code == ErrorCode.INVALID_REQUEST

    def test_a_hundred_levels_of_nesting_are_fine(self, shard: Harness) -> None:
        data = b"[" * 100 + b"]" * 100
        shard.call("append", "a", b'{"records":[{"data":%s}]}' % data)
        assert data in shard.reply("diff", "a").body

    @pytest.mark.parametrize(
        ("record", "code"),
        [
            ({"data": "x" * 1100}, "record_too_large"),
            ({"data": "x" * 900, "meta": {"k": "y" * 92}}, "record_too_large"),
            ({"data": 1, "meta": {"k": "y" * 100}}, "invalid_request"),
            ({"data": 1, "tag": "é" * 6}, "invalid_request"),
            ({"data": 1, "node": "n" * 11}, "invalid_request"),
        ],
    )
    def test_sizes_are_bounded_in_bytes(self, record: dict[str, object], code: str) -> None:
        shard = Harness(max_record_bytes=1000, max_meta_bytes=100, max_tag_bytes=10, max_node_bytes=10)
        error = refused(shard, "append", "a", {"records": [{"data": 0}, record]})
        assert error.code == code
        assert "records[1]" in error.message

    def test_meta_has_at_most_64_keys(self, shard: Harness) -> None:
        shard.append("a", 1)
        full = {f"k{i:03d}": i for i in range(64)}
        shard.call("append", "a", {"records": [{"data": 1, "meta": full}]})
        error = refused(shard, "append", "a", {"records": [{"data": 1, "meta": full | {"one": 1}}]})
        assert error.code == ErrorCode.INVALID_REQUEST

    def test_the_batch_is_bounded(self, shard: Harness) -> None:
        records = [{"data": 0}] * 10_001
        assert refused(shard, "append", "a", {"records": records}).code == ErrorCode.BATCH_TOO_LARGE
        assert shard.call("append", "a", {"records": records[:-1]})["count"] == 10_000

    def test_commit_times_never_decrease(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.clock.ms -= 60_000
        shard.append("a", 2)
        first, second = (r["$ts"] for r in shard.everything("a"))
        assert second == first
        again = shard.restarted()
        again.append("a", 3)
        assert again.everything("a")[2]["$ts"] == first


class TestDiff:
    def test_the_answer_has_every_field(self, shard: Harness) -> None:
        shard.append("a", *range(10))
        answer = shard.diff("a", 2, limit=3)
        assert [r["$seq"] for r in answer.pop("records")] == [3, 4, 5]
        assert answer == {
            "topic": "a",
            "next_from_seq": 5,
            "head_seq": 10,
            "earliest_seq": 1,
            "caught_up": False,
            "tombstone": None,
            "lag": 5,
        }

    def test_limits_are_clamped_and_zero_is_the_default(self, shard: Harness) -> None:
        shard.append("a", *range(2000))
        assert len(shard.diff("a")["records"]) == 256
        assert len(shard.diff("a", limit=0)["records"]) == 256
        assert len(shard.diff("a", limit=10**15)["records"]) == 1000

    def test_one_answer_is_bounded_in_bytes_but_always_moves_on(self, shard: Harness) -> None:
        shard.append("a", *["x" * 98] * 20)
        assert len(shard.diff("a", max_batch_bytes=1000)["records"]) == 10
        assert len(shard.diff("a", max_batch_bytes=1)["records"]) == 1
        assert len(shard.everything("a")) == 20

    def test_own_records_are_left_out_but_move_the_cursor(self, shard: Harness) -> None:
        shard.append("a", 1, 2, node="me")
        shard.append("a", 3, node="you")
        shard.append("a", 4)
        shard.append("a", 5, node="me")
        assert [r["data"] for r in shard.diff("a", node="me")["records"]] == [3, 4]
        assert [r["data"] for r in shard.diff("a", node=["me", "you"])["records"]] == [4]
        answer = shard.diff("a", 4, node="me")
        assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 5, True)

    def test_the_window_is_chosen_before_the_node_filter(self, shard: Harness) -> None:
        shard.append("a", *range(10), node="me")
        answer = shard.diff("a", node="me", limit=4)
        assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 4, False)

    def test_dedupe_node_false_delivers_echoes(self, shard: Harness) -> None:
        shard.call("configure", "a", {"dedupe_node": False})
        shard.append("a", 1, node="me")
        assert len(shard.diff("a", node="me")["records"]) == 1

    def test_meta_and_tags_are_included_as_asked(self, shard: Harness) -> None:
        shard.call("append", "a", {"records": [{"data": 1, "tag": "t", "meta": {}}]})
        assert set(shard.diff("a")["records"][0]) == {"$seq", "$ts", "data", "meta"}
        assert set(shard.diff("a", include_meta=False)["records"][0]) == {"$seq", "$ts", "data"}
        assert set(shard.diff("a", include_tags=True)["records"][0]) == {"$seq", "$ts", "$tag", "data", "meta"}

    @pytest.mark.parametrize(
        "body",
        [b'{"from_seq": -1}', b'{"from_seq": 1.5}', b'{"limit": "5"}', b'{"node": 5}', b'{"wait_ms": "1"}', b"[1]"],
    )
    def test_wrong_types_are_refused(self, shard: Harness, body: bytes) -> None:
        shard.append("a", 1)
        assert refused(shard, "diff", "a", body).code == ErrorCode.INVALID_REQUEST

    def test_numbers_out_of_range_are_clamped(self, shard: Harness) -> None:
        shard.append("a", *range(2000))
        for asked, most in ((-1, 1), (-(10**30), 1), (0, 256), (5000, 1000), (2**64, 1000), (10**30, 1000)):
            assert len(shard.diff("a", limit=asked)["records"]) == most
        for asked, most in ((-1, 1), (0, 256), (10**30, 256)):
            assert len(shard.diff("a", max_batch_bytes=asked)["records"]) == most
        assert shard.diff("a", 2000, wait_ms=-1)["caught_up"], "answered at once"
        assert shard.parked(shard.send("diff", "a", {"from_seq": 2000, "wait_ms": 10**30}))

    def test_an_unknown_topic_is_404(self, shard: Harness) -> None:
        assert refused(shard, "diff", "a", b"").code == ErrorCode.TOPIC_NOT_FOUND

    def test_a_cursor_of_an_earlier_topic_of_the_name_gets_a_tombstone(self, shard: Harness) -> None:
        shard.append("a", *range(10))
        shard.call("delete_topic", "a")
        shard.append("a", "new")
        answer = shard.diff("a", 10)
        assert answer["tombstone"]["reason"] == "recreated"
        assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 1)
        assert [r["data"] for r in answer["records"]] == ["new"]


class TestLongPoll:
    def test_it_waits_until_records_come(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 1000})
        assert shard.parked(ident)
        shard.append("a", 2)
        assert b'"data":2' in shard.replies[ident].body  # type: ignore[union-attr]

    def test_it_ends_when_its_time_is_up(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 1000})
        shard.clock.advance(999)
        shard.shard.reads.expire()
        assert shard.parked(ident)
        shard.clock.advance(1)
        shard.shard.reads.expire()
        assert b'"records":[]' in shard.replies[ident].body  # type: ignore[union-attr]

    def test_own_records_do_not_end_it(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 1000, "node": "me"})
        shard.append("a", 2, node="me")
        assert shard.parked(ident)
        shard.append("a", 3)
        assert b'"$seq":3' in shard.replies[ident].body  # type: ignore[union-attr]

    def test_deleting_the_topic_ends_it(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 1000})
        shard.call("delete_topic", "a")
        assert shard.replies[ident].error.code == ErrorCode.TOPIC_NOT_FOUND  # type: ignore[union-attr]

    def test_a_caller_who_goes_away_frees_it(self, shard: Harness) -> None:
        shard.append("a", 1)
        for _ in range(1000):
            ident = shard.send("diff", "a", {"from_seq": 1, "wait_ms": 30_000})
            shard.shard.reads.cancel("peer", ident)
        assert len(shard.shard.reads) == 0
        assert len(shard.shard.reads._deadlines) < 100

    def test_many_with_the_same_wish_get_the_same_bytes(self, shard: Harness) -> None:
        shard.append("a", 1)
        idents = [shard.send("diff", "a", {"from_seq": 1, "wait_ms": 1000}) for _ in range(5)]
        shard.append("a", 2)
        bodies = {id(shard.replies[i].body) for i in idents}  # type: ignore[union-attr]
        assert len(bodies) == 1


class TestListAndDelete:
    def test_pages_are_sorted_and_filtered_by_prefix(self, shard: Harness) -> None:
        for name in ("b:2", "a", "b:1", "c", "b"):
            shard.append(name, 1)
        reply = shard.reply("list", prefix="b", page_size=2)
        assert said(reply.extra) == {"names": ["b", "b:1"], "more": True}
        reply = shard.reply("list", prefix="b", page_size=2, after="b:1")
        assert said(reply.extra) == {"names": ["b:2"], "more": False}

    def test_listing_does_not_count_as_reading(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.call("list", page_size=10)
        shard.call("state", "a", touch=False)
        assert shard.call("state", "a", touch=False)["last_read_ts"] is None
        assert shard.call("state", "a")["last_read_ts"] == shard.clock.ms

    def test_priority_halves_every_30_seconds_without_readers(self, shard: Harness) -> None:
        shard.append("a", 1)
        assert shard.call("state", "a")["effective_priority"] == 500
        shard.clock.advance(30_000)
        assert shard.call("state", "a", touch=False)["effective_priority"] == 250
        shard.clock.advance(300_000)
        assert shard.call("state", "a", touch=False)["effective_priority"] == 0

    def test_a_deleted_topic_starts_again_at_one(self, shard: Harness) -> None:
        shard.append("a", 1, 2)
        epoch = shard.shard.directory.find("a").epoch
        assert shard.call("delete_topic", "a") == {"topic": "a", "deleted": True, "routers_removed": []}
        assert shard.append("a", 3)["first_seq"] == 1
        assert shard.shard.directory.find("a").epoch > epoch
        assert [r["data"] for r in shard.restarted().everything("a")] == [3]

    def test_deleting_what_is_not_there_is_fine(self, shard: Harness) -> None:
        assert shard.call("delete_topic", "a")["deleted"] is False

    def test_if_empty_protects_records(self, shard: Harness) -> None:
        shard.append("a", 1)
        assert refused(shard, "delete_topic", "a", b"", if_empty=True).code == ErrorCode.TOPIC_NOT_EMPTY
        shard.call("configure", "b")
        assert shard.call("delete_topic", "b", if_empty=True)["deleted"] is True

    def test_counters_follow(self, shard: Harness) -> None:
        shard.append("a", 1, 2)
        shard.append("b", 1)
        assert shard.shard.directory.counters()[:2] == (2, 3)
        shard.call("delete_topic", "a")
        assert shard.shard.directory.counters()[:2] == (1, 1)
        assert shard.restarted().shard.directory.counters() == shard.shard.directory.counters()


def test_what_is_no_json_behind_an_unknown_field_is_refused_like_any() -> None:
    with pytest.raises(TopicsError, match="not JSON"):
        Harness().call("append", "a", b'{"records":[{"data":1}],"unknown":1,"x"')


class TestMove:
    def test_a_shard_that_moves_refuses_and_ends_what_is_parked(self, shard: Harness) -> None:
        shard.call("configure", "log", {})
        shard.call("configure", "jobs", {"type": "queue"})
        shard.append("log", 1)
        parked = [
            shard.send("diff", "log", {"from_seq": 1, "wait_ms": 20_000}),
            shard.send("claim", "jobs", {"node": "w", "max": 1, "wait_ms": 20_000}),
        ]
        assert all(map(shard.parked, parked))
        shard.shard.move(moving(0))
        for ident in parked:
            reply = shard.replies[ident]
            assert isinstance(reply, Reply)
            assert reply.error is not None
            assert reply.error.detail == {"shard": 0, "reason": "moving", "outcome": "not_done"}
        assert refused_now(shard, "append", "log", {"records": [{"data": 2}]})
        assert refused_now(shard, "configure", "new", {})
        shard.shard.move(None)
        shard.append("log", 3)
        assert [each["data"] for each in shard.everything("log")] == [1, 3]

    def test_what_waits_for_room_is_refused_also_for_a_topic_that_does_not_exist_yet(self) -> None:
        shard = Harness(max_topics=5, max_total_bytes=1000)
        shard.call("configure", "log", {})
        shard.shard.allowance.bind(alone=False)
        waiting = [
            shard.send("configure", "new", {}),
            shard.send("append", "newer", {"records": [{"data": 1}]}),
            shard.send("append", "log", {"records": [{"data": 1}]}),
        ]
        assert not set(waiting) & shard.replies.keys()
        shard.shard.move(moving(0))
        for ident in waiting:
            reply = shard.replies[ident]
            assert isinstance(reply, Reply)
            assert reply.error is not None
            assert reply.error.detail == {"shard": 0, "reason": "moving", "outcome": "not_done"}
        assert not shard.shard.allowance.unsettled
        shard.shard.move(None)
        shard.shard.allowance.bind(alone=True)
        shard.settle()
        assert shard.everything("log") == []
        assert list(shard.shard.directory.assigned) == ["log"]

    def test_what_was_staged_before_is_answered(self, shard: Harness) -> None:
        shard.call("configure", "log", {"durability": "fsync"})
        shard.shard.commits.sync_now()
        ident = shard.send("append", "log", {"records": [{"data": 1}]})
        shard.shard.move(moving(0))
        shard.settle()
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert reply.error is None
        shard.shard.move(None)
        assert [each["data"] for each in shard.everything("log")] == [1]


def refused_now(shard: Harness, op: str, topic: str, body: object) -> bool:
    error = shard.reply(op, topic, body).error
    return error is not None and error.detail is not None and error.detail["reason"] == "moving"
