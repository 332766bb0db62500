"""From frames to rows: which records of a frame count, and many frames as one Arrow batch.

What is not read is left out in three ways, cheapest first: frames outside the range of seqs by their header alone;
records outside it, expired or flagged by one byte each; records deleted by tag by looking at all tags of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import frames
from pyspark_topics.deletions import Deletions
from pyspark_topics.frames import DELETED, Head, Records

BATCH_ROWS = 10_000
"""Frames are joined until they hold this many records. More per batch would not make Spark faster."""
BATCH_BYTES = 16 << 20

_NORMAL = bytes(byte if byte == DELETED else 0 for byte in range(256))


@dataclass(frozen=True, slots=True)
class Rows:
    """What one file has to give of one topic: live records with `low` <= seq <= `high`, `oldest_ms` or younger.

    `flagged` holds delete flags by first seq of their frame, in addition to those in the file.
    """

    name: str
    low: int
    high: int
    oldest_ms: int = 0
    flagged: Mapping[int, bytes] = field(default_factory=dict)
    deletions: Deletions = field(default_factory=Deletions)

    def __contains__(self, head: Head) -> bool:
        """Can the frame hold any of them? Only its header is looked at."""
        return bool(head.first_seq <= self.high and head.first_seq + head.count > self.low)

    def flags(self, view: memoryview, records: Records) -> bytes:
        """A byte per record of the frame, `DELETED` for those that do not count. Deletions by tag are not in it."""
        head = records.head
        flags = bytes(frames.delete_flags(view, head))
        more = self.flagged.get(head.first_seq)
        if more is not None:
            both = int.from_bytes(flags.translate(_NORMAL)) | int.from_bytes(more.translate(_NORMAL))
            flags = both.to_bytes(max(len(flags), len(more)))
        start = max(self.low - head.first_seq, 0)
        if head.ts_ms < self.oldest_ms:
            # Times never decrease with seq.
            start = max(start, head.count if records.times is None else _below(records.times, self.oldest_ms))
        stop = max(min(self.high - head.first_seq + 1, head.count), start)
        if start or stop < head.count:
            mark = bytes([DELETED])
            flags = mark * start + flags[start:stop] + mark * (head.count - stop)
        return flags


def _below(times: Any, oldest_ms: int) -> int:
    return pc.sum(pc.less(times, pa.scalar(oldest_ms, pa.int64()))).as_py() or 0


class Source(Protocol):
    """An open file of frames."""

    buffer: Any
    view: memoryview

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """Return if the frames may end at this byte, where frame `number` should be; else raise `CorruptFile`."""


Group = tuple[list[Records], list[bytes]]
"""Frames and, for each of them, the flags of its records."""


def groups(
    source: Source,
    heads: Iterable[Head],
    rows: Mapping[int, Rows],
    max_rows: int = BATCH_ROWS,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[Group]:
    """The frames among `heads` that hold something of `rows` (by topic id), checked, as many together as allowed.

    Raises `CorruptFile`.
    """
    group: list[Records] = []
    flags: list[bytes] = []
    count = size = 0
    for head in heads:
        wanted = rows.get(head.topic_id) if head.kind == frames.BATCH else None
        if wanted is None or head not in wanted:
            continue
        try:
            frames.verify(source.view, head)
            records = Records(source.buffer, source.view, head)
        except frames.FrameError as error:
            source.ends_at(head.offset, head.frame_no, error)
            break
        marks = wanted.flags(source.view, records)
        if marks.count(DELETED) == head.count:
            continue
        if group and (count + head.count > max_rows or size + head.length > max_bytes):
            yield group, flags
            group, flags, count, size = [], [], 0, 0
        group.append(records)
        flags.append(marks)
        count += head.count
        size += head.length
    if group:
        yield group, flags


def batch(group: Group, rows: Mapping[int, Rows], shard: int, schema: Any) -> Any:
    """A group of frames as one `pa.RecordBatch` with the columns of `schema`, deleted records left out.

    A single frame is wrapped where it lies; several are joined, one copy per column. `shard` becomes `partition`.
    """
    found, _ = group
    counts, ends = extent(found)
    total = ends[-1]
    key = column(found, 1, counts)
    seqs = sequence(found, counts, ends)
    if any(records.times is not None for records in found):
        times = pa.concat_arrays(
            [
                pa.repeat(pa.scalar(records.head.ts_ms, pa.int64()), count) if records.times is None else records.times
                for records, count in zip(found, counts, strict=True)
            ]
        )
    else:
        times = _spread(pa.array([records.head.ts_ms for records in found], pa.int64()), ends)
    columns = {
        "key": key,
        "value": column(found, 0, counts),
        "topic": _spread(pa.array([rows[records.head.topic_id].name for records in found], pa.string()), ends),
        "partition": pa.repeat(pa.scalar(shard, pa.int32()), total),
        "offset": seqs,
        "timestamp": times.view(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), total),
        "node": column(found, 2, counts).view(pa.string()),
        "tag": key.view(pa.string()),
        "meta": column(found, 3, counts),
    }
    made = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    kept = live(group, ends, key, seqs, {ident: about.deletions for ident, about in rows.items()})
    return made if kept is None else made.filter(kept)


def live(group: Group, ends: list[int], key: Any, seqs: Any, deletions: Mapping[int, Deletions]) -> Any:
    """True for each record that counts; None if all of them do."""
    found, flags = group
    kept: Any = None
    marks = b"".join(flags)
    if DELETED in marks:
        marked = pa.Array.from_buffers(pa.uint8(), len(marks), [None, pa.py_buffer(marks)])
        kept = pc.not_equal(marked, pa.scalar(DELETED, pa.uint8()))
    idents = {records.head.topic_id for records in found}
    for ident in idents:
        if not deletions[ident]:
            continue
        left = pc.invert(deletions[ident].dead(key, seqs))
        if len(idents) > 1:
            topics = _spread(pa.array([records.head.topic_id for records in found], pa.uint64()), ends)
            left = pc.or_(left, pc.not_equal(topics, pa.scalar(ident, pa.uint64())))
        kept = left if kept is None else pc.and_(kept, left)
    return kept


def extent(found: list[Records]) -> tuple[list[int], list[int]]:
    """How many records each frame has, and where each frame's records end."""
    counts = [records.head.count for records in found]
    ends: list[int] = []
    total = 0
    for count in counts:
        total += count
        ends.append(total)
    return counts, ends


