"""Checkpoints: write the records of the log to segments and a catalog, then trim the log.

Steps of one checkpoint. Those marked * run in a worker thread while the shard goes on; they use only the data of the
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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from errno import ENOENT
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import cbor2

from proto.format.frame import DELETED, FORMAT_VERSION, Buffer, Header, Kind
from proto.model.limits import Limits
from proto.process.garbage_collector import search_recent
from shardd.checkpoint.plan import Plan, Planned, TopicPlan, checks_of, files_of, places_of, segment_of, still_needed
from shardd.checkpoint.segment_summary import forgotten, packed, states, unpacked
from shardd.checkpoint.snapshot import kept_fields
from shardd.clock import Clock
from shardd.recovery.quarantine import Quarantine, found, read_held
from shardd.recovery.replay import replay
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage import catalog
from shardd.storage.batch import Batch
from shardd.storage.disk import Disk, File
from shardd.storage.errors import Exhausted, SegmentError, unreadable
from shardd.storage.segment import (
    ENTRY_SIZE,
    Entry,
    Parts,
    Segment,
    StoredFrame,
    entry_of,
    flags_check,
    load_batches,
    sealed_frame,
)
from shardd.storage.wal import first_no_of
from shardd.topic.config import from_map
from shardd.topic.cursors import Cursor
from shardd.topic.damage import Unloaded, held_files
from shardd.topic.directory import Directory
from shardd.topic.gaps import Gaps
from shardd.topic.lane import load as load_lane
from shardd.topic.tombstones import Losses
from shardd.topic.topic import Topic

_Result = TypeVar("_Result")
SLICE = 32
LOOK = 4096
"""Number of topics that one slice plans or adopts, and that one slice examines."""
Load = Callable[[Segment, int, dict[int, bytes], int | None], list[Batch]]
"""Reads the batches of a segment. Arguments: the segment, its size, the flags that the catalog lists by first seq, the
check of the other flags."""


class Checkpoints:
    def __init__(self, disk: Disk, path: Path, directory: Directory, clock: Clock, limits: Limits) -> None:
        self._disk = disk
        self._path = path
        self._directory = directory
        self._clock = clock
        self._limits = limits
        self._cold = Path(limits.cold_dir) / path.name if limits.cold_dir else None
        self._topics = path / "topics"
        self.parts = Parts(disk)
        self.quarantine = Quarantine(directory, clock, self._load_again)
        self.parts.met = self.quarantine.met
        self.to_salvage = ""
        """Name of a topic that is left unloaded in any case: `shardd.offline.salvage` reads its files itself."""
        self.from_files = False
        """Read and check the files of every topic at the start."""
        self._entries: dict[int, dict[str, Any]] = {}
        """Catalog entries of the unchecked topics, until the log has been read."""
        self._listed_of: tuple[list[Planned], int, dict[int, list[Batch]]] = [], -1, {}
        self.held: list[Buffer] = []
        """Held frames of loaded topics. They are replayed before the log."""
        self._cached: deque[Batch] = deque()
        self._cached_bytes = 0
        self._number = 0
        self._frame_no = 0
        self._doomed: list[Path] = []
        """Files that only the catalog before the newest may need."""
        self._dying: list[Path] = []
        """Files that no topic needs but the newest catalog names."""
        self._listed: list[Planned] = []
        """Deletions in the newest catalog that no file has."""
        self._cold_used = False
        self.completed = 0
        self.catalog_bytes = 0
        """Size of the newest catalog."""
        self._looked_for_strays = False
        self.stored = 0
        """Bytes that a catalog may need for flags and rows of all segments, see `_weight`."""
        self.settled = False
        """True if another checkpoint would remove nothing, unless more is logged."""

    # Boot

    def load(self) -> int:
        """Fill the directory from the newest catalog. Returns the frame number that the catalog was made at, 0 if there
        is none.

        Blocks. Raises `CatalogError`, `SegmentError`, OSError.
        """
        found = catalog.load(self._disk, self._path)
        if found is not None:
            self._number, contents = found
            self._frame_no = contents["frame_no"]
            for entry in contents["topics"]:
                self._directory.show(self._load(entry))
            self._directory.used_id(contents["next_id"] - 1)
            self._directory.logs = contents.get("logs", {})
            self._directory.snapshot_id = contents["next_id"]
            self._directory.sessions.load(contents.get("sessions", ()))
            self.catalog_bytes = self._disk.size(self._path / catalog.file_name(self._number))
        return self._frame_no

    def _load(self, entry: dict[str, Any]) -> Topic:
        """The topic of a catalog entry, unloaded if its files cannot be read."""
        frames: list[Buffer] = []
        try:
            if entry["name"] == self.to_salvage:
                raise SegmentError("it is being salvaged")
            if "held" in entry:
                frames = read_held(self._disk, entry, self._folder(entry["id"], cold=False))
            known = not (self.from_files or "held" in entry or "routers" in entry)
            topic = self._load_topic(entry, known=known)
        except Exhausted:
            raise
        except SegmentError as error:
            topic = self._set_apart(entry)
            self.quarantine.unloaded(topic, error)
        else:
            self.held += frames
            if "held" in entry:
                self._dying += held_files(entry, self._folder(topic.id, cold=False))
            if topic.unchecked:
                self._entries[topic.id] = entry
        return topic

    def replaying(self, header: Header) -> None:
        """Check the topic of a log frame, if it is unchecked, before the frame is replayed. Raises `Exhausted`."""
        topic = self._directory.by_id.get(header.topic_id)
        if topic is None or not topic.unchecked or header.frame_no <= topic.as_of or header.kind == Kind.TOPIC_DELETE:
            return
        try:
            self._check(topic)
        except Exhausted:
            raise
        except SegmentError as error:
            apart = self._set_apart(self._entries[topic.id])
            mine = {id(segment) for segment in topic.segments}
            self._listed = [each for each in self._listed if id(segment_of(each[0])) not in mine]
            self.stored -= sum(map(_weight, topic.segments))
            self._directory.replace(topic, apart)
            self.quarantine.unloaded(apart, error)

    def replayed(self) -> None:
        """Called when the whole log has been replayed."""
        self._entries.clear()

    def first_use(self, name: str) -> None:
        """Check the files of an unchecked topic before a request uses it. Quarantines it if they are damaged. Blocks.
        Raises `Exhausted`."""
        topic = self._directory.visible.get(name)
        if topic is None or not topic.unchecked or topic.damage is not None:
            return
        try:
            self._check(topic)
        except Exhausted:
            raise
        except SegmentError as error:
            self.quarantine.set_apart(topic, error, lambda: self._check(topic))

    def _check(self, topic: Topic) -> None:
        """Read the indexes and flags of a topic that was loaded from the catalog. Raises `SegmentError`."""
        for segment in topic.segments:
            probe = Segment(segment.directory, segment.first_seq, segment.created_ms, self.parts)
            listed = self._listed_in(segment)
            expected = segment.check
            for batch in listed:
                expected ^= batch.filed
            try:
                load_batches(self._disk, probe, segment.size, {batch.first_seq for batch in listed}, expected)
            except OSError as error:
                raise unreadable(segment.data_path, error) from error
        topic.unchecked = False

    def _listed_in(self, segment: Segment) -> list[Batch]:
        """Batches of a segment whose flags in the file may be half written."""
        listed, count, by_segment = self._listed_of
        if listed is not self._listed or count != len(listed):
            by_segment = {}
            for batch, _ in self._listed:
                by_segment.setdefault(id(segment_of(batch)), []).append(batch)
            self._listed_of = self._listed, len(self._listed), by_segment
        return by_segment.get(id(segment), [])

    def _set_apart(self, entry: dict[str, Any]) -> Topic:
        topic = Topic(entry["name"], entry["id"], entry["epoch"], from_map(entry["config"]))
        topic.unloaded = Unloaded(entry, self._folder(topic.id, cold=False))
        for first_seq, size, created_ms, sealed, cold in entry["segments"]:
            segment = Segment(self._folder(topic.id, cold), first_seq, created_ms, self.parts)
            segment.size, segment.sealed, segment.cold = size, sealed, cold
            topic.segments.append(segment)
        topic.head_seq = topic.durable_head = entry["head_seq"]
        topic.next_seq = topic.head_seq + 1
        topic.floor = entry["floor"]
        topic.last_ts, topic.last_write_ts = entry["last_ts"], entry["last_write_ts"]
        if (lane := entry.get("routers")) is not None:
            topic.lane = topic.lane_visible = load_lane(lane)
        return topic

    def _load_again(self, topic: Topic) -> None:
        """Load an unloaded topic, if its files can be read by now. Raises `SegmentError`."""
        unloaded = topic.unloaded
        assert unloaded is not None
        frames = [*read_held(self._disk, unloaded.entry, unloaded.folder), *unloaded.frames]
        if topic.lane is not None or any(Header(frame).kind == Kind.ROUTER for frame in frames):
            raise SegmentError("its copies have to be made again: restart the service once its files are back")
        self._load_from(topic, frames, None)

    def load_again(self, topic: Topic, load: Load) -> Topic:
        """Load an unloaded topic with `load`, for `shardd.offline.salvage`. Returns the new object. Raises
        `SegmentError` if the held frames cannot be read or replayed."""
        unloaded = topic.unloaded
        assert unloaded is not None
        try:
            frames = read_held(self._disk, unloaded.entry, unloaded.folder)
        except SegmentError as error:
            raise SegmentError(f"{error}. It has the newest records: restore the shard from a backup") from error
        return self._load_from(topic, [*frames, *unloaded.frames], load)

    def _load_from(self, topic: Topic, frames: list[Buffer], load: Load | None) -> Topic:
        unloaded = topic.unloaded
        assert unloaded is not None
        listed = len(self._listed)
        again = self._load_topic(unloaded.entry, load)
        self._directory.replace(topic, again)
        try:
            for frame in frames:
                replay(self._directory, found(frame))
        except RecoveryError as error:
            self._directory.replace(again, topic)
            del self._listed[listed:]
            raise SegmentError(str(error)) from error
        if again.lane is None:
            self._directory.complete(again, self._clock.now_ms(), self._disk.boot_id())
        self._dying += unloaded.held
        return again

    def store(self, topic: Topic) -> None:
        """Write the batches of a topic to segments that no catalog names yet, and sync them. Blocks. Raises OSError."""
        plan = TopicPlan(topic, topic.config, {}, list(topic.segments))
        plan.batches = [(batch, batch.delete_flags()) for batch in topic.unstored()]
        folders: set[Path] = set()
        if plan.batches:
            self._write_batches(Plan(0, 0, 0, {}, []), plan, folders)
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            self._disk.sync_dir(folder)
        self._adopt_written(plan)
        self._release()

    def _folder(self, ident: int, cold: bool) -> Path:
        base = self._topics if not cold else self._base(cold) / "topics"
        return base / f"{ident:016x}"

    @property
    def garbage(self) -> bool:
        """True if the next checkpoints can remove files."""
        return bool(self._doomed or self._dying)

    @property
    def catalog_may_have(self) -> int:
        """An upper bound of the next catalog's bytes, as far as they follow from the last catalog and the segments."""
        return self.catalog_bytes + self.stored

    def _load_topic(self, entry: dict[str, Any], load: Load | None = None, *, known: bool = False) -> Topic:
        """The topic of a catalog entry. `known`: from the entry alone, if it has `index`. Raises `SegmentError`."""
        topic = Topic(entry["name"], entry["id"], entry["epoch"], from_map(entry["config"]))
        topic.as_of = entry.get("as_of", 0)
        listed = dict(entry["deleted"])
        checks = entry.get("checks") or [None] * len(entry["segments"])
        index = entry.get("index") if known and "checks" in entry else None
        topic.unchecked = bool(index)
        for at, ((first_seq, size, created_ms, sealed, cold), expected) in enumerate(
            zip(entry["segments"], checks, strict=True)
        ):
            if not topic.segments or cold != topic.segments[-1].cold:
                folder = self._folder(topic.id, cold)
            segment = Segment(folder, first_seq, created_ms, self.parts)
            segment.sealed, segment.cold = sealed, cold
            topic.segments.append(segment)
            if index:
                assert expected is not None
                for batch in unpacked(segment, size, expected, index[at], listed):
                    topic.restore(batch)
                    if batch.first_seq in listed:
                        self._listed.append((batch, listed[batch.first_seq]))
                self.stored += _weight(segment)
                continue
            try:
                if load is None:
                    batches = load_batches(self._disk, segment, size, listed, expected)
                else:
                    batches = load(segment, size, listed, expected)
            except OSError as error:
                raise unreadable(segment.data_path, error) from error
            for batch in batches:
                if batch.live:
                    topic.restore(batch)
            self.stored += _weight(segment)
        if not index:
            self._listed += topic.flag(listed)
        topic.restored(entry["head_seq"], entry["floor"])
        topic.losses = Losses([(upto, reason) for upto, reason in entry["losses"]])
        topic.last_ts = entry["last_ts"]
        topic.last_write_ts = entry["last_write_ts"]
        topic.ceiling, topic.reserved_in = entry["ceiling"], entry.get("reserved_in", "")
        topic.keys.load(entry["keys"])
        if topic.queue is not None:
            topic.queue.apply(entry.get("queue") or {})
        topic.outbox.apply(entry, topic.queue)
        topic.arrivals.load(entry.get("arrivals", ()))
        topic.cursors = {name: Cursor(seq, ts) for name, (seq, ts) in entry["cursors"].items()}
        topic.gaps = Gaps([(first, last, reason) for first, last, reason in entry.get("gaps", ())])
        if (lane := entry.get("routers")) is not None:
            topic.lane = topic.lane_visible = load_lane(lane)
        return topic

    def _base(self, cold: bool) -> Path:
        if not cold:
            return self._path
        if self._cold is None:
            raise catalog.CatalogError(
                f"{self._path}: segments are in the cold tier, but TOPICS_COLD_DIR is not set. Set it to where they are"
            )
        return self._cold

    def _strays(self, loaded: dict[int, Topic], dead: list[Path]) -> list[Path]:
        """Segment files that no topic has: left by a checkpoint that was not finished, or waiting to be removed. Lists
        all folders, which takes too long for the start."""
        strays = []
        dying = set(dead)
        for base in (self._path, self._cold):
            if base is not None:
                for ident in self._disk.list(base / "topics"):
                    folder = base / "topics" / ident
                    topic = loaded.get(int(ident, 16)) if len(ident) == 16 else None
                    known: set[Path] = set()
                    if topic is not None:
                        known.update(files_of(topic.segments))
                        if topic.unloaded is not None:
                            known.update(topic.unloaded.held)
                    for name in self._disk.list(folder):
                        if folder / name not in known and folder / name not in dying:
                            strays.append(folder / name)
        return strays

    # A checkpoint

    def plan(self, synced_no: int, last: bool = False) -> Plan:
        """Step 1 in one call, with the log synced up to frame `synced_no`."""
        return exhaust(self.planning(lambda: synced_no, last))

    def planning(self, synced: Callable[[], int], last: bool = False) -> Generator[None, None, Plan]:
        """Step 1 in slices, between which the shard may go on. `synced` returns the number of the last synced frame.

        `last`: the shard stops after this checkpoint, so it also writes leases that are not in the log."""
        now = self._clock.now_ms()
        directory = self._directory
        plan = Plan(self._number + 1, synced(), directory.next_id, dict(directory.logs), directory.sessions.dump())
        for topic in directory.graveyard:
            if topic.unloaded is not None:
                self._dying += topic.unloaded.held
            self._let_go(topic.segments)
        directory.graveyard.clear()
        if not self._looked_for_strays:
            plan.loaded = dict(directory.by_id)
        looked = 0
        for topic in list(directory.visible.values()):
            looked += 1
            if directory.by_id.get(topic.id) is not topic:
                continue  # deleted or replaced since the list was made
            if topic.config.ttl_ms or topic.keys:
                directory.expire_topic(topic, now)
            if isinstance(topic.catalogued, bytes) and not self._changes_by_itself(topic, now, last):
                plan.entries.append(topic.catalogued)
            else:
                self._plan_topic(plan, topic, now, synced(), last)
                looked += LOOK // SLICE
            if looked >= LOOK:
                looked = 0
                yield
        if plan.to_cold:
            self._cold_used = any(s.cold for t in directory.visible.values() for s in t.segments)
        self._list_again(plan.topics)
        plan.dead = list(self._dying)
        plan.listed = self._listed
        return plan

    def _changes_by_itself(self, topic: Topic, now: int, last: bool) -> bool:
        """True if a topic has to be planned although it has not changed."""
        if topic.queue is not None or (last and not topic.config.durability.lasts):
            return True  # the rows of a queue depend on the time
        if self._cold is None or not topic.segments:
            return False
        newest = topic.segments[-1]
        return not newest.sealed and now - newest.created_ms >= self._limits.segment_max_age_ms

    def _list_again(self, topics: list[TopicPlan]) -> None:
        """List again the flags of batches that have left their topics and that step 5 will write. The next start may
        find them half written, so the catalog has to list them."""
        if not self._listed:
            return
        planned = {id(batch) for plan in topics for batch, _ in plan.deleted}
        missing = [(batch, flags) for batch, flags in self._listed if id(batch) not in planned]
        if missing:
            home = {id(segment): plan for plan in topics for segment in plan.segments}
            for batch, flags in missing:
                plan = home.get(id(segment_of(batch)))
                if plan is not None:
                    plan.deleted.append((batch, flags))
                    if plan.states is not None:
                        plan.states = [state for state in plan.states if state[0] is not batch] + [forgotten(batch)]
                    plan.topic.catalogued = None

    def _cold_vanished(self) -> bool:
        """True if the cold folder is missing although it had segments. It must not be created then: the real one may be
        mounted over it later."""
        return self._cold_used and self._cold is not None and not self._disk.list(self._cold / "topics")

    def _let_go(self, segments: list[Segment]) -> None:
        """Mark the files of segments that no topic reads any more for removal."""
        self._dying += files_of(segments)
        for segment in segments:
            self.parts.drop(segment.data_path)
            self.stored -= _weight(segment)

    def _plan_topic(self, whole: Plan, topic: Topic, now: int, synced_no: int, last: bool) -> None:
        if topic.unloaded is None:
            self._let_go(topic.drop_dead())
        if topic.logged_no <= synced_no:
            topic.reserved_in = ""
        plan = self._planned(topic, now, last)
        if synced_no > whole.frame_no and topic.unloaded is None:
            plan.fields["as_of"] = synced_no
        whole.topics.append(plan)
        whole.entries.append(plan)
        whole.to_cold = whole.to_cold or bool(plan.cold)
        # Deletions are listed until files have them. Segments that cannot be moved now are tried again.
        done = topic.unloaded is None and topic.logged_no <= synced_no and not plan.deleted and not plan.cold
        topic.catalogued = plan if done else None

    def _planned(self, topic: Topic, now: int, last: bool) -> TopicPlan:
        if topic.unloaded is not None:
            return TopicPlan(topic, topic.config, dict(topic.unloaded.entry), list(topic.segments))
        plan = TopicPlan(topic, topic.config, kept_fields(topic, last), list(topic.segments))
        if topic.queue is not None:
            plan.fields["queue"]["at"] = now
        plan.batches = [(batch, batch.delete_flags()) for batch in topic.unstored()]
        for batch in topic.batches:
            if batch.stored is not None and batch.deleted != batch.written:
                plan.deleted.append((batch, batch.delete_flags()))
        plan.states = states(topic, (batch for batch, _ in plan.batches), (batch for batch, _ in plan.deleted))
        for segment in topic.segments:
            if now - segment.created_ms >= self._limits.segment_max_age_ms:
                segment.sealed = True
        if self._cold is not None and topic.damage is None:
            target = self._cold / "topics" / f"{topic.id:016x}"
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

    def write(self, plan: Plan) -> None:
        """Steps 2 to 6. Blocks: call it in a worker thread. Raises OSError; nothing has changed then, unless the plan
        is `committed`."""
        try:
            self._write(plan)
        except OSError:
            if not plan.committed:
                self._undo(plan.begun)
            raise

    def abandon(self, plan: Plan) -> None:
        """Drop a plan that was not committed, so that its topics are planned again."""
        for topic_plan in plan.topics:
            if topic_plan.topic.catalogued is topic_plan:
                topic_plan.topic.catalogued = None

    def _undo(self, begun: list[tuple[Path, int]]) -> None:
        """Remove the bytes that were written. The next attempt or the next start finds those that cannot be removed
        now."""
        for path, size in reversed(begun):
            try:
                if size:
                    file = self._disk.open(path)
                    try:
                        file.truncate(size)
                    finally:
                        file.close()
                else:
                    self._disk.remove(path)
            except OSError:
                continue

    def _write(self, plan: Plan) -> None:
        if plan.loaded is not None:
            self._doomed = self._strays(plan.loaded, plan.dead)
            for topic in plan.loaded.values():
                if topic.unchecked and topic.damage is None:
                    all(map(self._sound, list(topic.segments)))
        folders: set[Path] = set()
        for topic_plan in plan.topics:
            if topic_plan.topic.unloaded is not None:
                self._hold(plan, topic_plan, folders)
            if topic_plan.batches:
                plan.written_bytes += self._write_batches(plan, topic_plan, folders)
            for segment, target in list(topic_plan.cold):
                before = len(plan.begun)
                try:
                    self._copy(plan, segment, target, folders)
                except OSError as error:
                    topic_plan.cold.remove((segment, target))
                    plan.not_moved.append((segment.data_path, error))
                    self._undo(plan.begun[before:])
                    del plan.begun[before:]
        rest = sorted(folders, key=lambda path: len(path.parts))
        folders.clear()
        while rest:
            self._disk.sync_dir(rest.pop())
        held = False
        for topic_plan in plan.topics:
            entry = self._catalog_entry(topic_plan)
            held = held or bool(entry.get("held"))
            topic_plan.encoded = cbor2.dumps(entry)
        contents = {
            "frame_no": [cbor2.dumps(plan.frame_no)],
            "next_id": [cbor2.dumps(plan.next_id)],
            "topics": catalog.array([each if isinstance(each, bytes) else each.encoded for each in plan.entries]),
            "sessions": catalog.array(list(map(cbor2.dumps, plan.sessions))),
            "logs": [cbor2.dumps(plan.logs)],
        }
        version = catalog.HELD_VERSION if held else FORMAT_VERSION
        plan.catalog_bytes = catalog.write(self._disk, self._path, plan.number, contents, version)
        plan.committed = True
        while plan.begun:
            plan.begun.pop()  # one by one: freeing many objects in one call would keep the event loop waiting
        self._disk.sync_dir(self._path)
        self._flag(plan)
        plan.flagged = True
        self._trim(plan)
        plan.trimmed = True

    def _write_batches(self, whole: Plan, plan: TopicPlan, folders: set[Path]) -> int:
        folder = self._path / "topics" / f"{plan.topic.id:016x}"
        self._disk.make_dir(folder)
        folders |= {folder, folder.parent, self._path}
        segment = plan.segments[-1] if plan.segments else None
        if segment is not None and (segment.sealed or segment.cold or not self._goes_on(segment)):
            segment = None
        total = 0
        rest = deque(plan.batches)
        while rest:
            if segment is None:
                segment = Segment(folder, rest[0][0].first_seq, self._clock.now_ms(), self.parts)
            records, size = segment.records, segment.size
            chosen: list[Planned] = []
            while rest and not self._full(records, size):
                chosen.append(rest.popleft())
                records += chosen[-1][0].count
                size += chosen[-1][0].size
            if chosen:
                total += self._append(whole, plan, segment, chosen)
            segment = None
        return total

    def _goes_on(self, segment: Segment) -> bool:
        """True if the segment's files are whole, so that batches may be appended. A damaged file is left as it is."""
        if not self._sound(segment):
            return False
        try:
            return self._disk.size(segment.index_path) >= segment.frames * ENTRY_SIZE
        except OSError:
            return False  # a missing index can be made from the segment

    def _sound(self, segment: Segment) -> bool:
        try:
            self._look(segment)
        except Exhausted as error:
            raise OSError(str(error)) from error
        except SegmentError as error:
            self.quarantine.met(segment.data_path, error, lambda: self._look(segment))
            return False
        return True

    def _look(self, segment: Segment) -> None:
        try:
            size = self._disk.size(segment.data_path)
        except OSError as error:
            raise unreadable(segment.data_path, error) from error
        if size < segment.size:
            raise SegmentError(f"{segment.data_path} has {size} bytes, but {segment.size} belong to it")

    def _hold(self, whole: Plan, plan: TopicPlan, folders: set[Path]) -> None:
        """Write the frames of an unloaded topic to a file of its own, so that the log can be trimmed."""
        unloaded = plan.topic.unloaded
        assert unloaded is not None
        if unloaded.frames:
            self._disk.make_dir(unloaded.folder)
            folders |= {unloaded.folder, unloaded.folder.parent, self._path}
            path = unloaded.next_file()
            self._extend(whole, path, 0, [bytes(frame) for frame in unloaded.frames])
            plan.held = [[Header(unloaded.frames[0]).frame_no, sum(map(len, unloaded.frames))]]

    def _full(self, records: int, size: int) -> bool:
        return records >= self._limits.segment_max_events or size >= self._limits.segment_max_bytes

    def _append(self, whole: Plan, plan: TopicPlan, segment: Segment, batches: list[Planned]) -> int:
        entries: list[Entry] = []
        buffers: list[bytes] = []
        offset = segment.size
        for batch, flags in batches:
            frame = sealed_frame(batch, flags)
            entries.append(entry_of(batch, frame, offset))
            offset += len(frame)
            buffers += (frame.head, frame.tail)
        index = b"".join(entry.encode() for entry in entries)
        self._extend(whole, segment.data_path, segment.size, buffers)
        self._extend(whole, segment.index_path, segment.frames * ENTRY_SIZE, [index])
        plan.written.append((segment, entries))
        return offset - segment.size

    def _extend(self, plan: Plan, path: Path, size: int, buffers: list[bytes]) -> None:
        """Append to a file of which `size` bytes count, and sync it. Raises OSError."""
        plan.begun.append((path, size))
        file: File = self._disk.open(path) if size else self._disk.create(path)
        try:
            if size and self._disk.size(path) != size:
                file.truncate(size)  # bytes of an attempt that was not finished
            if file.write(buffers) != sum(map(len, buffers)):
                raise OSError(28, "the disk did not take a whole segment", str(path))
            file.sync()
        finally:
            file.close()

    def _flag(self, plan: Plan) -> None:
        """Step 5: write the deletions that the catalog before this one lists to the files, in place."""
        # Copies in the cold tier were made before this step, and are the valid ones from now on.
        moved = {id(segment): target for topic_plan in plan.topics for segment, target in topic_plan.cold}
        by_segment: dict[Path, list[tuple[int, bytes]]] = {}
        segments: dict[Path, Segment] = {}
        for batch, flags in plan.listed:
            stored = batch.stored
            assert isinstance(stored, StoredFrame)
            segment = stored.segment
            if segment.data_path not in plan.dead:
                path = moved.get(id(segment), segment.directory) / segment.data_path.name
                segments[path] = segment
                by_segment.setdefault(path, []).append((stored.entry.offset + stored.entry.flags_at, flags))
        for path, writes in by_segment.items():
            if not self._sound(segments[path]):
                plan.unflagged.add(id(segments[path]))  # the catalog goes on listing them
                continue
            file = self._disk.open(path)
            try:
                for at, flags in writes:
                    file.write_at(at, flags)
                file.sync()
            finally:
                file.close()

    def _copy(self, plan: Plan, segment: Segment, target: Path, folders: set[Path]) -> None:
        assert self._cold is not None
        if self._cold_vanished():
            raise FileNotFoundError(ENOENT, "the cold folder is not there", str(self._cold))
        self._disk.make_dir(target)
        folders |= {target, target.parent, self._cold, self._cold.parent}
        for path, size in ((segment.data_path, segment.size), (segment.index_path, None)):
            view = self._disk.read(path)
            self._extend(plan, target / path.name, 0, [bytes(view if size is None else view[:size])])

    def _catalog_entry(self, plan: TopicPlan) -> dict[str, Any]:
        if plan.topic.unloaded is not None:
            return {**plan.fields, "held": [*plan.fields.get("held", ()), *plan.held]}
        grown = {id(segment): (segment, entries) for segment, entries in plan.written}
        moved = {id(segment) for segment, _ in plan.cold}
        every = [*plan.segments, *(s for s, _ in plan.written if all(s is not known for known in plan.segments))]
        checks = checks_of(plan)
        places = None if plan.states is None else places_of(plan, plan.states)
        rows = []
        index = []
        for segment in every:
            size, records, frames = segment.size, segment.records, segment.frames
            if id(segment) in grown:
                entries = grown[id(segment)][1]
                size = entries[-1].offset + entries[-1].length
                records += sum(entry.count for entry in entries)
                frames += len(entries)
            sealed = segment.sealed or self._full(records, size)
            rows.append([segment.first_seq, size, segment.created_ms, sealed, segment.cold or id(segment) in moved])
            if places is not None:
                index.append(packed(segment, records, frames, places.get(id(segment), ())))
        deleted = [[batch.first_seq, flags] for batch, flags in plan.deleted]
        listed = [segment.check ^ checks.get(id(segment), 0) for segment in every]
        entry = {**plan.fields, "segments": rows, "checks": listed, "deleted": deleted}
        return entry if places is None else {**entry, "index": index}

    def _trim(self, plan: Plan) -> None:
        """Step 6: remove files that are not needed any more. The next start finds those that cannot be removed now."""
        wal = self._path / "wal"
        files = [(first, name) for name in self._disk.list(wal) if (first := first_no_of(name)) is not None]
        unneeded = [wal / name for (_, name), (after, _) in pairwise(files) if after <= self._frame_no + 1]
        old = [n for n in catalog.numbers(self._disk, self._path) if n < plan.number - 1]
        # This checkpoint may have used the name of a file again that an unfinished attempt had left.
        needed = still_needed(plan, set(self._doomed)) if self._doomed else ()
        doomed = [path for path in self._doomed if path not in needed]
        # Log files are removed oldest first: a log may lose its beginning, never its middle.
        for path in [*(self._path / catalog.file_name(n) for n in old), *unneeded, *doomed]:
            try:
                self._disk.remove(path)
            except OSError:
                continue

    def adopt(self, plan: Plan) -> None:
        """Step 7 in one call."""
        exhaust(self.adopting(plan))

    def adopting(self, plan: Plan) -> Generator[None, None, None]:
        """Step 7 in slices. They also free the plan, because freeing a large one in one call takes as long as several
        slices."""
        logged = self._frame_no != plan.frame_no
        self._number, self._frame_no = plan.number, plan.frame_no
        self.catalog_bytes = plan.catalog_bytes
        self._looked_for_strays = True
        for batch, flags in plan.listed if plan.flagged else ():
            if not isinstance(batch.stored, StoredFrame) or id(batch.stored.segment) not in plan.unflagged:
                batch.written = flags.count(DELETED)
                _filed(batch, flags)
        self._listed = [
            (batch, flags)
            for topic_plan in plan.topics
            for batch, flags in topic_plan.deleted
            if flags_check(batch.first_seq, flags) != batch.filed
        ]
        self._doomed = plan.dead if plan.trimmed else [*self._doomed, *plan.dead]
        self._dying = self._dying[len(plan.dead) :]
        plan.entries.clear()
        plan.topics.reverse()
        while plan.topics:
            self._adopt_topic(plan.topics.pop())
            if len(plan.topics) % SLICE == 0:
                self._release()
                search_recent()  # else one long search at the end: slices free more than they make
                yield
        self._release()
        self.settled = plan.trimmed and not (logged or self._doomed or self._dying or self._listed)
        self.completed += 1

    def _adopt_topic(self, plan: TopicPlan) -> None:
        topic = plan.topic
        if topic.config.durability.lasts and topic.config is topic.assigned_config is plan.config:
            topic.logged_seq = 0  # records from the time when the topic was ephemeral are in files now
        if topic.catalogued is plan:
            topic.catalogued = plan.encoded
        if topic.unloaded is not None and plan.held:
            topic.unloaded.entry = {
                **topic.unloaded.entry,
                "held": [*plan.fields.get("held", ()), *plan.held],
            }
            topic.unloaded.frames.clear()
        self._adopt_written(plan)
        for segment, target in plan.cold:
            self._doomed += files_of([segment])
            segment.moved(target)

    def _adopt_written(self, plan: TopicPlan) -> None:
        topic, waiting = plan.topic, deque(plan.batches)
        for segment, entries in plan.written:
            self.stored -= _weight(segment)
            segment.grown(entries)
            self.stored += _weight(segment)
            if self._full(segment.records, segment.size):
                segment.sealed = True
            if all(segment is not known for known in topic.segments):
                topic.segments.append(segment)
            for entry in entries:
                batch, flags = waiting.popleft()
                batch.stored = StoredFrame(segment, entry)
                batch.written = flags.count(DELETED)
                _filed(batch, flags)
                self._cache(batch)

    def _cache(self, batch: Batch) -> None:
        if isinstance(batch.buffer, memoryview):
            batch.buffer = None  # part of a mapped log file, which would keep its blocks after its removal
            return
        self._cached.append(batch)
        self._cached_bytes += len(batch.buffer or b"")

    def _release(self) -> None:
        """Free the oldest payloads beyond `cache_bytes`; the files have them."""
        while self._cached and self._cached_bytes > self._limits.cache_bytes:
            batch = self._cached.popleft()
            self._cached_bytes -= len(batch.buffer or b"")
            batch.buffer = None


def _filed(batch: Batch, flags: bytes) -> None:
    """Record that the file has these flags now."""
    new = flags_check(batch.first_seq, flags)
    segment_of(batch).check ^= batch.filed ^ new
    batch.filed = new


def exhaust(slices: Generator[object, None, _Result]) -> _Result:
    """Run all slices without a pause. Returns the generator's result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _weight(segment: Segment) -> int:
    """Bytes that a catalog may need for a segment: a flag for each record, and rows and an index entry for each
    frame."""
    return segment.records + (64 + ENTRY_SIZE) * segment.frames
