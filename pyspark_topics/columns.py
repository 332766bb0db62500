"""Columns of a read, with their types in Spark and in Arrow.

The first are those of Spark's Kafka source, the others are the record's own. `.option("columns", "topic, value")`
selects columns, and so does `.schema("topic string, value binary")`; others are not read. Spark does not tell a Python
source which columns a query needs.

    key            binary     the tag
    value          binary     data, JSON text as written; null in a row that reports a loss
    topic          string
    partition      int        shard
    offset         long       seq
    timestamp      timestamp  commit time
    timestampType  int        1: the time is that of the log (Kafka's LogAppendTime)
    node           string
    tag            string
    headers        array<struct<key string, value binary>>   with includeHeaders: the members of meta, in order; values
                                                             are JSON text as written
    gap_to         long       with includeTombstones: the last seq of a loss; `offset` is the first one
    gap_reason     string     with includeTombstones: cap, ttl, mixed, source_trim
    meta           binary     only if selected: the whole meta, JSON text as written
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from pyspark_topics.members import HEADERS
from pyspark_topics.options import BadOption, Options

_HEADERS = types.ArrayType(
    StructType([StructField("key", types.StringType()), StructField("value", types.BinaryType())])
)
TYPES: dict[str, tuple[Any, Any]] = {
    "key": (types.BinaryType(), pa.binary()),
    "value": (types.BinaryType(), pa.binary()),
    "topic": (types.StringType(), pa.string()),
    "partition": (types.IntegerType(), pa.int32()),
    "offset": (types.LongType(), pa.int64()),
    "timestamp": (types.TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (types.IntegerType(), pa.int32()),
    "node": (types.StringType(), pa.string()),
    "tag": (types.StringType(), pa.string()),
    "headers": (_HEADERS, HEADERS),
    "gap_to": (types.LongType(), pa.int64()),
    "gap_reason": (types.StringType(), pa.string()),
    "meta": (types.BinaryType(), pa.binary()),
}
EVERYTHING = StructType([StructField(name, spark) for name, (spark, _) in TYPES.items()])
_ALWAYS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "node", "tag")


def spark_schema(options: Options) -> StructType:
    """Schema of a read without `.schema(…)`. Raises `BadOption`."""
    names = [*options.columns]
    for name in names:
        if name not in TYPES:
            raise BadOption(f"option columns names {name!r}; topics has {', '.join(TYPES)}")
    if not names:
        names = [*_ALWAYS]
        if options.headers:
            names.append("headers")
        if options.tombstones:
            names += ["gap_to", "gap_reason"]
    return StructType([StructField(name, TYPES[name][0]) for name in names])


def arrow_schema(schema: StructType, options: Options | None = None) -> Any:
    """Arrow schema for a selection of the columns above. Raises `ValueError` for other columns, and `BadOption` for
    columns besides those of the option `columns`."""
    if options and options.columns and (others := {*schema.names} - {*options.columns}):
        raise BadOption(
            f"option columns = {', '.join(options.columns)!r}: .schema(…) names {', '.join(sorted(others))} besides; "
            "use one of the two"
        )
    for column in schema.fields:
        if column.name not in TYPES or TYPES[column.name][0].simpleString() != column.dataType.simpleString():
            raise ValueError(
                f"column {column.name} {column.dataType.simpleString()}: topics has "
                + ", ".join(f"{name} {spark.simpleString()}" for name, (spark, _) in TYPES.items())
            )
    return pa.schema([pa.field(c.name, TYPES[c.name][1], nullable=c.nullable) for c in schema.fields])
