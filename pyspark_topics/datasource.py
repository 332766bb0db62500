"""Data source: implements Spark's DataSource interface and delegates to the other modules.

`options` has the options, `columns` the columns. With option `path`, `files` reads the server's files in place; with
option `url`, `feed` reads from a running service. `writer` writes, always through a service.

Spark starts a Python process to make the source, another one to plan the read, and others for the tasks. Each of them
imports this module, so what only one of them needs is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_topics.columns import arrow_schema, spark_schema
from pyspark_topics.options import BadOption, parse

if TYPE_CHECKING:
    from pyspark_topics.stream import StreamReader
    from pyspark_topics.writer import StreamWriter, Writer


class DefaultSource(DataSource):
    """`spark.read.format("topics")`, `spark.readStream.format("topics")`."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        # Spark asks for the columns before it tells whether this is a read or a stream.
        try:
            return spark_schema(parse(self.options))
        except BadOption as of_a_read:
            try:
                return spark_schema(parse(self.options, streaming=True))
            except BadOption as of_a_stream:
                # The error is the read's, unless the read was refused because of an option that only streams have.
                raise of_a_stream if "nly a stream" in str(of_a_read) else of_a_read from None

    def reader(self, schema: StructType) -> DataSourceReader:
        given = dict(self.options)
        return ServiceReader(given, schema) if parse(given).url else Reader(given, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from pyspark_topics import stream
        from pyspark_topics.sources import source

        options = parse(self.options, streaming=True)
        return stream.reader(source(self.options, options, arrow_schema(schema, options)), options)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        from pyspark_topics.writer import Writer

        return Writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from pyspark_topics.writer import StreamWriter

        return StreamWriter(self.options, schema)


class _Push:
    """`pushFilters` of a reader.

    Spark 4.1 and later refuse a reader with this method unless spark.sql.python.filterPushdown.enabled is true. For
    files, pushed filters only save time, so the reader must work without the setting too. Spark compares `__func__` of
    the method with that of its own class; this object returns Spark's. Spark calls it only if the setting is on.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        from pyspark_topics.where import conditions

        self._reader.where = conditions(filters)
        return filters


class Reader(DataSourceReader):
    """Batch read of files: planned once on the driver, with about one task per file. Leaves out deleted records."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        from pyspark_topics.where import ALL

        self._options = parse(options)
        self._arrow = arrow_schema(schema, self._options)
        self.where = ALL

    @property
    def pushFilters(self) -> _Push:
        return _Push(self)

    def partitions(self) -> list[InputPartition]:
        from pyspark_topics import files

        return files.batch(self._options, self.where)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from pyspark_topics import files

        yield from files.read(partition, self._arrow)


class ServiceReader(DataSourceReader):
    """Batch read through a service, in tasks by seqs (`offsets.shares`). Spark applies all filters."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        from pyspark_topics.client import Endpoint
        from pyspark_topics.feed import Feed

        options = self._options = parse(given)
        self._source = Feed(Endpoint.of(given), options, arrow_schema(schema, options), telling=options.tombstones)

    def partitions(self) -> Sequence[InputPartition]:
        from pyspark_topics import stream

        options = self._options
        start = stream.begin(self._source, options.starting, options.topics)
        if not options.tombstones:
            return self._source.partitions(start, stream.finish(self._source, options.ending, start))
        # With rows for losses, the earliest seq is the first that the topic ever had.
        start = {t: at._replace(seq=1) if options.starting.earliest(t) else at for t, at in start.items()}
        return self._source.told(start, stream.finish(self._source, options.ending, start))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self._source.read(partition)
