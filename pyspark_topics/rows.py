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
from functools import cached_property, partial
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


class Group:
    """Frames to be joined, `found`, and for each of them the flags of its records."""

    def __init__(self, found: list[Records], flags: list[bytes]) -> None:
        self.found = found
        self._flags = flags
        self._counts = [records.head.count for records in found]
        self._ends: list[int] = [*accumulate(self._counts)]
        self._columns: dict[int, Any] = {}

    def __len__(self) -> int:
        """The number of records."""
        return self._ends[-1]

    @cached_property
    def seqs(self) -> Any:
        """The seqs of all records, as an int64 array."""
        frames = zip(self.found, self._ends, self._counts, strict=True)
        base = [records.head.first_seq - end + count for records, end, count in frames]
        return pc.add(self.spread(numbers(base)), _iota(len(self)))

    def times(self) -> Any:
        """The times of all records."""
        if any(records.times is not None for records in self.found):
            times = pa.concat_arrays(
                [
                    pa.repeat(number(records.head.ts_ms), count) if records.times is None else records.times
                    for records, count in zip(self.found, self._counts, strict=True)
                ]
            )
        else:
            times = self.spread(numbers(records.head.ts_ms for records in self.found))
        return times.view(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))

    def column(self, place: int) -> Any:
        """A column of all frames as one binary array, null where a frame has none. It is joined once."""
        if place not in self._columns:
            self._columns[place] = self._joined([records.column(place) for records in self.found])
        return self._columns[place]

    def _joined(self, arrays: list[Any]) -> Any:
        if all(len(array) == 1 for array in arrays):
            return self.spread(pa.concat_arrays(arrays))
        if len(arrays) == 1:
            return arrays[0]
        counted = zip(arrays, self._counts, strict=True)
        return pa.concat_arrays([pa.repeat(array[0], count) if len(array) == 1 else array for array, count in counted])

    def spread(self, values: Any) -> Any:
        """Repeat each value as often as its frame has records."""
        if len(self._ends) == len(self):
            return values
        if len(self._ends) == 1:
            return pa.repeat(values[0], len(self))
        children = [numbers(self._ends, pa.int32()), values]
        runs = pa.RunEndEncodedArray.from_buffers(
            pa.run_end_encoded(pa.int32(), values.type), len(self), [None], children=children
        )
        return pc.run_end_decode(runs)

    def live(self, deletions: Mapping[int, Deletions]) -> Any:
        """Boolean array, true for live records; None if all are live. `deletions` are by topic id."""
        kept: Any = None
        marks = b"".join(self._flags)
        if DELETED in marks:
            marked = pa.Array.from_buffers(pa.uint8(), len(marks), [None, pa.py_buffer(marks)])
            kept = pc.not_equal(marked, number(DELETED, pa.uint8()))
        idents = {records.head.topic_id for records in self.found}
        for ident in idents:
            if not deletions[ident]:
                continue
            left = pc.invert(deletions[ident].dead(self.column(1), self.seqs))
            if len(idents) > 1:
                topics = self.spread(numbers((records.head.topic_id for records in self.found), pa.uint64()))
                left = pc.or_(left, pc.not_equal(topics, number(ident, pa.uint64())))
            kept = left if kept is None else pc.and_(kept, left)
        return kept


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
            yield Group(group, flags)
            group, flags, count, size = [], [], 0, 0
        group.append(records)
        flags.append(marks)
        count += head.count
        size += head.length
    if group:
        yield Group(group, flags)


def batch(group: Group, rows: Mapping[int, Rows], shard: int, schema: Any, where: Where) -> Any:
    """A group of frames as one `pa.RecordBatch` with the columns of `schema`, without records that are deleted or not
    in `where`.

    A single frame is wrapped without a copy; several are joined with one copy per column. `shard` becomes `partition`.
    Columns that are not in `schema` are not read.
    """
    total = len(group)
    columns: dict[str, Callable[[], Any]] = {
        "key": lambda: group.column(1),
        "value": lambda: group.column(0),
        "topic": lambda: group.spread(texts([rows[r.head.topic_id].name.encode() for r in group.found], pa.string())),
        "partition": lambda: pa.repeat(number(shard, pa.int32()), total),
        "offset": lambda: group.seqs,
        "timestamp": group.times,
        "timestampType": lambda: pa.repeat(number(LOG_APPEND_TIME, pa.int32()), total),
        "node": lambda: group.column(2).view(pa.string()),
        "tag": lambda: group.column(1).view(pa.string()),
        "headers": lambda: headers(group.column(3)),
        "gap_to": lambda: pa.nulls(total, pa.int64()),
        "gap_reason": lambda: pa.nulls(total, pa.string()),
        "meta": lambda: group.column(3),
    }
    kept = group.live({ident: about.deletions for ident, about in rows.items()})
    if (mask := where.mask(partial(group.column, 1), partial(group.column, 2))) is not None:
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


_counted = numbers(range(1))


def _iota(count: int) -> Any:
    """Array 0, 1, … count - 1. Cached for the longest batch so far, then sliced."""
    global _counted  # noqa: PLW0603 - a cache of constants
    if len(_counted) < count:
        _counted = numbers(range(count))
    return _counted.slice(0, count)
