"""The data source itself: what Spark asks for, answered from `plan`. Only this module knows pyspark.

Options: `path` (or the argument of `load`): a data directory, or the directory of one shard; several of them as
`load([...])` or as a JSON list. `coldPath`: the server's TOPICS_COLD_DIR if it has one, a JSON list of as many as there
are paths if there are several. `subscribe`: topics separated by commas, default all. Other options are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_topics.plan import Piece, plan, read
from pyspark_topics.writer import StreamWriter, Writer

_TYPES: list[tuple[str, Any, Any]] = [
    ("key", BinaryType(), pa.binary()),
    ("value", BinaryType(), pa.binary()),
    ("topic", StringType(), pa.string()),
    ("partition", IntegerType(), pa.int32()),
    ("offset", LongType(), pa.int64()),
    ("timestamp", TimestampType(), pa.timestamp("us", tz="UTC")),
    ("timestampType", IntegerType(), pa.int32()),
    ("node", StringType(), pa.string()),
    ("tag", StringType(), pa.string()),
    ("meta", BinaryType(), pa.binary()),
]
SCHEMA = StructType([StructField(name, spark) for name, spark, _ in _TYPES])
"""Columns as of Spark's Kafka source (`key` = tag, `value` = data as JSON text, `partition` = shard, `offset` = seq),
then the record's own: `node`, `tag`, and `meta` as JSON text."""


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark is untyped to mypy here
    """`spark.read.format("topics")`."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> Reader:
        return Reader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(self.options, schema)


class FilePartition(InputPartition):  # type: ignore[misc]
    """One segment, or one file of one shard's log."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)
        self.piece = piece


class Reader(DataSourceReader):  # type: ignore[misc]
    """A batch read: planned once on the driver, one task per file. Records that are deleted are left out."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._paths = paths(options)
        self._cold = cold_paths(options, len(self._paths))
        self._subscribe = frozenset(filter(None, map(str.strip, options.get("subscribe", "").split(","))))
        self._arrow = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        places = zip(self._paths, self._cold, strict=True)
        return [FilePartition(piece) for path, cold in places for piece in plan(path, self._subscribe, cold)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, FilePartition):
            # Spark makes a partition of its own when there is none.
            return
        yield from read(partition.piece, self._arrow)


def paths(options: dict[str, str]) -> list[str]:
    """Directories named by the options, keys in lower case or as Spark has them. `ValueError` if there are none."""
    given = {name.lower(): value for name, value in options.items()}
    found = _directories("path", given.get("paths") or given.get("path") or "")
    if not found:
        raise ValueError('no path: say spark.read.format("topics").load("<the server\'s data directory>")')
    return found


def cold_paths(options: dict[str, str], count: int) -> list[str | None]:
    """The cold directory of each of `count` paths, None where the options name none. `ValueError` if they name too
    few: two servers never share one."""
    given = {name.lower(): value for name, value in options.items()}
    found = _directories("coldPath", given.get("coldpath") or "")
    if found and len(found) != count:
        raise ValueError(f"coldPath names {len(found)} directories, but there are {count} paths; give one for each")
    return [*found] or [None] * count


def _directories(option: str, value: str) -> list[str]:
    if value.startswith("["):
        listed = json.loads(value)
        if not all(isinstance(path, str) for path in listed):
            raise ValueError(f"{option} {value!r}: a JSON list of directories must hold strings")
    else:
        listed = [value] if value else []
    return [str(path).removeprefix("file://") for path in listed]


def arrow_schema(schema: StructType) -> Any:
    """The Arrow form of `schema`, which is `SCHEMA` or a selection of its columns. Raises `ValueError` for others."""
    known = {name: (spark, arrow) for name, spark, arrow in _TYPES}
    for column in schema.fields:
        if column.name not in known or known[column.name][0] != column.dataType:
            raise ValueError(
                f"column {column.name} {column.dataType.simpleString()}: topics has "
                + ", ".join(f"{name} {spark.simpleString()}" for name, spark, _ in _TYPES)
            )
    return pa.schema([pa.field(c.name, known[c.name][1], nullable=c.nullable) for c in schema.fields])
