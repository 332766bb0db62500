"""Files: reads the server's files. Resolves options and filters to seqs of the existing topics, and to tasks.

`batch` plans a batch read; `Files` is the `Source` of a stream (see `offsets`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pyspark_topics import offsets, plan
from pyspark_topics.directory import places
from pyspark_topics.offsets import Gap, Offsets, Position
from pyspark_topics.options import EARLIEST, LATEST, BadOption, Bound, Options, all_there
from pyspark_topics.partition import InputPartition
from pyspark_topics.plan import Piece, Range, Survey
from pyspark_topics.rows import loss_rows
from pyspark_topics.snapshot import Key, Place
from pyspark_topics.topic import Topic
from pyspark_topics.where import ALL, MAX_I64, Where


class FilePartition(InputPartition):
    """Pieces that one task reads: a segment, a file of a shard's log, a part of one, or several small ones."""

    value: list[Piece]


class LossPartition(InputPartition):
    """All rows that report losses."""

    value: list[tuple[int, Gap]]


def _places(options: Options) -> list[Place]:
    return places(options.paths, options.cold, options.bucket_key_file)


@plan.repeated
def batch(options: Options, where: Where) -> list[InputPartition]:
    """The tasks of a batch read. Raises `BadOption`, `DataLoss`, and as `plan.survey` does."""
    found = plan.survey(_places(options), options.topics, where, fail=options.fail_on_damage)
    if where == ALL:  # a filter may exclude existing topics
        there = {topic.name for topic in found.topics}
        all_there(options.topics, there)
        options.starting.all_there(there)
        options.ending.all_there(there)
    ranges = {}
    told: list[tuple[int, Gap]] = []
    gone: list[Gap] = []
    for topic in found.topics:
        allowed = _range(topic, options)
        ranges[topic.shard, topic.ident] = allowed
        explicit = options.starting.seqs.get(topic.name, EARLIEST) > 0
        if explicit or options.tombstones:
            gaps = _gaps(topic, allowed.low, min(allowed.high, topic.head), found)
            told += [(topic.shard.number, gap) for gap in gaps]
            gone += gaps if explicit else []
    offsets.report(gone, options.fail_on_data_loss and not options.tombstones)
    pieces = plan.narrow(found.pieces, ranges)
    partitions: list[InputPartition] = [*map(FilePartition, plan.tasks(pieces, options.min_partitions))]
    if options.tombstones and told:
        partitions.append(LossPartition(told))
    return partitions


def _range(topic: Topic, options: Options) -> Range:
    since, until = options.starting.time_of(topic.name), options.ending.time_of(topic.name)
    low, high = 1, topic.head
    if since is None:
        low = _seq(topic, options.starting)
    if until is None:
        high = _seq(topic, options.ending) - 1
    return Range(low, high, since or 0, MAX_I64 if until is None else until - 1)


def _seq(topic: Topic, bound: Bound) -> int:
    seq = bound.seq_of(topic.name, topic.head + 1)
    return {EARLIEST: 1, LATEST: topic.head + 1}.get(seq, seq)


def _gaps(topic: Topic, low: int, high: int, found: Survey) -> list[Gap]:
    """The gaps that a diff of seqs `low` to `high` would report as tombstones."""
    topic.expired()
    if not topic.losses.between(low, high, topic.floor):
        return []
    first = _first_live(topic, found)
    return [Gap(topic.name, *loss) for loss in topic.losses.between(low, high, first)]


_SEQ = pa.schema([pa.field("offset", pa.int64())])


def _first_live(topic: Topic, found: Survey) -> int:
    key = topic.shard, topic.ident
    # A loss ends at the first record, whether or not the filters of the read match it.
    pieces = [replace(piece, where=ALL) for piece in found.pieces]
    for piece in plan.narrow(pieces, {key: Range(topic.floor, topic.head)}):
        for rows in plan.read(piece, _SEQ):
            return int(rows["offset"][0].as_py())
    return topic.head + 1


def read(partition: InputPartition, schema: Any) -> Iterator[Any]:
    """The rows of one task as `pa.RecordBatch`es."""
    if isinstance(partition, FilePartition):
        for piece in partition.value:
            yield from plan.read(piece, schema)
    elif isinstance(partition, LossPartition):
        yield loss_rows(partition.value, schema)
    # Otherwise it is the partition that Spark creates when a read has none.


TASK_RECORDS = 100_000
"""Largest number of records of one task of a stream."""


