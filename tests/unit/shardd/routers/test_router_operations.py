"""Claims about router operations: a lane on hold copies nothing until its copies are saved, and then not for long."""

from __future__ import annotations

from typing import Any

import pytest

from proto.ipc.message import Reply
from proto.ipc.operations import Reading
from proto.model.names import shard_of
from proto.model.router import RouterConfig, as_map
from shardd.routers.holds import LONGEST_HOLD_S
from shardd.topic.lane import Lane
from tests.support.routed import Net


def name_in(shard: int, stem: str) -> str:
    return next(name for n in range(100) if shard_of(name := f"{stem}{n}", 2) == shard)


class Scene:
    """A router whose copies no checkpoint has. Its destination is in another shard than its source."""

    def __init__(self) -> None:
        self.net = Net(2)
        self.source, self.other, self.dest = name_in(0, "s"), name_in(0, "o"), name_in(1, "d")
        self.there = self.net.of(self.dest)
        self.net.router("r", self.source, self.dest)
        self.net.of(self.other).call("configure", self.other)
        self.write(1)

    def write(self, *data: Any) -> None:
        self.net.of(self.source).append(self.source, *data)
        self.net.settle()

    @property
    def lane(self) -> Lane:
        lane = self.net.topic(self.dest).lane
        assert lane is not None
        return lane

    def change_source(self, reading: Reading = (0, 0)) -> int:
        """Send what gives the router another source. Returns the request's id."""
        place = self.net.of(self.other).call("router_source", self.other)
        config = as_map(RouterConfig(self.other, self.dest))
        return self.there.send("router_put", self.dest, router="r", config=config, reading=reading, **place)

    def hold(self, *, release: bool = False) -> int:
        return self.there.send("router_hold", source=self.source, release=release)

    def answer(self, ident: int) -> Reply[Any] | None:
        self.there.shard.flush()
        self.there.shard.commits.sync_now()
        answer = self.there.replies.get(ident)
        assert answer is None or isinstance(answer, Reply)
        return answer

    def refused(self, ident: int) -> bool:
        """Whether the request is answered as not made."""
        answer = self.answer(ident)
        return answer is not None and answer.error is not None and answer.error.detail == {"outcome": "not_done"}

    def done(self, ident: int) -> bool:
        answer = self.answer(ident)
        return answer is not None and answer.error is None


@pytest.fixture
def at() -> Scene:
    return Scene()


def test_a_hold_lasts_its_whole_time_though_an_earlier_one_of_its_lane_was_older(at: Scene) -> None:
    at.there.shard.checkpoint_now()
    for _ in range(2):
        assert at.done(at.hold())
        assert at.done(at.hold(release=True))
        assert not at.lane.held
    at.net.clock.advance(59_000)
    assert at.done(at.hold())
    at.net.clock.advance(2_000)
    at.there.shard.maintain()
    assert at.lane.held
    at.net.clock.advance(int(LONGEST_HOLD_S * 1000) - 2_000)
    at.there.shard.maintain()
    assert not at.lane.held


def test_a_request_that_was_given_up_ends_no_hold_of_a_later_one(at: Scene) -> None:
    given_up = at.change_source(reading=(1, 1))
    at.there.call("router_graph", reading=(2, 1))
    hold = at.hold()
    late = at.change_source(reading=(1, 2))
    assert at.refused(late)
    assert (at.answer(given_up), at.answer(hold)) == (None, None)
    at.there.shard.checkpoint_now()
    assert at.refused(given_up)
    assert at.done(hold)
    assert at.lane.held


def test_a_deletion_that_finds_no_router_ends_its_hold_of_the_others(at: Scene) -> None:
    deletion = at.there.send("router_delete", at.dest, router="gone")
    assert at.lane.held
    at.there.shard.checkpoint_now()
    assert at.done(deletion)
    assert not at.lane.held
    at.write(2)
    assert at.net.data(at.dest) == [1, 2]


@pytest.mark.parametrize("change", ["another source", "deletion"])
def test_a_change_that_is_repeated_while_the_lane_is_on_hold_waits_for_the_copies_too(at: Scene, change: str) -> None:
    """Shard 0 died meanwhile. Made at once, the change would leave copies that no checkpoint has."""

    def ask(reading: Reading) -> int:
        if change == "another source":
            return at.change_source(reading)
        return at.there.send("router_delete", at.dest, router="r", reading=reading)

    first = ask((1, 1))
    at.there.call("router_graph", reading=(2, 1))
    again = ask((2, 1))
    assert at.there.shard.control.due
    assert (at.answer(first), at.answer(again)) == (None, None)
    assert at.lane.held
    at.there.shard.checkpoint_now()
    assert at.refused(first)
    assert at.done(again)
    at.net.of(at.source).call("delete_topic", at.source)
    at.net.crash()
    assert at.net.data(at.dest) == [1]


def test_a_deletion_after_the_lane_was_held_and_saved_waits_for_no_other_checkpoint(at: Scene) -> None:
    hold = at.hold()
    at.there.shard.checkpoint_now()
    assert at.done(hold)
    assert at.done(at.there.send("router_delete", at.dest, router="r"))


@pytest.mark.parametrize("error", [None, OSError(28, "no space left")], ids=["made", "failed"])
@pytest.mark.parametrize("change", ["hold", "another source", "deletion"])
def test_copies_are_not_saved_before_their_checkpoint_has_ended(at: Scene, change: str, error: OSError | None) -> None:
    """A source that is deleted meanwhile could take them with it."""
    shard = at.there.shard
    plan = shard.control.begin()
    if change == "hold":
        ident = at.hold()
    elif change == "another source":
        ident = at.change_source()
    else:
        ident = at.there.send("router_delete", at.dest, router="r")
    assert at.answer(ident) is None
    if error is None:
        shard.checkpoints.writer.write(plan)
    shard.control.end(plan, error)
    shard.checkpoint_now()
    assert at.done(ident)


def test_copies_that_are_made_during_a_checkpoint_are_left_for_the_next_one(at: Scene) -> None:
    shard = at.there.shard
    plan = shard.control.begin()
    at.write(2)
    shard.checkpoints.writer.write(plan)
    shard.control.end(plan)
    hold = at.hold()
    assert at.answer(hold) is None
    shard.checkpoint_now()
    assert at.done(hold)
    assert at.done(at.hold())


def test_a_router_from_a_source_that_was_created_again_displaces_those_from_the_former_one(at: Scene) -> None:
    """The deletion of the source was interrupted before it removed them. The lane's source is gone for ever."""
    at.there.shard.checkpoint_now()
    at.net.of(at.source).call("delete_topic", at.source)
    assert at.net.router("new", at.source, at.dest)["created"] is True
    assert list(at.there.shard.routing.routers()) == ["new"]
    at.write(2)
    assert at.net.data(at.dest) == [1, 2]
    at.net.router("newer", at.source, at.dest)
    assert list(at.there.shard.routing.routers()) == ["new", "newer"]
    at.net.crash()
    at.write(3)
    assert at.net.data(at.dest) == [1, 2, 3, 3]