def sequence(found: list[Records], counts: list[int], ends: list[int]) -> Any:
    """The seqs of all records, int64."""
    base = [records.head.first_seq - end + count for records, end, count in zip(found, ends, counts, strict=True)]
    return pc.add(_spread(pa.array(base, pa.int64()), ends), _iota(ends[-1]))


def column(found: list[Records], place: int, counts: list[int]) -> Any:
    """A column of all frames as one binary array, null where a frame has none."""
    arrays = [records.columns[place] for records in found]
    if len(arrays) == 1 and arrays[0] is not None:
        return arrays[0]
    if arrays.count(None) == len(arrays):
        return pa.nulls(sum(counts), pa.binary())
    return pa.concat_arrays(
        [pa.nulls(count, pa.binary()) if array is None else array for array, count in zip(arrays, counts, strict=True)]
    )


def _spread(values: Any, ends: list[int]) -> Any:
    """Each value as often as its frame has records."""
    if len(ends) == 1:
        return pa.repeat(values[0], ends[0])
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values))


_counted = pa.array(range(1), pa.int64())


def _iota(count: int) -> Any:
    """0, 1, … count - 1. Made once for the longest batch so far, then sliced."""
    global _counted  # noqa: PLW0603 - a cache of constants
    if len(_counted) < count:
        _counted = pa.array(range(count), pa.int64())
    return _counted.slice(0, count)
