"""Copy recovery: makes copies again after a stop, so that every seq a reader has seen names the same record as before.

Copies are in no log, but their topic's later frames are. A *pin* is a frame that marks where copies belong that no
checkpoint has. The steps:

    1. Replay stops in a topic at its first pin, and keeps the topic's later frames (`Topic.deferred`).
    2. Once the other shards answer, the pin's copies are made again, and the frames up to the next pin replayed.
    3. Step 2 repeats for every pin.
    4. The copies made after the last frame follow. Only then is the shard ready.

So caps, deletions and configurations apply to the same records in the same order as before.

Records that the source has lost since then cannot be copied again:

    lane                 decision
    arithmetic           their seqs stay empty: silently if deleted, else reported as lost; no other seq changes
    other                from the first missing record on, the copies' seqs are reported as lost: up to the pin, and at
                         the end up to the most that can have been used. All records that the source still has are then
                         copied again under seqs that no reader has seen. Readers may get a record twice, never another
                         record under its seq.
    the source is gone   reported as lost, up to the last pin; its routers are removed

A topic is *settled* when its source is settled and it has caught up with it. The topics of a cycle would wait for each
other for ever. So each also reads the positions around its cycle, twice. If all have caught up and no position has
changed, then nothing was left to do at a moment between the two reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proto.format.frame import Kind
from proto.ipc.operations import Position
from shardd.frames import Pin, topic_frame
from shardd.routers.copier import Copier
from shardd.routers.copy_plan import Plan, Pulled, Skip, plan
from shardd.routers.source import forwardable
from shardd.topic.lane import Lane
from shardd.topic.topic import Deferred, Topic, hold


def position(topic: Topic) -> Position:
    lane = topic.lane
    if lane is None or not lane.routers or lane.settled or topic.unloaded is not None:
        return Position(topic.name, forwardable(topic), 0, None, not topic.deferred, False, -1)
    source = (lane.source, lane.epoch)
    return Position(
        topic.name, forwardable(topic), lane.cursor, source, not topic.deferred, lane.source_truncated, lane.asked
    )


def _moves(at: Position, source: Position) -> bool:
    """Whether the source has records that the topic can take, or has not asked for."""
    return (at.cursor < source.head and not at.source_truncated) or (not at.idle and at.asked != source.head)


def still(first: Sequence[Position], second: Sequence[Position]) -> bool:
    """Whether nothing in a cycle can move any more, from two reads of its positions. Then nothing is left to do, or a
    topic waits for lost records."""
    # The way from a topic to its source, and so on, has to lead back to its start.
    if first != second or not first or first[-1].source is None or first[-1].source[0] != first[0].name:
        return False
    return not any(_moves(each, source) for each, source in zip(first, [*first[1:], first[0]], strict=True))


class Restore:
    """The restoration of one topic. The caller pulls from its source and passes each answer to `take`, until `done`."""

    def __init__(self, topic: Topic, copier: Copier, replay: Callable[[Topic, Deferred], None]) -> None:
        self._topic = topic
        self._copier = copier
        self._staging = copier.staging
        self._replay = replay
        self._goal: int | None = None
        self._inexact = False
        """The source has lost records: from here on, the copies cannot be made again."""
        self._quiet = False
        self.done = False
        self.displaced = False
        """Seqs were given up. A checkpoint must save that before readers see later seqs."""

    @property
    def name(self) -> str:
        return self._topic.name

    @property
    def position(self) -> Position:
        return position(self._topic)

    @property
    def lane(self) -> Lane | None:
        """The lane with source, epoch and cursor to pull from. None if no router is left."""
        lane = self._topic.lane
        return lane if lane is not None and lane.routers else None

    def take(self, pulled: Pulled) -> bool:
        """Takes what the source has after the lane's cursor. Returns False if nothing moved: pull again later."""
        lane = self.lane
        assert lane is not None
        if not self._topic.config.durability.lasts and not self._topic.deferred:
            self._finish()  # the restart lost the topic's records; ordinary copying brings the rest
            return True
        before = lane.cursor
        try:
            moved = self._take(lane, pulled) or lane.cursor > before
            lane.asked = -1 if moved else pulled.head
            return moved
        finally:
            self._quiet = False
            self._topic.position.on_device(self._topic.records.head_seq)
            self._staging.events.restored(self._topic)

    def _take(self, lane: Lane, pulled: Pulled) -> bool:
        while (pin := self._pin()) is not None:
            seq, head = pin.pin, pin.head
            if head <= self._topic.records.head_seq or not self._topic.config.durability.lasts:
                head, lane.cursor = self._topic.records.head_seq, max(lane.cursor, seq)
            elif not pin.exact and not lane.arithmetic:
                self._inexact = True
            elif not self._inexact:
                made = plan(lane, pulled, seq, restoring=True)
                self._append(lane, made, head, pin.ts)
                if made.source_truncated:
                    self._inexact = True
                elif made.upto < seq:
                    if pulled.head >= seq or not (pulled.settled or self._quiet):
                        return False
                    self._inexact = True  # the source has changed, for example because its files were replaced
            lane.resume(pin.stopped)
            self._go_on(lane, head, pin.ts)
            if self.lane is not lane:
                return True  # a replayed frame changed the lane: its source may be another, or none
        return self._end(lane, pulled)

    def _append(self, lane: Lane, made: Plan, head: int, ts: int) -> None:
        """Appends a plan's copies, if they end at `head` or before."""
        room = head - self._topic.records.head_seq
        if made.seqs > room:
            # The source cannot have grown below the pin, so these are not the former copies: give up on exactness.
            made.source_truncated = True
            made.steps, made.upto = [], lane.cursor
            return
        self._topic.position.committed(ts)
        self._copier.carry_out(self._topic, lane, made, ts)
        lane.cursor = made.upto

    def _go_on(self, lane: Lane, head: int, ts: int) -> None:
        """Passes the pin: reports its missing copies as lost, then replays the frames up to the next pin."""
        topic = self._topic
        if topic.records.head_seq < head:
            self._copier.carry_out(topic, lane, Plan(lane.cursor, [Skip(head - topic.records.head_seq, lost=True)]), ts)
        topic.position.used(topic.records.head_seq)
        topic.deferred.popleft()
        topic.held_at.clear()
        while topic.deferred and self._pin() is None:
            self._replay(topic, topic.deferred.popleft())
        if topic.deferred:
            hold(topic)

    def _pin(self) -> Pin | None:
        """The next deferred frame, if it is a pin of the topic's lane."""
        if not self._topic.deferred:
            return None
        header, buffer = self._topic.deferred[0]
        if header.kind != Kind.ROUTER:
            return None
        frame = topic_frame(buffer, header)
        return frame if isinstance(frame, Pin) and frame.lane_of(self._topic) is not None else None

    def _end(self, lane: Lane, pulled: Pulled) -> bool:
        """Makes the copies that followed the last frame; nothing is deferred. Returns whether something changed."""
        topic = self._topic
        if not topic.config.durability.lasts or (lane.stopped and not self._inexact):
            self._finish()  # if it stopped, there was no room for more; ordinary copying continues when there is
            return True
        if self._goal is None and (pulled.settled or self._quiet):
            self._goal = pulled.head
        before, now = lane.cursor, topic.position.commit_time(self._staging.clock.now_ms())
        if not self._inexact:
            made, everything = self._copier.fitting(topic, lane, pulled, restoring=True)
            self._copier.carry_out(topic, lane, made, now)
            lane.cursor = made.upto
            self._inexact = made.source_truncated
            if not everything:  # the topic was as full before the stop
                self._finish()
                return True
        lane.source_truncated = self._inexact
        topic.position.used(topic.records.head_seq)
        if self._goal is not None and self._inexact:
            self._burn(lane, self._goal)
            self.displaced = True
            self._finish()  # ordinary copying takes what the source still has, from the lane's cursor
            return True
        if self._goal is not None and lane.cursor >= self._goal:
            self._finish()
            return True
        return lane.cursor > before

    def _burn(self, lane: Lane, head: int) -> bool:
        """Reports as lost the most copies that the source's records after the cursor, up to `head`, can have had.
        Returns whether there are any."""
        burnt = lane.copies_of(lane.cursor + 1, head)
        if burnt:
            ts = self._topic.position.commit_time(self._staging.clock.now_ms())
            self._copier.carry_out(self._topic, lane, Plan(lane.cursor, [Skip(burnt, lost=True)]), ts)
        return burnt > 0

    def looked(self, first: Sequence[Position], second: Sequence[Position]) -> bool:
        """Takes two reads of the positions around the topic's cycle. Returns whether nothing moves there and this topic
        is the one to continue."""
        nothing_moves = still(first, second)
        # Topics that wait for lost records continue first.
        self._quiet = nothing_moves and (bool(self._topic.deferred) or all(each.idle for each in first))
        return self._quiet

    def source_gone(self) -> None:
        """Passes all pins and ends: the source no longer exists, so its records are lost."""
        while (pin := self._pin()) is not None and (lane := self.lane) is not None:
            self._go_on(lane, pin.head, pin.ts)
        self.nothing_left()

    def source_unreadable(self, head: int) -> None:
        """Passes all pins and ends: the source ends at `head`, but cannot be read now. The topic must not wait for it.
        Copies that no file has are reported as lost. They are copied under new seqs when the source can be read."""
        while (pin := self._pin()) is not None and (lane := self.lane) is not None:
            self._go_on(lane, pin.head, pin.ts)
        lane = self.lane
        if lane is not None and self._topic.config.durability.lasts and self._burn(lane, head):
            self.displaced = True
        self._finish()

    def nothing_left(self) -> None:
        """Ends the restoration, because no router is left."""
        self._finish()

    def _finish(self) -> None:
        topic = self._topic
        topic.held_at.clear()
        now, boot_id = self._staging.clock.now_ms(), self._staging.boot_id
        if self._staging.directory.complete(topic, now, boot_id) and topic.config.durability.reserves_per_boot:
            self.displaced = True
        topic.catalogued = None
        topic.lane_visible = topic.lane
        if topic.lane is not None:
            topic.lane.settled, topic.lane.source_truncated = True, False
            topic.lane.done = topic.lane.cursor
            topic.lane.unpinned = topic.lane.unsaved
            topic.lane.head, topic.lane.ts = topic.position.next_seq - 1, topic.position.last_ts
        topic.position.on_device(topic.records.head_seq)
        self.done = True
