"""`topics-spark lake reconcile`: deletes from the tables of a lake what was deleted from its topics.

A deletion by tag or seq leaves no trace in the log, so rows are compared with the records that the service has. Steps:

    1 the ends of the topics          rows from there on are newer than this run, and stay
    2 rows without a record           by topic, epoch and offset; also rows with one of the tags
    3 the losses of the topics        records that a cap or their age took by now, or that were lost between others,
                                      were not deleted: their rows stay
    4 delete what is left of 2        one commit for each table; vacuum

The losses are asked for after the records were read, so a record that is lost meanwhile is not taken for a deleted one.
A topic's losses reach up to its first record: rows of records that were deleted just after lost ones stay, unless
their tag is named. Rows of a topic that is gone, or of an earlier instance of one, stay as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_topics.jobs.lake import position
from pyspark_topics.jobs.store import Store
from pyspark_topics.lake import formats, layout
from pyspark_topics.lake.layout import ABOUT, GAPS, LakeError
from pyspark_topics.lake.sink import Sink
from pyspark_topics.offsets import Offsets, Source

READ = {"columns": "topic, offset, gap_to", "includeTombstones": "true"}
"""Rows of losses have the last offset in `gap_to`: a service tells of those between records only to a reader."""


def run(
    spark: Any,
    source: Source,
    options: Mapping[str, str],
    store: Store,
    tags: Sequence[str],
    dry_run: bool,
    vacuum: bool,
    tables: str,
) -> dict[str, Any]:
    """Delete, or with `dry_run` count. Returns the number of rows by topic. `tables` is the format of the
    tables that the session can write. Raises `LakeError`."""
    if not store.exists(ABOUT):
        raise LakeError(f"{store.root}: there is no lake (no {ABOUT}); topics-spark lake makes one")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    about = layout.about(store.read(ABOUT), store.path(ABOUT))
    layout.same_format(store.root, about, tables)
    sink = formats.sink(store, about)
    source.reach()
    end = source.latest()
    layout.same_service(store.root, position(store, sink, about).positions, end)
    records = spark.read.format("topics").options(**options, **READ).load()
    names = layout.tables(store, about.form)
    counts: dict[str, int] = {}
    with store.locked():
        for name in names:
            if sink.at(name).commit >= 0:
                rows = _without_record(spark, sink.frame(spark, name), records, end, tags)
                counts |= _deleted(spark, source, sink, name, rows, end, dry_run)
        for name in [*names, GAPS] if vacuum and not dry_run else []:
            if sink.at(name).commit >= 0:
                sink.vacuum(spark, name, 0)
    return {"deleted" if not dry_run else "would_delete": sum(counts.values()), "topics": counts}


def _deleted(
    spark: Any, source: Source, sink: Sink, name: str, rows: Any, end: Offsets, dry_run: bool
) -> dict[str, int]:
    """Do steps 3 and 4 for one table, with the `rows` of `_without_record`. Returns the number of rows by topic."""
    rows = rows.persist()
    try:
        rows.count()
        dead = _kept(spark, rows, floors(source, end))
        found = {row["topic"]: row["count"] for row in dead.groupBy("topic").count().collect()}
        if found and not dry_run:
            sink.delete(spark, name, dead.select("topic", "epoch", "offset"))
        return found
    finally:
        rows.unpersist()


def floors(source: Source, end: Offsets) -> dict[str, int]:
    """For each topic the seq from which on a record that is not there was deleted."""
    gaps = [gap for gap in source.gaps({}, end) if gap.first == 1]
    earliest = source.earliest()
    found = dict.fromkeys(end, 1)
    for gap in gaps:
        found[gap.topic] = gap.last + 1
        if gap.reason not in ("deleted", "recreated") and gap.topic in earliest:
            # Files tell losses from deletions after them, a service does not.
            found[gap.topic] = min(gap.last + 1, earliest[gap.topic].seq)
    return found


def _without_record(spark: Any, rows: Any, records: Any, end: Offsets, tags: Sequence[str]) -> Any:
    """Rows whose record is not there, rows with one of the tags, and losses: topic, epoch (null: only a loss), offset,
    whether by a tag, and the last offset of a loss that begins there. All from one read, as `records` may be many."""
    from pyspark.sql import functions as f

    tagged = rows.where(rows["tag"].isin(list(tags))) if tags else rows.where(f.lit(False))
    ends = spark.createDataFrame(
        [(topic, at.epoch, at.seq) for topic, at in end.items()], "topic string, epoch long, end long"
    )
    covered = rows.join(f.broadcast(ends), ["topic", "epoch"]).where(f.col("offset") < f.col("end"))
    told = records.withColumn("there", f.lit(True))
    joined = covered.select("topic", "epoch", "offset").join(told, ["topic", "offset"], "full_outer")
    missing = joined.where(f.col("there").isNull() | f.col("gap_to").isNotNull())
    return (
        missing.select("topic", "epoch", "offset", "gap_to", f.lit(False).alias("tagged"))
        .unionByName(tagged.select("topic", "epoch", "offset", f.lit(True).alias("tagged")), allowMissingColumns=True)
        .groupBy("topic", "epoch", "offset")
        .agg(f.max("tagged").alias("tagged"), f.max("gap_to").alias("gap_to"))
    )


def _kept(spark: Any, rows: Any, floors: Mapping[str, int]) -> Any:
    """Those of `rows` that were deleted, not lost."""
    from pyspark.sql import functions as f

    known = spark.createDataFrame(list(floors.items()), "topic string, floor long")
    # One at the front of a topic ends after deleted records; `floors` has those.
    between = rows.where(f.col("gap_to").isNotNull() & (f.col("offset") > 1))
    lost = between.select(f.col("topic").alias("of"), f.col("offset").alias("first"), f.col("gap_to").alias("last"))
    found = rows.where(f.col("epoch").isNotNull()).join(f.broadcast(known), "topic", "left")
    within = ~f.col("tagged") & (f.col("topic") == f.col("of")) & f.col("offset").between(f.col("first"), f.col("last"))
    dead = found.where(f.col("tagged") | (f.col("offset") >= f.col("floor"))).drop("gap_to")
    return dead.join(f.broadcast(lost), within, "left_anti").select("topic", "epoch", "offset")
