"""The way back from a catalog: topics as their entries and files have them.

Loads the topics at the start, checks the files of an `unchecked` topic before it is used, and tries the files of an
unloaded topic again. `shardd.recovery.quarantine` decides when, and `shardd.recovery.replay` applies the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from proto.format.buffer import Buffer
from proto.format.frame import Header, Kind
from proto.model.names import shard_of
from shardd.checkpoint.inventory import Inventory, Newest
from shardd.checkpoint.segment_summary import unpacked
from shardd.checkpoint.snapshot import UNLOADED, load, topic_of
from shardd.clock import Clock
from shardd.recovery.quarantine import Quarantine, read_held
from shardd.recovery.replay import replay
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage import catalog
from shardd.storage.batch import Batch
from shardd.storage.disk import Disk
from shardd.storage.errors import Exhausted, SegmentError, unreadable
from shardd.storage.lost import REMEDY, log
from shardd.storage.owner import UNKNOWN
from shardd.storage.segment import Segment, load_batches
from shardd.topic.damage import Unloaded
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic

ReadSegment = Callable[[Segment, int, dict[int, bytes], int | None], list[Batch]]
"""Reads the batches of a segment. Arguments: the segment, its size, the flags that the catalog lists by first seq, the
check of the other flags."""
TOLD = 10
"""Number of ranges of seqs that are named."""


class Loader:
    def __init__(self, disk: Disk, directory: Directory, clock: Clock, inventory: Inventory) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._inventory = inventory
        self.quarantine = Quarantine(directory, clock)
        self._from_files = False
        self._to_salvage = ""
        self._apart: Mapping[int, SegmentError] = {}
        self._entries: dict[int, dict[str, Any]] = {}
        """Catalog entries of the unchecked topics, until the log has been read."""
        self.held: list[Buffer] = []
        """Held frames of loaded topics. They are replayed before the log."""

    def load(
        self, *, from_files: bool = False, to_salvage: str = "", apart: Mapping[int, SegmentError] | None = None
    ) -> int:
        """Fill the directory from the newest catalog. Returns the frame number that the catalog was made at, 0 if there
        is none.

        `from_files`: read and check the files of every topic. `to_salvage`: name of a topic that is left unloaded in
        any case, because `shardd.offline.salvage` reads its files itself. `apart`: ids of topics whose files cannot be
        read, although nothing that is looked at here says so.

        Blocks. Raises `CatalogError`, `SegmentError`, OSError.
        """
        self._from_files, self._to_salvage, self._apart = from_files, to_salvage, apart or {}
        inventory = self._inventory
        inventory.lost_before = len(inventory.lost())
        found = catalog.load(self._disk, inventory.path, inventory.owner, inventory.apart)
        if found is not None:
            for path in inventory.apart:
                log.error("file_set_apart", path=str(path), reason="it is damaged", remedy=REMEDY)
            number, contents = found
            path = inventory.path / catalog.file_name(number)
            self._check_owner(path, contents)
            for entry in contents["topics"]:
                self._directory.show(self._load(entry))
            inventory.ids_missing = contents.get("id_sum", self._directory.id_sum) - self._directory.id_sum
            proven = "owner" in contents and not inventory.ids_missing
            size = self._disk.size(path)
            inventory.newest = Newest(number, contents["frame_no"], contents.get("tail"), size, proven)
            if inventory.ids_missing:
                log.error("topics_missing", reason=catalog.TOPICS_LACK, remedy=catalog.LACKS_REMEDY)
            self._directory.used_id(contents["next_id"] - 1)
            self._directory.logs = contents.get("logs", {})
            self._directory.sessions.load(contents.get("sessions", ()))
        return inventory.newest.frame_no

    def _check_owner(self, path: Path, contents: dict[str, Any]) -> None:
        """Refuse a catalog of another shard that an older release wrote, which did not say whose it is. Raises
        `CatalogError`."""
        owner = self._inventory.owner
        if "owner" not in contents and owner.shards != UNKNOWN:
            for name in (entry["name"] for entry in contents["topics"]):
                shard = shard_of(name, owner.shards)
                if shard != owner.shard:
                    raise catalog.CatalogError(f'{path} has topic "{name}" of shard {shard}, and this is {owner.shard}')

    def _load(self, entry: dict[str, Any]) -> Topic:
        """The topic of a catalog entry, unloaded if its files cannot be read."""
        frames: list[Buffer] = []
        try:
            if entry["name"] == self._to_salvage:
                raise SegmentError("it is being salvaged")
            if entry["id"] in self._apart:
                raise self._apart[entry["id"]]
            if "held" in entry:
                frames = read_held(self._disk, entry, self._inventory.folder(entry["id"], cold=False))
            known = not (self._from_files or "held" in entry or "routers" in entry)
            topic = self._load_topic(entry, known=known)
        except Exhausted:
            raise
        except SegmentError as error:
            topic = self._set_apart(entry)
            self.quarantine.set_apart(topic, error, partial(self._load_again, topic))
        else:
            self.held += frames
            if "held" in entry:
                self._inventory.let_held_go(Unloaded(entry, self._inventory.folder(topic.id, cold=False)))
            if topic.unchecked:
                self._entries[topic.id] = entry
        if catalog.lacks(entry):
            absent = topic.records.absent(entry["floor"]) if topic.unloaded is None else ()
            seqs = ", ".join(f"{first} to {last}" for first, last in absent[:TOLD])
            which = f". No segment has seqs {seqs}; some of them may have been deleted" if seqs else ""
            self._inventory.lacks(topic, f"{catalog.LACKS}{which}")
        return topic

    def replaying(self, header: Header) -> None:
        """Check the topic of a log frame, if it is unchecked, before the frame is replayed. Raises `Exhausted`."""
        topic = self._directory.by_id.get(header.topic_id)
        known = topic is None or not topic.unchecked or header.frame_no <= topic.position.as_of
        if topic is None or known or header.kind == Kind.TOPIC_DELETE:
            return
        try:
            self._check(topic)
        except Exhausted:
            raise
        except SegmentError as error:
            apart = self._set_apart(self._entries[topic.id])
            self._inventory.forget(topic.segments)
            self._directory.replace(topic, apart)
            self.quarantine.set_apart(apart, error, partial(self._load_again, apart))

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
        found: list[Batch] = []
        for segment in topic.segments:
            probe = Segment(segment.directory, segment.first_seq, segment.created_ms, self._inventory.parts)
            probe.chain = segment.chain
            try:
                found += load_batches(self._disk, probe, segment.size, *self._inventory.flags_of(segment))
            except OSError as error:
                raise unreadable(segment.data_path, error) from error
            segment.chain, segment.last = probe.chain, probe.last
        read = {batch.first_seq: batch for batch in found}
        for batch in topic.records.batches:
            if batch.first_seq in read:
                batch.inherit(read[batch.first_seq])
        topic.unchecked = False

    def _set_apart(self, entry: dict[str, Any]) -> Topic:
        topic = topic_of(entry)
        topic.unloaded = Unloaded(entry, self._inventory.folder(topic.id, cold=False))
        for segment, size in self._segments(topic, entry):
            segment.size = size
        load(topic, entry, UNLOADED)
        topic.position.on_device(topic.records.head_seq)
        return topic

    def _segments(self, topic: Topic, entry: dict[str, Any]) -> Iterator[tuple[Segment, int]]:
        """Add the segments of an entry to its topic. Yields each, without its frames, and its size."""
        topic.records.sequence.sum = entry.get("sum", 0)
        chains, sums = catalog.column(entry, "chains"), catalog.column(entry, "sums")
        for at, (first_seq, size, created_ms, sealed, cold) in enumerate(entry["segments"]):
            if not topic.segments or cold != topic.segments[-1].cold:
                folder = self._inventory.folder(topic.id, cold)
            segment = Segment(folder, first_seq, created_ms, self._inventory.parts)
            segment.sealed, segment.cold, segment.chain, segment.sum = sealed, cold, chains[at], sums[at]
            topic.segments.append(segment)
            yield segment, size

    def _load_again(self, topic: Topic) -> None:
        """Load an unloaded topic, if its files can be read by now. Raises `SegmentError`."""
        unloaded = topic.unloaded
        assert unloaded is not None
        frames = [*read_held(self._disk, unloaded.entry, unloaded.folder), *unloaded.frames]
        if topic.lane is not None or any(Header(frame).kind == Kind.ROUTER for frame in frames):
            raise SegmentError("its copies have to be made again: restart the service once its files are back")
        if unloaded.owes_seqs:
            raise SegmentError("it has to give seqs up: restart the service once its files are back")
        self._load_from(topic, unloaded, frames, None)

    def load_again(self, topic: Topic, read: ReadSegment) -> Topic:
        """Load an unloaded topic with `read`, for `shardd.offline.salvage`. Returns the new object. Raises
        `SegmentError` if the held frames cannot be read or replayed."""
        unloaded = topic.unloaded
        assert unloaded is not None
        try:
            frames = read_held(self._disk, unloaded.entry, unloaded.folder)
        except SegmentError as error:
            raise SegmentError(f"{error}. It has the newest records: restore the shard from a backup") from error
        return self._load_from(topic, unloaded, [*frames, *unloaded.frames], read)

    def _load_from(self, topic: Topic, unloaded: Unloaded, frames: list[Buffer], read: ReadSegment | None) -> Topic:
        listed, written = len(self._inventory.listed), self._directory.totals.written
        again = self._load_topic(unloaded.entry, read)
        self._directory.replace(topic, again)
        try:
            for frame in frames:
                replay(self._directory, Header(frame), frame)
        except (RecoveryError, SegmentError) as error:
            self._directory.replace(again, topic)
            del self._inventory.listed[listed:]
            for segment in again.segments:
                self._inventory.discount(segment)
            if isinstance(error, SegmentError):
                raise
            raise SegmentError(str(error)) from error
        finally:
            self._directory.totals.written = written  # the records of the frames were written before the start
        if again.lane is None:
            self._directory.complete(again, self._clock.now_ms(), self._disk.boot_id())
        self._inventory.let_held_go(unloaded)
        return again

    def _load_topic(self, entry: dict[str, Any], read: ReadSegment | None = None, *, known: bool = False) -> Topic:
        """The topic of a catalog entry. `known`: from the entry alone, if it has `index`. Raises `SegmentError`."""
        topic = topic_of(entry)
        listed = dict(entry["deleted"])
        read = read or partial(load_batches, self._disk)
        index = entry.get("index") if known and "checks" in entry else None
        topic.unchecked = bool(index)
        segments = zip(self._segments(topic, entry), catalog.column(entry, "checks"), strict=True)
        for at, ((segment, size), expected) in enumerate(segments):
            if index:
                assert expected is not None
                for batch in unpacked(segment, size, expected, index[at], listed):
                    topic.records.restore(batch)
                    if batch.first_seq in listed:
                        self._inventory.listed.append((batch, listed[batch.first_seq]))
                continue
            try:
                batches = read(segment, size, listed, expected)
            except OSError as error:
                raise unreadable(segment.data_path, error) from error
            for batch in batches:
                if batch.live:
                    topic.records.restore(batch)
        if not index:
            self._inventory.listed += topic.records.flag(listed)
        load(topic, entry)
        for segment in topic.segments:  # not before: an attempt that fails is made again
            self._inventory.count(segment)
        return topic
