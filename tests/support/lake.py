"""The environment of the lake's tests, made by tools/install-lake.sh: a Spark with Delta Lake, and other readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_topics.lake import delta
from tests.support.spark import ROOT, Spark

HOME = Path(sys.prefix) / "lake"
PYTHON = str(HOME / "bin" / "python")
READ = r"""
import json, sys
from deltalake import DeltaTable
import duckdb, polars, pyarrow as pa
path, engine = sys.argv[1:]
table = DeltaTable(path)
columns = ["topic", "epoch", "offset", "timestamp", "node", "tag", "value", "meta", "date"]
if engine == "deltalake":
    found = table.to_pyarrow_table(columns=columns)
elif engine == "duckdb":
    dataset = table.to_pyarrow_dataset()
    names = ", ".join(f'"{name}"' for name in columns)
    found = duckdb.sql(f"select {names} from dataset").to_arrow_table()
else:
    found = polars.read_delta(path, columns=columns).to_arrow()
found = found.sort_by([("topic", "ascending"), ("offset", "ascending")])
rows = [[str(value) for value in row.values()] for row in found.to_pylist()]
print(json.dumps(rows))
"""


def jars() -> str:
    found = sorted(map(str, (HOME / "jars").glob("*.jar")))
    if not found:
        pytest.skip("tools/install-lake.sh has not made the environment of the lake's tests: it needs Maven")
    return ",".join(found)


def settings() -> dict[str, str]:
    return delta.settings("4.2", {"spark.jars": jars(), "spark.master": "local[2]"}, HOME)


def session(**more: str) -> Spark:
    given = {name.replace(".", "__"): value for name, value in settings().items() if name != "spark.master"}
    return Spark(python=PYTHON, **given, **more)


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
    done = subprocess.run([PYTHON, "-c", READ, str(table), engine], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def job(spark: Spark, *arguments: Any) -> dict[str, Any]:
    """Run a job in a session."""
    said: dict[str, Any] = spark.run(f"""
        from pyspark_topics.jobs.cli import parser
        given = parser().parse_args({[str(each) for each in arguments]!r})
        answer = given.run(spark, given)
    """)
    return said
