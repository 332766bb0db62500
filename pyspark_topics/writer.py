"""Writer: `df.write.format("topics")` and `df.writeStream.format("topics")`, through the service's HTTP API.

Each task cuts its rows into chunks, topic by topic, and appends them one after the other. A chunk is one atomic write
of the service, with the idempotency key

    spark/<run>/<partition>/<chunk>/<hash of its records>

where `run` is `<query id>/<batch id>` for a stream, and for a batch write the option `runId`, by default a random one.
The end of a chunk depends only on the rows before it and on the options. A task appends full chunks and, of many
topics, those of Arrow batches that another one followed. The driver appends the rest when all tasks are done, because
Spark ends the rows of a task that fails or is killed as if there were no more. So repetition writes nothing twice:

    a request whose answer got lost            sent again, same key: the service answers with the first one's seqs
    a task that is retried or speculated       the same rows in the same order make the same chunks, with known keys
    a query restarted from its checkpoint      Spark repeats the batch under its number: the same chunks again
    the driver dies while it commits           as before: the keys of appended chunks are known
    an executor that outlives its driver       writes chunks whose keys are, or will be, known

The hash covers rows that come in *another* order the second time, for example after a shuffle. Without it, a key would
stand for other records, and some would be lost. With it, such rows are written again: never lost, but duplicated. To
avoid duplicates, sort the rows (`sortWithinPartitions`; in a stream, within `foreachBatch`, with a `runId` made of the
batch's id).

The service remembers keys for a topic's `idempotency_window_ms`, 2 minutes by default. A task or query repeated after
that writes its records again. Streams that may be down longer need a longer window, by `topicConfig` or by the topic's
configuration. A failed write is not rolled back: records appended before the failure stay.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from pyspark_topics.client import Client, Endpoint, ServiceError, integer

MAX_RECORDS = 1000
MAX_BYTES = 256 << 10
"""Largest size of a chunk. Larger chunks are hardly faster, and leave more to the driver."""
PENDING_BYTES = 4 << 20
"""Most bytes that a task with many topics leaves to the driver, besides those of its last Arrow batch."""
ROWS_AT_ONCE = 1000
COLUMNS = {"topic": "topic", "value": "data", "data": "data", "key": "tag", "tag": "tag", "node": "node"}
COLUMNS |= {"headers": "headers", "meta": "meta"}
"""Column → member of a record. Of two columns for one member, the one with the member's name is used."""
READ_ONLY = frozenset(("partition", "offset", "timestamp", "timestampType", "gap_to", "gap_reason"))
"""Columns of a read that a write ignores, because the service assigns them."""
_BATCH, _QUERY = "streaming.sql.batchId", "sql.streaming.queryId"
"""Local properties that Spark sets for the tasks of a stream."""
_ARROW_STREAMS = getattr(datasource, "DataSourceStreamArrowWriter", None)
"""Writer class of streams with Arrow batches; None in Spark 4.0, which passes rows."""


class CannotWrite(ValueError):
    """The rows or the options cannot be written. The message says which, and what to do."""


