"""The progress of a stream: what its shard has to hear, and what the next stream continues with."""

from __future__ import annotations

from gateway.streams.event_ids import Position
from gateway.streams.watch_sessions import Progress


class Stream:
    def __init__(self) -> None:
        self.ends = 0

    def taken_over(self) -> None:
        self.ends += 1

    def unknown(self) -> None:
        raise AssertionError


def test_a_stream_that_has_to_end_before_it_begins_ends_at_once() -> None:
    progress, stream = Progress("wid", 0, 1, awaited=True), Stream()
    progress.begin(stream)
    assert stream.ends == 1


def test_a_topic_is_forgotten_once_its_position_is_saved() -> None:
    progress = Progress("wid", 0, 1)
    progress.reached("a", Position(1, 5, 0), 2)
    assert not progress.forget("a")
    progress.untold, progress.telling = set(), 1
    assert not progress.forget("a"), "the save may fail"
    progress.telling = 0
    assert progress.told
    assert progress.forget("a")
    assert not progress.positions


def test_the_next_stream_saves_what_may_not_be_saved_yet() -> None:
    earlier = Progress("wid", 0, 1)
    earlier.reached("a", Position(1, 5, 0), 2)
    later = Progress("wid", 0, 2)
    later.follow(earlier)
    assert (later.generation, later.positions, later.untold) == (2, {"a": Position(1, 5, 0)}, {"a"})
    earlier.reached("a", Position(1, 6, 0), 2)
    assert later.positions["a"].seq == 5, "it has its own"


def test_the_next_stream_saves_nothing_again() -> None:
    earlier = Progress("wid", 0, 1)
    earlier.reached("a", Position(1, 5, 0), 2)
    earlier.untold = set()
    later = Progress("wid", 0, 2)
    later.follow(earlier)
    assert later.told
