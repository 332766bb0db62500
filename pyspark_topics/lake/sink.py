"""Sink: what the jobs need of the format of a lake's tables. `delta` and `iceberg` are the two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def session(
    version: str,
    given: Mapping[str, str],
    jars: Path,
    *,
    artifacts: Mapping[tuple[int, int], str],
    jar: str,
    needs: str,
    remedy: str,
) -> dict[str, str]:
    """Settings of a session for a version of Spark: those `given`, and the package of `artifacts` for it, unless
    other jars were named, or one named like `jar` is in the directory `jars` of Spark. Raises `LakeError` with what the
    format `needs` if there is none."""
    known = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if "spark.jars" in given or "spark.jars.packages" in given or any(jars.glob(jar)):
        return {**given}
    found = artifacts.get((known[0], known[1])) if len(known) > 1 else None
    if found is None:
        raise LakeError(f"{needs}, this is {version}: {remedy}")
    return {"spark.jars.packages": found, **given}


def local(given: Mapping[str, str]) -> bool:
    """Whether a session runs in this process alone."""
    return given.get("spark.master", "local").startswith("local")


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