@dataclass
class Written(WriterCommitMessage):
    """Result of a task: `records` were appended, `repeated` of them by an earlier attempt. The driver appends `rest`:
    topic, begin of the key, and records as an Arrow batch."""

    records: int = 0
    repeated: int = 0
    rest: list[tuple[str, str, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters for writing rows of one schema; created on the driver, sent to the tasks."""

    endpoint: Endpoint
    columns: dict[str, str]
    """Member of a record → column."""
    topic: str = ""
    strings: bool = False
    max_records: int = MAX_RECORDS
    max_bytes: int = MAX_BYTES
    extra: bytes = b""
    """Members of each request besides key and records."""

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> Plan:
        """The plan for options and schema. Raises `CannotWrite`, `ServiceError`."""
        given = {name.lower(): value for name, value in options.items()}
        if "path" in given:
            raise CannotWrite("path: topics are written through the service, never into its files; say its url instead")
        columns = _columns(schema, "topic" in given)
        value_format = given.get("valueformat", "json").lower()
        if value_format not in ("json", "string"):
            raise CannotWrite(f"valueFormat {value_format!r}: say json (value is JSON text) or string")
        extra: dict[str, Any] = {}
        if "createtopics" in given:
            extra["create"] = boolean(given, "createTopics")
        if "topicconfig" in given:
            try:
                extra["config"] = json.loads(given["topicconfig"])
            except ValueError as error:
                raise CannotWrite(f"topicConfig is not JSON: {error}") from error
        members = b"".join(b"%s:%s," % (_json(name), _json(value)) for name, value in extra.items())
        return cls(
            Endpoint.of(options),
            columns,
            given.get("topic", ""),
            value_format == "string",
            integer(given, "maxRecordsPerRequest", MAX_RECORDS),
            integer(given, "maxBytesPerRequest", MAX_BYTES),
            members,
        )

    def write(self, batches: Iterator[Any], run: str) -> Written:
        """Append the full chunks of one task's rows; blocks. `run` identifies the task.

        Returns the counts and the rest. Raises `CannotWrite`, `ServiceError`.
        """
        topics: dict[str, Chunks] = {}
        done = Written()
        with self.endpoint.client() as client:
            for batch in batches:
                # All rows of the batches before are there. The last batch may have been cut short.
                while sum(chunks.size for chunks in topics.values()) > PENDING_BYTES:
                    topic, largest = max(topics.items(), key=lambda item: item[1].size)
                    for name, part in largest.rest():
                        self._append(client, topic, part, name, done)
                for topic, records in _by_topic(self._topics(batch), self.records(batch)):
                    chunks = topics.setdefault(topic, Chunks(f"spark/{run}", self.max_records, self.max_bytes))
                    chunks.add(records)
                    for name, full in chunks.full():
                        self._append(client, topic, full, name, done)
        for topic, chunks in topics.items():
            for name, part in chunks.rest():
                done.rest.append((topic, name, _packed(part)))
        return done

    def finish(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rest of all tasks; blocks. Raises `ServiceError`."""
        with self.endpoint.client() as client:
            for done in messages:
                if isinstance(done, Written):
                    for topic, name, part in done.rest:
                        self._append(client, topic, _unpacked(part), name, done)

    def _append(self, client: Client, topic: str, records: Any, name: str, done: Written) -> None:
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(records)], records), ",")[0].as_buffer()
        key = f"{name}/{hashlib.blake2b(joined, digest_size=16).hexdigest()}"
        body = b'{"idempotency_key":%s,%s"records":[%s]}' % (_json(key), self.extra, joined.to_pybytes())
        try:
            count, repeated = client.append(topic, body)
        except ServiceError as error:
            if not error.too_large or len(records) == 1:
                raise
            # The service's limits are lower than the options'. Halves are as deterministic as chunks.
            half = len(records) // 2
            self._append(client, topic, records[:half], name + ".0", done)
            self._append(client, topic, records[half:], name + ".1", done)
            return
        if count != len(records):
            raise ServiceError(f'topic "{topic}": {len(records)} records were sent under key {key}, {count} are there')
        done.records += count
        done.repeated += count if repeated else 0

    # From rows to records

    def _topics(self, batch: Any) -> Any:
        if self.topic:
            return pa.repeat(pa.scalar(self.topic), batch.num_rows)
        topics = _text(batch, self.columns["topic"])
        if topics.null_count:
            raise CannotWrite("a row has no topic: fill the column, or name one for all rows by the option topic")
        return topics

    def records(self, batch: Any) -> Any:
        """Each row as a record of the API's write, as JSON text. Raises `CannotWrite`."""
        value = _text(batch, self.columns["data"])
        if self.strings:
            data = _quoted(value)
        else:
            _check(value, self.columns["data"])
            data = value
        parts = []
        for name in ("tag", "node"):
            if name in self.columns:
                parts.append(_member(name, _quoted(_text(batch, self.columns[name]))))
        if "meta" in self.columns:
            meta = _text(batch, self.columns["meta"])
            _check(meta, self.columns["meta"])
            parts.append(_member("meta", meta))
        elif "headers" in self.columns:
            parts.append(_member("meta", _object(batch.column(self.columns["headers"]))))
        return _joined("{", *parts, '"data":', pc.fill_null(data, "null"), "}")


