"""Claims about feeds of prefixes: what a change costs, whose members have turns, and that no topic is missed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.streams.name_list import asked
from gateway.streams.prefix_feed import PrefixFeed
from gateway.streams.prefix_feeds import JOINED, NAMES, SHARE, PrefixFeeds
from proto.ipc.operations import ChangedNames, Listed
from proto.model.keys import Key
from shardd.topic.topic import Topic
from tests.support.gateway_stage import stage, until
from tests.support.harness import Harness
from tests.support.real_shard import start_real

MOST = 64
ONE, OTHER = Key(b"one"), Key(b"other")


class Watcher:
    """A member that watches all that it is told."""

    def __init__(self, feeds: PrefixFeeds, prefix: str, key: Key = ONE) -> None:
        self.key = key
        self.epochs: dict[str, int] = {}
        self.told: list[set[str]] = []
        self.feed = feeds.join(prefix, self)

    def listed(self, epochs: Mapping[str, int], gone: Iterable[str]) -> int:
        self.told.append({*epochs, *gone})
        self.epochs |= epochs
        for name in gone:
            self.epochs.pop(name, None)
        return len(epochs)


class Stage:
    """Feeds without tasks: the test gives them what a shard would answer."""

    def __init__(self) -> None:
        shards: Any = SimpleNamespace(states=[None], index_of=lambda name: 0)
        limits: Any = SimpleNamespace(max_watch_topics=MOST)
        nursery: Any = SimpleNamespace(start_soon=lambda *given: None)
        self.feeds = PrefixFeeds(shards, limits)
        self.feeds.nursery = nursery
        self.version = 1
        self.there: dict[str, int] = {}

    def watch(self, prefix: str, key: Key = ONE) -> Watcher:
        watcher = Watcher(self.feeds, prefix, key)
        while (feed := self.feeds._unlisted[0].take()) is not None:
            feed.asked(0)
            feed.listed(0, self.list(prefix))
        return watcher

    def list(self, prefix: str) -> Listed:
        names = [name for name in sorted(self.there) if name.startswith(prefix)]
        return Listed({name: self.there[name] for name in names[: asked(MOST)]}, self.version)

    def change(self, **epochs: int) -> ChangedNames:
        """Change names in the shard; 0 deletes. Returns what the shard says."""
        self.version += len(epochs)
        self.there |= epochs
        self.there = {name: epoch for name, epoch in self.there.items() if epoch}
        return ChangedNames(epochs, self.version)

    def tell(self, **epochs: int) -> None:
        self.feeds.changed(0, self.change(**epochs))


@pytest.fixture
def there() -> Stage:
    return Stage()


def test_a_change_concerns_only_the_prefixes_that_its_name_begins_with(there: Stage) -> None:
    nested = [there.watch("a" * size) for size in range(1, 101)]
    others = [there.watch(f"b{n}") for n in range(100)]
    there.tell(aaa=1)
    assert there.feeds.touched == 3
    there.tell(b7x=2)
    assert there.feeds.touched == 4
    there.feeds.hand()
    there.feeds.hand()
    assert [bool(each.told) for each in nested] == [True] * 3 + [False] * 97
    assert [each.epochs for each in others if each.told] == [{"b7x": 2}]


def test_a_turn_has_a_bound_and_serves_each_key_in_it(there: Stage) -> None:
    many = [there.watch("a" * size) for size in range(1, 251)]
    one = there.watch("a", OTHER)
    there.tell(**{"a" * 250: 1})
    there.feeds.hand()
    assert one.epochs, "the key with one member had its turn"
    assert sum(bool(each.told) for each in many) <= SHARE // JOINED
    for _ in range(250):
        there.feeds.hand()
    assert all(each.epochs == {"a" * 250: 1} for each in many), "all others follow"


def test_a_topic_that_comes_and_goes_before_a_turn_is_told_once(there: Stage) -> None:
    watcher = there.watch("a")
    for epoch in range(1, 1000):
        there.tell(a1=epoch)
        there.tell(a1=0)
    there.tell(a1=1000)
    there.feeds.hand()
    there.feeds.hand()
    assert watcher.told == [{"a1"}]
    assert watcher.epochs == {"a1": 1000}


def test_many_new_topics_come_a_few_at_a_time_in_the_order_of_their_names(there: Stage) -> None:
    watcher, other = there.watch("a"), there.watch("a", OTHER)
    names = {f"a{n:02}": n + 1 for n in range(50)}
    there.tell(**names)
    there.feeds.hand()
    assert watcher.told[0] == set(sorted(names)[:NAMES])
    for _ in range(20):
        there.feeds.hand()
    assert watcher.epochs == other.epochs == names


def test_a_change_that_overtakes_a_list_is_not_lost_and_an_older_one_brings_nothing_back(there: Stage) -> None:
    watcher = Watcher(there.feeds, "a")
    feed = there.feeds._unlisted[0].take()
    assert feed is not None
    feed.asked(0)
    older = there.change(a1=1)
    there.change(a1=0)
    found = there.list("a")
    newer = there.change(a2=2)
    there.feeds.changed(0, older)
    there.feeds.changed(0, newer)
    feed.listed(0, found)
    there.feeds._wait(feed)
    there.feeds.hand()
    assert watcher.epochs == {"a2": 2}


def test_a_shard_that_does_not_know_the_version_is_asked_for_all_lists(there: Stage) -> None:
    feeds = {there.watch("a").feed, there.watch("b").feed}
    there.feeds.changed(0, ChangedNames({}, 99, known=False))
    unlisted = there.feeds._unlisted[0]
    assert {unlisted.take(), unlisted.take()} == feeds
    assert unlisted.take() is None


def test_what_a_key_may_not_see_is_told_to_no_member_of_it(there: Stage) -> None:
    watcher = there.watch("a", Key(b"narrow", prefixes=("ab", "c")))
    there.tell(aa=1, ab1=2, c1=3)
    there.feeds.hand()
    assert watcher.epochs == {"ab1": 2}


def test_a_member_that_left_with_another_key_has_no_turn(there: Stage) -> None:
    watcher, stays = there.watch("a"), there.watch("a")
    there.tell(a1=1)
    watcher.key = OTHER
    there.feeds.leave(watcher.feed, watcher)
    there.feeds.hand()
    assert not watcher.told
    assert stays.epochs == {"a1": 1}


@pytest.mark.parametrize("seed", range(5))
def test_all_members_see_in_the_end_what_is_there(there: Stage, seed: int) -> None:
    rng = random.Random(seed)
    watchers = [there.watch(prefix, rng.choice((ONE, OTHER))) for prefix in ("", "a", "a", "aa", "ab", "b")]
    lists = 0
    for epoch in range(1, 2000):
        name = "".join(rng.choices("ab", k=3)) + str(rng.randrange(3))
        told = there.change(**{name: epoch if rng.random() < 0.6 else 0})
        there.feeds.changed(0, told if rng.random() < 0.98 else ChangedNames({}, there.version, known=False))
        if rng.random() < 0.2:
            while (feed := there.feeds._unlisted[0].take()) is not None:
                feed.asked(0)
                feed.listed(0, there.list(feed.prefix))
                there.feeds._wait(feed)
                lists += 1
            there.feeds.hand()
    there.feeds.changed(0, ChangedNames({}, there.version, known=False))
    while (feed := there.feeds._unlisted[0].take()) is not None:
        feed.asked(0)
        feed.listed(0, there.list(feed.prefix))
        there.feeds._wait(feed)
    for _ in range(50):
        there.feeds.hand()
    for each in watchers:
        assert each.epochs == {n: e for n, e in there.there.items() if n.startswith(each.feed.prefix)}, seed


async def test_a_new_topic_lists_no_names_in_the_shard_however_many_prefixes_are_watched() -> None:
    async with stage() as there, AsyncExitStack() as clients:
        harness = Harness()
        for n in range(20):
            harness.append(f"aaaaaaaaaaaaaaaaaaaaaaaaaa:{n}", 1)
        await start_real(there, harness)
        live, directory = there.gateway.api.live, harness.shard.directory
        looked, range_of = [0], directory.range_of

        def counted(prefixes: Sequence[str], size: int, after: str = "") -> tuple[list[Topic], bool]:
            topics, more = range_of(prefixes, size, after)
            looked[0] += len(topics)
            return topics, more

        def followed() -> list[PrefixFeed | None]:
            return [wildcard._feed for each in live.streams for wildcard in each.wildcards.values()]

        directory.range_of = counted  # type: ignore[method-assign]
        for size in range(1, 21):
            client = await clients.enter_async_context(there.client())
            body = msgspec.json.encode({"prefix": "a" * size, "tail": True})
            made = await client.ask("POST", "/v0/watch", body)
            assert (await client.ask("GET", made.json["stream_url"])).status == 200
        await until(lambda: len(followed()) == 20 and all(feed is not None and feed.complete for feed in followed()))
        looked[0] = 0
        writer = await clients.enter_async_context(there.client())
        for n in range(20, 23):
            topic = "a" * 26 + f":{n}"
            assert (await writer.ask("POST", f"/v0/topics/{topic}", b'{"records":[{"data":1}]}')).status == 201
            await until(lambda: all(topic in each.subscriptions for each in live.streams))  # noqa: B023
        assert looked == [0]
