"""Watch sessions in a shard: their positions, their owners, and what a restart leaves of them."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from shardd.offline.reshard import Reshard
from shardd.shard import opened_shard
from shardd.topic.watch_session import MOST_TOLD, TOLD
from tests.support.asked import said
from tests.support.harness import Harness

WID = "wid_" + "a" * 22


@pytest.fixture
def shard() -> Harness:
    return Harness()


def make(shard: Harness, wid: str = WID, owner: bytes = b"k", **options: Any) -> None:
    told = {"limit": 1, "heartbeat_ms": 1000}
    shard.reply("session_make", wid, {"a": [1, 0, 0], "b": [2, 5, 0]}, owner=owner, options=told, **options)


def positions(shard: Harness, wid: str = WID) -> Any:
    reply = shard.reply("session_open", wid, owner=b"k")
    if reply.error is not None:
        return reply.error.status
    assert reply.extra is not None
    return reply.extra.generation, {name: tuple(each) for name, each in reply.extra.topics.items()}


def move(
    shard: Harness, topics: dict[str, Any], generation: int = 0, wid: str = WID, *, over: bool = False
) -> dict[str, Any]:
    reply = shard.reply("session_move", "", {wid: [generation, topics, 1, over]})
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
        assert move(shard, {}, over=True)["unknown"] == []
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
        assert said(shard.reply("session_count", owner=b"k").extra) == {"owned": 1}

    def test_an_open_in_the_same_group_sees_the_move_before_it(self, shard: Harness) -> None:
        import msgspec

        make(shard)
        shard.send("session_move", "", msgspec.json.encode({WID: [0, {"a": [1, 9, 0]}, 1, False]}))
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