def _packed(records: Any) -> bytes:
    return bytes(pa.RecordBatch.from_arrays([records], _PACKED.names).serialize())


def _unpacked(raw: bytes) -> Any:
    return pa.ipc.read_record_batch(raw, _PACKED).column(0)


_PACKED = pa.schema([("record", pa.string())])


@dataclass(slots=True)
class Chunks:
    """Records of one topic that wait to be sent, and the begin of their keys."""

    name: str
    max_records: int
    max_bytes: int
    size: int = 0
    _number: int = 0
    _waiting: list[Any] = field(default_factory=list)

    def add(self, records: Any) -> None:
        self._waiting.append(records)
        self.size += pc.sum(pc.binary_length(records)).as_py() or 0

    def full(self) -> Iterator[tuple[str, Any]]:
        """Begin of the key, and records, of each chunk that is full."""
        if self.size < self.max_bytes and sum(map(len, self._waiting)) <= self.max_records:
            return
        records = pa.concat_arrays(self._waiting)
        ends = _ends(records)
        start = base = 0
        while start < len(records):
            stop = min(bisect_right(ends, base + self.max_bytes), start + self.max_records)
            if stop >= len(records):
                break
            stop = max(stop, start + 1)
            yield self._numbered(records[start:stop])
            start, base = stop, ends[stop - 1]
        self._waiting = [records[start:]]
        self.size = ends[-1] - base

    def rest(self) -> Iterator[tuple[str, Any]]:
        records = pa.concat_arrays(self._waiting) if self._waiting else ()
        self._waiting, self.size = [], 0
        if len(records):
            yield self._numbered(records)

    def _numbered(self, records: Any) -> tuple[str, Any]:
        self._number += 1
        return f"{self.name}/{self._number}", records


def _ends(records: Any) -> memoryview:
    """End of each record, in bytes from the begin of the first."""
    ends = pc.cumulative_sum(pc.cast(pc.binary_length(records), pa.int64()))
    return memoryview(ends.buffers()[1])[: 8 * len(ends)].cast("q")


def _columns(schema: StructType, topic_given: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for column in schema.fields:
        if column.name in READ_ONLY:
            continue
        part = COLUMNS.get(column.name)
        if part is None:
            raise CannotWrite(
                f"column {column.name}: topics takes {', '.join(COLUMNS)}; select these, as in "
                '.selectExpr("topic", "to_json(struct(*)) value")'
            )
        if part == "headers":
            element = column.dataType.elementType if isinstance(column.dataType, ArrayType) else None
            names = element.fieldNames() if isinstance(element, StructType) else []
            if names != ["key", "value"]:
                raise CannotWrite("column headers must be array<struct<key: string, value: binary>>")
        elif not isinstance(column.dataType, StringType | BinaryType):
            raise CannotWrite(f"column {column.name} is {column.dataType.simpleString()}, but must be string or binary")
        if part not in found or column.name == part:
            found[part] = column.name
    if "data" not in found:
        raise CannotWrite("there is no column value (or data), which is what a record holds")
    if "topic" not in found and not topic_given:
        raise CannotWrite('no topic: name it by .option("topic", …), or row by row in a column topic')
    return found


def boolean(options: Mapping[str, str], name: str) -> bool:
    """The boolean in an option; `options` has lower-case names. False by default. Raises `CannotWrite`."""
    value = options.get(name.lower(), "false").lower()
    if value not in ("true", "false"):
        raise CannotWrite(f"{name} {value!r}: say true or false")
    return value == "true"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _by_topic(topics: Any, records: Any) -> Iterator[tuple[str, Any]]:
    """The records of each topic, in their order."""
    order = pc.array_sort_indices(topics)  # stable
    topics = topics.take(order)
    if len(topics) and topics[0] != topics[-1]:
        records = records.take(order)
    runs = pc.run_end_encode(topics) if len(topics) else None
    start = 0
    for topic, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True) if runs else ():
        yield topic, records[start:stop]
        start = stop


