"""Claims about wildcards: which of the listed topics a stream watches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.streams.event_ids import TOLD, Position, mark
from gateway.streams.states import SubscriptionState
from gateway.streams.watch_request import Options
from gateway.streams.wildcard import MOST_NAMED, Wildcard
from proto.model.keys import Key

OPTIONS = Options(1, 1, (), False, False, False, False)


class Feed:
    def __init__(self) -> None:
        self.all: dict[str, int] = {}
        self.complete = True

    def epochs(self) -> dict[str, int]:
        return self.all

    def epoch(self, name: str) -> int | None:
        return self.all.get(name)


class FakeStream:
    """A stream that watches at most two topics."""

    def __init__(self) -> None:
        self.key = Key(b"")
        self.feed = Feed()
        self.names: Any = self
        self.limits = SimpleNamespace(max_watch_topics=2)
        self.subscriptions: dict[str, Any] = {}
        self.joined: list[tuple[str, int]] = []
        self.was_forgotten = False
        self.wildcard = Wildcard(self, "a", OPTIONS, frozenset())

    def join(self, *asked: Any) -> Any:
        """Both the stream's and the feeds'."""
        if asked[-1] is self.wildcard:
            return self.feed
        name, _, epoch = asked
        self.subscriptions[name] = SimpleNamespace(
            name=name, epoch=epoch, state=SubscriptionState.LIVE, handed=Position(epoch, 0, 0)
        )
        self.joined.append((name, epoch))
        return None

    def watching(self) -> int:
        return sum(each.state is not SubscriptionState.OVER for each in self.subscriptions.values())

    def forget(self, name: str) -> None:
        del self.subscriptions[name]

    def forgotten(self) -> None:
        self.was_forgotten = True

    def shows(self, **epochs: int) -> None:
        fresh = dict(epochs.items() - self.feed.all.items())
        gone = self.feed.all.keys() - epochs.keys()
        self.feed.all = epochs
        self.wildcard.listed(fresh, gone)

    def dies(self, name: str) -> None:
        each = self.subscriptions[name]
        each.state, each.handed = SubscriptionState.OVER, Position(TOLD, 0, 1)
        self.wildcard.deleted(each, self.limits.max_watch_topics - self.watching())


@pytest.fixture
def stream() -> FakeStream:
    stream = FakeStream()
    stream.wildcard.begin()
    return stream


def test_listed_topics_are_watched_once(stream: FakeStream) -> None:
    stream.shows(a1=1)
    stream.shows(a1=1, a2=2)
    assert stream.joined == [("a1", 1), ("a2", 2)]
    assert stream.wildcard.news() is None


def test_a_list_older_than_a_deletion_brings_nothing_back(stream: FakeStream) -> None:
    stream.shows(a1=1)
    stream.dies("a1")
    stream.wildcard.listed({"a1": 1}, ())
    assert stream.joined == [("a1", 1)]
    stream.shows(a1=7)
    assert stream.joined == [("a1", 1), ("a1", 7)]


def test_a_list_newer_than_a_deletion_is_looked_at_again(stream: FakeStream) -> None:
    stream.shows(a1=1)
    stream.shows(a1=7)
    assert stream.joined == [("a1", 1)], "its own read tells that it was made again, or deleted"
    stream.dies("a1")
    assert stream.joined == [("a1", 1), ("a1", 7)]


def test_topics_without_room_are_told_once_and_taken_later(stream: FakeStream) -> None:
    stream.shows(a1=1, a2=2, a3=3)
    told = stream.wildcard.news()
    assert told is not None
    assert told[1] == ["a3"]
    stream.shows(a1=1, a2=2, a3=3, a4=4)
    assert (stream.wildcard.news() or ("", []))[1] == ["a4"]
    assert stream.wildcard.news() is None
    stream.dies("a1")
    assert stream.joined[-1] == ("a3", 3)
    assert stream.watching() == 2


def test_what_was_left_out_and_deleted_is_not_told(stream: FakeStream) -> None:
    stream.shows(a1=1, a2=2, a3=3)
    stream.shows(a1=1, a2=2)
    assert stream.wildcard.news() is None


def test_an_advisory_frame_has_a_bound(stream: FakeStream) -> None:
    stream.shows(**{f"a{n:03}": n for n in range(1, 300)})
    told = stream.wildcard.news()
    assert told is not None
    assert len(told[1]) == MOST_NAMED


def test_deleted_topics_are_forgotten_in_the_end(stream: FakeStream) -> None:
    for n in range(1, 100):
        stream.shows(**{f"a{n}": n})
        stream.dies(f"a{n}")
    assert len(stream.joined) == 99
    assert len(stream.subscriptions) <= 6


def test_a_topic_that_only_the_client_knows_ends_the_session(stream: FakeStream) -> None:
    stream.wildcard = Wildcard(stream, "a", OPTIONS, frozenset({mark("a1"), mark("a9")}))
    stream.feed.complete = False
    stream.wildcard.begin()
    stream.shows(a1=1)
    assert not stream.was_forgotten, "another shard may have it"
    stream.feed.complete = True
    stream.shows(a1=1, a9=2)
    assert not stream.was_forgotten
    stream.wildcard = Wildcard(stream, "a", OPTIONS, frozenset({mark("a8")}))
    stream.wildcard.begin()
    assert stream.was_forgotten
