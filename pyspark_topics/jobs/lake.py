"""`topics-spark lake`: topics into Delta or Iceberg tables, by one streaming query. For the layout see
`pyspark_topics.lake.layout`.

Steps of a batch, and the state if the driver dies in the step:

    1 Spark writes the range of the batch to the checkpoint     the next run repeats the batch, with the same range
    2 write the rows as files, commit them as version n         before the commit: files that no reader sees. After it:
                                                                the repeated batch finds version n, and writes none
    3 commit the gaps of the range as version n of `gaps`       the repeated batch does it
    4 Spark notes that the batch is done                        the repeated batch finds both versions
    5 compaction, vacuum                                        a table is valid after each commit of theirs

Gaps come from the source after the rows were committed: what is in the range, and neither deleted nor in the table, was
lost by then. A loss that the source tells of rows that are in the table happened after they were read; they are not in
the gap (see `layout.unseen`).
"""

from __future__ import annotations

import json
import re
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark_topics import offsets
from pyspark_topics.jobs.store import Store
from pyspark_topics.lake import checkpoint, formats, layout, typed
from pyspark_topics.lake.checkpoint import Checkpoint
from pyspark_topics.lake.layout import ABOUT, EVENTS, GAPS, ONE, About, LakeError, Mark
from pyspark_topics.lake.sink import Sink
from pyspark_topics.offsets import Gap, Offsets, Source
from pyspark_topics.options import all_there, parse
from pyspark_topics.visible import visible

READ = "topic, partition, offset, timestamp, node, tag, value, meta"
INFER_FROM = 10_000
"""Records of a batch that are looked at for new members."""
_CONFLICT = re.compile(r"Concurrent\w+Exception|DELTA_CONCURRENT_\w+|CommitFailedException|\bValidationException")
"""Refusal of a commit because of another one, by Delta or Iceberg."""
LONGEST_NAME = 255 - len("topic=")
"""Bytes of a topic's name, as Hive escapes it, that a local disk takes as a partition."""


@dataclass(frozen=True, slots=True)
class Settings(layout.Settings):
    once: bool = False
    every_s: float = 10.0


def run(
    spark: Any, source: Source, options: Mapping[str, str], store: Store, wanted: About, settings: Settings
) -> dict[str, Any]:
    """Bring new records into the lake, until there is no more (`once`) or the query is stopped. Returns a summary.

    Raises `LakeError`, `BadOption` and Spark's exceptions.
    """
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source.reach()
    about = evolve(store, describe(store, wanted), wanted)
    sink = formats.sink(store, about)
    at = position(store, sink, about)
    latest = source.latest()
    all_there(parse(options, streaming=True).topics, {**latest, **at.positions})
    layout.same_service(store.root, at.positions, latest)
    layout.not_behind(store.root, at.positions, latest)
    found = checkpoint.find(store, at) or checkpoint.begin(
        store, at, at.positions if at.version else dict(sorted(source.earliest().items()))
    )
    sink.create(GAPS)
    if about.form == ONE:
        sink.create(EVENTS)
    batches = Batches(source, store, about, sink, found, settings)
    # Spark before 4.2 ends after a batch that it repeats, as if there were no later records.
    for _ in range(2 if settings.once and found.unfinished() else 1):
        query = _query(spark, options, latest, found, batches, settings)
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
            break
        except Exception as error:
            raise explained(store.root, batches.failure or error) from None
    with store.locked():
        batches.maintain(spark, last=True)
    return {"version": at.version + batches.written, "records": batches.records, "gaps": batches.gaps}


def describe(store: Store, wanted: About) -> About:
    """`lake.json`, created if there is none. Raises `LakeError` if the lake is another one than `wanted`."""
    found = layout.described(store, wanted)
    layout.same_format(store.root, found, wanted.tables)
    if wanted.variant and not found.variant:
        raise LakeError(f"{store.root} was begun without --variant; take another --to")
    return found


def evolve(store: Store, about: About, wanted: About) -> About:
    """`lake.json` with the columns of `wanted` added. Raises `LakeError` if one is of another type."""
    fields = [(typed.member(wanted, name), kind) for name, kind in wanted.columns.items()]
    after = replace(typed.evolved(about, fields, strict=True), infer=about.infer or wanted.infer)
    if after != about:
        store.replace(ABOUT, after.dump(), uuid.uuid4().hex)
        if more := typed.added(about, after):
            _say(f"columns added: {more}")
    return after


