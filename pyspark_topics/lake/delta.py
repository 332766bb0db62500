"""Delta: the door to Delta Lake in Spark. Appends once by Delta's transaction ids, deletes, compacts and vacuums.

Every commit carries a `Mark` as its `userMetadata` (see `layout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark_topics.lake import history, typed
from pyspark_topics.lake.layout import GAPS, ROWS, Mark, app_id, quoted
from pyspark_topics.lake.sink import MANY, Session, setting

VERSION = "4.4.0"
UNUSED = "io.unitycatalog:*,io.delta:delta-kernel-*"
"""What Delta's description asks for and a table known by its path does not need. With it would come a Hadoop, a Parquet
and a Jackson of other versions than Spark's own."""
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


SESSION = Session(
    made={
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.jars.excludes": UNUSED,
    },
    alone={"spark.databricks.delta.snapshotPartitions": "2", "spark.sql.shuffle.partitions": "8"},
    artifacts={
        "4.0": f"io.delta:delta-spark_4.0_2.13:{VERSION}",
        "4.1": f"io.delta:delta-spark_4.1_2.13:{VERSION}",
        "4.2": f"io.delta:delta-spark_2.13:{VERSION}",
    },
    jar="delta-spark*.jar",
    needs=f"Delta Lake {VERSION} needs Spark 4.0, 4.1 or 4.2",
    remedy="pip install 'pyspark>=4.2,<4.3', or name a Delta for it with --conf spark.jars.packages=…; topics lake "
    "needs no Spark",
)


class Delta(history.Tables):
    """The tables of a lake, a `Sink`."""

    def frame(self, spark: Any, name: str) -> Any:
        return spark.read.format("delta").load(self._files.path(name))

    def append(self, frame: Any, name: str, mark: Mark) -> None:
        of = GAPS if name == GAPS else ROWS
        (
            frame.write.format("delta")
            .mode("append")
            .option("userMetadata", mark.dump())
            .option("txnAppId", app_id(self._about.lake, of))
            .option("txnVersion", mark.version)
            .option("mergeSchema", "true")
            .save(self._files.path(name))
        )

    def appended(self, name: str) -> int:
        return history.rows(self._files, name, self.at(name).commit)

    def delete(self, spark: Any, name: str, rows: Any) -> None:
        rows.createOrReplaceTempView("topics_lake_deleted")
        on = " AND ".join(f"t.{quoted(column)} = d.{quoted(column)}" for column in ("topic", "epoch", "offset"))
        with self._marked(spark, name):
            spark.sql(
                f"MERGE INTO delta.{quoted(self._files.path(name))} t USING topics_lake_deleted d ON {on} "
                "WHEN MATCHED THEN DELETE"
            ).collect()

    def compact(self, spark: Any, name: str, target: int) -> int:
        if name == GAPS or self.at(name).commit < 0:
            return 0
        log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, self._files.path(name))
        files = _frame(log.unsafeVolatileSnapshot().allFiles().toDF(), spark)
        small = files.where(files["size"] < target // 2).groupBy("partitionValues").count()
        full = [row["partitionValues"] for row in small.where(small["count"] >= MANY).collect()]
        if full:
            where = " OR ".join(
                "(" + " AND ".join(f"{quoted(k)} = {typed.text(v or '')}" for k, v in p.items()) + ")" for p in full
            )
            with self._marked(spark, name), setting(spark, "spark.databricks.delta.optimize.maxFileSize", str(target)):
                spark.sql(f"OPTIMIZE delta.{quoted(self._files.path(name))} WHERE {where}").collect()
        return len(full)

    def vacuum(self, spark: Any, name: str, hours: float) -> None:
        check = "spark.databricks.delta.retentionDurationCheck.enabled"
        # Delta lists directories in as many tasks as this says: 10000 by default, which take minutes on one machine.
        tasks = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
        few = str(4 * spark.sparkContext.defaultParallelism)
        with self._marked(spark, name), setting(spark, check, "false"), setting(spark, tasks, few):
            spark.sql(f"VACUUM delta.{quoted(self._files.path(name))} RETAIN {hours:g} HOURS").collect()

    @contextmanager
    def _marked(self, spark: Any, name: str) -> Iterator[None]:
        with setting(spark, _METADATA, replace(self.at(name).mark, repeated=True).dump()):
            yield


def _frame(java: Any, spark: Any) -> Any:
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(java, spark)
