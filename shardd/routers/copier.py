"""The copier: turns plans into records of the destination, without a frame in the log.

A copy is a staged change without a frame (see `shardd.storage.group_commit`). It becomes visible after the
destination's earlier changes, and is undone if they are. Its commit time is the time of copying.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

from proto.format.frame import encode_batch
from proto.model.errors import ErrorCode, TopicsError
from shardd.changes import seq_reservation
from shardd.changes.admission import growth
from shardd.changes.transactions import Staging, TopicChange
from shardd.routers.copy_plan import Append, Plan, Pulled, plan
from shardd.storage.change import Timing
from shardd.storage.free_space import LIMIT
from shardd.storage.indivisible import indivisible
from shardd.topic.lane import ROOM, Lane
from shardd.topic.lane_states import LaneEvent
from shardd.topic.topic import Topic


class Copier:
    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.copied_bytes = 0
        """Bytes of the copies made since the shard started. Copies are in memory until a checkpoint."""
        self.copied_records = 0

    def copy(self, topic: Topic, pulled: Pulled) -> bool:
        """Stages as many of the pulled records' copies as there is room for. Returns False if some are left: the topic
        refuses instead of evicting, the disk is nearly full, or the caps over all topics have no room. The lane then
        has the reason as its `obstacle`."""
        lane = topic.lane
        assert lane is not None
        lane.obstacle = self._copy(topic, lane, pulled)
        return lane.obstacle is None

    def _copy(self, topic: Topic, lane: Lane, pulled: Pulled) -> str | None:
        # Copies are in no log, but the next checkpoint would write them into the space reserved for deletions.
        if self.staging.space.low and topic.assigned_config.durability.logged:
            return LIMIT
        made, everything = self.fitting(topic, lane, pulled)
        whole = self._growth(topic, made)
        fits = self.staging.allowance.fits(0, whole)
        if not fits:
            # The longest part that fits under the caps over all topics.
            room = self.staging.allowance.fits
            made = _longest(lane, pulled, made.upto, lambda part: room(0, self._growth(topic, part)))
        if made.steps and topic.assigned_config.durability.logged:
            size = sum(step.columns.size(0, step.columns.count) for step in made.steps if isinstance(step, Append))
            if not self.staging.space.takes(topic, size, made.seqs):
                return LIMIT
        taken = whole if fits else self._growth(topic, made)
        waited = lane.waits
        with indivisible:
            self._pinned(
                topic, lane, LaneEvent.FITS if fits else LaneEvent.SHORT if made.upto > lane.cursor else LaneEvent.EMPTY
            )
            self.stage(topic, lane, made, taken)
        if not fits:
            if waited and not taken and topic.assigned_config.durability.logged:
                self._pinned(topic, lane, LaneEvent.LOG_WAIT)
            self.staging.allowance.want(whole - taken, self.staging.clock.monotonic())
            return ROOM
        return None if everything else _full(topic, lane, pulled)

    def _pinned(self, topic: Topic, lane: Lane, event: LaneEvent) -> None:
        """Lets the event happen. Logs the lane's position if it stops or resumes."""
        stopped = lane.stopped
        lane.happens(event)
        if lane.stopped is not stopped:
            self.staging.pin(topic, lane)

    def fitting(self, topic: Topic, lane: Lane, pulled: Pulled, *, restoring: bool = False) -> tuple[Plan, bool]:
        """The plan for what fits under the topic's caps, and whether that is everything pulled."""
        made = plan(lane, pulled, pulled.upto, restoring=restoring)
        if self._fits(topic, made):
            return made, True
        return _longest(lane, pulled, made.upto, partial(self._fits, topic), restoring=restoring), False

    def _growth(self, topic: Topic, made: Plan) -> int:
        """The most bytes that these copies add to the shard; 0 without a cap on them."""
        if not made.records or not self.staging.limits.max_total_bytes:
            return 0
        return growth(topic, topic.assigned_config, made.size, made.records).most

    def _fits(self, topic: Topic, made: Plan) -> bool:
        config = topic.assigned_config
        if config.discard != "reject" or not made.records:
            return True
        topic.expire(self.staging.clock.now_ms())
        records = topic.records.count + topic.records.pending_count + made.records
        size = topic.records.bytes + topic.records.pending_bytes + made.size
        return not (config.cap_records and records > config.cap_records) and not (
            config.cap_bytes and size > config.cap_bytes
        )

    def stage(self, topic: Topic, lane: Lane, made: Plan, taken: int) -> None:
        """Gives the copies their seqs and stages them. They become visible with the next flush, or with the sync that
        the topic's earlier changes wait for. `taken` is the most bytes that they add to the shard.

        Copies that cannot be made again, because the source has lost records, are put between two pins."""
        if made.holes and lane.unpinned:
            self.staging.pin(topic, lane)
        self._stage(topic, lane, made, taken)
        if made.holes:
            if not made.steps:
                lane.head, lane.ts = topic.position.next_seq - 1, topic.position.last_ts
            self.staging.pin(topic, lane, exact=False)

    def _stage(self, topic: Topic, lane: Lane, made: Plan, taken: int) -> None:
        before = (lane.cursor, lane.head, lane.ts, lane.unpinned)
        if not made.steps:
            lane.cursor = made.upto
            if lane.done == before[0]:
                lane.done = made.upto
                topic.catalogued = None
            return
        if not topic.assigned_config.durability.lasts:
            seq_reservation.ahead(topic, made.seqs, self.staging)
        ts = topic.position.commit_time(self.staging.clock.now_ms())
        first_seq = topic.position.take(made.seqs)
        topic.records.staged(made.records, made.size)
        if self.staging.limits.max_total_bytes:
            topic.records.promised(self.staging.promises, taken)
        lane.cursor, lane.head, lane.ts, lane.unpinned = made.upto, topic.position.next_seq - 1, ts, True
        topic.copies_staged += 1
        self.staging.stage(_Copied(topic, self, lane, made, first_seq, ts, before))
        seq_reservation.pushed_out(topic, self.staging)

    def carry_out(self, topic: Topic, lane: Lane, made: Plan, ts: int) -> None:
        """Appends the copies to the topic, visible at once."""
        topic.catalogued = None
        for step in made.steps:
            if isinstance(step, Append):
                step.columns.ts = ts
                frame = encode_batch(step.columns, topic.id, topic.records.head_seq + 1)
                topic.add(frame.head, topic.records.head_seq + 1, step.columns, step.flags)
                self.copied_bytes += len(frame.head)
            else:
                topic.records.leave_out(step.count, "source_trim" if step.lost else None)
        lane.done = made.upto
        lane.unsaved = True
        topic.last_write_ts = ts
        self.copied_records += made.records
        for name, count in made.forwarded.items():
            lane.routers[name].forwarded += count


