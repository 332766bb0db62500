"""Sink: what the jobs need of the format of a lake's tables. `delta` and `iceberg` are the two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark_topics.lake.history import Table
from pyspark_topics.lake.layout import LakeError, Mark

MANY = 8
"""Small files of a partition that make compaction worth its commit."""


class Sink(Protocol):
    """The tables of one lake, by their paths below it. Every method raises `LakeError` if something else wrote rows to
    the table."""

    def at(self, name: str) -> Table:
        """The state of a table."""

    def frame(self, spark: Any, name: str) -> Any:
        """The rows of a table, as of now."""

    def create(self, name: str) -> None:
        """Create a table without rows, unless there is one. Appends add typed columns."""

    def append(self, frame: Any, name: str, mark: Mark) -> None:
        """Append rows as version `mark.version`. Does nothing if the table has that version."""

    def appended(self, name: str) -> int:
        """Number of rows of the newest commit."""

    def delete(self, spark: Any, name: str, rows: Any) -> None:
        """Delete the rows whose topic, epoch and offset are in the frame `rows`."""

    def compact(self, spark: Any, name: str, target: int) -> int:
        """Join small files to files of about `target` bytes, in partitions that have many. Returns how many were
        joined: partitions, or groups of files."""

    def vacuum(self, spark: Any, name: str, hours: float) -> None:
        """Remove files that the table has not used for `hours`."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a session of Spark needs for a format.

    `made` are settings, `alone` those of a session that runs in this process alone. `artifacts` are packages by version
    of Spark, `jar` is how they are named. `needs` and `remedy` end the refusal of other versions."""

    made: Mapping[str, str]
    alone: Mapping[str, str]
    artifacts: Mapping[str, str]
    jar: str
    needs: str
    remedy: str

    def settings(self, version: str, given: Mapping[str, str], jars: Path) -> dict[str, str]:
        """Settings for a version of Spark: those `given`, and the package for it, unless other jars were named or are
        in the directory `jars` of Spark. Raises `LakeError` if there is none."""
        made = {**self.made}
        if given.get("spark.master", "local").startswith("local"):
            made |= self.alone
        if "spark.jars" not in given and "spark.jars.packages" not in given and not any(jars.glob(self.jar)):
            found = self.artifacts.get(".".join(re.findall(r"\d+", version)[:2]))
            if found is None:
                raise LakeError(f"{self.needs}, this is {version}: {self.remedy}")
            made["spark.jars.packages"] = found
        return made | {**given}


@contextmanager
def setting(spark: Any, name: str, value: str) -> Iterator[None]:
    """Context in which a session has a setting."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
