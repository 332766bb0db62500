"""Spark counts flights per carrier in the data directory of a running service, and gets what the CSV file says.

    make demo-spark

The service keeps running and is not asked anything: Spark reads its files. Needs Java 17 or newer. Ends with a line of
proof and exit status 0; with 1 and the differing counts if they differ.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from demo import timed
from flights import Difference, load_csv, topic, write_all
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from service import Service

console = Console()


def spark_counts(data_dir: Path) -> tuple[dict[str, int], dict[str, int], float]:
    """Records per topic, records per `carrier` field of their data, and the seconds Spark's query took."""
    # Spark's workers must be this Python, with the packages that are installed for it.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from pyspark_topics import DefaultSource

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        # Spark finds an installed package by itself, but not one that pip installed as editable.
        spark.dataSource.register(DefaultSource)
        started = time.perf_counter()
        rows = (
            spark.read.format("topics")
            .load(str(data_dir))
            .withColumn("carrier", f.get_json_object(f.col("value").cast("string"), "$.carrier"))
            .groupBy("topic", "carrier")
            .count()
            .collect()
        )
        seconds = time.perf_counter() - started
    finally:
        spark.stop()
    by_topic: dict[str, int] = {}
    by_carrier: dict[str, int] = {}
    for row in rows:
        by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + row["count"]
        by_carrier[row["carrier"]] = by_carrier.get(row["carrier"], 0) + row["count"]
    return by_topic, by_carrier, seconds


def main() -> int:
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise FileNotFoundError("Spark needs Java 17 or newer: install it (Debian: default-jre-headless)")
    flights = load_csv()
    expected = {carrier: len(rows) for carrier, rows in flights.items()}
    total = sum(expected.values())
    with (
        tempfile.TemporaryDirectory(prefix="topics-demo-") as directory,
        Service(Path(directory) / "data") as service,
    ):
        timed("write the flights", service.port, flights, write_all)
        flights.clear()
        console.print(f"the service keeps running; Spark reads {service.data_dir}")
        by_topic, by_carrier, seconds = spark_counts(service.data_dir)
    table = Table("carrier", "CSV file", "topic", "records", "data.carrier")
    for column in table.columns[1:]:
        column.justify = "right"
    for carrier in sorted(expected, key=lambda c: -expected[c]):
        name = topic(carrier)
        table.add_row(
            carrier, f"{expected[carrier]:,}", name, f"{by_topic.get(name, 0):,}", f"{by_carrier.get(carrier, 0):,}"
        )
    console.print(table)
    if by_carrier != expected or by_topic != {topic(carrier): count for carrier, count in expected.items()}:
        raise Difference("Spark's counts are not those of the CSV file")
    console.print(
        f"[bold green]PROOF[/bold green] Spark read {total:,} flights of {len(expected)} carriers from the running "
        f"service's files in {seconds:.1f} s, and every count is the CSV file's",
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Difference, FileNotFoundError, OSError, RuntimeError) as error:
        console.print(f"[bold red]FAILED[/bold red] {type(error).__name__}: {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
