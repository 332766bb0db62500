"""Making copies again after a stop, so that every seq a reader has seen names the record it named before.

Copies are in no log, but what came after them in their topic is. Replay stops in a topic where the log says that copies
belong there that no checkpoint has (a *pin*), and keeps the topic's later frames (`Topic.deferred`). Once the other
shards can be asked, what the pin stands for is made again, the frames up to the next pin are replayed, and so on; what
was copied after the last frame follows. Only then is the shard ready. So caps, deletions and configurations meet the
same records in the same order as before.

What the source has lost since then cannot be copied again:

    what the lane is     what happens
    arithmetic           its seqs stay empty: silently where it was deleted, told as lost otherwise; nothing moves
    other                from the first record that is missing on, the copies' seqs are told as lost, up to the pin, and
                         at the end up to the most that can have been used; everything the source still has is then
                         copied anew, with seqs nobody has seen. Readers may get a record twice, never another one
                         under its seq.
    the source is gone   told as lost, up to the last pin; its routers are removed

A topic is *settled* when its source is and it has caught up with it. The topics of a cycle would wait for each other
for ever, so each of them also looks around the cycle: if all have caught up, twice with the same positions, then there
was a moment between at which nothing was left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from proto.format.frame import Kind, decode_map
from shardd.clock import Clock
from shardd.routers.copier import Copier
from shardd.routers.copy_plan import Plan, Pulled, Skip, plan
from shardd.routers.source import forwardable
from shardd.topic.directory import Directory
from shardd.topic.lane import Lane
from shardd.topic.topic import Deferred, Topic, hold


@dataclass(frozen=True, slots=True)
class Position:
    """Where a topic is. `source` is what it copies from, with its epoch, None if nothing; `idle`: nothing of its own is
    left to be read back."""

    name: str
    head: int
    cursor: int
    source: tuple[str, int] | None
    idle: bool
    source_truncated: bool
    asked: int

    def moves(self, source: Position) -> bool:
        """Is there something of the source that it can take, or has not looked at?"""
        return (self.cursor < source.head and not self.source_truncated) or (
            not self.idle and self.asked != source.head
        )


def position(topic: Topic) -> Position:
    lane = topic.lane
    if lane is None or not lane.routers or lane.settled or topic.unloaded is not None:
        return Position(topic.name, forwardable(topic), 0, None, not topic.deferred, False, -1)
    source = (lane.source, lane.epoch)
    return Position(
        topic.name, forwardable(topic), lane.cursor, source, not topic.deferred, lane.source_truncated, lane.asked
    )


def read_position(fields: Any) -> Position:
    """From a reply."""
    source = fields["source"]
    return Position(**{**fields, "source": None if source is None else (source[0], source[1])})


def closed(way: Sequence[Position]) -> bool:
    """Does a way from a topic to its source, to that one's and so on lead back to where it began?"""
    return bool(way) and way[-1].source is not None and way[-1].source[0] == way[0].name


def still(first: Sequence[Position], second: Sequence[Position]) -> bool:
    """Two looks around a cycle: can nothing move any more? Either nothing is left to do, or what some topic waits for
    was lost."""
    if first != second or not closed(first):
        return False
    return not any(each.moves(source) for each, source in zip(first, [*first[1:], first[0]], strict=True))


Replay = Callable[[Topic, Deferred], None]


