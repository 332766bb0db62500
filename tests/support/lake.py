"""Spark with Delta Lake or Iceberg in environments that tools/install-lake.sh makes, and readers of tables without
Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import dataset
from pyiceberg.table import StaticTable

from pyspark_topics.lake import formats
from pyspark_topics.lake.layout import DELTA, ICEBERG
from tests.support.programs import leave_out
from tests.support.spark import ROOT, Spark

os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # Polars warns otherwise
HOMES = {DELTA: Path(sys.prefix) / "lake", ICEBERG: Path(sys.prefix) / "iceberg"}
"""Format of a table → the environment of a Spark with it."""
COLUMNS = ["topic", "epoch", "offset", "timestamp", "node", "tag", "value", "meta", "date"]


def _dataset(path: str, tables: str) -> Any:
    """A table as `deltalake` or `pyiceberg` reads it, for Arrow."""
    if tables == DELTA:
        return DeltaTable(path).to_pyarrow_dataset()
    return dataset(StaticTable.from_metadata(path).scan().to_arrow())


def _lazy(path: str, tables: str) -> polars.LazyFrame:
    return polars.scan_delta(path) if tables == DELTA else polars.scan_iceberg(StaticTable.from_metadata(path))


READERS: list[Callable[[str, str], Any]] = [
    lambda path, tables: _dataset(path, tables).to_table(columns=COLUMNS),
    lambda path, tables: duckdb.from_arrow(_dataset(path, tables)).to_arrow_table().select(COLUMNS),
    lambda path, tables: _lazy(path, tables).select(COLUMNS).collect().to_arrow(),
]
"""Engines without Spark: path and format of a table → its rows as an Arrow table."""


def _sums_by_arrow(path: str, tables: str) -> list[tuple[Any, ...]]:
    events = _dataset(path, tables).to_table(columns=["topic", "epoch", "offset", "value"])
    distinct = (
        events.group_by(["topic", "epoch", "offset"]).aggregate([]).group_by("topic").aggregate([([], "count_all")])
    )
    lengths = events.append_column("length", pc.utf8_length(events["value"]))
    sums = lengths.group_by("topic").aggregate([([], "count_all"), ("offset", "sum"), ("length", "sum")])
    found = sums.join(distinct, "topic", right_suffix="_distinct").sort_by("topic").to_pylist()
    names = ("topic", "count_all", "count_all_distinct", "offset_sum", "length_sum")
    return [tuple(row[name] for name in names) for row in found]


def _sums_by_duckdb(path: str, tables: str) -> list[tuple[Any, ...]]:
    query = """select topic, count(*), count(distinct (epoch, "offset")), sum("offset")::bigint,
        sum(length("value"))::bigint from events group by topic order by topic"""
    return duckdb.from_arrow(_dataset(path, tables)).query("events", query).fetchall()


def _sums_by_polars(path: str, tables: str) -> list[tuple[Any, ...]]:
    measures = [
        polars.len(),
        polars.struct("epoch", "offset").n_unique().alias("distinct"),
        polars.col("offset").sum(),
        polars.col("value").str.len_chars().cast(polars.Int64).sum(),
    ]
    return _lazy(path, tables).group_by("topic").agg(measures).sort("topic").collect().rows()


def sums(table: Path, tables: str = DELTA) -> list[tuple[Any, ...]]:
    """Of each topic its name, numbers of rows and of distinct ones, sums of offsets and of lengths of values, on which
    all readers agree."""
    found = [read(str(table), tables) for read in (_sums_by_arrow, _sums_by_duckdb, _sums_by_polars)]
    assert found[0] == found[1] == found[2]
    return found[0]


def python(tables: str) -> str:
    return str(HOMES[tables] / "bin" / "python")


def jars(tables: str = DELTA) -> str:
    found = sorted(map(str, (HOMES[tables] / "jars").glob("*.jar")))
    if not found:
        leave_out("Spark with Delta Lake and Iceberg from PyPI and Maven Central (tools/install-lake.sh)")
    return ",".join(found)


def settings(tables: str) -> dict[str, str]:
    given = {
        "spark.jars": jars(tables),
        "spark.master": "local[2]",
        "spark.python.authenticate.socketTimeout": "300s",  # workers begin late on a busy machine
        "spark.sql.shuffle.partitions": "2",
        # Short runs end before the optimising compiler pays.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    return formats.settings(tables, "", given, HOMES[tables])


def session(tables: str = DELTA, enter: Sequence[str] = ()) -> Spark:
    given = {name.replace(".", "__"): value for name, value in settings(tables).items() if name != "spark.master"}
    return Spark(python=python(tables), enter=enter, **given)


def start(*arguments: str, tables: str, log: Path) -> subprocess.Popen[bytes]:
    """`topics-spark lake` as a process group of its own. Its output goes to `log`."""
    conf = [f"--conf={name}={value}" for name, value in settings(tables).items() if name != "spark.master"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    with log.open("ab") as file:
        return subprocess.Popen(
            [
                python(tables),
                "-m",
                "pyspark_topics.jobs",
                "--master",
                "local[2]",
                *conf,
                "lake",
                "--format",
                tables,
                *arguments,
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def rows(table: Path, tables: str = DELTA) -> list[list[str]]:
    """Rows of a table on which all other engines agree, in order of topic and offset, values as text."""
    order = [("topic", "ascending"), ("offset", "ascending")]
    read = [reader(str(table), tables).sort_by(order).to_pylist() for reader in READERS]
    found = [[[str(value) for value in row.values()] for row in rows] for rows in read]
    assert found[0] == found[1] == found[2]
    return found[0]


def job(spark: Spark, *arguments: Any) -> dict[str, Any]:
    """Run a job in a session. An error is the sentence that the command ends with."""
    said: dict[str, Any] = spark.run(f"""
        from pyspark_topics.jobs.cli import _sentence, parser
        given = parser().parse_args({[str(each) for each in arguments]!r})
        try:
            answer = given.run(spark, given)
        except Exception as error:
            raise RuntimeError(_sentence(error)) from None
    """)
    return said
