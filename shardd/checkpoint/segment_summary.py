"""The segment summary of a small topic: a catalog's copy of its segment indexes, so that a start opens no files.

The catalog entry of a topic with at most `FRAMES` frames in its segments has `index`, one row for each segment:

    [records, frames, places, partial]
    places    eight numbers for each frame that may have live records or flags to be written: seqs skipped since the
              frame before, bytes skipped, length, count, first time minus the first time of the frame before, last time
              minus the first, size, flags_at
    partial   [first_seq, start, live bytes, flags] for each of these frames that has lost records: those before `start`
              and the flagged ones. `flags` is null if there are none, or if `deleted` lists them

Larger topics have no summary. The start opens their files, which takes time in proportion to their bytes.

A topic that was loaded from its summary is `unchecked`: its files have not been opened. Before the first request or log
frame uses it, its files are read and checked, as by a start without a summary. See `shardd.checkpoint.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardd.storage.batch import Batch
from shardd.storage.segment import Entry, Segment, StoredFrame, flags_check
from shardd.topic.topic import Topic

FRAMES = 128
BatchState = tuple[Batch, int, bytes | None, int]
"""A batch and its state at the time of the plan: `start`, flags (None: none, or they are listed), live bytes."""
Place = tuple[Entry, BatchState]


def states(topic: Topic, unstored: Iterable[Batch], listed: Iterable[Batch]) -> list[BatchState] | None:
    """The states of a topic's batches for the summary; None if the topic has too many frames, or flags that only the
    file has. `unstored` are the batches that the checkpoint writes, `listed` those whose flags the catalog lists."""
    new = {id(batch) for batch in unstored}
    if sum(segment.frames for segment in topic.segments) + len(new) > FRAMES:
        return None
    apart = {id(batch) for batch in listed}
    found: list[BatchState] = []
    for batch in topic.records.batches:
        if batch.stored is None and id(batch) not in new:
            continue  # in memory only, lost at a restart
        flags = None if batch.flags is None or id(batch) in apart else bytes(batch.flags)
        unlisted = batch.stored is not None and id(batch) not in apart
        if unlisted and batch.filed != flags_check(batch.first_seq, flags):
            return None  # the file has flags that this process did not write
        start = max(batch.start, min(topic.records.floor - batch.first_seq, batch.count))
        found.append((batch, start, flags, batch.live_size))
    return found


def packed(segment: Segment, records: int, frames: int, places: Iterable[Place]) -> list[Any]:
    """The row of a segment with `records` and `frames` in all. `places` are in seq order."""
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
    """The batches of a segment from its row in a catalog. `size` is the segment's bytes, `check` the check of its flags
    without those in `listed`."""
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
            if seq not in listed:  # listed flags may be half written, so they do not count until they are written again
                batch.written = batch.deleted
                batch.filed = flags_check(seq, flags)
        seq, end = seq + count, entry.offset + length
        yield batch
