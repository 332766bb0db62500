"""Stream readers: implement Spark's interface for streams on top of any `Source`.

Up to Spark 4.1, Spark asks for the latest offset without passing the current position. The reader then knows its
position from the previous batch only. Limits therefore do not apply to the first batch after a restart, nor to
`Trigger.AvailableNow`, which reads everything in one batch. From Spark 4.2 on (`LIMITS`), Spark passes position and
limit, and limits always apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_topics import offsets
from pyspark_topics.offsets import Offsets, Position, Source
from pyspark_topics.options import EARLIEST, LATEST, Bound, Options, Topics, all_there

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS = True
except ImportError:
    LIMITS = False


class StreamReader(DataSourceStreamReader):
    """Stream reader for Spark 4.0 and 4.1."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._place: Offsets | None = None
        """Position of the stream, None if unknown."""
        self._reached = False

    def initialOffset(self) -> dict[str, Any]:
        self._place = begin(self._source, self._options.starting, self._options.topics)
        return offsets.dump(self._place)

    def latestOffset(self) -> dict[str, Any]:
        if not self._reached:
            # Spark asks for this offset first, and does not say whether the stream is new.
            self._source.reach()
            self._reached = True
        latest = self._source.latest()
        if self._place is None:
            return offsets.dump(latest)
        options = self._options
        return offsets.dump(self._cut(self._place, latest, options.max_offsets, options.max_bytes))

    def _cut(self, start: Offsets, latest: Offsets, max_offsets: int, max_bytes: int) -> Offsets:
        """End of the next batch within the limits; 0 means no limit."""
        end = offsets.onward(start, latest)
        if max_offsets:
            unread = offsets.unread(start, end, self._source.earliest())
            end = offsets.limit(start, end, offsets.records(unread), max_offsets)
        if max_bytes:
            end = offsets.limit(start, end, self._source.weigh(start, end), max_bytes)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        began = offsets.load(start)
        # The end that was chosen right after a restart lacks the topics that went while the stream was stopped.
        self._place = offsets.onward(began, offsets.load(end))
        if start == end:
            return []
        return self._source.partitions(began, self._place)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._source.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._source.committed(offsets.load(end))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_place": None}


def begin(source: Source, starting: Bound, topics: Topics) -> Offsets:
    """Offsets at which a new stream of `topics` begins. Raises `BadOption`."""
    source.reach()
    latest = dict(sorted(source.latest().items()))
    all_there(topics, latest)
    if starting.default == LATEST and not starting.seqs and not starting.times and starting.time_ms is None:
        return latest
    earliest = source.earliest()
    firsts = {topic: earliest.get(topic, Position(1, at.epoch)) for topic, at in latest.items()}
    return _placed(source, starting, firsts, latest)


def finish(source: Source, ending: Bound, start: Offsets) -> Offsets:
    """Offsets at which a batch read of the topics in `start` ends. Raises `BadOption`."""
    latest = {topic: at for topic, at in source.latest().items() if topic in start}
    found = _placed(source, ending, latest, latest)
    # An end before the start means that there is nothing to read, not that the topic was recreated.
    return {topic: at._replace(seq=max(at.seq, start[topic].seq)) for topic, at in found.items()}


def _placed(source: Source, bound: Bound, firsts: Offsets, latest: Offsets) -> Offsets:
    """Where a bound is in each topic of `latest`. `firsts` has the earliest positions, and the epochs of seqs."""
    times = {topic: ms for topic in latest if (ms := bound.time_of(topic)) is not None}
    since = source.since(times) if times else {}
    found = {}
    for topic, last in latest.items():
        first, seq = firsts[topic], bound.seq_of(topic, last.seq)
        found[topic] = since.get(topic) or {EARLIEST: first, LATEST: last}.get(seq, first._replace(seq=seq))
    bound.all_there(found)
    return found


if LIMITS:

    class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
        """Stream reader for Spark 4.2 and later."""

        _latest: Offsets | None = None
        _available_now = False

        def getDefaultReadLimit(self) -> Any:
            options = self._options
            if options.max_offsets:
                return ReadMaxRows(options.max_offsets)
            return ReadMaxBytes(options.max_bytes) if options.max_bytes else ReadAllAvailable()

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # type: ignore[override]
            if self._latest is None or not self._available_now:
                self._latest = self._source.latest()
            place = offsets.load(start)
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
            size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
            # Spark passes one limit at a time. If both are set, the limit of bytes is applied with that of records.
            return offsets.dump(self._cut(place, self._latest, rows, size or (rows and self._options.max_bytes)))

        def prepareForTriggerAvailableNow(self) -> None:
            # Nothing is asked yet: a new stream asks for its first offset next, with the short patience of `reach`.
            self._available_now, self._latest = True, None

        def reportLatestOffset(self) -> dict[str, Any] | None:
            return None if self._latest is None else offsets.dump(self._latest)


def reader(source: Source, options: Options) -> StreamReader:
    """The stream reader for this version of Spark."""
    return LimitedStreamReader(source, options) if LIMITS else StreamReader(source, options)
