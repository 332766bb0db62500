"""The data source itself: what Spark asks for, and which module answers it.

`options` has the options, `columns` the columns. Option `path`: the server's files, read in place (`files`); option
`url`: a running service (`feed`). Writing is `writer`'s, always through a service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_topics import files, stream
from pyspark_topics.columns import arrow_schema, spark_schema
from pyspark_topics.options import BadOption, parse
from pyspark_topics.rows import Counters
from pyspark_topics.sources import source
from pyspark_topics.where import ALL, conditions
from pyspark_topics.writer import StreamWriter, Writer


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark is untyped to mypy here
    """`spark.read.format("topics")`, `spark.readStream.format("topics")`."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        # A read or a stream? Spark asks for the columns before it says.
        try:
            return spark_schema(parse(self.options))
        except BadOption as of_a_read:
            try:
                return spark_schema(parse(self.options, streaming=True))
            except BadOption as of_a_stream:
                # What is wrong for both is told once. Else it is a read, unless it says what only streams can.
                raise of_a_stream if "nly a stream" in str(of_a_read) else of_a_read from None

    def reader(self, schema: StructType) -> DataSourceReader:
        given = dict(self.options)
        return ServiceReader(given, schema) if parse(given).url else Reader(given, schema)

    def streamReader(self, schema: StructType) -> stream.StreamReader:
        options = parse(self.options, streaming=True)
        return stream.reader(source(self.options, options, arrow_schema(schema)), options)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(self.options, schema)


class _Push:
    """`pushFilters` of a reader.

    Spark 4.1 and later refuse a reader that has this method unless spark.sql.python.filterPushdown.enabled is true, so
    that nobody believes in vain that filters are pushed down. For files they only save time. So when Spark looks
    whether the method is that of its own class (`__func__`), it is; when it is called, the setting is on.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        self._reader.where = conditions(filters)
        return filters


class Reader(DataSourceReader):  # type: ignore[misc]
    """A batch read: planned once on the driver, one task per file. Records that are deleted are left out."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = parse(options)
        self._arrow = arrow_schema(schema)
        self.where = ALL
        self.counters = Counters()
        """Of planning; tasks are elsewhere."""

    @property
    def pushFilters(self) -> _Push:
        return _Push(self)

    def partitions(self) -> list[InputPartition]:
        return files.batch(self._options, self.where, self.counters)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from files.read(partition, self._arrow)


class ServiceReader(DataSourceReader):  # type: ignore[misc]
    """A batch read through a service: a task per topic, or more with `minPartitions`. Filters are Spark's business."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._options = parse(given)
        self._source = source(given, self._options, arrow_schema(schema))

    def partitions(self) -> Sequence[InputPartition]:
        start = stream.begin(self._source, self._options.starting, self._options.topics)
        return self._source.partitions(start, stream.finish(self._source, self._options.ending, start))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self._source.read(partition)
