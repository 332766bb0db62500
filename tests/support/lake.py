"""A Spark with Delta Lake in an environment that tools/install-lake.sh makes, and readers of tables without Spark."""

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
import pytest
from deltalake import DeltaTable

from pyspark_topics.lake import delta
from tests.support.spark import ROOT, Spark

HOME = Path(sys.prefix) / "lake"
PYTHON = str(HOME / "bin" / "python")
COLUMNS = ["topic", "epoch", "offset", "timestamp", "node", "tag", "value", "meta", "date"]
READERS: dict[str, Callable[[str], Any]] = {
    "deltalake": lambda path: DeltaTable(path).to_pyarrow_table(columns=COLUMNS),
    "duckdb": lambda path: duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset()).to_arrow_table().select(COLUMNS),
    "polars": lambda path: polars.read_delta(path, columns=COLUMNS).to_arrow(),
}
"""Engines without Spark: path of a table → its rows as an Arrow table."""


def _sums_of_deltalake(path: str) -> list[tuple[Any, ...]]:
    events = DeltaTable(path).to_pyarrow_dataset().to_table(columns=["topic", "epoch", "offset", "value"])
    distinct = (
        events.group_by(["topic", "epoch", "offset"]).aggregate([]).group_by("topic").aggregate([([], "count_all")])
    )
    lengths = events.append_column("length", pc.utf8_length(events["value"]))
    sums = lengths.group_by("topic").aggregate([([], "count_all"), ("offset", "sum"), ("length", "sum")])
    found = sums.join(distinct, "topic", right_suffix="_distinct").sort_by("topic").to_pylist()
    names = ("topic", "count_all", "count_all_distinct", "offset_sum", "length_sum")
    return [tuple(row[name] for name in names) for row in found]


def _sums_of_duckdb(path: str) -> list[tuple[Any, ...]]:
    query = """select topic, count(*), count(distinct (epoch, "offset")), sum("offset")::bigint,
        sum(length("value"))::bigint from events group by topic order by topic"""
    return duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset()).query("events", query).fetchall()


def _sums_of_polars(path: str) -> list[tuple[Any, ...]]:
    measures = [
        polars.len(),
        polars.struct("epoch", "offset").n_unique().alias("distinct"),
        polars.col("offset").sum(),
        polars.col("value").str.len_chars().cast(polars.Int64).sum(),
    ]
    return polars.scan_delta(path).group_by("topic").agg(measures).sort("topic").collect().rows()


def sums(table: Path) -> list[tuple[Any, ...]]:
    """Of each topic its name, numbers of rows and of distinct ones, sums of offsets and of lengths of values, on which
    all readers agree."""
    found = [read(str(table)) for read in (_sums_of_deltalake, _sums_of_duckdb, _sums_of_polars)]
    assert found[0] == found[1] == found[2]
    return found[0]


def jars() -> str:
    found = sorted(map(str, (HOME / "jars").glob("*.jar")))
    if not found:
        pytest.skip("tools/install-lake.sh has not made the environment of the lake's tests")
    return ",".join(found)


def settings() -> dict[str, str]:
    given = {
        "spark.jars": jars(),
        "spark.master": "local[2]",
        "spark.python.authenticate.socketTimeout": "300s",  # workers begin late on a busy machine
        "spark.sql.shuffle.partitions": "2",
        # Short runs end before the optimising compiler pays.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    return delta.settings("4.2", given, HOME)


def session(enter: Sequence[str] = ()) -> Spark:
    given = {name.replace(".", "__"): value for name, value in settings().items() if name != "spark.master"}
    return Spark(python=PYTHON, enter=enter, **given)


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """`topics-spark lake` as a process group of its own. Its output goes to `log`."""
    conf = [f"--conf={name}={value}" for name, value in settings().items() if name != "spark.master"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    with log.open("ab") as file:
        return subprocess.Popen(
            [PYTHON, "-m", "pyspark_topics.jobs", "--master", "local[2]", *conf, "lake", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def rows(table: Path, engine: str) -> list[list[str]]:
    """Rows of a table as another engine reads them, in order of topic and offset, values as text."""
    found = READERS[engine](str(table)).sort_by([("topic", "ascending"), ("offset", "ascending")])
    return [[str(value) for value in row.values()] for row in found.to_pylist()]


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
