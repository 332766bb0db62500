"""Checkpoints: what the log holds moves into segments, and the log is trimmed.

One checkpoint, step by step. Steps marked * run in a worker thread while the shard goes on; they touch only what `plan`
gave them.

1   plan      the position: everything up to the log's last sync. For each topic: batches no segment has, deletions
              that no file has, segments of which nothing is left, sealed segments that are due for the cold tier
2 * write     batches to the open segments, sealing and beginning segments as needed; sync
3 * copy      segments to the cold tier: copy, sync, directory sync
4 * commit    the catalog, with the deletions no file has: written, synced, renamed, directory synced
5 * flag      the deletions that the catalog before this one listed, in place; sync
6 * trim      what only the catalog before the last one needed: dead segments, hot copies, log files, old catalogs
7   adopt     batches now have a place in a file, and give up their memory beyond the cache

Deletions reach the files one checkpoint late, so that no file is ever ahead of a catalog that may still be used: replay
from that catalog would count records that were there at the time as deleted, and let the caps keep others instead.

What the next start finds if the process dies in

1-3   the old catalog and a log that reaches back to it; bytes beyond a segment's recorded size are cut off; files the
      catalog does not name are removed
4     the old or the new catalog, whole
5-7   the new catalog; files it does not name are removed, deletions it lists are made again

Records that are visible but not yet covered by the position may be in segments already; when their frames come again
in replay, their seqs say that they are there.

A step that fails (a full disk, say) abandons the checkpoint: nothing is adopted, the log keeps what it has, and the
next attempt begins anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from proto.frame import DELETED
from proto.limits import Limits
from shardd import catalog
from shardd.batch import Batch
from shardd.clock import Clock
from shardd.config import as_map, from_map
from shardd.cursors import Cursor
from shardd.directory import Directory
from shardd.disk import Disk, File
from shardd.gaps import Gaps
from shardd.lane import load as load_lane
from shardd.losses import Losses
from shardd.queue import Queue
from shardd.segment import ENTRY_SIZE, Entry, Segment, StoredFrame, Views, entry_of, load_batches, sealed_frame
from shardd.topic import Topic
from shardd.wal import first_no_of

Planned = tuple[Batch, bytes]
"""A batch, and its delete flags when the plan was made."""


@dataclass(slots=True)
class TopicPlan:
    topic: Topic
    fields: dict[str, Any]
    segments: list[Segment]
    batches: list[Planned] = field(default_factory=list)
    deleted: list[Planned] = field(default_factory=list)
    cold: list[tuple[Segment, Path]] = field(default_factory=list)
    written: list[tuple[Segment, list[Entry]]] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    number: int
    frame_no: int
    next_id: int
    topics: list[TopicPlan]
    logs: dict[str, int]
    dead: list[Path]
    listed: list[Planned]
    sessions: list[dict[str, Any]]
    written_bytes: int = 0


class Checkpoints:
    def __init__(self, disk: Disk, path: Path, directory: Directory, clock: Clock, limits: Limits) -> None:
        self._disk = disk
        self._path = path
        self._directory = directory
        self._clock = clock
        self._limits = limits
        self._cold = Path(limits.cold_dir) / path.name if limits.cold_dir else None
        self._views = Views(disk, max(limits.cache_bytes, 1 << 20))
        self._cached: deque[Batch] = deque()
        self._cached_bytes = 0
        self._number = 0
        self._frame_no = 0
        self._doomed: list[Path] = []
        """Files that only the catalog before the newest may need."""
        self._dying: list[Path] = []
        """Files that no topic needs, but the newest catalog still names."""
        self._listed: list[Planned] = []
        """Deletions in the newest catalog that no file has."""
        self.completed = 0

    # Boot

    def load(self) -> int:
        """Fill the directory from the newest catalog. Returns the log position it was made at.

        Raises `CatalogError`, `SegmentError`, OSError.
        """
        found = catalog.load(self._disk, self._path)
        if found is not None:
            self._number, contents = found
            self._frame_no = contents["frame_no"]
            for entry in contents["topics"]:
                self._directory.show(self._load_topic(entry))
            self._directory.used_id(contents["next_id"] - 1)
            self._directory.logs = contents.get("logs", {})
            self._directory.snapshot_id = contents["next_id"]
            self._directory.sessions.load(contents.get("sessions", ()))
        self._doomed = self._strays()
        return self._frame_no

    def _load_topic(self, entry: dict[str, Any]) -> Topic:
        topic = Topic(entry["name"], entry["id"], entry["epoch"], from_map(entry["config"]))
        for first_seq, size, created_ms, sealed, cold in entry["segments"]:
            base = self._base(cold)
            segment = Segment(base / "topics" / f"{topic.id:016x}", first_seq, created_ms, self._views)
            segment.sealed, segment.cold = sealed, cold
            for batch in load_batches(self._disk, segment, size):
                if batch.live:
                    topic.restore(batch)
            topic.segments.append(segment)
        self._listed += topic.flag(dict(entry["deleted"]))
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

    def _strays(self) -> list[Path]:
        """Segment files that no topic knows: left by a checkpoint that was not finished, or waiting to be removed."""
        known = {
            path
            for topic in self._directory.visible.values()
            for segment in topic.segments
            for path in (segment.data_path, segment.index_path)
        }
        strays = []
        for base in (self._path, self._cold):
            if base is not None:
                for ident in self._disk.list(base / "topics"):
                    folder = base / "topics" / ident
                    strays += [folder / name for name in self._disk.list(folder) if folder / name not in known]
        return strays

    # A checkpoint

    def plan(self, synced_no: int, last: bool = False) -> Plan:
        """Step 1, with the log synced up to frame `synced_no`. The shard may go on at once.

        `last`: nothing follows it but the end, so leases that are not in the log are written down, too."""
        now = self._clock.now_ms()
        topics: list[TopicPlan] = []
        self._directory.expire(now)
        for topic in self._directory.visible.values():
            self._dying += _files(topic.drop_dead())
            if topic.logged_no <= synced_no:
                topic.reserved_in = ""
            topics.append(self._plan_topic(topic, now, last))
        for topic in self._directory.graveyard:
            self._dying += _files(topic.segments)
        self._directory.graveyard.clear()
        return Plan(
            self._number + 1,
            synced_no,
            self._directory.next_id,
            topics,
            dict(self._directory.logs),
            list(self._dying),
            self._listed,
            self._directory.sessions.dump(),
        )

    def _plan_topic(self, topic: Topic, now: int, last: bool) -> TopicPlan:
        plan = TopicPlan(topic, _fields(topic, last), list(topic.segments))
        if topic.config.durability != "ephemeral":
            plan.batches = [(batch, batch.delete_flags()) for batch in topic.unstored()]
        for batch in topic.batches:
            if batch.stored is not None and batch.deleted != batch.written:
                plan.deleted.append((batch, batch.delete_flags()))
        for segment in topic.segments:
            if now - segment.created_ms >= self._limits.segment_max_age_ms:
                segment.sealed = True
        if self._cold is not None:
            target = self._cold / "topics" / f"{topic.id:016x}"
            plan.cold = [(segment, target) for segment in self._due(topic)]
        return plan

    def _due(self, topic: Topic) -> list[Segment]:
        """Sealed segments that may leave the hot tier: neither among the newest few nor within the newest bytes."""
        due: list[Segment] = []
        kept_bytes = 0
        sealed = [segment for segment in topic.segments if segment.sealed and not segment.cold]
        for newest, segment in enumerate(reversed(sealed)):
            kept_bytes += segment.size
            if newest >= self._limits.hot_retain_segments and kept_bytes > self._limits.hot_retain_bytes:
                due.append(segment)
        return due

    def write(self, plan: Plan) -> None:
        """Steps 2 to 6. Blocks: call it in a worker thread. Raises OSError, and then nothing has changed."""
        folders: set[Path] = set()
        for topic_plan in plan.topics:
            if topic_plan.batches:
                plan.written_bytes += self._write_batches(topic_plan, folders)
            for segment, target in topic_plan.cold:
                self._copy(segment, target, folders)
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            self._disk.sync_dir(folder)
        contents = {
            "frame_no": plan.frame_no,
            "next_id": plan.next_id,
            "topics": [self._catalog_entry(topic_plan) for topic_plan in plan.topics],
            "sessions": plan.sessions,
            "logs": plan.logs,
        }
        catalog.write(self._disk, self._path, plan.number, contents)
        self._flag(plan)
        self._trim(plan)

    def _write_batches(self, plan: TopicPlan, folders: set[Path]) -> int:
        folder = self._path / "topics" / f"{plan.topic.id:016x}"
        self._disk.make_dir(folder)
        folders |= {folder, folder.parent, self._path}
        segment = plan.segments[-1] if plan.segments else None
        if segment is not None and (segment.sealed or segment.cold):
            segment = None
        total = 0
        rest = deque(plan.batches)
        while rest:
            if segment is None:
                segment = Segment(folder, rest[0][0].first_seq, self._clock.now_ms(), self._views)
            records, size = segment.records, segment.size
            chosen: list[Planned] = []
            while rest and not self._full(records, size):
                chosen.append(rest.popleft())
                records += chosen[-1][0].count
                size += chosen[-1][0].size
            if chosen:
                total += self._append(plan, segment, chosen)
            segment = None
        return total

    def _full(self, records: int, size: int) -> bool:
        return records >= self._limits.segment_max_events or size >= self._limits.segment_max_bytes

    def _append(self, plan: TopicPlan, segment: Segment, batches: list[Planned]) -> int:
        entries: list[Entry] = []
        buffers: list[bytes] = []
        offset = segment.size
        for batch, flags in batches:
            frame = sealed_frame(batch, flags)
            entries.append(entry_of(batch, frame, offset))
            offset += len(frame)
            buffers += (frame.head, frame.tail)
        index = b"".join(entry.encode() for entry in entries)
        self._extend(segment.data_path, segment.size, buffers)
        self._extend(segment.index_path, segment.frames * ENTRY_SIZE, [index])
        plan.written.append((segment, entries))
        return offset - segment.size

    def _extend(self, path: Path, size: int, buffers: list[bytes]) -> None:
        """Append to a file of which `size` bytes count, and sync it."""
        file: File = self._disk.open(path) if size else self._disk.create(path)
        try:
            if size and self._disk.size(path) != size:
                file.truncate(size)  # an attempt that was not finished
            if file.write(buffers) != sum(map(len, buffers)):
                raise OSError(28, "the disk did not take a whole segment", str(path))
            file.sync()
        finally:
            file.close()

    def _flag(self, plan: Plan) -> None:
        """Deletions that the catalog before this one lists go into the files, in place."""
        # A copy in the cold tier was made before this: it is the one that counts from now on.
        moved = {id(segment): target for topic_plan in plan.topics for segment, target in topic_plan.cold}
        by_segment: dict[Path, list[tuple[int, bytes]]] = {}
        for batch, flags in plan.listed:
            stored = batch.stored
            assert isinstance(stored, StoredFrame)
            segment = stored.segment
            if segment.data_path not in plan.dead:
                path = moved.get(id(segment), segment.directory) / segment.data_path.name
                by_segment.setdefault(path, []).append((stored.entry.offset + stored.entry.flags_at, flags))
        for path, writes in by_segment.items():
            file = self._disk.open(path)
            try:
                for at, flags in writes:
                    file.write_at(at, flags)
                file.sync()
            finally:
                file.close()

    def _copy(self, segment: Segment, target: Path, folders: set[Path]) -> None:
        self._disk.make_dir(target)
        assert self._cold is not None
        folders |= {target, target.parent, self._cold, self._cold.parent}
        for path, size in ((segment.data_path, segment.size), (segment.index_path, None)):
            view = self._disk.read(path)
            self._extend(target / path.name, 0, [bytes(view if size is None else view[:size])])

    def _catalog_entry(self, plan: TopicPlan) -> dict[str, Any]:
        grown = {id(segment): (segment, entries) for segment, entries in plan.written}
        moved = {id(segment) for segment, _ in plan.cold}
        every = [*plan.segments, *(s for s, _ in plan.written if all(s is not known for known in plan.segments))]
        rows = []
        for segment in every:
            size, records = segment.size, segment.records
            if id(segment) in grown:
                entries = grown[id(segment)][1]
                size = entries[-1].offset + entries[-1].length
                records += sum(entry.count for entry in entries)
            sealed = segment.sealed or self._full(records, size)
            rows.append([segment.first_seq, size, segment.created_ms, sealed, segment.cold or id(segment) in moved])
        deleted = [[batch.first_seq, flags] for batch, flags in plan.deleted]
        return {**plan.fields, "segments": rows, "deleted": deleted}

    def _trim(self, plan: Plan) -> None:
        """Remove what nothing needs any more. What cannot be removed now is found again at the next start."""
        wal = self._path / "wal"
        files = [(first, name) for name in self._disk.list(wal) if (first := first_no_of(name)) is not None]
        unneeded = [wal / name for (_, name), (after, _) in pairwise(files) if after <= self._frame_no + 1]
        old = [n for n in catalog.numbers(self._disk, self._path) if n < plan.number - 1]
        # An unfinished attempt may have left a file under a name that this one has used again.
        needed = _needed(plan)
        doomed = [path for path in self._doomed if path not in needed]
        # Log files go oldest first: a log may lose its beginning, never its middle.
        for path in [*(self._path / catalog.file_name(n) for n in old), *unneeded, *doomed]:
            try:
                self._disk.remove(path)
            except OSError:
                continue

    def adopt(self, plan: Plan) -> None:
        """Step 7."""
        self._number, self._frame_no = plan.number, plan.frame_no
        for batch, flags in plan.listed:
            batch.written = flags.count(DELETED)
        self._listed = [planned for topic_plan in plan.topics for planned in topic_plan.deleted]
        self._doomed = plan.dead
        self._dying = self._dying[len(plan.dead) :]
        for topic_plan in plan.topics:
            topic = topic_plan.topic
            waiting = deque(topic_plan.batches)
            for segment, entries in topic_plan.written:
                segment.grown(entries)
                if self._full(segment.records, segment.size):
                    segment.sealed = True
                if all(segment is not known for known in topic.segments):
                    topic.segments.append(segment)
                for entry in entries:
                    batch, flags = waiting.popleft()
                    batch.stored = StoredFrame(segment, entry)
                    batch.written = flags.count(DELETED)
                    self._cache(batch)
            for segment, target in topic_plan.cold:
                self._doomed += _files([segment])
                segment.moved(target)
        self._release()
        self.completed += 1

    def _cache(self, batch: Batch) -> None:
        self._cached.append(batch)
        self._cached_bytes += len(batch.buffer or b"")

    def _release(self) -> None:
        """Let the oldest payloads go, beyond what the cache may hold; the files have them."""
        while self._cached and self._cached_bytes > self._limits.cache_bytes:
            batch = self._cached.popleft()
            self._cached_bytes -= len(batch.buffer or b"")
            batch.buffer = None


def _needed(plan: Plan) -> set[Path]:
    """The files that the catalog of this checkpoint names."""
    needed: set[Path] = set()
    for topic_plan in plan.topics:
        moved = {id(segment): target for segment, target in topic_plan.cold}
        for segment in (*topic_plan.segments, *(segment for segment, _ in topic_plan.written)):
            folder = moved.get(id(segment), segment.directory)
            needed |= {folder / segment.data_path.name, folder / segment.index_path.name}
    return needed


def _files(segments: list[Segment]) -> list[Path]:
    return [path for segment in segments for path in (segment.data_path, segment.index_path)]


def _queue_fields(queue: Queue, durable: bool, last: bool) -> dict[str, Any]:
    return queue.dump(everything=durable or last or not queue.unlogged)


def _fields(topic: Topic, last: bool) -> dict[str, Any]:
    ephemeral = topic.config.durability == "ephemeral"
    return {
        "name": topic.name,
        "id": topic.id,
        "epoch": topic.epoch,
        "config": as_map(topic.config),
        # Of an ephemeral topic, what files have: replay then knows what is missing when the class changes.
        "head_seq": topic.filed_seq if ephemeral else topic.head_seq,
        "floor": topic.floor,
        "losses": list(topic.losses.runs),
        "last_ts": topic.last_ts,
        "last_write_ts": topic.last_write_ts,
        "ceiling": max(topic.ceiling, topic.head_seq) if ephemeral else topic.ceiling,
        "reserved_in": topic.reserved_in,
        "keys": topic.keys.dump(),
        "queue": None if topic.queue is None else _queue_fields(topic.queue, topic.config.leases_durable, last),
        "cursors": {name: [cursor.seq, cursor.updated_ts] for name, cursor in topic.cursors.items()},
        **_routed(topic),
        **_posted(topic),
    }


def _posted(topic: Topic) -> dict[str, Any]:
    """What only topics have whose records go to other topics, or that get some from there."""
    fields: dict[str, Any] = {}
    if topic.outbox:
        fields["letters"] = topic.outbox.dump(topic.alive)
    if topic.arrivals.last:
        fields["arrivals"] = topic.arrivals.dump()
    return fields


def _routed(topic: Topic) -> dict[str, Any]:
    """What only topics have that routers bring something into."""
    fields: dict[str, Any] = {}
    if topic.lane_visible is not None:
        fields["routers"] = topic.lane_visible.dump(topic.lane_visible.done)
    if topic.gaps.ranges:
        fields["gaps"] = list(topic.gaps.ranges)
    return fields
