"""Salvage: rebuilds a topic whose files are damaged, while the service is stopped. `topics salvage TOPIC` runs it.

Undamaged records stay, with their seqs, times and deletions. Damaged ones become a gap, which readers see as a
tombstone (`reason` `mixed`: the API's list of reasons is closed and has none for damage). With a backup, the damaged
seqs are taken from it instead. Records of these seqs that were deleted after the backup was made are then live again.

1  open      opens the shard as a start would, with the topic unloaded
2  look      finds the valid frames of its segments, and the seqs that are in none. It looks for a frame at every eighth
             byte, so that a bad frame does not hide the next one, nor does a sector that cannot be read. A flag byte
             that is neither set nor clear counts as the nearer of the two; if the check of the flags is still wrong,
             that is reported. Whole frames that were not written here, by the segment's chain, are not taken: their
             file is set apart in step 5
3  rebuild   loads the topic's catalog entry with these frames, then replays the held frames and the log
4  copy      writes them to segments of a new topic id, synced. No catalog names them yet
5  decide    writes a catalog with the new id in place of the old one
6  remove    makes two more checkpoints, which remove the old files

If the process dies before step 5, the topic has not changed, and files that no catalog names are overwritten or
removed. After step 5 the topic is sound, and the next start does the rest. Needs free space for a copy of the topic.

A directory that is copied to a bucket is refused: no frame says that the topic has a new id, so all that read the
bucket would take its later frames for those of no topic, or of a deleted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from errno import EIO
from pathlib import Path
from typing import Any

import msgspec

from proto.format.frame import DELETED, Header, Kind, decode_batch, encode_batch
from proto.model.limits import Limits
from shardd.changes.seq_reservation import BLOCK
from shardd.clock import Clock
from shardd.offline.reshard import PIECE_BYTES, copied_batch, copied_topic, in_pieces, refuse_waiting
from shardd.recovery.wal_scan import RecoveryError, valid_frames
from shardd.replication.attach import MARK
from shardd.shard import Shard, opened_shard
from shardd.storage.batch import FINAL_LEVEL, Batch
from shardd.storage.disk import Disk, ReadOnlyDisk
from shardd.storage.errors import SegmentError
from shardd.storage.lost import set_apart
from shardd.storage.owner import Owner, owner_of
from shardd.storage.segment import Segment, chained, from_index, load_batches, mark_at
from shardd.storage.segment_check import whole_frames
from shardd.topic.gaps import Gaps
from shardd.topic.topic import Topic

_PIECE_RECORDS = 1 << 14
SECTOR = 4096
"""Bytes of a file that are read alone where the device cannot read all."""
_NEARER = bytes(DELETED if (byte ^ DELETED).bit_count() < byte.bit_count() else 0 for byte in range(256))
Range = tuple[int, int]


@dataclass(slots=True)
class _Found:
    """The findings in a topic's segments: `problems`, `lost` ranges of seqs with both ends included, and the number of
    records `restored` from the backup."""

    problems: list[str] = field(default_factory=list)
    lost: list[Range] = field(default_factory=list)
    restored: int = 0
    foreign: list[Segment] = field(default_factory=list)
    """Segments whose files have whole frames of another segment, or of another time."""


def salvage(
    disk: Disk, path: Path, clock: Clock, limits: Limits, name: str, backup: tuple[Path, Path] | None = None
) -> Iterator[dict[str, Any]]:
    """Salvage a topic of a stopped shard. `backup` has the shard's folder in a backup, and its cold folder.

    Yields one map, of `kind` `sound`, or `salvaged` with `problems`, `lost`, `kept` and `restored`. Blocks. Raises
    `RecoveryError` if it is not possible, and then nothing has changed; OSError.
    """
    if MARK in disk.list(path):
        raise RecoveryError(
            f"{path / MARK} says that a bucket has a copy of this shard, which would not get what a salvage changes. "
            "Move the data directory away, and start with an empty one, which is made from the bucket, or make one by "
            "`topics restore --from` the bucket. If no service uses that bucket any more, remove the file instead"
        )
    shard = opened_shard(disk, clock, path, limits, from_files=True, to_salvage=name)
    topic = shard.directory.visible.get(name)
    if topic is None:
        raise RecoveryError(f'there is no topic "{name}"')
    for each in shard.directory.visible.values():
        refuse_waiting(each)
    if topic.unloaded is None:
        yield {"kind": "sound", "topic": name}  # the topic has no files
        return
    source = None if backup is None else _backed_up(disk, backup, clock, limits, topic, owner_of(disk, path))
    found = _Found()
    whole = _rebuilt(shard, disk, topic, found, source)
    if not found.problems:
        yield {"kind": "sound", "topic": name}
        return
    copy = _copied(shard, whole)
    shard.directory.hide(whole)
    shard.directory.show(copy)
    shard.directory.assigned[name] = copy
    _set_foreign_apart(disk, path, limits, found.foreign)
    for _ in range(3):
        shard.checkpoint_now(last=True)
    yield {
        "kind": "salvaged",
        "topic": name,
        "kept": copy.records.count,
        "restored": found.restored,
        "lost": [list(each) for each in found.lost],
        "problems": found.problems,
    }


def _backed_up(
    disk: Disk, backup: tuple[Path, Path], clock: Clock, limits: Limits, topic: Topic, owner: Owner
) -> Topic:
    path, cold = backup
    # Not the shard's number: the service may have been resharded since.
    if wrong := Owner(owner.service).mismatch(Owner(owner_of(disk, path).service)):
        raise RecoveryError(f"{path} {wrong}: take a backup of this one")
    limits = msgspec.structs.replace(limits, cold_dir=str(cold))
    shard = opened_shard(ReadOnlyDisk(disk), clock, path, limits, from_files=True)
    source = shard.directory.visible.get(topic.name)
    if source is None or source.epoch != topic.epoch:
        raise RecoveryError(f'{path} does not have this topic "{topic.name}": it was made later, or made again since')
    if source.damage is not None:
        raise RecoveryError(f'topic "{topic.name}" is damaged in {path}, too: {source.damage.reason}')
    return source


# 2


def _rebuilt(shard: Shard, disk: Disk, topic: Topic, found: _Found, source: Topic | None) -> Topic:
    """The topic without the lost records, visible in place of the unloaded one. Raises `RecoveryError`."""
    unloaded = topic.unloaded
    assert unloaded is not None
    entry = unloaded.entry
    ends = [segment.first_seq - 1 for segment in topic.segments[1:]] + [entry["head_seq"]]
    ends_at = {segment.first_seq: end for segment, end in zip(topic.segments, ends, strict=True)}

    def load(segment: Segment, size: int, listed: dict[int, bytes], expected: int | None) -> list[Batch]:
        batches, lost = _whole(disk, segment, size, listed, expected, ends_at[segment.first_seq], found)
        for first, last in lost:
            if last < entry["floor"]:
                continue
            upto = first - 1
            if source is not None:
                upto = min(last, source.records.head_seq)
                taken = list(_taken(source, topic.id, first, upto))
                found.restored += sum(batch.live for batch in taken)
                batches += taken
            if upto < last:
                found.lost.append((max(upto + 1, first), last))
        return sorted(batches, key=lambda batch: batch.first_seq)

    try:
        whole = shard.checkpoints.loader.load_again(topic, load)
    except SegmentError as error:
        raise RecoveryError(str(error)) from error
    for restore in shard.restoring.restores():
        if restore.name == whole.name and not restore.done:
            restore.source_unreadable(0)
            whole.skip(whole.position.next_seq + BLOCK)  # readers may have seen copies that no file has
    _tell(whole, found.lost)
    return whole


def _tell(topic: Topic, lost: list[Range]) -> None:
    """Make the lost seqs gaps. Those before the first live record become losses."""
    known = topic.records.gaps.ranges
    there = [(first, last) for first, last, _ in known]
    ranges = [*known, *((a, b, "mixed") for first, last in lost for a, b in _without(first, last, there))]
    topic.records.load("gaps", Gaps(sorted(ranges)))
    for upto, reason in topic.records.gaps.below(topic.records.floor):
        topic.records.losses.add(upto, reason)


def _without(first: int, last: int, known: list[Range]) -> Iterator[Range]:
    """What is left from `first` to `last` without the known ranges, which ascend."""
    for start, end in known:
        if end < first or start > last:
            continue
        if start > first:
            yield first, start - 1
        first = end + 1
    if first <= last:
        yield first, last


def _whole(
    disk: Disk,
    segment: Segment,
    size: int,
    listed: dict[int, bytes],
    expected: int | None,
    end: int,
    found: _Found,
) -> tuple[list[Batch], list[Range]]:
    """The undamaged batches of a segment, and the ranges of seqs up to `end` that are lost: in no batch, though they
    may have had a record."""
    known: list[Range] | None = None
    try:
        probe = Segment(segment.directory, segment.first_seq, segment.created_ms, segment.parts)
        probe.chain = segment.chain
        known = [(b.first_seq, b.last_seq) for b in load_batches(disk, probe, size, listed, expected)]
    except (SegmentError, OSError) as error:
        found.problems.append(str(error))
    try:
        view = _readable(disk, segment.data_path)
    except OSError:
        view = memoryview(b"")
    batches = list(_frames(view[:size], segment.first_seq, end))
    if known is None:
        ours = _ours(disk, segment, size, view, batches)
        if len(ours) < len(batches):
            found.foreign.append(segment)
            found.problems[-1] += f" ({len(batches) - len(ours)} whole frames were not written here; none is taken)"
        batches = ours
    have = [(batch.first_seq, batch.last_seq) for batch in batches]
    if known is None:
        lost = list(_without(segment.first_seq, end, have))
        if not lost and batches:
            found.problems[-1] += " (all records are whole; flags were taken as they are)"
        return batches, lost
    lost = [each for each in known if each not in set(have)]
    if lost:
        found.problems.append(f"{segment.data_path}: {len(lost)} of {len(known)} batches are damaged")
    return batches, lost


def _readable(disk: Disk, path: Path) -> memoryview:
    """The bytes of a file, with zeros where the device cannot read them. Raises OSError."""
    try:
        return disk.read(path)
    except OSError as error:
        if error.errno != EIO:
            raise
    parts = []
    for at in range(0, size := disk.size(path), SECTOR):
        try:
            parts.append(disk.read_part(path, at, SECTOR))
        except OSError:
            parts.append(bytes(min(SECTOR, size - at)))
    return memoryview(b"".join(parts))


def _ours(disk: Disk, segment: Segment, size: int, view: memoryview, batches: list[Batch]) -> list[Batch]:
    """The batches that were written here: those that an index has which fits the chain. Without such an index, all or
    none, if the file has nothing but whole frames; in one that is damaged besides they cannot be told, and are taken.
    `view` is the whole file.
    """
    if segment.chain is None:
        return batches
    index = from_index(disk, segment, size)
    if index is not None and chained(0, (entry.mark for entry in index)) == segment.chain:
        known = {(entry.first_seq, entry.mark) for entry in index}
        return [each for each in batches if (each.first_seq, _mark(each)) in known]
    try:
        whole = whole_frames(view, min(size, len(view)), segment.data_path)
        marks = [mark_at(view, at + header.flags_at) for at, header in whole]
    except SegmentError:
        return batches
    return [] if chained(0, marks) != segment.chain else batches


def _mark(batch: Batch) -> int:
    """The mark of a batch in memory, as the chain of its segment has it."""
    assert batch.buffer is not None
    return mark_at(batch.buffer, Header(batch.buffer).flags_at)


def _set_foreign_apart(disk: Disk, path: Path, limits: Limits, segments: list[Segment]) -> None:
    for segment in segments:
        base = Path(limits.cold_dir) / path.name if segment.cold else path
        for each in (segment.data_path, segment.index_path):
            if each.name in disk.list(each.parent):
                set_apart(disk, base, each)


def _frames(view: memoryview, first_seq: int, end: int) -> Iterator[Batch]:
    """Yield every valid batch in the file, in seq order."""
    after = 0
    for offset, header in valid_frames(view):
        if offset < after or header.kind != Kind.BATCH or header.first_seq < first_seq:
            continue
        if header.first_seq + header.count - 1 > end:
            return
        after = offset + header.length
        first_seq = header.first_seq + header.count
        yield _batch(bytes(view[offset:after]), header)


def _batch(frame: bytes, header: Header) -> Batch:
    batch = Batch(frame, header.first_seq, decode_batch(frame), FINAL_LEVEL)
    flags = frame[header.flags_at : header.flags_at + header.count].translate(_NEARER)
    if DELETED in flags:
        batch.flag(flags)
    return batch


def _taken(source: Topic, ident: int, first: int, upto: int) -> Iterator[Batch]:
    """Yield batches with the backup's records from `first` to `upto`."""
    while first <= upto:
        pieces, looked = source.records.sequence.pieces(first, upto, _PIECE_RECORDS, PIECE_BYTES)
        for piece in pieces:
            head = encode_batch(piece.columns, ident, piece.first_seq).head
            batch = Batch(head, piece.first_seq, piece.columns, FINAL_LEVEL)
            if piece.flags is not None:
                batch.flag(piece.flags)
            yield batch
        first = looked + 1


# 4


def _copied(shard: Shard, topic: Topic) -> Topic:
    copy = copied_topic(topic, shard.directory.new_id())
    copy.position.logged_upto(topic.position.logged_seq)
    for batch in in_pieces(topic, lambda: shard.checkpoints.store(copy)):
        copy.records.restore(copied_batch(batch))
    shard.checkpoints.store(copy)
    copy.restored(topic.records.head_seq, topic.records.floor)
    copy.position.used(topic.position.next_seq - 1)
    copy.position.on_device(topic.records.head_seq)
    return copy
