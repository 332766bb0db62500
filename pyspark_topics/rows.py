"""Rows: selects the live records of frames, and joins many frames to one Arrow batch.

Records are left out in three ways, cheapest first:

    frames outside the range of seqs or times       by the index or the header alone
    records outside the range, expired, flagged     by one byte per record
    records deleted by tag, or with an unwanted     by evaluating all tags or nodes of a batch
    tag or node
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import frames
from pyspark_topics.arrays import number, numbers, texts
from pyspark_topics.deletions import Deletions
from pyspark_topics.frames import DELETED, Head, Records
from pyspark_topics.logfile import LogFile
from pyspark_topics.members import headers
from pyspark_topics.offsets import Gap
from pyspark_topics.segment import Entry, Segment
from pyspark_topics.where import MAX_I64, Where

BATCH_ROWS = 10_000
"""Frames are joined until they have this many records. Larger batches would not make Spark faster."""
BATCH_BYTES = 16 << 20
LOG_APPEND_TIME = 1
"""Kafka's number for a timestamp that is the time of the write to the log."""

_NORMAL = bytes(byte if byte == DELETED else 0 for byte in range(256))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one topic to read from one file: live records with `low` <= seq <= `high`, from `oldest_ms` to
    `newest_ms`.

    `flagged` has delete flags by first seq of their frame, in addition to those in the file. `name` and `epoch`
    stay when the topic gets another id.
    """

    name: str
    low: int
    high: int
    oldest_ms: int = 0
    newest_ms: int = MAX_I64
    flagged: Mapping[int, bytes] = field(default_factory=dict)
    deletions: Deletions = field(default_factory=Deletions)
    epoch: int = 0

    def may_be_in(self, entry: Entry) -> bool:
        """Whether the batch may have such rows. Times never decrease with seq."""
        return (
            entry.first_seq <= self.high
            and entry.first_seq + entry.count > self.low
            and entry.first_ts <= self.newest_ms
            and (entry.last_ts is None or entry.last_ts >= self.oldest_ms)
        )

    def __contains__(self, head: Head) -> bool:
        """Whether the frame may have such rows, by its header alone."""
        return self.may_be_in(Entry.of(head))

    def flags(self, view: memoryview, records: Records) -> bytes:
        """A byte per record of the frame, `DELETED` for excluded ones. Does not include deletions by tag."""
        head = records.head
        flags = bytes(frames.delete_flags(view, head))
        more = self.flagged.get(head.first_seq)
        if more is not None:
            both = int.from_bytes(flags.translate(_NORMAL)) | int.from_bytes(more.translate(_NORMAL))
            flags = both.to_bytes(max(len(flags), len(more)))
        start = max(self.low - head.first_seq, 0)
        if head.ts_ms < self.oldest_ms:
            # Times never decrease with seq.
            start = max(start, head.count if records.times is None else below(records.times, self.oldest_ms))
        stop = min(self.high - head.first_seq + 1, head.count)
        if records.times is not None and self.newest_ms != MAX_I64:
            stop = min(stop, below(records.times, self.newest_ms + 1))
        stop = max(stop, start)
        if start or stop < head.count:
            mark = bytes([DELETED])
            flags = mark * start + flags[start:stop] + mark * (head.count - stop)
        return flags


def below(times: Any, oldest_ms: int) -> int:
    """Number of times before `oldest_ms`, in an ascending int64 array."""
    return pc.sum(pc.less(times, number(oldest_ms))).as_py() or 0


Source = LogFile | Segment
"""Open file of frames."""
Group = tuple[list[Records], list[bytes]]
"""Frames and, for each of them, the flags of its records."""


def groups(
    source: Source,
    heads: Iterable[Head],
    rows: Mapping[int, Rows],
    max_rows: int = BATCH_ROWS,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[Group]:
    """Verify the frames among `heads` with wanted `rows` (by topic id), and yield them in groups within the limits.

    Raises `CorruptFile`, unless this source skips damage.
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
            if source.fail:
                break
            continue
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


