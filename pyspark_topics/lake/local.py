"""The lake without Spark: brings new records of a source into the tables, batch by batch, in one process.

Steps of a batch, and what a death of the process in each leaves:

    1 take the positions from the tables' newest marks       nothing
    2 choose the range, at most so many records and bytes    nothing
    3 read its rows into memory                              nothing
    4 add what was lost of the range to `gaps`               the next run adds only what that table does not have
    5 add the rows and the new positions, in one commit      before it: files that no reader sees. After it: the batch
    6 compact and vacuum, when it is time                    a table is valid after each commit

Losses are asked for after the rows were read. Records in the range, neither read nor deleted, were lost by then.

A batch, and `reconcile`, hold the lock of the lake (see `disk`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics import feed, files, offsets
from pyspark_topics.client import Endpoint
from pyspark_topics.lake import disk, layout
from pyspark_topics.lake.deltars import Files, Tables
from pyspark_topics.lake.layout import ABOUT, COLUMNS, EVENTS, GAPS, ONE, About, LakeError, Mark
from pyspark_topics.offsets import Gap, Offsets, Position
from pyspark_topics.options import Topics, all_there, parse
from pyspark_topics.plan import Survey

BYTES = ("value", "meta")
"""Columns that a read has as bytes."""
READ = layout.arrow(
    {name: kind for name, kind in COLUMNS.items() if name not in ("date", "epoch")} | dict.fromkeys(BYTES, "binary")
)


@dataclass(frozen=True, slots=True)
class Settings(layout.Settings):
    max_bytes: int = 64 << 20
    """Limit of a batch, which is held in memory: bytes in the files or in answers of the service."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was added."""

    version: int
    records: int
    gaps: int


class Directory(files.Files):
    """The source over directories. All calls between two of `look` see the state at the first of them."""

    _seen: Survey | None = None

    @property
    def topics(self) -> Topics:
        return self._options.topics

    def look(self) -> None:
        self._seen = None

    def _survey(self) -> Survey:
        if self._seen is None:
            self._seen = super()._survey()
        return self._seen

    def lost(self, at: Offsets) -> dict[str, int]:
        """For each topic, one past the last offset that caps or age took from its front; its position in `at` if it is
        gone or was created again."""
        found = {name: position.seq for name, position in at.items()}
        for topic in self._survey().topics:
            now = Position(topic.head + 1, topic.epoch)
            if topic.name in at and not offsets.recreated(at[topic.name], now):
                topic.expired()
                found[topic.name] = max(topic.losses.floor, 1)
        return found


class Service(feed.Feed):
    """The source over a running service."""

    @property
    def topics(self) -> Topics:
        return self.options.topics

    def look(self) -> None:
        """Does nothing, because every call asks the service."""

    def lost(self, at: Offsets) -> dict[str, int]:
        begin = {topic: position._replace(seq=1) for topic, position in at.items()}
        return dict.fromkeys(at, 1) | {gap.topic: gap.last + 1 for gap in self.gaps(begin, at) if gap.first == 1}


Source = Directory | Service
"""Their tasks are of different classes; each reads its own."""


def source(given: Mapping[str, str], columns: pa.Schema = READ) -> Source:
    """The source for options of a read; it also reads losses if `gap_to` is among the columns. Raises `BadOption`."""
    losses = {"includeTombstones": str("gap_to" in columns.names).lower()}
    options = parse({**given, **layout.LENIENT, **losses}, streaming=True)
    return Service(Endpoint.of(given), options, columns) if options.url else Directory(options, columns)


class Lake:
    """A lake on a local disk. `wanted` describes one that does not exist yet."""

    def __init__(self, root: Path, wanted: About | None = None) -> None:
        """Raises `LakeError`."""
        self.root = root
        self.files = Files(root)
        self.about = layout.described(self.files, wanted)
        layout.same_format(str(root), self.about, layout.DELTA)
        if self.about.columns or self.about.infer or self.about.variant:
            raise LakeError(f"{root} has typed columns, which only topics-spark lake writes; take another --to")
        self.tables = Tables(self.files, self.about)

    def locked(self) -> AbstractContextManager[None]:
        """Context in which no other process of this machine changes the lake. Waits for it."""
        return disk.locked(str(self.root))

    def position(self) -> Mark:
        """Up to where the tables of rows go together."""
        return layout.together([self.tables.at(name).mark for name in self.tables.names()])


def begin(root: Path, wanted: About, source: Source) -> Lake:
    """The lake, created if there is none and the source is there. Raises `LakeError`, `BadOption`, and as sources
    do."""
    source.reach()
    latest = source.latest()
    if not (root / ABOUT).exists():
        all_there(source.topics, latest)
    found = Lake(root, wanted)
    known = found.position().positions
    all_there(source.topics, {**latest, **known})
    layout.same_service(str(root), known, latest)
    return found


