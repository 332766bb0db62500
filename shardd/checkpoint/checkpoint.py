"""Checkpoints: write the records of the log to segments and a catalog, then trim the log.

Steps of one checkpoint. Those marked * run in a worker thread while the shard serves; they use only the data of the
plan.

1   plan      the position: everything up to the log's last sync. For each topic: batches that no segment has, deletions
              that no file has, segments without live records, sealed segments that are due for the cold tier
2 * write     batches to the open segments, sealing and beginning segments as needed; sync
3 * copy      segments to the cold tier: copy, sync, directory sync
4 * commit    the catalog, with the deletions that no file has: written, synced, renamed, directory synced
5 * flag      the deletions that the catalog before this one listed, in place; sync
6 * trim      files that only the catalog before the last one needed: dead segments, hot copies, log files, old catalogs
7   adopt     batches now have a place in a file, and free their memory beyond the cache

Deletions reach the files one checkpoint late, so that no file is ever ahead of a catalog that may still be used. Else a
replay from that catalog would count records as deleted that were live then, and the caps would keep others instead.

Steps 1 and 7 run in slices, between which the shard serves (`planning`, `adopting`). A slice is `SLICE` topics that
have changed since the last checkpoint, or `LOOK` topics that have not. The new catalog has the entries of unchanged
topics as the same bytes as the last one. So each topic has its own position, that of its slice. If it is after the
plan's position, the entry has it as `as_of`, and replay skips the topic's frames up to it. A frame up to a synced
position never gets another number. A topic created between slices is in the log. A topic deleted between slices is
deleted by the log, too; its files stay until the checkpoint after the next one, as for every deletion.

If the process dies, the next start finds, by step:

1-3   the old catalog and a log that reaches back to it; bytes beyond a segment's recorded size are cut off; files that
      the catalog does not name are removed
4     the old or the new catalog, whole
5-7   the new catalog; files that it does not name are removed, deletions that it lists are made again

Visible records after the position may be in segments already. When replay finds their frames, it skips them by seq.

If a step up to the renaming of the catalog fails (disk full, for example), the checkpoint is abandoned. Its files are
removed at once, nothing is adopted, the log keeps its frames, and the next attempt begins from the start.

After the renaming the checkpoint counts, because the next start may find that catalog. It is adopted, and the next
checkpoint repeats the steps that failed. Files that the catalog before it needs are removed only then, so the device
may lose the new name without harm. A segment that cannot be copied to the cold tier stays in the hot tier.

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

from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from proto.format.frame import Buffer, Header
from proto.model.limits import Limits
from shardd.checkpoint.adopt import Adopter
from shardd.checkpoint.inventory import Inventory
from shardd.checkpoint.load import Loader, ReadSegment
from shardd.checkpoint.plan import Plan, TopicPlan
from shardd.checkpoint.planning import Planner
from shardd.checkpoint.slices import exhaust
from shardd.checkpoint.strays import Known
from shardd.checkpoint.write import Writer
from shardd.clock import Clock
from shardd.recovery.wal_scan import Outcome
from shardd.storage.disk import Disk
from shardd.storage.owner import Owner, owner_of
from shardd.storage.segment import Parts
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic


class Checkpoints:
    """The checkpoints of one shard, and the start from the last of them."""

    def __init__(
        self, disk: Disk, path: Path, directory: Directory, clock: Clock, limits: Limits, owner: Owner | None = None
    ) -> None:
        """`owner` of the files, None for that of the directory."""
        self._inventory = Inventory(disk, path, limits, owner or owner_of(disk, path))
        self._loader = Loader(disk, directory, clock, self._inventory)
        self.quarantine = self._loader.quarantine
        self._inventory.parts.met = self.quarantine.met
        self._planner = Planner(directory, clock, limits, self._inventory)
        self._writer = Writer(disk, clock, self._inventory, self.quarantine)
        self._adopter = Adopter(limits, self._inventory)

    @property
    def parts(self) -> Parts:
        return self._inventory.parts

    @property
    def completed(self) -> int:
        """Number of checkpoints since the start."""
        return self._adopter.completed

    @property
    def nothing_to_remove(self) -> bool:
        """True if another checkpoint would remove nothing, unless more is logged."""
        return self._adopter.nothing_to_remove

    @property
    def number(self) -> int:
        """Number of the newest catalog, 0 if there is none."""
        return self._inventory.number

    @property
    def owner(self) -> Owner:
        return self._inventory.owner

    @property
    def tail(self) -> int | None:
        """Checksum of the frame that the newest catalog was made at, None if that is not known."""
        return self._inventory.tail

    def name_tail(self, checksum_of: Callable[[int], int | None]) -> None:
        """Catalogs say which frame they were made at, by what `checksum_of` returns for its number."""
        self._planner.checksum_of = checksum_of

    def keep_log_for(self, shipped: Callable[[], int]) -> None:
        """Trim the log only up to the frame that `shipped` returns, which is called in the checkpoint's thread."""
        self._inventory.shipped = shipped

    def go_on_elsewhere(self) -> None:
        """Another process continues the shard: checkpoints keep the seqs that it has reserved."""
        self._planner.elsewhere = True

    @property
    def garbage(self) -> bool:
        """True if the next checkpoints can remove files."""
        return self._inventory.garbage

    @property
    def catalog_may_have(self) -> int:
        """An upper bound of the next catalog's bytes, as far as they follow from the last catalog and the segments."""
        return self._inventory.catalog_may_have

    # The start

    def load(self, *, from_files: bool = False, to_salvage: str = "") -> int:
        """Fill the directory from the newest catalog. Returns the frame number that the catalog was made at, 0 if there
        is none.

        `from_files`: read and check the files of every topic. `to_salvage`: name of a topic that is left unloaded in
        any case, because `shardd.offline.salvage` reads its files itself. Blocks. Raises `CatalogError`,
        `SegmentError`, OSError.
        """
        return self._loader.load(from_files=from_files, to_salvage=to_salvage)

    @property
    def held(self) -> list[Buffer]:
        """Held frames of loaded topics. They are replayed before the log."""
        return self._loader.held

    def replaying(self, header: Header) -> None:
        """Check the topic of a log frame, if it is unchecked, before the frame is replayed. Raises `Exhausted`."""
        self._loader.replaying(header)

    def replayed(self, outcome: Outcome, next_id: int) -> None:
        """Called when the whole log has been replayed; topic ids below `next_id` are used."""
        self._loader.replayed()
        self._inventory.known = Known(next_id, outcome.next_no - 1, self._inventory.proven, outcome.begin_no)

    def strays(self, loaded: Mapping[int, Topic]) -> list[Path]:
        """Files that the next checkpoint will set apart. Blocks. Raises OSError."""
        return [path for _, path in self._inventory.strays(loaded, self._inventory.unused)[1]]

    def lost(self) -> list[Path]:
        """All files that were ever set apart, in both tiers. Blocks."""
        return self._inventory.lost()

    @property
    def files_apart(self) -> int:
        """Number of all files that were ever set apart and are still there, as far as this process knows."""
        return self._inventory.lost_before + len(self._inventory.apart)

    @property
    def apart(self) -> list[Path]:
        """Files that were set apart since the start, by the names that they had."""
        return self._inventory.apart

    # Later

    def first_use(self, name: str) -> None:
        """Check the files of an unchecked topic before a request uses it. Quarantines it if they are damaged. Blocks.
        Raises `Exhausted`."""
        self._loader.first_use(name)

    def load_again(self, topic: Topic, read: ReadSegment) -> Topic:
        """Load an unloaded topic with `read`, for `shardd.offline.salvage`. Returns the new object. Raises
        `SegmentError` if the held frames cannot be read or replayed."""
        return self._loader.load_again(topic, read)

    def store(self, topic: Topic) -> None:
        """Write the batches of a topic to segments that no catalog names yet, and sync them. Blocks. Raises OSError."""
        plan = TopicPlan(topic, topic.config, {}, list(topic.segments))
        plan.batches = [(batch, batch.delete_flags()) for batch in topic.unstored()]
        self._writer.store(plan)
        self._adopter.adopt_written(plan)
        self._adopter.release()

    # A checkpoint

    def plan(self, synced_no: int, last: bool = False) -> Plan:
        """Step 1 in one call, with the log synced up to frame `synced_no`."""
        return exhaust(self.planning(lambda: synced_no, last))

    def planning(self, synced: Callable[[], int], last: bool = False) -> Generator[None, None, Plan]:
        """Step 1 in slices, between which the shard may serve. `synced` returns the number of the last synced frame.

        `last`: the shard stops after this checkpoint, so it also writes leases that are not in the log."""
        return self._planner.planning(synced, last)

    def write(self, plan: Plan) -> None:
        """Steps 2 to 6. Blocks: call it in a worker thread. Raises OSError; nothing has changed then, unless the plan
        is `committed`."""
        self._writer.write(plan)

    def adopt(self, plan: Plan) -> None:
        """Step 7 in one call."""
        exhaust(self.adopting(plan))

    def adopting(self, plan: Plan) -> Generator[None, None, None]:
        """Step 7 in slices. They also free the plan, because freeing a large one in one call takes as long as several
        slices."""
        return self._adopter.adopting(plan)

    def abandon(self, plan: Plan) -> None:
        """Drop a plan that was not committed, so that its topics are planned again."""
        for topic_plan in plan.topics:
            if topic_plan.topic.catalogued is topic_plan:
                topic_plan.topic.catalogued = None
