"""Step 1 of a checkpoint: the plan, made in slices from the topics that have changed."""

from __future__ import annotations

from collections.abc import Callable, Generator

from proto.model.limits import Limits
from shardd.checkpoint import slices
from shardd.checkpoint.inventory import Inventory
from shardd.checkpoint.plan import Plan, TopicPlan, segment_of
from shardd.checkpoint.segment_summary import states
from shardd.checkpoint.snapshot import dump, kept
from shardd.clock import Clock
from shardd.storage.segment import Segment
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic


class Planner:
    def __init__(self, directory: Directory, clock: Clock, limits: Limits, inventory: Inventory) -> None:
        self._directory = directory
        self._clock = clock
        self._limits = limits
        self._inventory = inventory
        self.elsewhere = False
        """Whether another process continues the shard: seqs that it has reserved stay reserved."""

    def planning(
        self, synced: Callable[[], int], last: bool = False, checksum_of: Callable[[int], int | None] = lambda _: None
    ) -> Generator[None, None, Plan]:
        """Step 1 in slices, between which the shard may serve. `synced` returns the number of the last synced frame.

        `last`: the shard stops after this checkpoint, so it also writes leases that are not in the log. `checksum_of`
        returns the checksum of a frame, by its number: the catalog says which one it was made at."""
        last = last and not self.elsewhere
        now = self._clock.now_ms()
        directory = self._directory
        plan = Plan(
            self._inventory.newest.number + 1,
            synced(),
            directory.next_id,
            directory.id_sum,
            dict(directory.logs),
            directory.sessions.dump(),
        )
        plan.tail = checksum_of(plan.frame_no)
        self._bury()
        if not self._inventory.looked_for_strays:
            plan.loaded = dict(directory.by_id)
        looked = planned = 0
        for ident in list(directory.by_id):
            looked += 1
            topic = directory.by_id.get(ident)  # an unloaded one may have been loaded again since the list was made
            if topic is None:
                plan.id_sum -= ident  # deleted since
                continue
            planned += ident
            if topic.config.ttl_ms or topic.keys:
                directory.expire_topic(topic, now)
            if isinstance(topic.catalogued, bytes) and not self._changes_by_itself(topic, now, last):
                plan.entries.append(topic.catalogued)
            else:
                self._plan_topic(plan, topic, now, synced(), last)
                looked += slices.LOOK // slices.SLICE
            if looked >= slices.LOOK:
                looked = 0
                yield
        assert planned == plan.id_sum, "each topic that was not deleted has an entry"
        if any(each.cold for each in plan.topics):
            self._inventory.cold_used = any(s.cold for t in directory.visible.values() for s in t.segments) or None
        self._list_again(plan.topics)
        self._leave(plan)
        plan.listed = list(self._inventory.listed)  # a topic may be loaded again while the plan is carried out
        return plan

    def _bury(self) -> None:
        """Let the files of deleted topics go."""
        for deleted in self._directory.graveyard:
            if deleted.unloaded is not None:
                self._inventory.let_held_go(deleted.unloaded)
            self._inventory.let_go(deleted.segments)
            self._inventory.lacking.pop(deleted.id, None)
        self._directory.graveyard.clear()

    def _leave(self, plan: Plan) -> None:
        """Plan to remove the files that neither a topic nor this plan's catalog needs. An unloaded topic may have been
        loaded again since its entry was planned, which names its held frames: the next plan has those."""
        named = {path for each in plan.topics if (left := each.topic.unloaded) is not None for path in left.held}
        unused = self._inventory.unused
        plan.dead = [path for path in unused if path not in named]
        self._inventory.unused = [*plan.dead, *(path for path in unused if path in named)]

    def _changes_by_itself(self, topic: Topic, now: int, last: bool) -> bool:
        """True if a topic has to be planned although it has not changed."""
        if topic.queue is not None or (last and not topic.config.durability.lasts):
            return True  # the rows of a queue depend on the time
        if self._inventory.cold is None or not topic.segments:
            return False
        newest = topic.segments[-1]
        return not newest.sealed and now - newest.created_ms >= self._limits.segment_max_age_ms

    def _list_again(self, topics: list[TopicPlan]) -> None:
        """List again the flags of batches that have left their topics and that step 5 will write. The next start may
        find them half written, so the catalog has to list them."""
        if not self._inventory.listed:
            return
        planned = {id(batch) for plan in topics for batch, _ in plan.deleted}
        missing = [(batch, flags) for batch, flags in self._inventory.listed if id(batch) not in planned]
        if missing:
            home = {id(segment): plan for plan in topics for segment in plan.segments}
            for batch, flags in missing:
                plan = home.get(id(segment_of(batch)))
                if plan is not None:
                    plan.deleted.append((batch, flags))
                    if plan.states is not None:
                        plan.states = [state for state in plan.states if state[0] is not batch]
                        plan.states.append((batch, batch.start, None, batch.live_size))
                    plan.topic.catalogued = None

    def _plan_topic(self, whole: Plan, topic: Topic, now: int, synced_no: int, last: bool) -> None:
        if topic.unloaded is None:
            self._inventory.let_go(topic.records.drop_dead())
        # An unrestored topic has not given up the seqs of what it lost: a salvage makes checkpoints before that.
        if topic.position.logged_no <= synced_no and not (self.elsewhere or topic.unrestored):
            topic.position.reserve(topic.position.ceiling, "")
        plan = self._planned(topic, now, last, synced_no if synced_no > whole.frame_no else None)
        whole.topics.append(plan)
        whole.entries.append(plan)
        # Deletions are listed until files have them. Segments that cannot be moved now are tried again, also those of a
        # topic that is set apart.
        done = topic.damage is None and topic.position.logged_no <= synced_no and not plan.deleted and not plan.cold
        topic.catalogued = plan if done else None

    def _planned(self, topic: Topic, now: int, last: bool, as_of: int | None) -> TopicPlan:
        if topic.unloaded is not None:
            return TopicPlan(topic, topic.config, dict(topic.unloaded.entry), list(topic.segments))
        state = kept(topic, last and not topic.unrestored, now, as_of)
        plan = TopicPlan(topic, topic.config, dump(topic, state), list(topic.segments))
        plan.batches = [(batch, batch.delete_flags()) for batch in topic.records.unstored(topic.lasting_seq)]
        plan.fields["sum"] = topic.records.sequence.sum_upto(topic.lasting_seq)
        for batch in topic.records.batches:
            if batch.stored is not None and batch.deleted != batch.written:
                plan.deleted.append((batch, batch.delete_flags()))
        plan.states = states(topic, (batch for batch, _ in plan.batches), (batch for batch, _ in plan.deleted))
        for segment in topic.segments:
            if now - segment.created_ms >= self._limits.segment_max_age_ms:
                segment.sealed = True
        if self._inventory.cold is not None and topic.damage is None:
            target = self._inventory.cold / "topics" / f"{topic.id:016x}"
            plan.cold = [(segment, target) for segment in self._due(topic)]
        return plan

    def _due(self, topic: Topic) -> list[Segment]:
        """Sealed segments that may leave the hot tier: those beyond both `hot_retain_segments` and `hot_retain_bytes`,
        counted from the newest."""
        due: list[Segment] = []
        kept_bytes = 0
        sealed = [segment for segment in topic.segments if segment.sealed and not segment.cold]
        for newest, segment in enumerate(reversed(sealed)):
            kept_bytes += segment.size
            if newest >= self._limits.hot_retain_segments and kept_bytes > self._limits.hot_retain_bytes:
                due.append(segment)
        return due
