"""Spark in processes of its own, as a user's script would run it: its threads and warnings are not the tests'.

A session is a Python process that runs snippets one after the other, with `spark` and all that earlier ones defined.
What a snippet calls `answer` comes back, by way of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark_topics

ROOT = Path(pyspark_topics.__file__).parent.parent

SESSION = r"""
import json, sys, traceback
from pyspark.sql import SparkSession, functions as f

builder = SparkSession.builder.config("spark.ui.enabled", "false")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
names = {"spark": spark, "f": f, "json": json}
print(json.dumps({"ready": True}), file=sys.__stdout__, flush=True)
for line in sys.stdin:
    names.pop("answer", None)
    try:
        exec(json.loads(line), names)
        said = {"answer": names.get("answer")}
    except BaseException as error:
        said = {"error": "".join(traceback.format_exception(error))}
    print(json.dumps(said), flush=True)
spark.stop()
"""
SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def environment() -> dict[str, str]:
    """What a process needs that runs Spark with this tree's package: as if installed, found through the path."""
    found = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return found


class SparkError(AssertionError):
    """A snippet failed. The text is its traceback, Spark's included."""


class Session:
    """A context manager; leaving it kills the process and the JVM with it."""

    def __init__(self, **settings: str) -> None:
        """Names of settings with `_` for the dots."""
        given = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SESSION, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
            start_new_session=True,
        )
        self._answer()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str) -> Any:
        """What the snippet calls `answer`. Raises `SparkError`."""
        self.send(code)
        return self._answer()

    def send(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if "error" in said:
                raise SparkError(said["error"])
            return said.get("answer")
        raise SparkError("the Spark session ended without an answer")

    def close(self) -> None:
        # The JVM sees its standard input close, and ends; Python's workers end with it.
        self.process.kill()
        self.process.communicate()
