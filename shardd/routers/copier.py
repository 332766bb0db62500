"""The copier: turns plans into records of the destination, without a frame in the log.

A copy is a staged change without a frame (see `shardd.storage.group_commit`). It becomes visible after the
destination's earlier changes, and is undone if they are. Its commit time is the time of copying.
"""

from __future__ import annotations

from bisect import bisect_left

from proto.format.frame import encode_batch
from proto.model.errors import TopicsError
from shardd.changes import seq_reservation
from shardd.changes.admission import growth
from shardd.changes.transactions import Staging, TopicChange
from shardd.routers.copy_plan import Append, Plan, Pulled, plan
from shardd.storage.change import Timing
from shardd.topic.lane import Lane
from shardd.topic.topic import Topic


class Copier:
    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.copied_bytes = 0
        """Bytes of the copies made since the shard started. Copies are in memory until a checkpoint."""
        self.copied_records = 0

    def copy(self, topic: Topic, pulled: Pulled) -> bool:
        """Stages as many of the pulled records' copies as there is room for. Returns False if some are left: the topic
        refuses instead of evicting, the disk is nearly full, or the allowance does not cover them."""
        lane = topic.lane
        assert lane is not None
        # Copies are in no log, but the next checkpoint would write them into the space reserved for deletions.
        if self.staging.space.low and topic.assigned_config.durability.logged:
            return False
        made, everything = self.fitting(topic, lane, pulled)
        whole = _growth(topic, made)
        lent = self.staging.allowance.covers(whole)
        if not lent:
            made = self._covered(topic, lane, pulled, made)
        if made.steps and topic.assigned_config.durability.logged:
            size = sum(step.columns.size(0, step.columns.count) for step in made.steps if isinstance(step, Append))
            if not self.staging.space.takes(topic, size, made.seqs):
                return False
        taken = whole if lent else _growth(topic, made)
        self.staging.allowance.take(taken)
        self._lasts(topic, lane, lent or made.upto > lane.cursor)
        self.stage(topic, lane, made, taken)
        if not lent:
            if not taken and lane.waits:
                self._stops(topic, lane)
            self.staging.allowance.want(whole - taken)
        lane.waits = not lent
        return everything and lent

    def _covered(self, topic: Topic, lane: Lane, pulled: Pulled, made: Plan) -> Plan:
        """The longest part of the plan that the allowance covers."""
        seqs = range(lane.cursor + 1, made.upto + 1)

        def too_much(target: int) -> bool:
            return not self.staging.allowance.covers(_growth(topic, plan(lane, pulled, target)))

        return plan(lane, pulled, lane.cursor + bisect_left(seqs, True, key=too_much))

    def _stops(self, topic: Topic, lane: Lane) -> None:
        """Logs that the lane waits, with its position, so that a restart copies nothing that there was no room for.
        `_lasts` logs when it continues. The first wait of a lane is not logged: mostly a loan follows at once."""
        if not lane.stopped and topic.assigned_config.durability.logged:
            lane.stopped = True
            self.staging.pin(topic, lane)

    def _lasts(self, topic: Topic, lane: Lane, goes_on: bool) -> None:
        if lane.stopped and goes_on:
            lane.stopped = False
            self.staging.pin(topic, lane)

    def fitting(self, topic: Topic, lane: Lane, pulled: Pulled, *, restoring: bool = False) -> tuple[Plan, bool]:
        """The plan for what fits under the topic's caps, and whether that is everything pulled."""
        made = plan(lane, pulled, pulled.upto, restoring=restoring)
        if self._fits(topic, made):
            return made, True
        seqs = range(lane.cursor + 1, made.upto + 1)

        def too_much(target: int) -> bool:
            return not self._fits(topic, plan(lane, pulled, target, restoring=restoring))

        places = bisect_left(seqs, True, key=too_much)
        return plan(lane, pulled, lane.cursor + places, restoring=restoring), False

    def _fits(self, topic: Topic, made: Plan) -> bool:
        config = topic.assigned_config
        if config.discard != "reject" or not made.records:
            return True
        topic.expire(self.staging.clock.now_ms())
        records = topic.records + topic.pending_records + made.records
        size = topic.bytes + topic.pending_bytes + made.size
        return not (config.cap_records and records > config.cap_records) and not (
            config.cap_bytes and size > config.cap_bytes
        )

    def stage(self, topic: Topic, lane: Lane, made: Plan, taken: int) -> None:
        """Gives the copies their seqs and stages them. They become visible with the next flush, or with the sync that
        the topic's earlier changes wait for. `taken` is their share of the allowance, in bytes.

        Copies that cannot be made again, because the source has lost records, are put between two pins."""
        if made.holes and lane.unpinned:
            self.staging.pin(topic, lane)
        self._stage(topic, lane, made, taken)
        if made.holes:
            if not made.steps:
                lane.head, lane.ts = topic.next_seq - 1, topic.last_ts
            self.staging.pin(topic, lane, exact=False)

    def _stage(self, topic: Topic, lane: Lane, made: Plan, taken: int) -> None:
        before = (lane.cursor, lane.head, lane.ts, lane.unpinned)
        if not made.steps:
            self.staging.allowance.settled(taken)
            lane.cursor = made.upto
            if lane.done == before[0]:
                lane.done = made.upto
                topic.catalogued = None
            return
        if not topic.assigned_config.durability.lasts:
            seq_reservation.ahead(topic, made.seqs, self.staging)
        ts = topic.commit_time(self.staging.clock.now_ms())
        topic.next_seq += made.seqs
        topic.pending_records += made.records
        topic.pending_bytes += made.size
        lane.cursor, lane.head, lane.ts, lane.unpinned = made.upto, topic.next_seq - 1, ts, True
        self.staging.stage(_Copied(topic, self, lane, made, ts, taken, before))
        seq_reservation.pushed_out(topic, self.staging)

    def carry_out(self, topic: Topic, lane: Lane, made: Plan, ts: int) -> None:
        """Appends the copies to the topic, visible at once."""
        for step in made.steps:
            if isinstance(step, Append):
                step.columns.ts = ts
                frame = encode_batch(step.columns, topic.id, topic.head_seq + 1)
                topic.add(frame.head, topic.head_seq + 1, step.columns, step.flags)
                self.copied_bytes += len(frame.head)
            else:
                topic.leave_out(step.count, "source_trim" if step.lost else None)
        lane.done = made.upto
        lane.unsaved = True
        topic.last_write_ts = ts
        self.copied_records += made.records
        for name, count in made.forwarded.items():
            lane.routers[name].forwarded += count

    def made_again(self, topic: Topic) -> None:
        """Releases the topic's pulls: its copies from before the stop are back."""
        topic.durable_head = topic.head_seq
        self.staging.events.restored(topic)


class _Copied(TopicChange, eq=False):
    """A plan's copies become visible. They have no frame."""

    copier: Copier
    lane: Lane
    made: Plan
    ts: int
    taken: int
    """Bytes of the allowance."""
    before: tuple[int, int, int, bool]
    """Cursor, head, commit time and `unpinned` of the lane before."""

    def apply(self, timing: Timing) -> None:
        topic, staging = self.topic, self.copier.staging
        topic.pending_records -= self.made.records
        topic.pending_bytes -= self.made.size
        staging.allowance.settled(self.taken)
        head_before = topic.head_seq
        self.copier.carry_out(topic, self.lane, self.made, self.ts)
        staging.events.copied(topic, head_before)

    def undo(self, error: TopicsError) -> None:
        topic, lane = self.topic, self.lane
        self.copier.staging.allowance.settled(self.taken)
        topic.next_seq -= self.made.seqs
        topic.pending_records -= self.made.records
        topic.pending_bytes -= self.made.size
        lane.cursor, lane.head, lane.ts, lane.unpinned = self.before


def _growth(topic: Topic, made: Plan) -> int:
    """The most bytes that these copies add to the topic."""
    return growth(made.size, topic.bytes + topic.pending_bytes, topic.assigned_config) if made.records else 0
