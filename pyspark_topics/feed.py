"""Feed: a running service as a `Source` of records, read by diffs (option `url`).

Reading files is faster. The service serves clusters without access to its disk, and ephemeral topics. Positions include
the topic's epoch, which distinguishes a recreated topic from the one that was read, whatever its seqs. Each task checks
the epoch again after reading, so that it notices a topic recreated meanwhile.

The service omits deleted records silently and reports records lost to caps and age as tombstones. Before it makes
tasks, the driver requests the gap of each topic whose first record is after the position to read from. A task detects
gaps that arise later. Both report the exact ranges (`offsets.report`).

`consumerGroup` names a cursor on each topic. It is advanced when Spark commits a batch, so that operators and metrics
see a stream's progress. Spark's checkpoint alone is authoritative. A cursor that cannot be advanced is logged, and the
next batch advances it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import offsets
from pyspark_topics.client import Client, Diff, Endpoint, ServiceError, Unavailable
from pyspark_topics.errors import log
from pyspark_topics.members import headers
from pyspark_topics.offsets import Gap, Offsets, Position
from pyspark_topics.options import Options
from pyspark_topics.partition import InputPartition
from pyspark_topics.rows import LOG_APPEND_TIME, loss_rows

DIFF_RECORDS = 1000
DIFF_BYTES = 8 << 20
TASK_RECORDS = 50_000
BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20
"""Diffs are joined until they have this many bytes, because Spark is slow with small batches."""
ASK_BY_NAME = 50
"""Up to this many topics are requested one by one; for more, all topics are listed."""
CURSOR_PATIENCE_S = 5.0
ENDED = ("deleted", "recreated")
"""Reasons of gaps of a topic that is gone, unlike losses from a topic."""


@dataclass(frozen=True, slots=True)
class Range:
    """Records `first` to `stop`, exclusive, of one instance of a topic."""

    topic: str
    epoch: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Task(InputPartition):
    """Ranges that one task reads, and losses that were found before, which it only tells."""

    ranges: tuple[Range, ...]
    gaps: tuple[Gap, ...] = ()


@dataclass(slots=True)
class Feed:
    """Source over a service. `schema` is that of the batches of `read`, a selection of `columns`. With `telling`, for
    a batch read with tombstones, no loss is an error; that a topic was deleted or created again still is one."""

    endpoint: Endpoint
    options: Options
    schema: Any
    telling: bool = False
    _told: dict[str, Position] = field(default_factory=dict)

    # Interface `offsets.Source`

    def reach(self) -> None:
        self.endpoint.reach()

    def earliest(self) -> Offsets:
        return {topic["topic"]: Position(topic["earliest_seq"], topic.get("epoch", 0)) for topic in self._topics()}

    def latest(self) -> Offsets:
        return {topic["topic"]: Position(topic["head_seq"] + 1, topic.get("epoch", 0)) for topic in self._topics()}

    def since(self, times: Mapping[str, int]) -> Offsets:
        with self.endpoint.client() as client:
            states = {topic: client.topic(topic) for topic in times}
            return {
                topic: Position(_first_since(client, state, times[topic]), state.get("epoch", 0))
                for topic, state in states.items()
                if state is not None
            }

    def weigh(self, start: Offsets, end: Offsets) -> dict[str, list[offsets.Piece]]:
        about = {topic["topic"]: topic for topic in self._topics()}
        earliest = {name: Position(topic["earliest_seq"]) for name, topic in about.items()}
        weights = {}
        for name, (low, stop) in offsets.unread(start, end, earliest).items():
            topic = about.get(name, {})
            mean = topic.get("bytes", 0) / max(topic.get("count", 0), 1)
            weights[name] = [(low, stop, int((stop - low) * mean) or 1)]
        return weights

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Task]:
        """Tasks of a batch. Raises `offsets.DataLoss`."""
        earliest = self._earliest_before(end)
        self._report(self._gaps(start, end, earliest))
        return [
            Task(tuple(Range(topic, end[topic].epoch, *seqs) for topic, *seqs in shares if topic in earliest))
            for shares in offsets.shares(offsets.unread(start, end, {}), TASK_RECORDS, self.options.min_partitions)
        ]

    def told(self, start: Offsets, end: Offsets) -> Sequence[Task]:
        """Tasks of a batch read with a row for each loss, one row for what a topic lost from its front. Raises
        `offsets.DataLoss`."""
        earliest = self._earliest_before(end)
        lost = {gap.topic: gap for gap in self._gaps(start, end, earliest) if gap.reason not in ENDED}
        begin = dict(start)
        for topic in earliest.keys() & start.keys() & end.keys():
            # The seqs before the first record may be many more than the records, so no task reads them.
            first = lost[topic].last + 1 if topic in lost else min(earliest[topic].seq, end[topic].seq)
            begin[topic] = start[topic]._replace(seq=max(start[topic].seq, first))
        tasks = self.partitions(begin, end)
        return [Task((), tuple(lost.values())), *tasks] if lost else tasks

    def gaps(self, start: Offsets, end: Offsets) -> list[Gap]:
        return self._gaps(start, end, self._earliest_before(end))

    def _earliest_before(self, end: Offsets) -> Offsets:
        """`earliest` without the topics recreated after `end` was chosen, which have no records before it."""
        return {
            topic: at
            for topic, at in self.earliest().items()
            if topic not in end or not (at.epoch and end[topic].epoch and at.epoch != end[topic].epoch)
        }

    def _gaps(self, start: Offsets, end: Offsets, earliest: Offsets) -> list[Gap]:
        gaps = offsets.vanished(start, end, earliest)
        with self.endpoint.client() as client:
            for topic, (first, stop) in offsets.unread(start, end, {}).items():
                if topic in earliest and first < earliest[topic].seq:
                    lost = self._gap(client, topic, first)
                    if lost is not None:
                        gaps.append(lost._replace(last=min(lost.last, stop - 1)))
        return gaps

    def _report(self, gaps: Sequence[Gap]) -> None:
        told = [gap for gap in gaps if self.telling and gap.reason not in ENDED]
        offsets.report(told, fail=False)
        offsets.report([gap for gap in gaps if gap not in told], self.options.fail_on_data_loss)

    def read(self, partition: Task) -> Iterator[Any]:
        """Record batches of a task. Raises `offsets.DataLoss`, `ServiceError`."""
        waiting = [loss_rows([(None, gap)], self.schema) for gap in partition.gaps]
        rows = size = 0
        with self.endpoint.client() as client:
            for part in partition.ranges:
                for batch in self._read(client, part):
                    waiting.append(batch)
                    rows += len(batch)
                    size += batch.nbytes
                    if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                        yield pa.concat_batches(waiting)
                        waiting, rows, size = [], 0, 0
        if waiting:
            yield pa.concat_batches(waiting)

    def _read(self, client: Client, part: Range) -> Iterator[Any]:
        topic, position = part.topic, part.first
        while position < part.stop:
            diff = self._diff(client, topic, position, min(part.stop - position, DIFF_RECORDS))
            if diff is None:
                self._report([Gap(topic, position, part.stop - 1, "deleted")])
                return
            if diff.gap is not None or diff.next_from_seq < position:
                gap = _lost(diff, part, position)
                self._report([gap])
                if self.options.tombstones:
                    yield loss_rows([(None, gap)], self.schema)
                if gap.reason == "recreated":
                    return
            records = diff.records
            if diff.next_from_seq >= part.stop:
                records = records.slice(0, pc.sum(pc.less(records["seq"], part.stop)).as_py() or 0)
            if len(records):
                yield self._rows(topic, records)
            position = diff.next_from_seq + 1
        self._check_epoch(client, part)

    def committed(self, end: Offsets) -> None:
        if not self.options.consumer_group:
            return
        with replace(self.endpoint, patience_s=CURSOR_PATIENCE_S).client() as client:
            for topic, position in end.items():
                if self._told.get(topic) == position or position.seq <= 1:
                    continue
                try:
                    client.put_cursor(topic, self.options.consumer_group, position.seq - 1)
                except ServiceError as error:
                    if error.status in (401, 403):
                        raise
                    # The topic is gone, or the service is down.
                    log.warning("the cursor %s was not moved: %s", self.options.consumer_group, error)
                    if isinstance(error, Unavailable):
                        return
                    continue
                self._told[topic] = position

    def _topics(self) -> Iterable[Mapping[str, Any]]:
        with self.endpoint.client() as client:
            wanted = self.options.topics
            if wanted.names and len(wanted.names) <= ASK_BY_NAME:
                asked = [client.topic(name) for name in sorted(wanted.names) if name]
                return [topic for topic in asked if topic is not None]
            return [topic for topic in client.topics() if topic["topic"] in wanted]

    def _diff(self, client: Client, topic: str, position: int, limit: int) -> Diff | None:
        """Records from seq `position` on; None if the topic is gone."""
        meta = "headers" in self.schema.names or "meta" in self.schema.names
        try:
            return client.diff(topic, position - 1, limit, DIFF_BYTES, meta=meta)
        except ServiceError as error:
            if error.code == "topic_not_found":
                return None
            raise

    def _gap(self, client: Client, topic: str, first: int) -> Gap | None:
        """The gap from seq `first` on; None if the records were deleted, which is not reported."""
        diff = self._diff(client, topic, first, 1)
        return None if diff is None else diff.gap

    def _check_epoch(self, client: Client, partition: Range) -> None:
        if not partition.epoch:
            return
        state = client.topic(partition.topic)
        epoch = 0 if state is None else state.get("epoch", partition.epoch)
        if epoch != partition.epoch:
            reason = "recreated" if epoch else "deleted"
            self._report([Gap(partition.topic, partition.first, partition.stop - 1, reason)])

    def _rows(self, topic: str, records: Any) -> Any:
        count = len(records)
        columns: dict[str, Any] = {
            "key": lambda: records["tag"].cast(pa.binary()),
            "value": lambda: records["data"].cast(pa.binary()),
            "topic": lambda: pa.repeat(pa.scalar(topic), count),
            "offset": lambda: records["seq"],
            "timestamp": lambda: records["ts"].view(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            "timestampType": lambda: pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count),
            "node": lambda: records["node"],
            "tag": lambda: records["tag"],
            "meta": lambda: records["meta"].cast(pa.binary()),
            "headers": lambda: headers(records["meta"].cast(pa.binary())),
        }
        # Missing columns are null; the service does not report a topic's shard, for example.
        arrays = [columns[f.name]() if f.name in columns else pa.nulls(count, f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _first_since(client: Client, state: Mapping[str, Any], time_ms: int) -> int:
    """The first seq of a topic committed at `time_ms` (since 1970) or later; one past the last seq if there is none."""
    low, high = state["earliest_seq"], state["head_seq"] + 1
    while low < high:
        middle = (low + high) // 2
        records = client.diff(state["topic"], middle - 1, 1, meta=False).records
        # No records means that all from there on are deleted.
        if len(records) and records["ts"][0].as_py() < time_ms:
            low = records["seq"][0].as_py() + 1
        else:
            high = middle
    return int(low)


def _lost(diff: Diff, partition: Range, position: int) -> Gap:
    """The gap that a diff from `position` on reported, limited to the range of the task."""
    last = partition.stop - 1
    if diff.gap is None or diff.gap.reason == "recreated":
        # The topic ends before a seq that it had reached.
        return Gap(partition.topic, position, last, "recreated")
    return diff.gap._replace(first=position, last=min(diff.gap.last, last))