class Restore:
    """One topic that is being restored. Ask its source, hand over the answer with `take`, until `done`."""

    def __init__(
        self, topic: Topic, copier: Copier, directory: Directory, clock: Clock, boot_id: str, replay: Replay
    ) -> None:
        self._topic = topic
        self._copier = copier
        self._directory = directory
        self._clock = clock
        self._boot_id = boot_id
        self._replay = replay
        self._goal: int | None = None
        self._displaced = False
        self._quiet = False
        self.done = False
        self.displaced = False
        """Seqs were given up. A checkpoint must keep that before anybody sees what comes after them."""

    @property
    def name(self) -> str:
        return self._topic.name

    @property
    def position(self) -> Position:
        return position(self._topic)

    @property
    def lane(self) -> Lane | None:
        """What to ask for: its source, epoch and cursor. None if no router is left."""
        lane = self._topic.lane
        return lane if lane is not None and lane.routers else None

    def take(self, pulled: Pulled) -> bool:
        """What the source has after the lane's cursor. False if it had nothing that helps: ask again a little later."""
        lane = self.lane
        assert lane is not None
        if not self._topic.config.durability.lasts and not self._topic.deferred:
            self._finish()  # a restart took what there was; the rest comes by the ordinary way
            return True
        before = lane.cursor
        try:
            moved = self._take(lane, pulled) or lane.cursor > before
            lane.asked = -1 if moved else pulled.head
            return moved
        finally:
            self._quiet = False
            self._copier.made_again(self._topic)

    def _take(self, lane: Lane, pulled: Pulled) -> bool:
        while (pin := self._pin()) is not None:
            seq, head, ts, exact, stopped = pin
            if head <= self._topic.head_seq or not self._topic.config.durability.lasts:
                head, lane.cursor = self._topic.head_seq, max(lane.cursor, seq)
            elif not exact and not lane.arithmetic:
                self._displaced = True
            elif not self._displaced:
                made = plan(lane, pulled, seq, restoring=True)
                self._append(lane, made, head, ts)
                if made.source_truncated:
                    self._displaced = True
                elif made.upto < seq:
                    if pulled.head >= seq or not (pulled.settled or self._quiet):
                        return False
                    self._displaced = True  # the source is not what it was: its files were replaced, say
            lane.stopped = lane.waits = stopped
            self._go_on(lane, head, ts)
            if self.lane is not lane:
                return True  # a router was changed: there may be another source, or none
        return self._end(lane, pulled)

    def _append(self, lane: Lane, made: Plan, head: int, ts: int) -> None:
        """Copies that end at `head` at the latest."""
        room = head - self._topic.head_seq
        if made.seqs > room:
            # The source cannot have grown below the pin, so this is no copy of it that we know: give up on exactness.
            made.source_truncated = True
            made.steps, made.upto = [], lane.cursor
            return
        self._topic.catalogued = None
        self._topic.last_ts = max(self._topic.last_ts, ts)
        self._copier.carry_out(self._topic, lane, made, ts)
        lane.cursor = made.upto

    def _go_on(self, lane: Lane, head: int, ts: int) -> None:
        """The pin is passed: its copies are there, or told as lost. Replay what follows it."""
        topic = self._topic
        if topic.head_seq < head:
            self._copier.carry_out(topic, lane, Plan(lane.cursor, [Skip(head - topic.head_seq, lost=True)]), ts)
        topic.next_seq = topic.head_seq + 1
        topic.deferred.popleft()
        topic.held_at.clear()
        while topic.deferred and self._pin() is None:
            self._replay(topic, topic.deferred.popleft())
        if topic.deferred:
            hold(topic)

    def _pin(self) -> tuple[int, int, int, bool, bool] | None:
        """Source seq, own head and commit time that the next deferred frame stands for, whether the copies can be made
        again, and whether nothing was copied after it; None if it is no pin."""
        if not self._topic.deferred:
            return None
        header, buffer = self._topic.deferred[0]
        if header.kind != Kind.ROUTER:
            return None
        fields = decode_map(buffer, header)
        lane = self._topic.lane
        if "pin" not in fields or lane is None or fields["version"] != lane.version:
            return None
        return fields["pin"], fields["head"], fields["ts"], fields["exact"], fields.get("stopped", False)

    def _end(self, lane: Lane, pulled: Pulled) -> bool:
        """Nothing is deferred: what was copied since the last frame. True if something changed."""
        topic = self._topic
        if not topic.config.durability.lasts:
            self._finish()
            return True
        if lane.stopped and not self._displaced:
            self._finish()  # there was no room for more; it goes on by the ordinary way when there is
            return True
        if self._goal is None and (pulled.settled or self._quiet):
            self._goal = pulled.head
        now = topic.commit_time(self._clock.now_ms())
        moved = False
        if not self._displaced:
            made, everything = self._copier.fitting(topic, lane, pulled, restoring=True)
            self._copier.carry_out(topic, lane, made, now)
            moved = made.upto > lane.cursor
            lane.cursor = made.upto
            self._displaced = made.source_truncated
            if not everything:  # it was full then, too
                self._finish()
                return True
        lane.source_truncated = self._displaced
        if self._displaced and self._goal is not None:
            burnt = lane.copies_of(lane.cursor + 1, self._goal)
            if burnt:
                self._copier.carry_out(topic, lane, Plan(lane.cursor, [Skip(burnt, lost=True)]), now)
            self.displaced = True
            self._finish()  # what the source still has is copied by the ordinary way, from the lane's cursor
            return True
        topic.next_seq = topic.head_seq + 1
        if self._goal is not None and lane.cursor >= self._goal:
            self._finish()
            return True
        return moved

    def looked(self, first: Sequence[Position], second: Sequence[Position]) -> bool:
        """Twice around the cycle that this topic may be in. True if nothing moves there and this topic is to go on."""
        nothing_moves = still(first, second)
        # While others wait for something that was lost, they go on first.
        self._quiet = nothing_moves and (bool(self._topic.deferred) or all(each.idle for each in first))
        return self._quiet

    def source_gone(self) -> None:
        """The source does not exist any more: what it had is lost."""
        while (pin := self._pin()) is not None and (lane := self.lane) is not None:
            self._go_on(lane, pin[1], pin[2])
        self.nothing_left()

    def source_unreadable(self, head: int) -> None:
        """The source ends at `head`, but cannot be read now. This topic must not wait for it: the copies that no file
        has are told as lost, and made anew, with other seqs, when the source can be read."""
        while (pin := self._pin()) is not None and (lane := self.lane) is not None:
            self._go_on(lane, pin[1], pin[2])
        lane, topic = self.lane, self._topic
        if lane is not None and topic.config.durability.lasts:
            burnt = lane.copies_of(lane.cursor + 1, max(head, lane.cursor))
            if burnt:
                ts = topic.commit_time(self._clock.now_ms())
                self._copier.carry_out(topic, lane, Plan(lane.cursor, [Skip(burnt, lost=True)]), ts)
                self.displaced = True
        self._finish()

    def nothing_left(self) -> None:
        """No router is left to copy for."""
        self._finish()

    def _finish(self) -> None:
        topic = self._topic
        topic.held_at.clear()
        if (
            self._directory.complete(topic, self._clock.now_ms(), self._boot_id)
            and topic.config.durability.reserves_per_boot
        ):
            self.displaced = True
        topic.catalogued = None
        topic.lane_visible = topic.lane
        if topic.lane is not None:
            topic.lane.settled, topic.lane.source_truncated = True, False
            topic.lane.done = topic.lane.cursor
            topic.lane.unpinned = topic.lane.unsaved
            topic.lane.head, topic.lane.ts = topic.next_seq - 1, topic.last_ts
        topic.durable_head = topic.head_seq
        self.done = True
