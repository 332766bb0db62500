"""Named cursors: the limits on their number in a topic, of all keys and of one of several; the list over all topics."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import pytest

from proto.model.errors import ErrorCode, TopicsError
from tests.support.harness import Harness, said


def refused(shard: Harness, op: str, name: str, **options: int) -> None:
    with pytest.raises(TopicsError) as caught:
        shard.call(op, "a", {"seq": 1} if op == "cursor_put" else b"", cursor=name, **options)
    assert caught.value.code is ErrorCode.THROTTLED
    assert caught.value.detail == {"limit": "max_cursors_per_topic", "max": 2}
    assert caught.value.retry_after_ms


def test_a_topic_has_so_many_cursors_and_those_may_always_move() -> None:
    shard = Harness(max_cursors_per_topic=2)
    shard.append("a", 1, 2, 3)
    shard.append("b", 1)
    shard.call("cursor_put", "a", {"seq": 1}, cursor="one")
    shard.call("take", "a", cursor="two")
    refused(shard, "cursor_put", "three")
    refused(shard, "take", "three")
    refused(shard, "step", "three", seq=1)
    assert shard.call("cursor_put", "a", {"seq": 3}, cursor="one")["seq"] == 3
    shard.call("take", "a", cursor="two")
    shard.call("cursor_put", "b", {"seq": 1}, cursor="three")
    shard = shard.restarted()
    assert shard.call("stats", per_topic=10, cursors=10)["cursors"] == 3
    refused(shard, "cursor_put", "three")
    shard.call("cursor_delete", "a", cursor="one")
    shard.call("cursor_put", "a", {"seq": 1}, cursor="three")


def test_cursors_on_their_way_count() -> None:
    shard = Harness(max_cursors_per_topic=2)
    shard.append("a", 1)
    first = [shard.send("cursor_put", "a", {"seq": 1}, cursor=name) for name in ("one", "two")]
    refused(shard, "cursor_put", "three")
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert all(ident in shard.replies for ident in first)


def test_what_there_was_before_the_cap_stays() -> None:
    shard = Harness()
    shard.append("a", 1)
    for number in range(5):
        shard.call("cursor_put", "a", {"seq": 1}, cursor=str(number))
    shard = shard.restarted(max_cursors_per_topic=2)
    assert shard.call("cursor_put", "a", {"seq": 0, "force": True}, cursor="4")["seq"] == 0
    refused(shard, "cursor_put", "other")
    shard = shard.restarted(max_cursors_per_topic=0)
    shard.call("cursor_put", "a", {"seq": 1}, cursor="other")


ONE, TWO = b"one.....", b"two....."
MINE = "max_cursors_per_key"


def put(shard: Harness, name: str, maker: bytes, **body: Any) -> str:
    """Put a cursor for a key that may make two; return the limit that refused it, "" if it was taken."""
    try:
        shard.call("cursor_put", "a", {"seq": 0, **body}, cursor=name, maker=maker, most_made=2)
    except TopicsError as error:
        return str(error.detail["limit"])
    return ""


def makers(shard: Harness) -> dict[str, bytes]:
    return {name: cursor.maker for name, cursor in shard.shard.directory.find("a").cursors.items()}


def test_one_of_several_keys_makes_so_many_of_a_topics_cursors_also_after_any_restart() -> None:
    shard = Harness(max_cursors_per_topic=5)
    shard.append("a", 1)
    assert [put(shard, name, ONE) for name in "abc"] == ["", "", MINE]
    assert put(shard, "a", ONE, seq=1) == "", "those that exist move"
    for _ in range(2):
        shard = shard.restarted()  # from the log, then from a catalog
        assert put(shard, "c", ONE) == MINE
        shard.shard.checkpoint_now()
    assert [put(shard, name, TWO) for name in "cde"] == ["", "", MINE]
    assert makers(shard) == {"a": ONE, "b": ONE, "c": TWO, "d": TWO}
    shard.call("cursor_delete", "a", cursor="a")
    assert [put(shard, name, ONE) for name in "ef"] == ["", MINE]


def test_a_cursor_counts_for_the_key_that_made_it_whoever_moves_it() -> None:
    shard = Harness(max_cursors_per_topic=4)
    shard.append("a", 1, 2)
    assert put(shard, "a", ONE) == put(shard, "a", TWO, seq=2) == put(shard, "a", TWO, seq=1, force=True) == ""
    shard.call("take", "a", cursor="a")
    assert makers(shard) == makers(shard.restarted()) == {"a": ONE}


def test_cursors_without_a_maker_count_for_the_topic_only() -> None:
    shard = Harness(max_cursors_per_topic=4)
    shard.append("a", 1)
    shard.call("take", "a", cursor="walrus")
    shard.call("cursor_put", "a", {"seq": 1}, cursor="before")
    assert [put(shard, name, ONE) for name in "abc"] == ["", "", MINE]
    assert put(shard, "c", TWO) == "max_cursors_per_topic"
    assert makers(shard.restarted()) == {"walrus": b"", "before": b"", "a": ONE, "b": ONE}


def test_a_key_that_deletes_and_makes_again_within_one_sync_gets_no_more_than_its_share() -> None:
    shard = Harness(max_cursors_per_topic=4)
    shard.append("a", 1)
    assert [put(shard, "a", ONE), put(shard, "b", ONE), put(shard, "c", TWO)] == [""] * 3
    asked = {"maker": ONE, "most_made": 2}
    shard.send("cursor_delete", "a", cursor="c")
    with pytest.raises(TopicsError, match="at most 2 of the 4"):
        shard.call("cursor_put", "a", {"seq": 1}, cursor="c", **asked)
    shard.send("cursor_delete", "a", cursor="a")
    ident = shard.send("cursor_put", "a", {"seq": 1}, cursor="c", **asked)
    shard.shard.flush()
    shard.shard.commits.sync_now()
    assert not isinstance(shard.replies[ident], TopicsError)
    assert makers(shard) == makers(shard.restarted()) == {"b": ONE, "c": ONE}


@pytest.mark.parametrize("seed", range(4))
def test_what_the_shard_counts_is_what_there_is(seed: int) -> None:
    """Random puts and deletions of three keys, some of which wait for one sync together, and restarts."""
    chance = random.Random(seed)
    shard = Harness(max_cursors_per_topic=6)
    shard.append("a", 1)
    for _ in range(150):
        for _ in range(chance.randint(1, 5)):
            name, maker = chance.choice("abcdefgh"), chance.choice([ONE, TWO, b""])
            if chance.random() < 0.4:
                shard.send("cursor_delete", "a", cursor=name)
                continue
            with contextlib.suppress(TopicsError):
                most = 3 if maker else 0
                shard.send("cursor_put", "a", {"seq": 0}, cursor=name, maker=maker, most_made=most)
        shard.shard.flush()
        shard.shard.commits.sync_now()
        made = list(makers(shard).values())
        assert len(made) <= 6
        assert max(made.count(ONE), made.count(TWO)) <= 3
        topic = shard.shard.directory.find("a")
        assert topic.moving.count(topic.cursors) == len(made)
        assert topic.moving.made_by(ONE, topic.cursors) == made.count(ONE)
        if chance.random() < 0.1:
            before = makers(shard)
            shard = shard.restarted()
            assert makers(shard) == before


def pages(shard: Harness, size: int, **options: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    after = ""
    while True:
        reply = shard.reply("all_cursors", page_size=size, after=after, **options)
        entries, page = msgspec.json.decode(reply.body), said(reply.extra)
        found += [(each["topic"], each["cursor"]) for each in entries]
        assert page["names"] == [f"{topic}\0{cursor}" for topic, cursor in found[len(found) - len(entries) :]]
        if not page["more"]:
            return found
        assert len(entries) == size
        after = page["names"][-1]


@pytest.mark.parametrize("seed", range(5))
def test_pages_of_the_cursors_of_all_topics_give_each_once_in_order(seed: int) -> None:
    chance = random.Random(seed)
    shard = Harness()
    made = set()
    for topic in ("a", "a.b", "ab", "b", "b:1", "c"):
        shard.append(topic, 1, 2, 3)
        for cursor in chance.sample(["\0", "a", "a.b", "é", "z\0a", "\n", "\U0001f600"], chance.randrange(7)):
            shard.call("cursor_put", topic, {"seq": 1}, cursor=cursor)
            made.add((topic, cursor))
    for size in range(1, 8):
        assert pages(shard, size) == sorted(made)
        assert pages(shard, size, prefix="a") == sorted(each for each in made if each[0].startswith("a"))
        assert pages(shard, size, prefix="a.", prefixes=("a", "c")) == sorted(each for each in made if each[0] == "a.b")
        assert pages(shard, size, prefix="a", prefixes=("b", "c")) == []


def test_a_place_outside_the_prefixes_of_a_key_shows_no_cursor_of_its_topic() -> None:
    shard = Harness()
    for topic in ("mine", "other"):
        shard.append(topic, 1, 2, 3)
        for cursor in ("a", "b"):
            shard.call("cursor_put", topic, {"seq": 1}, cursor=cursor)
    assert shard.call("all_cursors", page_size=9, after="other\0a", prefixes=("mine", "z")) == []
    assert shard.call("all_cursors", page_size=9, after="other\0a", prefix="m") == []
    [left] = shard.call("all_cursors", page_size=9, after="mine\0a", prefixes=("mine", "z"))
    assert {**left, "updated_ts": 0} == {"topic": "mine", "cursor": "b", "seq": 1, "lag": 2, "updated_ts": 0}
    assert len(shard.call("all_cursors", page_size=9, after="none\0a")) == 2