def schema(spark: Any, given: str) -> list[tuple[str, str]]:
    """Members and their DDL types from `--schema`: DDL, or a file of DDL or of Spark's JSON. Raises `LakeError`."""
    from pyspark.sql.types import StructType

    content = given
    if Path(given).is_file():
        content = Path(given).read_text()
    try:
        if content.lstrip().startswith("{"):
            found = StructType.fromJson(json.loads(content))
        else:
            found = spark.createDataFrame([], content).schema
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise LakeError(
            f"--schema {given!r}: neither a file nor columns as in 'n bigint, at timestamp': {reason}"
        ) from None
    return [(field.name, field.dataType.simpleString()) for field in found.fields]


def position(store: Store, sink: Sink, about: About) -> Mark:
    """Up to where the tables of rows go together. Raises `LakeError` if something else wrote to one."""
    return layout.together([sink.at(name).mark for name in layout.tables(store, about.form)])


def explained(lake: str, error: Exception) -> Exception:
    """The error of a batch, as a sentence where its cause is known."""
    text = str(error)
    if "No space left on device" in text:
        return LakeError(
            f"{lake}: no space left on the device. Nothing of the batch was committed; make room, and start again"
        )
    if _CONFLICT.search(text):
        return LakeError(_overtaken(lake))
    return error


def _overtaken(lake: str) -> str:
    return f"{lake}: another run wrote to the same table meanwhile; of this batch nothing was written. Start again"


def _query(
    spark: Any, options: Mapping[str, str], latest: Offsets, at: Checkpoint, batches: Batches, settings: Settings
) -> Any:
    """Start the query. Topics that the checkpoint does not know, or knows as another instance, begin at their earliest
    record; what they lost before is a gap."""
    starting = {
        topic: min(position.seq, latest[topic].seq)
        for topic, position in at.start.items()
        if topic in latest and not offsets.recreated(position, latest[topic])
    }
    stream = spark.readStream.format("topics").options(
        **options,
        columns=READ,
        startingOffsets=json.dumps(starting),
        maxOffsetsPerTrigger=str(settings.max_records),
    )
    trigger = {"availableNow": True} if settings.once else {"processingTime": f"{settings.every_s:g} seconds"}
    writer = stream.load().writeStream.foreachBatch(batches).option("checkpointLocation", at.store.path(at.name))
    return writer.trigger(**trigger).start()