class Writer:
    """Brings a source into a lake. `step` is called with the name of each step that begins; tests die there."""

    def __init__(
        self, lake: Lake, source: Source, settings: Settings, step: Callable[[str], None] = lambda name: None
    ) -> None:
        self._lake = lake
        self._source = source
        self._settings = settings
        self._step = step
        self._unseen = 0
        self._vacuumed = time.monotonic()

    def batch(self) -> Batch | None:
        """Add one batch; None if there is nothing new. Raises `LakeError`, and as sources do."""
        with self._lake.locked():
            done = None
            while done is None:
                self._step("positions")
                at = self._lake.position()
                self._source.look()
                latest = self._source.latest()
                layout.not_behind(str(self._lake.root), at.positions, latest)
                start = at.positions if at.version else dict(sorted(self._source.earliest().items()))
                end = self._limited(start, offsets.onward(start, latest))
                if end == at.positions:
                    return None
                done = self._add(Mark(at.version + 1, end), start, at.positions)
            self.maintain()
        return done

    def _limited(self, start: Offsets, end: Offsets) -> Offsets:
        settings = self._settings
        unread = offsets.unread(start, end, {})
        end = offsets.limit(start, end, offsets.records(unread), settings.max_records)
        if not unread:
            return end
        return offsets.limit(start, end, self._source.weigh(start, end), settings.max_bytes)

    def _add(self, mark: Mark, start: Offsets, before: Offsets) -> Batch | None:
        """Do steps 3 to 5; None if a topic was created again meanwhile. `before` has the tables' positions."""
        end = mark.positions
        self._step("read")
        rows = read(self._source, start, end)
        self._source.look()
        now = self._source.latest()
        if any(topic in now and offsets.recreated(at, now[topic]) for topic, at in end.items() if not at.gone):
            return None
        gaps = self._lost(start, end, rows)
        if gaps:
            self._step("gaps")
            made = pa.Table.from_pylist(gaps, layout.arrow(layout.GAP_COLUMNS))
            self._lake.tables.append(GAPS, made, Mark(mark.version))
        if self._lake.about.form == ONE:
            self._step("rows")
            self._lake.tables.append(EVENTS, rows, mark)
        else:
            for topic in [topic for topic, at in end.items() if before.get(topic) != at]:
                self._step("rows")
                of_topic = rows.filter(pc.equal(rows["topic"], topic))
                self._lake.tables.append(
                    layout.table(layout.PER_TOPIC, topic), of_topic, Mark(mark.version, {topic: end[topic]})
                )
        return Batch(mark.version, len(rows), len(gaps))

    def _lost(self, start: Offsets, end: Offsets, rows: pa.Table) -> list[dict[str, Any]]:
        """Rows of `gaps` for the range, without those that the table has."""
        lost = self._source.gaps(start, end)
        return layout.missed(lost, start, end, self._noticed(), lambda gap, _: _seen(rows, gap)) if lost else []

    def _noticed(self) -> dict[tuple[str, int], tuple[int, bool]]:
        """Of the gaps that the table has, by topic and epoch: the last seq, and whether one has no end."""
        rows = self._lake.tables.rows(GAPS)
        if rows is None:
            return {}
        table = rows.to_table(columns=["topic", "epoch", "last"])
        found = table.group_by(["topic", "epoch"]).aggregate([("last", "max"), ("last", "count"), ([], "count_all")])
        return {
            (row["topic"], row["epoch"]): (row["last_max"] or 0, row["last_count"] < row["count_all"])
            for row in found.to_pylist()
        }

    def maintain(self, *, last: bool = False) -> None:
        """Do step 6 if it is due, or at the end of a run."""
        self._unseen += not last
        tables = self._lake.tables
        if self._settings.compact_to and (self._unseen >= layout.COMPACT_EVERY or (last and self._unseen)):
            self._unseen = 0
            for name in tables.names():
                self._step("compact")
                tables.compact(name, self._settings.compact_to)
        hours = self._settings.vacuum_after
        if hours is not None and (last or time.monotonic() - self._vacuumed >= layout.VACUUM_EVERY_S):
            self._vacuumed = time.monotonic()
            for name in [*tables.names(), GAPS]:
                self._step("vacuum")
                tables.vacuum(name, hours)

    def finish(self) -> None:
        """Maintenance at the end of a run."""
        with self._lake.locked():
            self.maintain(last=True)


def read(source: Source, start: Offsets, end: Offsets) -> pa.Table:
    """The rows of a range, with the columns of the lake."""
    names = pa.array(end, pa.string())
    epochs = pa.array((at.epoch for at in end.values()), pa.int64())
    found = []
    tasks: Any = source.partitions(start, end)
    for task in tasks:
        for batch in source.read(task):
            columns = {
                **dict(zip(batch.schema.names, batch.columns, strict=True)),
                "date": batch["timestamp"].cast(pa.date32()),
                "epoch": epochs.take(pc.index_in(batch["topic"], names)),
                **{name: batch[name].cast(pa.string()) for name in BYTES},
            }
            found.append(pa.RecordBatch.from_arrays([columns[name] for name in COLUMNS], list(COLUMNS)))
    return pa.Table.from_batches(found, layout.arrow(COLUMNS))


def _seen(rows: pa.Table, gap: Gap) -> tuple[int, int] | None:
    """The first and last offset of a gap that were read; None if none was."""
    mask = pc.and_(pc.greater_equal(rows["offset"], gap.first), pc.less_equal(rows["offset"], gap.last))
    found = pc.min_max(rows["offset"].filter(pc.and_(mask, pc.equal(rows["topic"], gap.topic)))).as_py()
    return None if found["min"] is None else (found["min"], found["max"])
