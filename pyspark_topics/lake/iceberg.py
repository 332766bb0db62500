"""Iceberg: the door to Apache Iceberg in Spark. Appends once, deletes, compacts and vacuums. Tables are known by their
paths, without a catalog, as of `HadoopTables`.

A table says in its properties up to where it goes:

    topics-lake.mark        `Mark` of the newest version of the lake
    topics-lake.sequence    sequence number of the snapshot that added that version's rows

Steps of an append, and what a death in each leaves:

    1 add columns that the rows have and the table   an empty column, which the next run fills
      lacks
    2 Spark writes the rows, as a staged snapshot    a snapshot that no reader sees; `vacuum` removes it
    3 publish it and set both properties, in one     before it: as above. After it: the version is whole
      commit of the table's metadata

Step 3 is refused if the table has any other snapshot than the one that the rows were staged upon, and its commit if
another one came between. Snapshots of maintenance have `topics-lake` in their summary. One of others that only removes
rows or joins files is passed over; any other is an error, as the lake no longer knows which rows are its own. Source:
https://iceberg.apache.org/spec/#snapshots and, for staged ones, https://iceberg.apache.org/docs/latest/branching/
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from pyspark_topics.lake import layout
from pyspark_topics.lake.history import Table
from pyspark_topics.lake.layout import GAP_COLUMNS, GAPS, PARTITIONED, ROWS, About, LakeError, Mark, app_id, quoted
from pyspark_topics.lake.sink import MANY, Session, setting

MARK, SEQUENCE = "topics-lake.mark", "topics-lake.sequence"
OURS = "topics-lake"
"""In the summary of a snapshot: who made it."""
HARMLESS = ("delete", "replace")
"""Operations that add no rows."""
KEPT_METADATA = 20
"""Older files of a table's metadata that are kept."""