def _by_topic(pieces: Collection[Piece]) -> dict[Key, list[Piece]]:
    """Pieces by shard and topic id; a piece with several topics appears once for each."""
    found: dict[Key, list[Piece]] = {}
    for piece in pieces:
        for ident, rows in piece.rows.items():
            found.setdefault((piece.shard, ident), []).append(replace(piece, rows={ident: rows}))
    return found


def _share(share: offsets.Share, topics: Mapping[str, Topic], pieces: Mapping[Key, list[Piece]]) -> list[Piece]:
    """The pieces that hold a share of a topic, in order of seq."""
    name, first, stop = share
    if (topic := topics.get(name)) is None:
        return []
    key = topic.shard, topic.ident
    found = plan.narrow(pieces.get(key, []), {key: Range(first, stop - 1)})
    return sorted(found, key=lambda piece: piece.rows[topic.ident].low)


def _same(found: Survey, end: Offsets) -> dict[str, Topic]:
    """The topics but for those recreated after `end` was chosen, which have no records before it."""
    return {
        topic.name: topic
        for topic in found.topics
        if topic.name not in end or not offsets.recreated(end[topic.name], Position(topic.head + 1, topic.epoch))
    }


def _lost(topics: Mapping[str, Topic], unread: Mapping[str, tuple[int, int]], found: Survey) -> Iterator[Gap]:
    for name, (low, stop) in unread.items():
        if name in topics:
            yield from _gaps(topics[name], low, stop - 1, found)


class Files:
    """The source of a stream over directories."""

    def __init__(self, options: Options, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def _survey(self) -> Survey:
        options = self._options
        found = plan.survey(_places(options), options.topics, fail=options.fail_on_damage)
        names = [topic.name for topic in found.topics]
        if len(set(names)) < len(names):
            twice = next(name for name in sorted(names) if names.count(name) > 1)
            raise BadOption(f'the topic "{twice}" is in more than one path; read each path with a stream of its own')
        return found

    def reach(self) -> None:
        """Does nothing, because every survey raises if a directory is missing."""

    @plan.repeated
    def earliest(self) -> Offsets:
        topics = self._survey().topics
        for topic in topics:
            topic.expired()
        return {topic.name: Position(topic.floor, topic.epoch) for topic in topics}

    def latest(self) -> Offsets:
        return {topic.name: Position(topic.head + 1, topic.epoch) for topic in self._survey().topics}

    @plan.repeated
    def since(self, times: Mapping[str, int]) -> Offsets:
        return {
            topic.name: Position(topic.first_since(times[topic.name]), topic.epoch)
            for topic in self._survey().topics
            if topic.name in times
        }

    @plan.repeated
    def weigh(self, start: Offsets, end: Offsets) -> dict[str, list[offsets.Piece]]:
        found = {}
        topics = {topic.name: topic for topic in self._survey().topics}
        floors = {name: Position(topic.floor, topic.epoch) for name, topic in topics.items()}
        for name, (low, stop) in offsets.unread(start, end, floors).items():
            pieces = []
            for _, entry in topics[name].batches(low, stop - 1) if name in topics else ():
                first, last = max(entry.first_seq, low), min(entry.first_seq + entry.count, stop)
                pieces.append((first, last, entry.length * (last - first) // entry.count))
            if pieces:
                found[name] = pieces
        return found

    @plan.repeated
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        found = self._survey()
        known = _same(found, end)
        unread = offsets.unread(start, end, {})
        losses = [(known[gap.topic].shard.number, gap) for gap in _lost(known, unread, found)]
        options = self._options
        offsets.report([*offsets.vanished(start, end, known), *(gap for _, gap in losses)], options.fail_on_data_loss)
        pieces = _by_topic(found.pieces)
        partitions: list[InputPartition] = [
            FilePartition([piece for share in shares for piece in _share(share, known, pieces)])
            for shares in offsets.shares(unread, TASK_RECORDS, options.min_partitions)
        ]
        if options.tombstones and losses:
            partitions.append(LossPartition(losses))
        return partitions

    @plan.repeated
    def gaps(self, start: Offsets, end: Offsets) -> list[Gap]:
        found = self._survey()
        known = _same(found, end)
        return [*offsets.vanished(start, end, known), *_lost(known, offsets.unread(start, end, {}), found)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition, self._schema)

    def committed(self, end: Offsets) -> None:
        """Does nothing, because the server does not know the readers of its files."""