class _Copied(TopicChange, eq=False):
    """A plan's copies become visible. They have no frame."""

    copier: Copier
    lane: Lane
    made: Plan
    first_seq: int
    ts: int
    before: tuple[int, int, int, bool]
    """Cursor, head, commit time and `unpinned` of the lane before."""

    def apply(self, timing: Timing) -> None:
        topic, staging = self.topic, self.copier.staging
        self._unstaged()
        head_before = topic.records.head_seq
        self.copier.carry_out(topic, self.lane, self.made, self.ts)
        self._kept()
        staging.events.copied(topic, head_before)

    def undo(self, error: TopicsError) -> None:
        topic, lane = self.topic, self.lane
        topic.position.give_back(self.first_seq)
        self._unstaged()
        self._kept()
        lane.cursor, lane.head, lane.ts, lane.unpinned = self.before

    def _unstaged(self) -> None:
        self.topic.copies_staged -= 1
        self.topic.records.unstaged(self.made.records, self.made.size)

    def _kept(self) -> None:
        if self.copier.staging.limits.max_total_bytes:
            self.topic.records.kept()


def _longest(lane: Lane, pulled: Pulled, upto: int, fits: Callable[[Plan], bool], *, restoring: bool = False) -> Plan:
    """The longest plan for the pulled records up to seq `upto` that fits."""

    def too_much(target: int) -> bool:
        return not fits(plan(lane, pulled, target, restoring=restoring))

    places = bisect_left(range(lane.cursor + 1, upto + 1), True, key=too_much)
    return plan(lane, pulled, lane.cursor + places, restoring=restoring)


def _full(topic: Topic, lane: Lane, pulled: Pulled) -> str:
    """The error that a write of the first copies that do not fit would get."""
    config, left = topic.assigned_config, plan(lane, pulled, lane.cursor + 1)
    never = (config.cap_bytes and left.size > config.cap_bytes) or (
        config.cap_records and left.records > config.cap_records
    )
    return (ErrorCode.RECORD_TOO_LARGE if never else ErrorCode.TOPIC_FULL).value