@dataclass
class Batches:
    """The query's function for each batch."""

    source: Source
    store: Store
    about: About
    sink: Sink
    checkpoint: Checkpoint
    settings: Settings
    records: int = 0
    gaps: int = 0
    written: int = 0
    failure: Exception | None = None
    _unseen: int = 0
    _vacuumed: float = field(default_factory=time.monotonic)

    def __call__(self, frame: Any, number: int) -> None:
        try:
            with self.store.locked():
                self._batch(frame, number)
        except Exception as error:
            # Spark tells of an exception of Python's only with its traceback.
            self.failure = error
            raise

    def _batch(self, frame: Any, number: int) -> None:
        """Do steps 2, 3 and 5. The caller has the lock."""
        spark = frame.sparkSession
        start, end = self.checkpoint.end(number - 1), self.checkpoint.end(number)
        version = self.checkpoint.base + 1 + number
        self._name_fits(end)
        rows = self._rows(spark, frame, end)
        if self.about.form == ONE:
            done = self._append(rows, EVENTS, Mark(version, end))
        else:
            done = self._append_apart(rows, version, start, end)
        lost = self._gaps(spark, start, end)
        if lost:
            self.sink.append(spark.createDataFrame(lost, layout.ddl(layout.GAP_COLUMNS)), GAPS, Mark(version))
        self.gaps += len(lost)
        self.written += done
        _say(f"version {version}: {self.records} records" + (f", {len(lost)} gaps" if lost else ""))
        self.maintain(spark)

    def _append(self, rows: Any, name: str, mark: Mark) -> bool:
        """Append a batch to a table, unless it is there. Returns whether it was not. Raises `LakeError` if another run
        committed this version with another range: Delta passes over a version that is there, whatever it holds."""
        there = self.sink.at(name).mark.version >= mark.version
        if not there:
            self.sink.create(name)
            self.sink.append(rows, name, mark)
        if self.sink.at(name).mark != mark:
            raise LakeError(_overtaken(self.store.root))
        if there:
            return False
        self.records += self.sink.appended(name)
        return True

    def _append_apart(self, rows: Any, version: int, start: Offsets, end: Offsets) -> bool:
        moved = [topic for topic, at in end.items() if start.get(topic) != at and not at.gone]
        kept = rows.persist()
        try:
            done = [
                self._append(
                    kept.where(kept["topic"] == topic),
                    layout.table(layout.PER_TOPIC, topic),
                    Mark(version, {topic: end[topic]}),
                )
                for topic in moved
            ]
            return any(done)
        finally:
            kept.unpersist()

    def _rows(self, spark: Any, frame: Any, end: Offsets) -> Any:
        from pyspark.sql import functions as f

        epochs = spark.createDataFrame([(topic, at.epoch) for topic, at in end.items()], "topic string, epoch long")
        rows = (
            frame.join(f.broadcast(epochs), "topic")
            .withColumn("value", f.col("value").cast("string"))
            .withColumn("meta", f.col("meta").cast("string"))
            .withColumn("date", f.to_date("timestamp"))
        )
        if self.about.infer:
            self._infer(spark, rows)
        if self.about.columns:
            rows = rows.withColumn(typed.PARSED, f.from_json("value", typed.struct(self.about)))
            rows = rows.withColumn(typed.RAW, f.from_json("value", "map<string,string>"))
        if self.about.columns or self.about.infer:
            rows = rows.withColumns({name: f.expr(sql) for name, sql in typed.expressions(self.about).items()})
        if self.about.variant:
            rows = rows.withColumn(layout.VARIANT, f.expr("try_parse_json(value)"))
        return rows.select(*self.about.all_columns).sortWithinPartitions("topic", "date", "offset")

    def _infer(self, spark: Any, rows: Any) -> None:
        """Add columns for members that are new in the first records of the batch."""
        texts = rows.where("value like '{%'").select("value").limit(INFER_FROM)
        found = spark.read.option("dropFieldIfAllNull", "true").json(texts.rdd.map(lambda row: row[0])).schema
        fields = [(field.name, field.dataType.simpleString()) for field in found.fields]
        after = typed.evolved(self.about, fields, strict=False)
        if more := typed.added(self.about, after):
            self.store.replace(ABOUT, after.dump(), uuid.uuid4().hex)
            self.about = after
            _say(f"columns added: {more}")

    def _gaps(self, spark: Any, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
        """Rows of `gaps` for the range: what the source has lost of it, without the rows that are there."""
        lost = self.source.gaps(start, end)
        if not lost:
            return []
        return layout.missed(lost, start, end, self._noticed(spark, lost), partial(self._seen, spark))

    def _noticed(self, spark: Any, lost: list[Gap]) -> dict[tuple[str, int], tuple[int, bool]]:
        """Last seq of the gaps that the table has, by topic and epoch.

        None is said to have no end: a table takes the gaps of a version once."""
        from pyspark.sql import functions as f

        frame = self.sink.frame(spark, GAPS)
        topics = sorted({gap.topic for gap in lost})
        found = frame.where(frame["topic"].isin(topics)).groupBy("topic", "epoch").agg(f.max("last").alias("last"))
        return {(row["topic"], row["epoch"]): (row["last"] or 0, False) for row in found.collect()}

    def _seen(self, spark: Any, gap: Gap, epoch: int) -> tuple[int, int] | None:
        """The first and last offset of a gap that the table has; None if it has none."""
        from pyspark.sql import functions as f

        name = layout.table(self.about.form, gap.topic)
        if self.sink.at(name).commit < 0:
            return None
        frame = self.sink.frame(spark, name)
        within = (frame["topic"] == gap.topic) & (frame["epoch"] == epoch)
        within = within & frame["offset"].between(gap.first, gap.last)
        first, last = frame.where(within).agg(f.min("offset"), f.max("offset")).collect()[0]
        return None if first is None else (int(first), int(last))

    def _name_fits(self, end: Offsets) -> None:
        if self.about.form == ONE and self.store.root.startswith("file:"):
            for topic in end:
                if len(topic.replace(":", "%3A")) > LONGEST_NAME:
                    raise LakeError(
                        f'topic "{topic}": its name is too long for a directory of this disk; take --table-per-topic'
                    )

    def maintain(self, spark: Any, *, last: bool = False) -> None:
        """Do step 5 if it is due."""
        self._unseen += not last
        tables = layout.tables(self.store, self.about.form)
        if self.settings.compact_to and (self._unseen >= layout.COMPACT_EVERY or (last and self._unseen)):
            self._unseen = 0
            for name in tables:
                self._compact(spark, name)
        hours = self.settings.vacuum_after
        if hours is not None and (last or time.monotonic() - self._vacuumed >= layout.VACUUM_EVERY_S):
            self._vacuumed = time.monotonic()
            for name in [*tables, GAPS]:
                self.sink.vacuum(spark, name, hours)

    def _compact(self, spark: Any, name: str) -> None:
        try:
            if self.sink.compact(spark, name, self.settings.compact_to):
                _say(f"compacted {name}")
        except Exception as error:
            if not _CONFLICT.search(str(error)):
                raise
            _say(f"{name} changed while it was compacted, as by reconcile: put off")


def _say(what: str) -> None:
    sys.stderr.write(visible(f"topics-spark lake: {what}") + "\n")
