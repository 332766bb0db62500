"""A Spark session in a process of its own, so that its threads and warnings are not the tests'."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

SESSION = r"""
import json, os, sys, traceback
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
for line in sys.stdin:
    names = {"spark": spark, "answer": None}
    try:
        exec(json.loads(line), names)
        print(json.dumps(["answer", names["answer"]]), flush=True)
    except BaseException as error:
        traceback.print_exc()
        print(json.dumps(["error", str(error)]), flush=True)
spark.stop()
"""

QUERY = """
spark.read.format("topics").options(**{options!r}).load({path!r}).createOrReplaceTempView("topics")
answer = [row.asDict(recursive=True) for row in spark.sql({query!r}).collect()]
"""


class SparkError(AssertionError):
    """Spark failed; the text is its output."""


class Spark:
    """A session with master `local[2]` and further `settings`. `python` may be of another environment, with another
    Spark. `enter` is a command that replaces itself with the command after it, such as `nsenter`."""

    def __init__(
        self, *, python: str = sys.executable, root: Path | None = ROOT, enter: Sequence[str] = (), **settings: str
    ) -> None:
        # As for an installed package: Spark looks through sys.path for packages called pyspark_*.
        environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(root) if root else ""}
        configuration = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.pyspark.jvmStacktrace.enabled": "false",
        } | {name.replace("__", "."): value for name, value in settings.items()}
        self._process = subprocess.Popen(
            [*enter, python, "-c", SESSION, json.dumps(configuration)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # Otherwise Python would look for packages in the directory of the test run.
            cwd=root,
            text=True,
        )

    def run(self, code: str) -> Any:
        """Run Python code that may use `spark`; return the value that it leaves in `answer`, by way of JSON. Raises
        `SparkError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(('["answer"', '["error"')):
                kind, answer = json.loads(line)
                if kind == "error":
                    raise SparkError(answer)
                return answer
        raise SparkError("the Spark session ended without an answer")

    def query(self, path: Path | str, query: str, **options: str) -> list[Any]:
        """The rows of an SQL query over the view `topics`."""
        rows: list[Any] = self.run(QUERY.format(options=options, path=str(path), query=query))
        return rows

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
