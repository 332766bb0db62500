"""What bench/lake.py measures in Spark, in the environments of tools/install-lake.sh.

    python bench/lake_in_spark.py delta|iceberg DATA_DIR FOLDER LOADS

prints the measured runs as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
RUNS = 3
DELTA = "delta"
SPARK, ICEBERG, LINES = "topics-spark lake", "topics-spark lake, Iceberg", "JSON Lines → Delta, Spark"
SCHEMA = "topic string, offset bigint, timestamp timestamp, tag string, value string"


@dataclass(frozen=True)
class Load:
    """Records of the topics that begin with `name`, to be brought in so many batches."""

    name: str
    records: int
    batches: int

    @property
    def batch(self) -> int:
        return self.records // self.batches


def by_spark(tables: str, data: Path, folder: Path, loads: list[Load]) -> list[dict[str, Any]]:
    from pyspark.sql import SparkSession

    from pyspark_topics import DefaultSource
    from pyspark_topics.jobs import lake
    from pyspark_topics.jobs.store import Store
    from pyspark_topics.lake import formats
    from pyspark_topics.lake.layout import LENIENT, About
    from pyspark_topics.sources import positions

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    jars = ",".join(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
    given = {"spark.master": "local[2]", "spark.jars": jars, "spark.ui.enabled": "false", "spark.driver.memory": "3g"}
    builder = SparkSession.builder.config("spark.ui.showConsoleProgress", "false")
    for name, value in formats.settings(tables, "", given, folder).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DefaultSource)

    def topics(each: Load, to: Path) -> None:
        options = {"path": str(data), "subscribePattern": f"{each.name}.*", **LENIENT}
        settings = lake.Settings(once=True, max_records=each.batch)
        lake.run(spark, positions(options), options, Store(spark, str(to)), About(tables=tables), settings)

    def lines(each: Load, to: Path) -> None:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).json(str(folder / each.name))
        writer = stream.selectExpr("*", "to_date(timestamp) as date").writeStream.format("delta")
        writer = writer.partitionBy("topic", "date").option("checkpointLocation", str(to / "checkpoint"))
        writer.trigger(availableNow=True).start(str(to / "events")).awaitTermination()

    ways: dict[str, Callable[[Load, Path], None]] = (
        {SPARK: topics, LINES: lines} if tables == DELTA else {ICEBERG: topics}
    )
    found = timed(ways, folder, loads)
    spark.stop()
    return found


def timed(ways: dict[str, Callable[[Load, Path], None]], folder: Path, loads: list[Load]) -> list[dict[str, Any]]:
    """The fastest of `RUNS` runs of each way, in turn, and the table that it left."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in range(RUNS):
        for each in loads:
            for number, (way, bring) in enumerate(ways.items()):
                to = folder / f"{Path(sys.prefix).name}-{number}-{each.name}-{run}"
                started = time.perf_counter()
                bring(each, to)
                seconds = time.perf_counter() - started
                sys.stderr.write(f"{way}, {each.batches} batches of {each.batch}: {seconds:.2f} s\n")
                if (best := found.get((way, each.name))) is None or seconds < best["seconds"]:
                    found[way, each.name] = {"way": way, **asdict(each), "seconds": seconds, "table": str(to)}
    return list(found.values())


if __name__ == "__main__":
    tables, data, folder, plan = sys.argv[1:]
    print(json.dumps(by_spark(tables, Path(data), Path(folder), [Load(**each) for each in json.loads(plan)])))
