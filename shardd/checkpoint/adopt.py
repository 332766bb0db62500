"""Step 7 of a checkpoint: the topics take over what the plan wrote, in slices, and memory beyond the cache is freed."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from copy import copy
from weakref import ref

from proto.format.frame import DELETED
from proto.model.limits import Limits
from proto.process.garbage_collector import search_recent
from shardd.checkpoint import slices
from shardd.checkpoint.inventory import Inventory, Newest
from shardd.checkpoint.plan import Plan, TopicPlan, segment_of, with_held
from shardd.storage.batch import Batch
from shardd.storage.segment import StoredFrame, chained, flags_check

_CACHED = 256
"""Bytes that a cached batch counts besides its payload, so that many small ones are bounded, too."""


class Adopter:
    def __init__(self, limits: Limits, inventory: Inventory) -> None:
        self._limits = limits
        self._inventory = inventory
        self._cached: deque[tuple[ref[Batch], int]] = deque()
        """Stored batches whose payload is in memory, oldest first, and what each counts. Batches that their topics have
        dropped are freed all the same."""
        self._cached_bytes = 0
        self.nothing_to_remove = False
        """True if another checkpoint would remove nothing, unless more is logged."""

    def adopting(self, plan: Plan) -> Generator[None, None, None]:
        """Step 7 in slices. They also free the plan, because freeing a large one in one call takes as long as several
        slices."""
        assert plan.committed, "the next start could not find what is adopted"
        assert plan.number == self._inventory.newest.number + 1
        logged = self._inventory.newest.frame_no != plan.frame_no
        self._inventory.newest = Newest(plan.number, plan.frame_no, plan.tail, plan.catalog_bytes)
        self._inventory.looked_for_strays = True
        for batch, flags in plan.listed if plan.flagged else ():
            if not isinstance(batch.stored, StoredFrame) or id(batch.stored.segment) not in plan.unflagged:
                _filed(batch, flags)
        self._inventory.listed = [
            (batch, flags)
            for topic_plan in plan.topics
            for batch, flags in topic_plan.deleted
            if flags_check(batch.first_seq, flags) != batch.filed
        ]
        self._inventory.removable = [*(plan.left if plan.trimmed else self._inventory.removable), *plan.dead]
        self._inventory.unused = self._inventory.unused[len(plan.dead) :]
        plan.entries.clear()
        plan.topics.reverse()
        while plan.topics:
            self._adopt_topic(plan.topics.pop())
            if len(plan.topics) % slices.SLICE == 0:
                self.release()
                search_recent()  # else one long search at the end: slices free more than they make
                yield
        self.release()
        self.nothing_to_remove = plan.trimmed and not (logged or self._inventory.garbage or self._inventory.listed)

    def _adopt_topic(self, plan: TopicPlan) -> None:
        topic = plan.topic
        if topic.config.durability.lasts and topic.config is topic.assigned_config is plan.config:
            topic.position.logged_upto(0)  # records from the time when the topic was ephemeral are in files now
        if topic.catalogued is plan:
            topic.catalogued = plan.encoded
        if topic.unloaded is not None and plan.held:
            topic.unloaded.entry = with_held(plan)
            topic.unloaded.frames.clear()
            if topic.damage is None:  # it was loaded again while the plan was carried out
                self._inventory.let_held_go(topic.unloaded)
        self.adopt_written(plan)
        for segment, target in plan.cold:
            self._inventory.removable += self._inventory.leave([copy(segment)])
            segment.move_to_cold(target)
        if self._inventory.cold is not None and any(segment.sealed for segment, _ in plan.written):
            topic.catalogued = None  # more segments may be due for the cold tier than when this was planned

    def adopt_written(self, plan: TopicPlan) -> None:
        topic, waiting = plan.topic, deque(plan.batches)
        for segment, entries in plan.written:
            self._inventory.discount(segment)
            segment.grown(entries)
            segment.chain = chained(segment.chain, (entry.mark for entry in entries))
            segment.sum = plan.sums[id(segment)]
            self._inventory.count(segment)
            if self._inventory.full(segment.records, segment.size):
                segment.sealed = True
            if all(segment is not known for known in topic.segments):
                topic.segments.append(segment)
            for entry in entries:
                batch, flags = waiting.popleft()
                batch.stored = StoredFrame(segment, entry)
                topic.records.sequence.filed(batch)
                _filed(batch, flags)
                size = len(batch.buffer or b"") + _CACHED
                self._cached.append((ref(batch), size))
                self._cached_bytes += size
        assert not waiting, "each batch of the plan has a place in a file"

    def release(self) -> None:
        """Free the oldest payloads beyond `cache_bytes`; the files have them."""
        while self._cached and self._cached_bytes > self._limits.cache_bytes:
            cached, size = self._cached.popleft()
            self._cached_bytes -= size
            if (batch := cached()) is not None:
                batch.buffer = None


def _filed(batch: Batch, flags: bytes) -> None:
    """Record that the file has these flags now."""
    batch.written = flags.count(DELETED)
    new = flags_check(batch.first_seq, flags)
    segment_of(batch).check ^= batch.filed ^ new
    batch.filed = new