SESSION = Session(
    made={"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
    alone={"spark.sql.shuffle.partitions": "8"},
    artifacts={
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
    jar="iceberg-spark-runtime*.jar",
    needs="Apache Iceberg needs Spark 4.0 or 4.1",
    remedy="pip install 'pyspark>=4.1,<4.2', or name an Iceberg for it with --conf spark.jars.packages=…; Delta tables "
    "can be written by 4.2, too",
)


class Iceberg:
    """The tables of a lake, a `Sink`. `store` is the lake's directory."""

    def __init__(self, store: Any, about: About) -> None:
        self._store = store
        self._about = about
        self._api = store.jvm.org.apache.iceberg
        self._tables = self._api.hadoop.HadoopTables(store.configuration)

    def at(self, name: str) -> Table:
        table = self._load(name)
        return Table() if table is None else self._state(name, table)

    def frame(self, spark: Any, name: str) -> Any:
        return spark.read.format("iceberg").load(self._store.path(name))

    def create(self, name: str) -> None:
        if self._load(name) is not None:
            return
        columns, partitioned = (GAP_COLUMNS, ()) if name == GAPS else (layout.COLUMNS, PARTITIONED[self._about.form])
        struct = self._store.jvm.org.apache.spark.sql.types.StructType.fromDDL(layout.ddl(columns))
        schema = self._api.spark.SparkSchemaUtil.convert(struct)
        spec = self._api.PartitionSpec.builderFor(schema)
        for column in partitioned:
            spec = spec.identity(column)
        unsorted = self._api.SortOrder.unsorted()
        try:
            self._tables.create(schema, spec.build(), unsorted, self._properties(columns), self._store.path(name))
        except Exception as error:  # py4j wraps Java's exceptions
            if "AlreadyExistsException" not in str(error):
                raise
            # Another run was faster.

    def append(self, frame: Any, name: str, mark: Mark) -> None:
        if self.at(name).mark.version >= mark.version:
            return
        spark = frame.sparkSession
        self._widen(name, frame)
        staged = f"{app_id(self._about.lake, GAPS if name == GAPS else ROWS)}/{mark.version}"
        with setting(spark, "spark.wap.id", staged):
            (
                frame.write.format("iceberg")
                .mode("append")
                .option(f"snapshot-property.{OURS}", f"version {mark.version}")
                .save(self._store.path(name))
            )
        table = self._tables.load(self._store.path(name))
        rows = self._staged(table, staged)
        newest = table.currentSnapshot()
        apart = rows.parentId() != (None if newest is None else newest.snapshotId())
        if apart or self._state(name, table).mark.version >= mark.version:
            raise LakeError(
                f"{self._store.path(name)}: another run wrote to it meanwhile; of this batch nothing was written. "
                "Start again"
            )
        both = table.newTransaction()
        both.manageSnapshots().cherrypick(rows.snapshotId()).commit()
        both.updateProperties().set(MARK, mark.dump()).set(SEQUENCE, str(rows.sequenceNumber())).commit()
        both.commitTransaction()

    def appended(self, name: str) -> int:
        newest = self._tables.load(self._store.path(name)).currentSnapshot()
        return int(newest.summary().get("added-records") or 0)

    def delete(self, spark: Any, name: str, rows: Any) -> None:
        from pyspark.sql import functions as f

        # Not in SQL, which would need a view, and a view of a plan that reads the table cannot be merged into it.
        key = ("topic", "epoch", "offset")
        dead = rows.select(*(f.col(column).alias(f"dead_{column}") for column in key))
        same = f.expr(" AND ".join(f"{quoted(column)} = dead_{column}" for column in key))
        with setting(spark, f"spark.sql.iceberg.snapshot-property.{OURS}", "reconcile"):
            dead.mergeInto(self._named(spark, name), same).whenMatched().delete().merge()

    def compact(self, spark: Any, name: str, target: int) -> int:
        if name == GAPS or self.at(name).commit < 1:
            return 0
        rewrite = self._actions(spark).rewriteDataFiles(self._tables.load(self._store.path(name))).binPack()
        done = (
            rewrite.snapshotProperty(OURS, "compaction")
            .option("target-file-size-bytes", str(target))
            .option("min-file-size-bytes", str(target // 2))
            .option("min-input-files", str(MANY))
            .execute()
        )
        return int(done.rewriteResults().size())

    def vacuum(self, spark: Any, name: str, hours: float) -> None:
        if self.at(name).commit < 0:
            return
        before = time.time_ns() // 1_000_000 - int(hours * 3_600_000)
        table = self._tables.load(self._store.path(name))
        actions = self._actions(spark)
        actions.expireSnapshots(table).expireOlderThan(before).retainLast(1).execute()
        table.refresh()
        actions.deleteOrphanFiles(table).olderThan(before).execute()

    def _properties(self, columns: Mapping[str, str]) -> Any:
        found = self._store.jvm.java.util.HashMap()
        # Bounds of texts would stay in manifests when their rows are deleted.
        kept = {f"write.metadata.metrics.column.{name}": "full" for name in layout.SKIPPING if name in columns}
        properties = {
            "format-version": "3" if self._about.variant else "2",
            "commit.retry.num-retries": "0",
            "write.distribution-mode": "none",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.metrics.default": "none",
            "write.metadata.previous-versions-max": str(KEPT_METADATA),
            "write.wap.enabled": "true",
            MARK: Mark().dump(),
            SEQUENCE: "0",
        }
        for key, value in (properties | kept).items():
            found.put(key, value)
        return found

    def _load(self, name: str) -> Any:
        path = self._store.path(name)
        return self._tables.load(path) if self._tables.exists(path) else None

    def _state(self, name: str, table: Any) -> Table:
        properties = table.properties()
        said = layout.mark(properties.get(MARK))
        if said is None:
            raise LakeError(f"{self._store.path(name)}: it does not say up to where it goes; take another --to")
        published = int(properties.get(SEQUENCE))
        snapshot = table.currentSnapshot()
        newest = 0 if snapshot is None else int(snapshot.sequenceNumber())
        if newest < published:
            raise LakeError(
                f"{self._store.path(name)}: it was rolled back behind version {said.version} of the lake, so rows are "
                "missing. Make the newest snapshot of the lake the current one, or take another --to"
            )
        while snapshot is not None and snapshot.sequenceNumber() > published:
            parent, operation = snapshot.parentId(), snapshot.operation()
            if snapshot.summary().get(OURS) is None and operation not in HARMLESS:
                raise LakeError(
                    f"{self._store.path(name)}: snapshot {snapshot.snapshotId()} ({operation}) was not made by this "
                    f"lake, so its rows cannot be told from the lake's. Roll the table back to snapshot {parent}, or "
                    "take another --to"
                )
            snapshot = None if parent is None else table.snapshot(parent)
        return Table(newest, said)

    def _widen(self, name: str, frame: Any) -> None:
        """Add the columns of the frame that the table does not have."""
        table = self._tables.load(self._store.path(name))
        if any(table.schema().asStruct().field(column) is None for column in frame.columns):
            wanted = self._api.spark.SparkSchemaUtil.convert(frame._jdf.schema())
            table.updateSchema().unionByNameWith(wanted).commit()

    def _staged(self, table: Any, wanted: str) -> Any:
        """The newest snapshot that was staged under this name."""
        for snapshot in reversed(list(table.snapshots())):
            if snapshot.summary().get("wap.id") == wanted:
                return snapshot
        raise LakeError(f"{table.location()}: no staged snapshot {wanted}; another program removed it. Start again")

    def _actions(self, spark: Any) -> Any:
        return self._api.spark.actions.SparkActions.get(spark._jsparkSession)

    def _named(self, spark: Any, name: str) -> str:
        """The table's name in SQL, which knows none by its path."""
        catalog = f"topics_{hashlib.sha256(self._store.root.encode()).hexdigest()[:16]}"
        spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in (("type", "hadoop"), ("warehouse", self._store.root), ("cache-enabled", "false")):
            spark.conf.set(f"spark.sql.catalog.{catalog}.{key}", value)
        return ".".join(map(quoted, (catalog, *name.split("/"))))
