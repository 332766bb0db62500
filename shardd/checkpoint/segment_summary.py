"""What a catalog says of the batches in a small topic's segments, so that a start opens none of its files.

The entry of a topic with at most `FRAMES` frames in its segments has `index`, for each segment:

    [records, frames, places, partial]
    places    eight numbers for each frame that may still have live records or flags to be written: seqs left out since
              the frame before, bytes left out, length, count, first time since the first time of the frame before, last
              time since the first, size, flags_at
    partial   [first_seq, start, live bytes, flags] for those of them of which something is gone: records before `start`
              are, and the flagged ones. `flags` is null if there are none, or if `deleted` lists them

Larger topics have none: their files are opened by the start, which takes a time in proportion to their bytes.

A topic that was read from here has not been looked for on the disk. It is `unchecked` until it is used for the first
time, by a request or by a frame of the log: then its files are read and checked as by a start that knows nothing of
them, before anything else is done. See `shardd.checkpoint.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardd.storage.batch import Batch
from shardd.storage.segment import Entry, Segment, StoredFrame, flags_check
from shardd.topic.topic import Topic

FRAMES = 128
State = tuple[Batch, int, bytes | None, int]
"""A batch as it was when it was looked at: `start`, flags (None: none, or they are listed), live bytes."""
Place = tuple[Entry, State]


def states(topic: Topic, unstored: Iterable[Batch], listed: Iterable[Batch]) -> list[State] | None:
    """What has to be known of a topic's batches, those that a segment is about to get (`unstored`) last; None if the
    topic has too many."""
    new = {id(batch) for batch in unstored}
    if sum(segment.frames for segment in topic.segments) + len(new) > FRAMES:
        return None
    apart = {id(batch) for batch in listed}
    found: list[State] = []
    for batch in topic.batches:
        if batch.stored is None and id(batch) not in new:
            continue  # it does not last
        flags = None if batch.flags is None or id(batch) in apart else bytes(batch.flags)
        if batch.stored is not None and id(batch) not in apart and not _as_filed(batch, flags):
            return None  # flags that nobody wrote: only the file has them
        found.append((batch, max(batch.start, min(topic.floor - batch.first_seq, batch.count)), flags, batch.live_size))
    return found


def _as_filed(batch: Batch, flags: bytes | None) -> bool:
    return batch.filed == (0 if flags is None else flags_check(batch.first_seq, flags))


def forgotten(batch: Batch) -> State:
    """Of a batch that is listed, but has left its topic."""
    return batch, batch.start, None, batch.live_size


def packed(segment: Segment, records: int, frames: int, places: Iterable[Place]) -> list[Any]:
    """The row of a segment. Its `places` in seq order."""
    numbers: list[int] = []
    partial: list[Any] = []
    seq, end, ts = segment.first_seq, 0, segment.created_ms
    for entry, (_, start, flags, live_size) in places:
        numbers += (
            entry.first_seq - seq,
            entry.offset - end,
            entry.length,
            entry.count,
            entry.first_ts - ts,
            entry.last_ts - entry.first_ts,
            entry.size,
            entry.flags_at,
        )
        seq, end, ts = entry.first_seq + entry.count, entry.offset + entry.length, entry.first_ts
        if start or flags is not None or live_size != entry.size:
            partial.append([entry.first_seq, start, live_size, flags])
    return [records, frames, numbers, partial]


def unpacked(segment: Segment, size: int, check: int, row: list[Any], listed: Mapping[int, bytes]) -> Iterator[Batch]:
    """The batches of a segment as a catalog has them: `size` bytes, and flags of this check without the listed ones."""
    segment.records, segment.frames, numbers, partial = row
    segment.size, segment.check = size, check
    gone = {first_seq: rest for first_seq, *rest in partial} if partial else {}
    seq, end, ts = segment.first_seq, 0, segment.created_ms
    each = iter(numbers)
    for skipped, left, length, count, later, span, total, flags_at in zip(*[each] * 8, strict=True):
        seq, ts = seq + skipped, ts + later
        entry = Entry(seq, end + left, length, count, ts, ts + span, total, flags_at)
        batch = Batch.of_file(StoredFrame(segment, entry), seq, count, (ts, ts + span), total, b"")
        if seq in gone:
            start, live_size, flags = gone[seq]
            batch.resume(start, listed.get(seq, flags), live_size)
            if seq not in listed:  # else they may be half written: nothing of them counts until they are written
                batch.written = batch.deleted
                batch.filed = 0 if flags is None else flags_check(seq, flags)
        seq, end = seq + count, entry.offset + length
        yield batch
    segment.last_seq = seq - 1
