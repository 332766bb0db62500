"""Steps 2 to 6 of a checkpoint: a plan becomes files. They run in a worker thread.

They use the data of the plan, and of the inventory what no other thread changes meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from errno import ENOENT, ENOSPC
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import cbor2
import xxhash

from proto.format.frame import CHECKSUM, FORMAT_VERSION, Header, content_hash
from shardd.checkpoint.inventory import Inventory
from shardd.checkpoint.plan import Plan, Planned, TopicPlan, checks_of, places_of, still_needed, with_held
from shardd.checkpoint.segment_summary import packed
from shardd.checkpoint.strays import goes_on
from shardd.clock import Clock
from shardd.recovery.quarantine import Quarantine
from shardd.recovery.wal_scan import precedes, replaced
from shardd.storage import catalog
from shardd.storage.catalog import SUMS
from shardd.storage.disk import Disk
from shardd.storage.errors import Exhausted, SegmentError, exhausted, unreadable
from shardd.storage.lost import REMEDY, log, set_apart
from shardd.storage.segment import (
    ENTRY_SIZE,
    Entry,
    Segment,
    StoredFrame,
    chained,
    entry_of,
    mark_at,
    not_ours,
    read_index,
    sealed_frame,
)
from shardd.storage.segment_check import check_whole, ends_as_written
from shardd.storage.wal import files_upto
from shardd.topic.topic import Topic

_T = TypeVar("_T")


class Writer:
    def __init__(self, disk: Disk, clock: Clock, inventory: Inventory, quarantine: Quarantine) -> None:
        self._disk = disk
        self._clock = clock
        self._inventory = inventory
        self._quarantine = quarantine

    def write(self, plan: Plan) -> None:
        """Steps 2 to 6. Blocks: call it in a worker thread. Raises OSError; nothing has changed then, unless the plan
        is `committed`."""
        try:
            self._write(plan)
        except OSError:
            if not plan.committed:
                self._undo(plan.begun)
            raise

    def _undo(self, begun: list[tuple[Path, int]]) -> None:
        """Remove the bytes that were written. The next attempt or the next start finds those that cannot be removed
        now."""
        for path, size in reversed(begun):
            with suppress(OSError):
                if size:
                    with closing(self._disk.open(path)) as file:
                        file.truncate(size)
                else:
                    self._disk.remove(path)

    def _write(self, plan: Plan) -> None:
        if plan.loaded is not None:
            self._inventory.removable, apart = self._inventory.strays(plan.loaded, plan.dead)
            for base, path in apart:  # before this checkpoint uses a name of one of them
                self._set_apart(base, path)
            for folder in self._inventory.folders_of_none(plan.loaded):
                with suppress(OSError):  # it fails where a file is left
                    self._disk.remove_dir(folder)
            for topic in plan.loaded.values():
                if topic.unchecked and topic.damage is None:
                    all(map(self._sound, list(topic.segments)))
        folders: set[Path] = set()
        for topic_plan in plan.topics:
            if topic_plan.topic.unloaded is not None:
                self._write_held(plan, topic_plan, folders)
            if topic_plan.batches:
                self._write_batches(plan, topic_plan, folders)
            self._move_to_cold(plan, topic_plan, folders)
        self._sync(folders)
        self._commit(plan)
        self._flag(plan)
        plan.flagged = True
        self._trim(plan)
        plan.trimmed = True

    def _set_apart(self, base: Path, path: Path) -> None:
        to = set_apart(self._disk, base, path)
        self._inventory.apart.append(path)
        log.error("file_set_apart", path=str(path), to=str(to), remedy=REMEDY)

    def _sync(self, folders: set[Path]) -> None:
        """Sync folders, inner ones first."""
        rest = sorted(folders, key=lambda path: len(path.parts))
        folders.clear()
        while rest:
            self._disk.sync_dir(rest.pop())

    def _commit(self, plan: Plan) -> None:
        """Step 4."""
        held = False
        for topic_plan in plan.topics:
            entry = self._catalog_entry(topic_plan)
            if catalog.lacks(entry) and topic_plan.topic.id not in self._inventory.lacking:
                self._lacks(plan, topic_plan.topic)
            held = held or bool(entry.get("held"))
            topic_plan.encoded = cbor2.dumps(entry)
        owner = self._inventory.owner
        contents = {
            "owner": [cbor2.dumps([owner.service, owner.shard])],  # these two come first, see `catalog.misplaced`
            "number": [cbor2.dumps(plan.number)],
            "frame_no": [cbor2.dumps(plan.frame_no)],
            "tail": [cbor2.dumps(plan.tail)],
            "next_id": [cbor2.dumps(plan.next_id)],
            "id_sum": [cbor2.dumps(plan.id_sum + self._inventory.ids_missing)],
            "topics": catalog.array([each if isinstance(each, bytes) else each.encoded for each in plan.entries]),
            "sessions": catalog.array(list(map(cbor2.dumps, plan.sessions))),
            "logs": [cbor2.dumps(plan.logs)],
        }
        version = catalog.HELD_VERSION if held else FORMAT_VERSION
        plan.catalog_bytes = catalog.write(self._disk, self._inventory.path, plan.number, contents, version)
        plan.committed = True
        while plan.begun:
            plan.begun.pop()  # one by one: freeing many objects in one call would keep the event loop waiting
        self._disk.sync_dir(self._inventory.path)

    def _lacks(self, plan: Plan, topic: Topic) -> None:
        """Tell that a topic's entry lacks records. The log still has them, but memory is not to be trusted, so the
        process ends and the next one reads them. If that one's first checkpoint lacks them too, it is made."""
        self._inventory.lacks(topic, catalog.LACKS)
        if plan.loaded is None:
            raise catalog.CatalogError(f'topic "{topic.name}": {catalog.LACKS}. The shard reads its log again')

    def store(self, plan: TopicPlan) -> None:
        """Write the batches of one topic outside a checkpoint, and sync them."""
        folders: set[Path] = set()
        if plan.batches:
            self._write_batches(Plan(0, 0, 0, 0, {}, []), plan, folders)
        self._sync(folders)

    def _write_batches(self, whole: Plan, plan: TopicPlan, folders: set[Path]) -> None:
        folder = self._inventory.folder(plan.topic.id, cold=False)
        self._disk.make_dir(folder)
        folders |= {folder, folder.parent, self._inventory.path}
        segment = plan.segments[-1] if plan.segments else None
        if segment is not None and (segment.sealed or segment.cold or not self._goes_on(plan.topic, segment)):
            segment = None
        rest = deque(plan.batches)
        while rest:
            if segment is None:
                segment = Segment(folder, rest[0][0].first_seq, self._clock.now_ms(), self._inventory.parts)
            records, size = segment.records, segment.size
            chosen: list[Planned] = []
            while rest and not self._inventory.full(records, size):
                chosen.append(rest.popleft())
                records += chosen[-1][0].count
                size += chosen[-1][0].size
            if chosen:
                self._append(whole, plan, segment, chosen)
            segment = None

    def _goes_on(self, topic: Topic, segment: Segment) -> bool:
        """True if the segment's files are whole, so that batches may be appended. A damaged file is left as it is, and
        one with intact frames after those that count, and one whose sum is not known. A read may have found damage
        that is not looked for here."""
        if topic.damage is not None or segment.sum is None or not self._sound(segment):
            return False
        try:
            if goes_on(self._disk, segment):
                return False
            return self._disk.size(segment.index_path) >= segment.frames * ENTRY_SIZE
        except OSError:
            return False  # a missing index can be made from the segment

    def _sound(self, segment: Segment) -> bool:
        return self._looked(segment, self._look) is not None

    def _looked(self, segment: Segment, look: Callable[[Segment], _T]) -> _T | None:
        """What `look` returns; None if it finds the segment damaged, which sets its topic apart. Raises OSError."""
        try:
            return look(segment)
        except Exhausted as error:
            raise OSError(str(error)) from error
        except SegmentError as error:
            self._quarantine.met(segment.data_path, error, lambda: look(segment))
            return None

    def _look(self, segment: Segment) -> int:
        """The size of a segment's file. Raises `SegmentError` if bytes are missing, or it ends as another one."""
        try:
            size, ours = self._disk.size(segment.data_path), ends_as_written(self._disk, segment)
        except OSError as error:
            raise unreadable(segment.data_path, error) from error
        if size < segment.size:
            raise SegmentError(f"{segment.data_path} has {size} bytes, but {segment.size} belong to it")
        if ours is False:
            raise not_ours(segment)
        return size

    def _whole(self, segment: Segment) -> bytes:
        """The bytes of a segment that count. Raises `SegmentError` if they are not those that were written."""
        self._look(segment)
        try:
            raw = self._disk.read_part(segment.data_path, 0, segment.size)
        except OSError as error:
            raise unreadable(segment.data_path, error) from error
        check_whole(raw, segment, *self._inventory.flags_of(segment))
        return raw

    def _write_held(self, whole: Plan, plan: TopicPlan, folders: set[Path]) -> None:
        """Write the frames of an unloaded topic to a file of its own, so that the log can be trimmed."""
        unloaded = plan.topic.unloaded
        assert unloaded is not None
        if unloaded.frames:
            self._disk.make_dir(unloaded.folder)
            folders |= {unloaded.folder, unloaded.folder.parent, self._inventory.path}
            path = unloaded.next_file()
            raw = b"".join(unloaded.frames)
            self._extend(whole, path, 0, [raw])
            plan.held = [([Header(unloaded.frames[0]).frame_no, len(raw)], xxhash.xxh3_64_intdigest(raw))]

    def _append(self, whole: Plan, plan: TopicPlan, segment: Segment, batches: list[Planned]) -> None:
        entries: list[Entry] = []
        buffers: list[bytes] = []
        offset, total = segment.size, segment.sum or 0
        for batch, flags in batches:
            frame = sealed_frame(batch, flags)
            mark = mark_at(frame.tail, CHECKSUM.size)
            entries.append(entry_of(batch, offset, len(frame), len(frame.head) + CHECKSUM.size, mark))
            offset += len(frame)
            total += content_hash(frame.head)
            buffers += (frame.head, frame.tail)
        index = b"".join(entry.encode() for entry in entries)
        # The index comes first, see `shardd.checkpoint.strays`: it tells whose the frames are.
        self._extend(whole, segment.index_path, segment.frames * ENTRY_SIZE, [index])
        self._extend(whole, segment.data_path, segment.size, buffers)
        plan.written.append((segment, entries))
        plan.sums[id(segment)] = total % SUMS
        whole.written_bytes += offset - segment.size

    def _extend(self, plan: Plan, path: Path, size: int, buffers: list[bytes]) -> None:
        """Append to a file of which `size` bytes count, and sync it. Raises OSError."""
        plan.begun.append((path, size))
        with closing(self._disk.open(path) if size else self._disk.create(path)) as file:
            if size and self._disk.size(path) != size:
                file.truncate(size)  # bytes of an attempt that was not finished
            if file.write(buffers) != sum(map(len, buffers)):
                raise OSError(ENOSPC, "the disk did not take a whole segment", str(path))
            file.sync()

    def _flag(self, plan: Plan) -> None:
        """Step 5: write the deletions that the catalog before this one lists to the files, in place."""
        # Copies in the cold tier were made before this step, and are the valid ones from now on.
        targets = {id(segment): target for topic_plan in plan.topics for segment, target in topic_plan.cold}
        by_path: dict[Path, tuple[Segment, list[tuple[int, bytes]]]] = {}
        for batch, flags in plan.listed:
            stored = batch.stored
            assert isinstance(stored, StoredFrame)
            segment = stored.segment
            if segment.data_path not in plan.dead:
                path = targets.get(id(segment), segment.directory) / segment.data_path.name
                _, writes = by_path.setdefault(path, (segment, []))
                writes.append((stored.entry.offset + stored.entry.flags_at, flags))
        for path, (segment, writes) in by_path.items():
            # A start takes a small topic from the catalog: nothing has looked at its files so far.
            look = self._look if segment.last is not None else self._whole
            if self._quarantine.has(path) or self._looked(segment, look) is None:
                plan.unflagged.add(id(segment))  # the catalog still lists them
                continue
            with closing(self._disk.open(path)) as file:
                for at, flags in writes:
                    file.write_at(at, flags)
                file.sync()

    def _move_to_cold(self, whole: Plan, plan: TopicPlan, folders: set[Path]) -> None:
        """Step 3: copy segments to the cold tier. Those that cannot be copied stay in the hot tier, and damaged ones:
        the copy replaces the only file that the right bytes, or the reason why they are wrong, may be found in."""
        for segment, target in list(plan.cold):
            before = len(whole.begun)
            try:
                copied = self._copy(whole, segment, target, folders)
            except OSError as error:
                whole.not_moved.append((segment.data_path, error))
                copied = False
            if not copied:
                plan.cold.remove((segment, target))
                self._undo(whole.begun[before:])
                del whole.begun[before:]

    def _copy(self, plan: Plan, segment: Segment, target: Path, folders: set[Path]) -> bool:
        """Copy a segment, and return True; or find it damaged. Raises OSError."""
        assert self._inventory.cold is not None
        if self._inventory.cold_vanished():
            raise FileNotFoundError(ENOENT, "the cold folder is not there", str(self._inventory.cold))
        raw = self._looked(segment, self._whole)
        entries = None if raw is None else self._looked(segment, lambda each: read_index(self._disk, each, each.size))
        if raw is None or entries is None:
            return False
        self._disk.make_dir(target)
        folders |= {target, target.parent, self._inventory.cold, self._inventory.cold.parent}
        index = b"".join(entry.encode() for entry in entries)
        for path, content in ((segment.index_path, index), (segment.data_path, raw)):
            self._extend(plan, target / path.name, 0, [content])
        return True

    def _catalog_entry(self, plan: TopicPlan) -> dict[str, Any]:
        if plan.topic.unloaded is not None:
            return with_held(plan)
        grown = {id(segment): entries for segment, entries in plan.written}
        becomes_cold = {id(segment) for segment, _ in plan.cold}
        every = [*plan.segments, *(s for s, _ in plan.written if all(s is not known for known in plan.segments))]
        checks = checks_of(plan)
        places = None if plan.states is None else places_of(plan, plan.states)
        rows = []
        index = []
        chains = []
        for segment in every:
            size, records, frames, chain = segment.size, segment.records, segment.frames, segment.chain
            if entries := grown.get(id(segment)):
                size = entries[-1].offset + entries[-1].length
                records += sum(entry.count for entry in entries)
                frames += len(entries)
                chain = chained(chain, (entry.mark for entry in entries))
            chains.append(chain)
            sealed = segment.sealed or self._inventory.full(records, size)
            cold = segment.cold or id(segment) in becomes_cold
            rows.append([segment.first_seq, size, segment.created_ms, sealed, cold])
            if places is not None:
                index.append(packed(segment, records, frames, places.get(id(segment), ())))
        deleted = [[batch.first_seq, flags] for batch, flags in plan.deleted]
        listed = [segment.check ^ checks.get(id(segment), 0) for segment in every]
        sums = [plan.sums.get(id(segment), segment.sum) for segment in every]
        entry = {**plan.fields, "segments": rows, "checks": listed, "chains": chains, "sums": sums, "deleted": deleted}
        return entry if places is None else {**entry, "index": index}

    def _misplaced(self, number: int) -> bool:
        """True for an old catalog that is not this shard's: it is not removed, but set apart."""
        path = self._inventory.path
        try:
            wrong = catalog.misplaced(self._disk, path, number, self._inventory.owner)
            if wrong:
                self._set_apart(path, path / catalog.file_name(number))
        except OSError:
            return True
        return wrong

    def _kept_apart(self, number: int, path: Path, after: Path) -> bool:
        """True for a log file that is not this shard's: it is set apart. The start passed it over, or it was replaced
        since the shard read or wrote it."""
        first = self._inventory.firsts.get(number)
        try:
            if number < self._inventory.known.begin_no:
                wrong = not precedes(self._disk, path, after, self._inventory.owner.seed)
            else:
                wrong = first is not None and replaced(self._disk, path, first)
            if wrong:
                self._set_apart(self._inventory.path, path)
        except OSError:
            return True  # the next checkpoint tries again
        self._inventory.firsts.pop(number, None)
        return wrong

    def _trim(self, plan: Plan) -> None:
        """Step 6: remove files that are not needed any more, and folders that are empty then: each writing makes its
        folder again. The next start finds what cannot be removed now."""
        wal = self._inventory.path / "wal"
        files = files_upto(self._disk, wal, self._inventory.log)
        catalogued, shipped = self._inventory.newest.frame_no + 1, self._inventory.shipped_no + 1
        pairs = [
            (n, wal / name, wal / b) for (n, name), (after, b) in pairwise(files) if after <= min(catalogued, shipped)
        ]
        unneeded = [path for number, path, after in pairs if not self._kept_apart(number, path, after)]
        held = [after - 1 for after, _ in files[1:] if shipped < after <= catalogued]
        self._inventory.held_no = min(held, default=0)
        old = [n for n in catalog.numbers(self._disk, self._inventory.path) if n < plan.number - 1]
        old = [n for n in old if not self._misplaced(n)]
        # This checkpoint may have used the name of a file again that an unfinished attempt had left.
        needed = still_needed(plan, set(self._inventory.removable)) if self._inventory.removable else ()
        removable = [path for path in self._inventory.removable if path not in needed]
        # Log files are removed oldest first: a log may lose its beginning, never its middle.
        for path in [*(self._inventory.path / catalog.file_name(n) for n in old), *unneeded]:
            with suppress(OSError):
                self._disk.remove(path)
        for path in removable:
            try:
                kept = self._kept(path)
            except OSError:
                plan.left.append(path)
                continue
            self._inventory.leaving.pop(path, None)
            if not kept:
                with suppress(OSError):
                    self._disk.remove(path)
        for folder in dict.fromkeys(path.parent for path in removable):
            with suppress(OSError):
                self._disk.remove_dir(folder)

    def _kept(self, path: Path) -> bool:
        """True if another file, which is whole, is in the place of one of a topic that is to be removed: it is set
        apart, with its index. Raises OSError if it cannot be compared or set apart now."""
        look = self._inventory.leaving.get(path)
        try:
            if look is None or not look():
                return False
        except OSError as error:
            if exhausted(error):
                raise
            return False  # it is damaged or missing
        base, index = path.parents[2], path.with_suffix(".idx")
        self._set_apart(base, path)
        if index.name in self._disk.list(index.parent):
            self._set_apart(base, index)
        return True
