"""The formats of a lake's tables, by the names that `--format` has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark_topics.lake import delta, iceberg
from pyspark_topics.lake.layout import DELTA, About
from pyspark_topics.lake.sink import Sink


def sink(store: Any, about: About) -> Sink:
    """The tables of a lake. `store` is its directory."""
    return delta.Delta(store, about) if about.tables == DELTA else iceberg.Iceberg(store, about)


def settings(name: str, version: str, given: Mapping[str, str], jars: Path) -> dict[str, str]:
    """Settings of a session with a format, for a version of Spark. Raises `LakeError`."""
    return (delta.SESSION if name == DELTA else iceberg.SESSION).settings(version, given, jars)
