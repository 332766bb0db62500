"""Checkpoints: write the records of the log to segments and a catalog, then trim the log.

Steps of one checkpoint. Those marked * run in a worker thread while the shard serves; they use only the data of the
plan.

1   plan      the position: everything up to the log's last sync. For each topic: batches that no segment has, deletions
              that no file has, segments without live records, sealed segments that are due for the cold tier
2 * write     entries to the indexes, then batches to the open segments; sealing and beginning segments as needed; sync
3 * copy      segments to the cold tier: check, copy, sync, directory sync; a damaged one stays
4 * commit    the catalog, with the deletions that no file has: written, synced, renamed, directory synced
5 * flag      the deletions that the catalog before this one listed, in place; sync
6 * trim      files that only the catalog before the last one needed: dead segments, hot copies, log files, old
              catalogs, and the folders of topics that are empty then
7   adopt     batches now have a place in a file, and free their memory beyond the cache

Deletions reach the files one checkpoint late, so that no file is ever ahead of a catalog that may still be used. Else a
replay from that catalog would count records as deleted that were live then, and the caps would keep others instead.

Steps 1 and 7 run in slices, between which the shard serves. A slice is `SLICE` topics that have changed since the last
checkpoint, or `LOOK` topics that have not. The new catalog has the entries of unchanged topics as the same bytes as the
last one. So each topic has its own position, that of its slice. If it is after the plan's position, the entry has it as
`as_of`, and replay skips the topic's frames up to it. A frame up to a synced position never gets another number. A
topic created between slices is in the log. A topic deleted between slices is deleted by the log, too; its files stay
until the checkpoint after the next one, as for every deletion.

If the process dies, the next start finds, by step:

1-3   the old catalog and a log that reaches back to it; bytes beyond a segment's recorded size do not count
4     the old or the new catalog, whole
5-7   the new catalog, with the deletions that have to be made again

The next checkpoint cuts these bytes off, makes these deletions, and removes the files that the catalog does not name,
or sets them apart if they are not of this shard and time (`shardd.checkpoint.strays`).

Visible records after the position may be in segments already. When replay finds their frames, it skips them by seq.

If a step up to the renaming of the catalog fails (disk full, for example), the checkpoint is abandoned. Its files are
removed at once, nothing is adopted, the log keeps its frames, and the next attempt begins from the start.

After the renaming the checkpoint counts, because the next start may find that catalog. It is adopted, and the next
checkpoint repeats the steps that failed. Files that the catalog before it needs are removed only then, so the device
may lose the new name without harm. Nor does it matter whether a folder that was removed is back after a power cut:
steps 2 and 3 make the folders that they write to, and sync their parents. A segment that cannot be copied to the cold
tier stays in the hot tier.

A start loads small topics from the catalog alone (`shardd.checkpoint.segment_summary`) and opens none of their files.
Such a topic is `unchecked`, until one of these happens:

a request reads or changes it    its files are read and checked. If they are damaged, so is the topic. Its records in
                                 memory are whole, see `shardd.recovery.quarantine`
a frame of the log is about it   its files are read and checked before the frame counts. If they are damaged, the topic
                                 is unloaded: only its catalog entry is known, and its frames are kept
the first checkpoint             its thread checks whether files are missing or too short

A start always reads the files of topics with routers into them, and of topics with held frames. Programs that work on
the files of a stopped service read the files of all topics (`from_files`).

Each step has a module of this folder: `planning` has step 1, `write` steps 2 to 6, `adopt` step 7, `load` the start.
`plan` and `inventory` are what they hand to each other, within a checkpoint and from one to the next. `snapshot` has
the fields of a topic's catalog entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proto.model.limits import Limits
from shardd.checkpoint.adopt import Adopter
from shardd.checkpoint.inventory import Inventory
from shardd.checkpoint.load import Loader
from shardd.checkpoint.plan import Plan, TopicPlan
from shardd.checkpoint.planning import Planner
from shardd.checkpoint.strays import Known
from shardd.checkpoint.write import Writer
from shardd.clock import Clock
from shardd.recovery.wal_scan import Outcome
from shardd.storage.disk import Disk
from shardd.storage.owner import Owner, owner_of
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic


class Checkpoints:
    """The checkpoints of one shard, and the start from the last of them: `loader`, then for each checkpoint `planner`,
    `writer` (in a worker thread) and `adopter`, or `abandon`."""

    def __init__(
        self, disk: Disk, path: Path, directory: Directory, clock: Clock, limits: Limits, owner: Owner | None = None
    ) -> None:
        """`owner` of the files, None for that of the directory."""
        self.inventory = Inventory(disk, path, limits, owner or owner_of(disk, path))
        self.loader = Loader(disk, directory, clock, self.inventory)
        self.quarantine = self.loader.quarantine
        self.inventory.parts.met = self.quarantine.met
        self.planner = Planner(directory, clock, limits, self.inventory)
        self.writer = Writer(disk, clock, self.inventory, self.quarantine)
        self.adopter = Adopter(limits, self.inventory)

    def replayed(self, outcome: Outcome, next_id: int) -> None:
        """Called when the whole log has been replayed; topic ids below `next_id` are used."""
        self.loader.replayed()
        self.inventory.firsts = outcome.firsts
        inventory = self.inventory
        inventory.known = Known(
            next_id, outcome.next_no - 1, inventory.newest.proven, outcome.begin_no, frozenset(inventory.lacking)
        )

    def strays(self, loaded: Mapping[int, Topic]) -> list[Path]:
        """Files that the next checkpoint will set apart. Blocks. Raises OSError."""
        return [path for _, path in self.inventory.strays(loaded, self.inventory.unused)[1]]

    def store(self, topic: Topic) -> None:
        """Write the batches of a topic to segments that no catalog names yet, and sync them. Blocks. Raises OSError."""
        plan = TopicPlan(topic, topic.config, {}, list(topic.segments))
        plan.batches = [(batch, batch.delete_flags()) for batch in topic.records.unstored(topic.lasting_seq)]
        self.writer.store(plan)
        self.adopter.adopt_written(plan)
        self.adopter.release()

    def abandon(self, plan: Plan) -> None:
        """Drop a plan that was not committed, so that its topics are planned again."""
        for topic_plan in plan.topics:
            if topic_plan.topic.catalogued is topic_plan:
                topic_plan.topic.catalogued = None
