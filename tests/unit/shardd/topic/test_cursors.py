"""Named cursors: what moves one, and what is read from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proto.model.errors import ErrorCode, TopicsError
from tests.support.asked import said
from tests.support.harness import Harness


@pytest.fixture
def shard() -> Harness:
    return Harness()


def seqs(answer: Any) -> list[int]:
    return [r["$seq"] for r in answer["records"]]


def refused(call: Callable[[], Any]) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        call()
    return caught.value


class TestNamedCursors:
    def put(self, shard: Harness, seq: int, name: str = "c", **fields: Any) -> int:
        return int(shard.call("cursor_put", "a", {"seq": seq, **fields}, cursor=name)["seq"])

    def get(self, shard: Harness, name: str = "c") -> int:
        return int(shard.call("cursor_get", "a", cursor=name)["seq"])

    def test_it_never_moves_backwards_unless_forced(self, shard: Harness) -> None:
        shard.append("a", *range(10))
        assert self.put(shard, 5) == 5
        assert self.put(shard, 3) == 5
        assert self.put(shard, 3, force=False) == 5
        assert self.put(shard, 3, force=True) == 3
        assert self.put(shard, 3) == 3
        assert self.put(shard, 10) == 10

    @pytest.mark.parametrize("durability", ["disk", "fsync"])
    def test_not_even_when_two_moves_are_on_their_way(self, shard: Harness, durability: str) -> None:
        shard.append("a", *range(10), config={"durability": durability})
        for seq in (7, 4):
            shard.send("cursor_put", "a", {"seq": seq}, cursor="c")
        shard.shard.commits.sync_now()
        assert self.get(shard) == 7
        assert self.get(shard.restarted()) == 7
        for seq, force in ((2, True), (1, False)):
            shard.send("cursor_put", "a", {"seq": seq, "force": force}, cursor="c")
        shard.shard.commits.sync_now()
        assert self.get(shard) == 2
        assert self.get(shard.restarted()) == 2

    @pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
    def test_positions_survive_a_restart_and_go_with_the_topic(self, shard: Harness, how: str) -> None:
        shard.append("a", *range(10))
        self.put(shard, 4)
        self.put(shard, 6, "other")
        shard.call("cursor_delete", "a", cursor="other")
        if how == "clean":
            shard.shard.close()
        elif how == "checkpoint":
            shard.shard.commits.sync_now()
            shard.shard.checkpoint_now()
        again = shard.restarted()
        entries = again.call("cursor_list", "a", page_size=10)
        assert entries == [{"cursor": "c", "seq": 4, "lag": 6, "updated_ts": shard.clock.ms}]
        again.call("delete_topic", "a")
        again.append("a", 1)
        assert refused(lambda: self.get(again)).code == ErrorCode.CURSOR_NOT_FOUND
        assert refused(lambda: self.get(again.restarted())).code == ErrorCode.CURSOR_NOT_FOUND

    def test_diff_reads_from_it_and_does_not_move_it(self, shard: Harness) -> None:
        shard.append("a", *range(10))
        self.put(shard, 7)
        for _ in range(2):
            assert seqs(shard.call("diff", "a", {"cursor": "c"})) == [8, 9, 10]
        assert self.get(shard) == 7

    def test_diff_by_cursor_tells_of_losses_like_any_other(self, shard: Harness) -> None:
        shard.append("a", *range(10))
        self.put(shard, 2)
        shard.call("configure", "a", {"cap_records": 3})
        answer = shard.call("diff", "a", {"cursor": "c", "limit": 1})
        assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (3, 7)
        assert seqs(answer) == [8]

    @pytest.mark.parametrize("body", [{"cursor": "c", "from_seq": 1}, {"cursor": 5}])
    def test_diff_takes_one_or_the_other(self, shard: Harness, body: object) -> None:
        shard.append("a", 1)
        self.put(shard, 1)
        assert refused(lambda: shard.call("diff", "a", body)).code == ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize(
        "body", [{}, {"seq": -1}, {"seq": 1.5}, {"seq": "1"}, {"seq": None}, {"seq": 11}, {"seq": 1, "force": "yes"}]
    )
    def test_wrong_positions_are_refused(self, shard: Harness, body: object) -> None:
        shard.append("a", *range(10))
        self.put(shard, 3)
        error = refused(lambda: shard.call("cursor_put", "a", body, cursor="c"))
        assert error.code == ErrorCode.INVALID_REQUEST
        assert self.get(shard) == 3

    @pytest.mark.parametrize("name", ["c", "a/b", "日本 語", "é" * 127, "x" * 255])
    def test_a_name_is_any_text_of_up_to_255_bytes(self, shard: Harness, name: str) -> None:
        shard.append("a", 1)
        self.put(shard, 1, name)
        assert self.get(shard.restarted(), name) == 1

    @pytest.mark.parametrize("name", ["", "é" * 128, "x" * 256])
    def test_other_names_are_refused(self, shard: Harness, name: str) -> None:
        shard.append("a", 1)
        assert refused(lambda: self.put(shard, 1, name)).code == ErrorCode.INVALID_REQUEST

    def test_unknown_ones_are_404_and_deleting_them_is_fine(self, shard: Harness) -> None:
        shard.append("a", 1)
        assert refused(lambda: self.get(shard)).code == ErrorCode.CURSOR_NOT_FOUND
        assert refused(lambda: shard.call("diff", "a", {"cursor": "c"})).status == 404
        assert shard.call("cursor_delete", "a", cursor="c")["deleted"] is False
        assert (
            refused(lambda: shard.call("cursor_put", "none", {"seq": 0}, cursor="c")).code == ErrorCode.TOPIC_NOT_FOUND
        )

    def test_lists_go_by_name_in_pages(self, shard: Harness) -> None:
        shard.append("a", 1)
        for name in ("b", "c", "a"):
            self.put(shard, 1, name)
        reply = shard.reply("cursor_list", "a", page_size=2)
        assert said(reply.extra) == {"names": ["a", "b"], "more": True}
        assert said(shard.reply("cursor_list", "a", page_size=2, after="b").extra) == {"names": ["c"], "more": False}
