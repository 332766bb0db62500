"""Publishing: records become batches, and each batch one append with an idempotency key.

A batch that is repeated has the key of its first attempt, so the service appends it once.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypedDict, Unpack

import anyio
import anyio.abc

from topics_client.connection import Connection, segment
from topics_client.errors import TopicsError
from topics_client.items import NewRecord, Published, RecordFields, TopicConfig

KEPT_S = 100.0
"""How long a batch is repeated with its key. The idempotency window is 120 s by default, and an attempt takes time."""
FLUSH_S = 10.0
"""How long a publisher that ends by an error or a cancellation takes to flush."""


@dataclass
class Batch:
    """Encoded records of one append, and its idempotency key."""

    key: str
    records: list[bytes] = field(default_factory=list)
    size: int = 0

    def takes(self, record: bytes, most_records: int, most_bytes: int) -> bool:
        """Add the record if there is room; the first one always fits."""
        if self.records and (len(self.records) >= most_records or self.size + len(record) > most_bytes):
            return False
        self.records.append(record)
        self.size += len(record)
        return True

    async def append(self, connection: Connection, topic: str, options: Mapping[str, Any]) -> Published:
        fields = {"idempotency_key": self.key} | {name: value for name, value in options.items() if value is not None}
        body = b'%s,"records":[%s]}' % (json.dumps(fields).encode()[:-1], b",".join(self.records))
        path, params = f"/v0/topics/{segment(topic)}", {"return_seqs": False}
        try:
            told = await connection.call("POST", path, body, params=params, within_s=KEPT_S)
        except TopicsError as error:
            error.idempotency_key = self.key
            raise
        count = told.get("count", len(self.records))
        return Published(topic, told["first_seq"], told["last_seq"], count, told["created"], told["deduped"])


def batches(
    records: Iterable[NewRecord | Mapping[str, Any]],
    write: Callable[[Any], bytes],
    key: str,
    most: int,
    most_bytes: int,
) -> Iterator[Batch]:
    """Batches of records. The key of the first is `key`, those of the next `key:1`, `key:2` and so on."""
    batch, number = Batch(key), 0
    for record in records:
        encoded = (record if isinstance(record, NewRecord) else NewRecord.of(record)).encoded(write)
        if not batch.takes(encoded, most, most_bytes):
            yield batch
            number += 1
            batch = Batch(f"{key}:{number}")
            batch.takes(encoded, most, most_bytes)
    if batch.records:
        yield batch


def _with(done: Published | None, part: Published) -> Published:
    """The joint result of two publishes."""
    if done is None:
        return part
    created, deduped = done.created or part.created, done.deduped or part.deduped
    return replace(part, first_seq=done.first_seq, count=done.count + part.count, created=created, deduped=deduped)


def new_key() -> str:
    return uuid.uuid4().hex


class PublishOptions(TypedDict, total=False):
    """`node` is that of the writer. `create` and `config` are for a topic that does not exist."""

    node: str | None
    create: bool | None
    config: TopicConfig | None
    disable_backpressure: bool | None
    batch_records: int
    batch_bytes: int


class Publisher:
    """A context manager that gathers records into batches and flushes at its end.

    `send` waits while a full batch is written: that is the back-pressure. A record is safe when a later `flush`, or the
    end of the context, has returned. After an error the batch stays, and the next flush repeats it with its key. Tasks
    may share a publisher. With `linger_s`, `send` also raises an error that was met since the one before.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        node: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        disable_backpressure: bool | None = None,
        batch_records: int = 1000,
        batch_bytes: int = 1 << 20,
        linger_s: float | None = None,
    ) -> None:
        self.topic = topic
        self.done: Published | None = None
        """The acknowledged records."""
        self._connection = connection
        self._options = {"node": node, "create": create, "config": config, "disable_backpressure": disable_backpressure}
        self._most = batch_records, batch_bytes
        self._linger_s = linger_s
        self._open = Batch(new_key())
        self._full: deque[Batch] = deque()
        self._adding = threading.Lock()
        self._lock = anyio.Lock()
        self._begun = anyio.Event()
        self._error: TopicsError | None = None
        self._timer: anyio.abc.TaskGroup | None = None

    @property
    def published(self) -> int:
        """Number of records that the service has acknowledged."""
        return 0 if self.done is None else self.done.count

    async def publish(self, records: Iterable[NewRecord | Mapping[str, Any]], key: str | None) -> Published:
        """Append records in batches, one after the other. An error leaves the batches before it written."""
        for batch in batches(records, self._connection.write, key or new_key(), *self._most):
            self.done = _with(self.done, await batch.append(self._connection, self.topic, self._options))
        if self.done is None:
            raise ValueError("there are no records to publish")
        return self.done

    async def send(self, data: Any, **fields: Unpack[RecordFields]) -> None:
        """Add a record. If its batch is full, write that."""
        if self.add(data, fields):
            await self.go_on()

    def add(self, data: Any, fields: RecordFields) -> bool:
        """Add a record. Returns whether it is the first of a batch, so that `go_on` has to be called. Any thread may
        call this."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        record = (NewRecord.of({"data": data, **fields}) if fields else NewRecord(data)).encoded(self._connection.write)
        with self._adding:
            if not self._open.takes(record, *self._most):
                self._close_batch()
                self._open.takes(record, *self._most)
            return len(self._open.records) == 1

    async def go_on(self) -> None:
        """Write full batches, and let the timer run."""
        self._begun.set()
        if self._full:
            await self._write()

    async def flush(self) -> None:
        """Write all records that were sent. Raises what an append raises."""
        self._error = None
        with self._adding:
            if self._open.records:
                self._close_batch()
        await self._write()

    def _close_batch(self) -> None:
        self._full.append(self._open)
        self._open = Batch(new_key())

    async def _write(self) -> None:
        async with self._lock:
            while self._full:
                done = await self._full[0].append(self._connection, self.topic, self._options)
                self._full.popleft()
                self.done = _with(self.done, done)

    async def _linger(self, seconds: float) -> None:
        """Write the records that were sent `seconds` ago."""
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            await anyio.sleep(seconds)
            try:
                await self.flush()
            except TopicsError as error:
                self._error = error

    async def __aenter__(self) -> Self:
        if self._linger_s is not None:
            self._timer = await anyio.create_task_group().__aenter__()
            self._timer.start_soon(self._linger, self._linger_s)
        return self

    async def __aexit__(self, *error: Any) -> None:
        orderly = False
        try:
            if self._timer is not None:
                self._timer.cancel_scope.cancel()
                await self._timer.__aexit__(None, None, None)  # raises during a cancellation
            orderly = error[0] is None
        finally:
            with anyio.move_on_after(math.inf if orderly else FLUSH_S, shield=not orderly):
                await self.flush()
