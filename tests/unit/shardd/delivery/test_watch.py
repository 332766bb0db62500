"""Streams in a shard: stream reads, strong reads, and watch sessions across restarts."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.model.errors import TopicsError
from shardd.offline.reshard import Reshard
from shardd.shard import opened_shard
from shardd.topic.watch_session import MOST_TOLD, TOLD
from tests.support.asked import said
from tests.support.harness import Harness

OPTIONS: dict[str, Any] = {
    "from_seq": 0,
    "epoch": 0,
    "limit": 256,
    "budget": 1 << 20,
    "nodes": [],
    "tags": False,
    "meta": True,
    "data": True,
    "strong": False,
    "wait_ms": 0,
    "touch": True,
}
WID = "wid_" + "a" * 22


@pytest.fixture
def shard() -> Harness:
    return Harness()


def feed(shard: Harness, topic: str = "a", **options: Any) -> tuple[Any, dict[str, Any]]:
    """The payload (None if there is none) and the rest of the reply."""
    reply = shard.reply("feed", topic, **{**OPTIONS, **options})
    return opened(reply)


def opened(reply: Any) -> tuple[Any, dict[str, Any]]:
    import msgspec

    assert isinstance(reply, Reply)
    if reply.error is not None:
        raise reply.error
    assert reply.extra is not None
    assert b"\n" not in reply.body
    return (msgspec.json.decode(reply.body) if reply.body else None), {
        k: v for k, v in msgspec.structs.asdict(reply.extra).items() if v is not None
    }


class TestFeeds:
    def test_a_feed_has_the_records_and_where_it_ends(self, shard: Harness) -> None:
        shard.append("a", 1, 2, 3)
        payload, rest = feed(shard, limit=2)
        assert [r["data"] for r in payload["records"]] == [1, 2]
        assert (payload["topic"], payload["from_seq"], payload["to_seq"], payload["head_seq"]) == ("a", 0, 2, 3)
        assert (rest["to"], rest["head"], rest["earliest"]) == (2, 3, 1)
        assert "gap" not in rest

    def test_line_breaks_between_tokens_become_blanks_and_escaped_ones_stay(self, shard: Harness) -> None:
        shard.reply("append", "a", b'{"records":[{"data":{"a":\r\n"b\\nc"\n},"meta":{\n}}]}')
        payload, _ = feed(shard)
        assert payload["records"][0]["data"] == {"a": "b\nc"}
        assert payload["records"][0]["meta"] == {}

    def test_without_data_records_are_bare(self, shard: Harness) -> None:
        shard.call("append", "a", {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"k": 1}}]})
        record = feed(shard, data=False, tags=True, meta=False)[0]["records"][0]
        assert set(record) == {"$seq", "$ts", "$node", "$tag"}

    def test_what_the_filter_hides_still_moves_the_position(self, shard: Harness) -> None:
        shard.append("a", 1, 2, node="me")
        payload, rest = feed(shard, nodes=["me"])
        assert payload is None
        assert rest["to"] == 2

    def test_a_feed_waits_and_is_answered_with_what_comes(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("feed", "a", **{**OPTIONS, "from_seq": 1, "wait_ms": 1000})
        assert shard.parked(ident)
        shard.append("a", 2, 3)
        payload, rest = opened(shard.replies[ident])
        assert [r["$seq"] for r in payload["records"]] == [2, 3]
        assert rest["to"] == 3

    def test_a_waiting_feed_of_a_deleted_topic_is_404(self, shard: Harness) -> None:
        shard.append("a", 1)
        ident = shard.send("feed", "a", **{**OPTIONS, "from_seq": 1, "wait_ms": 1000})
        shard.call("delete_topic", "a")
        with pytest.raises(TopicsError, match="does not exist"):
            opened(shard.replies[ident])

    def test_what_a_cap_took_is_a_gap(self, shard: Harness) -> None:
        shard.call("configure", "a", {"cap_records": 2})
        shard.append("a", 1, 2, 3, 4, 5)
        payload, rest = feed(shard, from_seq=1)
        assert rest["gap"] == (2, 3, "cap", None)
        assert (payload["from_seq"], [r["$seq"] for r in payload["records"]]) == (3, [4, 5])

    def test_a_deleted_gap_is_silent(self, shard: Harness) -> None:
        shard.append("a", 1, 2, 3)
        shard.call("delete_records", "a", {"before_seq": 3})
        payload, rest = feed(shard)
        assert "gap" not in rest
        assert [r["$seq"] for r in payload["records"]] == [3]

    def test_another_instance_of_the_topic_is_a_gap_wherever_the_position_was(self, shard: Harness) -> None:
        shard.append("a", 1, 2, 3)
        epoch = feed(shard)[1]["epoch"]
        shard.call("delete_topic", "a")
        shard.append("a", 4, 5, 6, 7)
        for position in (0, 2, 4, 9):
            payload, rest = feed(shard, from_seq=position, epoch=epoch)
            assert rest["gap"] == (1, 4, "recreated", None)
            assert rest["epoch"] > epoch
            assert [r["data"] for r in payload["records"]] == [4, 5, 6, 7]

    def test_only_what_is_delivered_counts_as_use(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.clock.advance(10)
        feed(shard, from_seq=1, touch=False)
        assert shard.call("state", "a", touch=False)["last_read_ts"] is None
        feed(shard, touch=False)
        assert shard.call("state", "a", touch=False)["last_read_ts"] == shard.clock.ms


class TestStrong:
    def strong(self, shard: Harness, **options: Any) -> tuple[Any, dict[str, Any]]:
        ident = shard.send("feed", "a", **{**OPTIONS, "strong": True, **options})
        return opened(shard.replies[ident])

    def test_disk_records_are_held_back_until_a_sync_covers_them(self, shard: Harness) -> None:
        shard.append("a", 1)
        shard.shard.commits.sync_now()
        shard.append("a", 2, 3)
        assert [r["$seq"] for r in feed(shard)[0]["records"]] == [1, 2, 3]
        payload, rest = self.strong(shard)
        assert [r["$seq"] for r in payload["records"]] == [1]
        assert (rest["to"], rest["head"]) == (1, 1)
        ident = shard.send("feed", "a", **{**OPTIONS, "strong": True, "from_seq": 1, "wait_ms": 1000})
        assert shard.parked(ident)
        shard.shard.commits.sync_now()
        assert [r["$seq"] for r in opened(shard.replies[ident])[0]["records"]] == [2, 3]
        assert self.strong(shard)[1]["head"] == 3

    def test_a_position_at_the_visible_head_is_not_ahead_of_the_log(self, shard: Harness) -> None:
        shard.append("a", 1, 2)
        payload, rest = self.strong(shard, from_seq=2)
        assert payload is None
        assert "gap" not in rest

    @pytest.mark.parametrize("durability", ["memory", "ephemeral"])
    def test_what_is_never_synced_on_purpose_is_not_waited_for(self, shard: Harness, durability: str) -> None:
        shard.call("configure", "a", {"durability": durability})
        shard.append("a", 0)
        shard.append("a", 1)
        assert self.strong(shard)[0]["to_seq"] == 2


def make(shard: Harness, wid: str = WID, owner: bytes = b"k", **options: Any) -> None:
    told = {"limit": 1, "heartbeat_ms": 1000}
    shard.reply("session_make", wid, {"a": [1, 0, 0], "b": [2, 5, 0]}, owner=owner, options=told, **options)


def positions(shard: Harness, wid: str = WID) -> Any:
    reply = shard.reply("session_open", wid, owner=b"k")
    if reply.error is not None:
        return reply.error.status
    assert reply.extra is not None
    return reply.extra.generation, {name: tuple(each) for name, each in reply.extra.topics.items()}


def move(shard: Harness, topics: dict[str, Any], generation: int = 0, wid: str = WID) -> dict[str, Any]:
    reply = shard.reply("session_move", "", {wid: [generation, topics]})
    assert reply.extra is not None
    return said(reply.extra)


class TestSessions:
    def test_a_session_of_a_prefix_keeps_the_last_deletions_only(self, shard: Harness) -> None:
        told = {"limit": 1, "heartbeat_ms": 1000, "prefix": "t"}
        shard.reply("session_make", WID, {"live": [1, 5, 0]}, owner=b"k", options=told)
        for n in range(MOST_TOLD + 3):
            move(shard, {f"t{n}": [n + 2, 1, 0]})
            move(shard, {f"t{n}": [TOLD, 1, n + 1]}, n + 1)
        for each in (shard, shard.restarted()):
            kept = positions(each)[1]
            assert len(kept) == MOST_TOLD + 1
            assert kept["live"] == (1, 5, 0)
            assert "t2" not in kept
            assert "t3" in kept

    def test_a_session_is_its_owners_only(self, shard: Harness) -> None:
        make(shard)
        assert positions(shard) == (0, {"a": (1, 0, 0), "b": (2, 5, 0)})
        assert shard.reply("session_open", WID, owner=b"other").error.status == 401  # type: ignore[union-attr]
        assert shard.reply("session_open", "wid_none", owner=b"k").error.status == 404  # type: ignore[union-attr]

    def test_moves_survive_the_process_with_and_without_a_checkpoint(self, shard: Harness) -> None:
        make(shard)
        move(shard, {"a": [1, 7, 0]})
        assert positions(shard.restarted()) == (0, {"a": (1, 7, 0), "b": (2, 5, 0)})
        again = shard.restarted()
        again.shard.checkpoint_now()
        move(again, {"b": [3, 1, 1]}, 1)
        assert positions(again.restarted()) == (1, {"a": (1, 7, 0), "b": (3, 1, 1)})
        again.shard.checkpoint_now()
        again.shard.checkpoint_now()
        assert positions(again.restarted()) == (1, {"a": (1, 7, 0), "b": (3, 1, 1)})

    def test_a_session_nobody_speaks_of_ends(self, shard: Harness) -> None:
        make(shard)
        shard.clock.advance(200_000)
        assert move(shard, {})["unknown"] == []
        shard.clock.advance(200_000)
        assert positions(shard) == (0, {"a": (1, 0, 0), "b": (2, 5, 0)})
        shard.clock.advance(300_001)
        assert positions(shard) == 404
        assert move(shard, {"a": [1, 1, 0]})["unknown"] == [WID]
        assert positions(shard.restarted()) == 404

    def test_time_to_live_begins_anew_with_the_process(self, shard: Harness) -> None:
        make(shard)
        shard.clock.advance(200_000)
        again = shard.restarted()
        again.clock.advance(200_000)
        assert positions(again) != 404

    def test_no_more_sessions_are_made_than_there_is_room_for(self, shard: Harness) -> None:
        make(shard, most_sessions=1)
        refused = shard.reply("session_make", WID[:-1] + "b", {}, owner=b"k", options={}, most_sessions=1)
        assert refused.error is not None
        assert (refused.error.status, refused.error.detail["limit"]) == (429, "max_watch_sessions")  # type: ignore[index]
        shard.clock.advance(300_001)
        make(shard, WID[:-1] + "c", most_sessions=1)
        assert said(shard.reply("session_count").extra) == {"sessions": 1}

    def test_an_open_in_the_same_group_sees_the_move_before_it(self, shard: Harness) -> None:
        import msgspec

        make(shard)
        shard.send("session_move", "", msgspec.json.encode({WID: [0, {"a": [1, 9, 0]}]}))
        ident = shard.send("session_open", WID, owner=b"k")
        shard.shard.flush()
        reply = shard.replies[ident]
        assert isinstance(reply, Reply)
        assert reply.extra is not None
        assert list(reply.extra.topics["a"]) == [1, 9, 0]


def test_readers_of_the_files_pass_sessions_over(tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    from proto.model.limits import Limits
    from pyspark_topics.columns import EVERYTHING, arrow_schema
    from pyspark_topics.plan import plan, read
    from shardd.clock import SystemClock
    from shardd.offline.verify import verify
    from shardd.storage.disk import RealDisk

    shard = Harness(RealDisk(), path=tmp_path / "shard-00")
    make(shard)
    shard.append("a", 1)
    move(shard, {"a": [1, 1, 0]})
    shard.append("a", 2)
    schema = arrow_schema(EVERYTHING)
    for _ in range(2):
        pieces = plan(str(tmp_path / "shard-00"))
        rows = [row for piece in pieces for batch in read(piece, schema) for row in batch.to_pylist()]
        assert [(row["topic"], row["offset"]) for row in rows] == [("a", 1), ("a", 2)]
        report = verify(RealDisk(), tmp_path / "shard-00", SystemClock(), Limits())
        assert (report.problems, report.records) == ([], 2)
        shard.shard.checkpoint_now()
        move(shard, {"a": [1, 2, 0]})


def test_sessions_move_to_their_new_shards(tmp_path: Any) -> None:
    import json

    from proto.model.limits import Limits
    from proto.model.names import shard_of
    from shardd.clock import SystemClock
    from shardd.storage.disk import RealDisk

    wids = [f"wid_{n:022d}" for n in range(20)]
    one = Harness(RealDisk(), path=tmp_path / "shard-00")
    for wid in wids:
        make(one, wid)
    move(one, {"a": [1, 3, 0]}, wid=wids[0])
    one.shard.close()
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "shards": 1, "created_ms": 0}))
    Reshard(RealDisk(), tmp_path, SystemClock(), Limits()).run(3)
    found: dict[str, int] = {}
    for index in range(3):
        shard = opened_shard(RealDisk(), SystemClock(), tmp_path / f"shard-{index:02d}", Limits())
        found |= dict.fromkeys(shard.directory.sessions.by_wid, index)
        if wids[0] in shard.directory.sessions.by_wid:
            assert shard.directory.sessions.by_wid[wids[0]].topics["a"] == (1, 3, 0)
        shard.close()
    assert found == {wid: shard_of(wid, 3) for wid in wids}
