"""The columns of a row."""

from __future__ import annotations

import pyarrow as pa

from pyspark_topics.columns import EVERYTHING as SCHEMA
from pyspark_topics.columns import arrow_schema


def test_arrow_types_are_what_spark_expects_of_the_schema() -> None:
    assert arrow_schema(SCHEMA).field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert arrow_schema(SCHEMA).names == SCHEMA.names
