"""`topics-spark archive`: writes topics to Parquet incrementally; each run adds the records since the last one.

    <archive>/topic=<topic>/date=<UTC day>/part-….parquet     data for readers: spark.read.parquet("<archive>")
    <archive>/_topics/commits/<number, 12 digits>.json        files and end positions of each run
    <archive>/_topics/staging/<number>-<run>/…                files of a run that has not committed

Columns: `epoch`, `offset`, `timestamp`, `partition`, `node`, `tag`, `value` and `meta` as JSON text, `topic`, `date`. A
record is identified by topic, epoch and offset; a topic that was deleted and created again has another epoch.

Steps of a run, and the state if the run dies in the step:

    1 complete steps 5 and 6 of the last commit           the next run repeats it
    2 choose the ranges: from the last commit's end       nothing was written
    3 write their records to a staging directory          files that no reader sees; step 6 of a later run removes them
    4 create the commit, with the list of the files       before: as after 3. After: the run is committed
    5 rename the files to their final paths               some are moved; step 1 of the next run moves the others
    6 remove staging directories up to this number        the next run removes them

A commit is created under the number after the last one, and only if that number is free. Of two concurrent runs one
wins, and the other's files are never seen. A file never changes its final name, so moving it twice does nothing. Every
record that existed when its range was read is therefore in the archive exactly once. A reader sees a run's records file
by file, but never twice.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_topics import offsets
from pyspark_topics.jobs.store import Store
from pyspark_topics.offsets import Offsets, Source
from pyspark_topics.options import all_there, parse

VERSION = 1
COMMITS, STAGING = "_topics/commits", "_topics/staging"
COLUMNS = "topic, partition, offset, timestamp, node, tag, value, meta"


class ArchiveError(ValueError):
    """The run cannot add to the archive. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of a run. The next run begins at `offsets`. `files` are paths below the archive."""

    number: int = 0
    run: str = ""
    offsets: Offsets = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def staging(self) -> str:
        return f"{STAGING}/{self.number:012d}-{self.run}"

    def dump(self) -> bytes:
        about = {
            "version": VERSION,
            "run": self.run,
            "made_ms": time.time_ns() // 1_000_000,
            "offsets": offsets.dump(self.offsets),
            "counts": self.counts,
            "files": self.files,
        }
        return json.dumps(about, indent=1).encode()


def last(store: Store) -> Commit:
    """The newest commit; number 0 if there is none. Raises `ArchiveError`."""
    names = [name for name in store.list(COMMITS) if name.endswith(".json")]
    if not names:
        return Commit()
    path = f"{COMMITS}/{names[-1]}"
    about = json.loads(store.read(path))
    if about.get("version") != VERSION:
        raise ArchiveError(
            f"{store.path(path)}: version {about.get('version')}, known here: {VERSION}; update pyspark_topics"
        )
    return Commit(
        int(names[-1].removesuffix(".json")),
        about["run"],
        offsets.load(about["offsets"]),
        about["counts"],
        tuple(about["files"]),
    )


def finish(store: Store, commit: Commit) -> None:
    """Do steps 5 and 6."""
    if commit.run and store.exists(commit.staging):
        for name in commit.files:
            store.move(f"{commit.staging}/{name}", name)
    for name in store.list(STAGING):
        if int(name.partition("-")[0]) <= commit.number:
            store.remove(f"{STAGING}/{name}")


def run(
    spark: Any, source: Source, options: Mapping[str, str], store: Store, *, fail_on_data_loss: bool = True
) -> dict[str, Any]:
    """Add new records to the archive. `options` are those of a read, from which `source` was made. Returns a summary.

    Raises `ArchiveError`, `BadOption`, `offsets.DataLoss` and Spark's exceptions.
    """
    before = last(store)
    finish(store, before)
    end = offsets.onward(before.offsets, source.latest())
    all_there(parse(options, streaming=True).topics, end)
    unread = offsets.unread(before.offsets, end, source.earliest() if not before.number else {})
    gaps = offsets.vanished(before.offsets, end, end)
    offsets.report(gaps, fail_on_data_loss)
    commit = Commit(before.number + 1, uuid.uuid4().hex, end)
    counts: dict[str, int] = {}
    files: list[str] = []
    if unread:
        counts = _stage(spark, options, unread, end, store.path(commit.staging), fail_on_data_loss)
        files = [name for name, _ in store.files(commit.staging) if name.endswith(".parquet")]
        _same(end, source.latest())
    elif before.offsets == end:
        return _said(before, {}, [])
    commit = Commit(commit.number, commit.run, end, counts, tuple(files))
    try:
        store.create(f"{COMMITS}/{commit.number:012d}.json", commit.dump(), commit.run)
    except FileExistsError:
        store.remove(commit.staging)
        raise ArchiveError(
            f"{store.root}: another run has committed number {commit.number} meanwhile; this one's files are removed. "
            "Run it again for what came since"
        ) from None
    finish(store, commit)
    return _said(commit, counts, files)


def _said(commit: Commit, counts: Mapping[str, int], files: list[str]) -> dict[str, Any]:
    return {"commit": commit.number, "records": sum(counts.values()), "topics": dict(counts), "files": len(files)}


def _stage(
    spark: Any,
    options: Mapping[str, str],
    unread: Mapping[str, tuple[int, int]],
    end: Offsets,
    path: str,
    fail_on_data_loss: bool,
) -> dict[str, int]:
    """Do step 3. Returns the number of staged records by topic."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    ranged = {
        **{name: value for name, value in options.items() if not name.lower().startswith("subscribe")},
        "assign": json.dumps(sorted(unread)),
        "startingOffsets": json.dumps({topic: low for topic, (low, _) in unread.items()}),
        "endingOffsets": json.dumps({topic: stop for topic, (_, stop) in unread.items()}),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    epochs = spark.createDataFrame([(topic, end[topic].epoch) for topic in unread], "topic string, epoch long")
    (
        spark.read.format("topics")
        .options(**ranged, columns=COLUMNS)
        .load()
        .join(f.broadcast(epochs), "topic")
        .withColumn("value", f.col("value").cast("string"))
        .withColumn("meta", f.col("meta").cast("string"))
        .withColumn("date", f.to_date("timestamp"))
        .sortWithinPartitions("topic", "date", "offset")
        .write.partitionBy("topic", "date")
        .parquet(path)
    )
    staged = spark.read.schema("topic string, offset long").parquet(path)
    found = staged.groupBy("topic").agg(f.count("*"), f.min("offset"), f.max("offset")).collect()
    for topic, _, first, final in found:
        low, stop = unread[topic]
        if not low <= first <= final < stop:
            raise ArchiveError(
                f'topic "{topic}": records {first} to {final} were read, expected some of {low} to {stop - 1}'
            )
    return {topic: count for topic, count, _, _ in found}


def _same(end: Offsets, now: Offsets) -> None:
    """Raises `ArchiveError` if a topic was recreated since its range was chosen."""
    other = [t for t, at in end.items() if t in now and at.epoch and now[t].epoch and at.epoch != now[t].epoch]
    if other:
        raise ArchiveError(f'topic "{other[0]}" was deleted and created again while it was read; run the archive again')