def batch(group: Group, rows: Mapping[int, Rows], shard: int, schema: Any, where: Where) -> Any:
    """A group of frames as one `pa.RecordBatch` with the columns of `schema`, without records that are deleted or not
    in `where`.

    A single frame is wrapped without a copy; several are joined with one copy per column. `shard` becomes `partition`.
    Columns that are not in `schema` are not read.
    """
    found, _ = group
    counts, ends = extent(found)
    total = ends[-1]
    binary = cache(partial(column, found, ends))
    seqs = cache(partial(sequence, found, counts, ends))
    columns: dict[str, Callable[[], Any]] = {
        "key": lambda: binary(1),
        "value": lambda: binary(0),
        "topic": lambda: _spread(texts([rows[r.head.topic_id].name.encode() for r in found], pa.string()), ends),
        "partition": lambda: pa.repeat(number(shard, pa.int32()), total),
        "offset": seqs,
        "timestamp": lambda: _times(found, counts, ends),
        "timestampType": lambda: pa.repeat(number(LOG_APPEND_TIME, pa.int32()), total),
        "node": lambda: binary(2).view(pa.string()),
        "tag": lambda: binary(1).view(pa.string()),
        "headers": lambda: headers(binary(3)),
        "gap_to": lambda: pa.nulls(total, pa.int64()),
        "gap_reason": lambda: pa.nulls(total, pa.string()),
        "meta": lambda: binary(3),
    }
    kept = live(group, ends, lambda: binary(1), seqs, {ident: about.deletions for ident, about in rows.items()})
    if (mask := where.mask(lambda: binary(1), lambda: binary(2))) is not None:
        kept = mask if kept is None else pc.and_(kept, mask)
    if kept is not None and not pc.any(kept).as_py():
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    made = pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)
    return made if kept is None else made.filter(kept)


def loss_rows(lost: Sequence[tuple[int | None, Gap]], schema: Any) -> Any:
    """Rows that report lost records, each of a shard if that is known, as one `pa.RecordBatch`. Other columns are
    null."""
    columns = {
        "topic": [gap.topic for _, gap in lost],
        "partition": [shard for shard, _ in lost],
        "offset": [gap.first for _, gap in lost],
        "gap_to": [gap.last for _, gap in lost],
        "gap_reason": [gap.reason for _, gap in lost],
    }
    arrays = [pa.array(columns.get(field.name, [None] * len(lost)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(found: list[Records], counts: list[int], ends: list[int]) -> Any:
    if any(records.times is not None for records in found):
        times = pa.concat_arrays(
            [
                pa.repeat(number(records.head.ts_ms), count) if records.times is None else records.times
                for records, count in zip(found, counts, strict=True)
            ]
        )
    else:
        times = _spread(numbers(records.head.ts_ms for records in found), ends)
    return times.view(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def live(
    group: Group,
    ends: list[int],
    tags: Callable[[], Any],
    seqs: Callable[[], Any],
    deletions: Mapping[int, Deletions],
) -> Any:
    """Boolean array, true for live records; None if all are live. `tags` and `seqs` are called only if there are
    deletions."""
    found, flags = group
    kept: Any = None
    marks = b"".join(flags)
    if DELETED in marks:
        marked = pa.Array.from_buffers(pa.uint8(), len(marks), [None, pa.py_buffer(marks)])
        kept = pc.not_equal(marked, number(DELETED, pa.uint8()))
    idents = {records.head.topic_id for records in found}
    for ident in idents:
        if not deletions[ident]:
            continue
        left = pc.invert(deletions[ident].dead(tags(), seqs()))
        if len(idents) > 1:
            topics = _spread(numbers((records.head.topic_id for records in found), pa.uint64()), ends)
            left = pc.or_(left, pc.not_equal(topics, number(ident, pa.uint64())))
        kept = left if kept is None else pc.and_(kept, left)
    return kept


def extent(found: list[Records]) -> tuple[list[int], list[int]]:
    """The number of records of each frame, and its running total."""
    counts = [records.head.count for records in found]
    return counts, [*accumulate(counts)]


def sequence(found: list[Records], counts: list[int], ends: list[int]) -> Any:
    """The seqs of all records, as an int64 array."""
    base = [records.head.first_seq - end + count for records, end, count in zip(found, ends, counts, strict=True)]
    return pc.add(_spread(numbers(base), ends), _iota(ends[-1]))


def column(found: list[Records], ends: list[int], place: int) -> Any:
    """A column of all frames as one binary array, null where a frame has none."""
    arrays = [records.column(place) for records in found]
    if all(len(array) == 1 for array in arrays):
        return _spread(pa.concat_arrays(arrays), ends)
    if len(arrays) == 1:
        return arrays[0]
    counts = [records.head.count for records in found]
    return pa.concat_arrays(
        [pa.repeat(array[0], count) if len(array) == 1 else array for array, count in zip(arrays, counts, strict=True)]
    )


def _spread(values: Any, ends: list[int]) -> Any:
    """Repeat each value as often as its frame has records."""
    if len(ends) == ends[-1]:
        return values
    if len(ends) == 1:
        return pa.repeat(values[0], ends[0])
    children = [numbers(ends, pa.int32()), values]
    runs = pa.RunEndEncodedArray.from_buffers(
        pa.run_end_encoded(pa.int32(), values.type), ends[-1], [None], children=children
    )
    return pc.run_end_decode(runs)


_counted = numbers(range(1))


def _iota(count: int) -> Any:
    """Array 0, 1, … count - 1. Cached for the longest batch so far, then sliced."""
    global _counted  # noqa: PLW0603 - a cache of constants
    if len(_counted) < count:
        _counted = numbers(range(count))
    return _counted.slice(0, count)