def _text(batch: Any, name: str) -> Any:
    try:
        return batch.column(name).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CannotWrite(
            f"column {name} holds bytes that are not UTF-8 text: {error}; encode them, as base64() does"
        ) from error


def _joined(*parts: Any) -> Any:
    """Text columns concatenated row by row; null where a part is null."""
    return pc.binary_join_element_wise(*parts, "")


def _member(name: str, value: Any) -> Any:
    return pc.fill_null(_joined(f'"{name}":', value, ","), "")


def _quoted(text: Any) -> Any:
    """Text as JSON strings."""
    text = pc.replace_substring(text, "\\", "\\\\")
    text = pc.replace_substring(text, '"', '\\"')
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x1f]")).as_py():
        for control in map(chr, range(32)):
            text = pc.replace_substring(text, control, json.dumps(control)[1:-1])
    return _joined('"', text, '"')


def _object(headers: Any) -> Any:
    """Headers as a JSON object. Their values are JSON text, as in a read."""
    pairs = pc.list_flatten(headers)
    keys, values = (pc.struct_field(pairs, place).cast(pa.string()) for place in (0, 1))
    _check(values, "headers")
    members = _joined(_quoted(keys), ":", pc.fill_null(values, "null"))
    # The offsets of a sliced list do not begin at 0, so new ones are computed from the lengths.
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    text = _joined("{", pc.binary_join(pa.ListArray.from_arrays(offsets, members), ","), "}")
    return pc.if_else(pc.is_valid(headers), text, pa.scalar(None, pa.string()))


# Values must be checked before they are put into a request: `1},{"data":2` is not JSON and would make two records of
# one. A list of all values is parsed at once, in C; numbers are skipped.
_parse = json.JSONDecoder(parse_int=len, parse_float=len).decode


def _check(texts: Any, name: str) -> None:
    texts = texts.drop_null()
    if not len(texts):
        return
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), ",")[0].as_py()
    try:
        if len(_parse(f"[{joined}]")) == len(texts):
            return
    except (ValueError, RecursionError):
        pass
    for text in texts.to_pylist():
        try:
            _parse(text)
        except (ValueError, RecursionError) as error:
            also = (
                ", or write it as a JSON string by the option valueFormat=string" if name in ("value", "data") else ""
            )
            raise CannotWrite(
                f"column {name}: {text[:100]!r} is not JSON: {error}. Make it so, as to_json(struct(…)) does{also}"
            ) from error


# Spark's interface


class Writer(DataSourceArrowWriter):
    """Writer of a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._plan = Plan.of(options, schema)
        if overwrite:
            raise CannotWrite('topics are appended to, never overwritten: say .mode("append")')
        run = {name.lower(): value for name, value in options.items()}.get("runid") or uuid.uuid4().hex
        if len(run) > 128:
            raise CannotWrite(f"runId has {len(run)} characters, but at most 128 are allowed")
        self._run = run
        self._plan.endpoint.reach()  # on the driver, before any task starts

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._plan.write(iterator, f"{self._run}/{_task().partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._plan.finish(messages)


class StreamWriter(_ARROW_STREAMS or datasource.DataSourceStreamWriter):  # type: ignore[misc]
    """Sink of a stream. Each batch is written once, in all its attempts together."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._plan = Plan.of(options, schema)
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if not query or not batch:
            raise CannotWrite(
                "Spark did not say which query and batch this is; only micro-batch streams can be written"
            )
        if batch == "0" and task.partitionId() == 0:
            self._plan.endpoint.reach()  # once for a new query; one in progress waits for a service that is down
        batches = iterator if _ARROW_STREAMS else _as_batches(iterator, self._schema)
        return self._plan.write(batches, f"{query}/{batch}/{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._plan.finish(messages)


def _task() -> Any:
    task = TaskContext.get()
    if task is None:
        raise CannotWrite("only tasks of Spark write")
    return task


def _as_batches(rows: Iterator[Any], schema: StructType) -> Iterator[Any]:
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)
    while group := list(islice(rows, ROWS_AT_ONCE)):
        columns = [pa.array([row[place] for row in group], column.type) for place, column in enumerate(arrow)]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)
