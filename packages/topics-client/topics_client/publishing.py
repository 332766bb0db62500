"""Publishing: records become batches, and each batch one append with an idempotency key.

A batch that is repeated has the key of its first attempt, so the service appends it once.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import anyio

from topics_client.connection import Connection, segment
from topics_client.errors import TopicsError
from topics_client.items import NewRecord, Published

BATCH_RECORDS, BATCH_BYTES = 1000, 1 << 20
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
        try:
            told = await connection.call("POST", f"/v0/topics/{segment(topic)}", body, params={"return_seqs": False})
        except TopicsError as error:
            error.idempotency_key = self.key
            raise
        count = told.get("count", len(self.records))
        return Published(topic, told["first_seq"], told["last_seq"], count, told["created"], told["deduped"])


def new_record(given: NewRecord | Mapping[str, Any]) -> NewRecord:
    """A record from its fields. Raises `TypeError` for fields that records do not have."""
    return given if isinstance(given, NewRecord) else NewRecord(**given)


def batches(records: Iterable[NewRecord | Mapping[str, Any]], key: str, most: int, most_bytes: int) -> Iterator[Batch]:
    """Batches of records. The key of the first is `key`, those of the next `key:1`, `key:2` and so on."""
    batch, number = Batch(key), 0
    for record in records:
        encoded = new_record(record).encoded()
        if not batch.takes(encoded, most, most_bytes):
            yield batch
            number += 1
            batch = Batch(f"{key}:{number}")
            batch.takes(encoded, most, most_bytes)
    if batch.records:
        yield batch


async def publish_all(
    connection: Connection, topic: str, of: Iterable[Batch], options: Mapping[str, Any]
) -> Published | None:
    """Append one batch after the other; None if there are none. An error leaves the batches before it written."""
    done: Published | None = None
    for batch in of:
        part = await batch.append(connection, topic, options)
        if done is not None:
            created, deduped = done.created or part.created, done.deduped or part.deduped
            part = replace(
                part, first_seq=done.first_seq, count=done.count + part.count, created=created, deduped=deduped
            )
        done = part
    return done


def new_key() -> str:
    return uuid.uuid4().hex


class Publisher:
    """A context manager that gathers records into batches and flushes at its end.

    `send` waits while a full batch is written: that is the back-pressure. A record is safe when a later `flush`, or the
    end of the context, has returned. After an error the batch stays, and the next flush repeats it with its key. Tasks
    may share a publisher.
    """

    def __init__(
        self, connection: Connection, topic: str, *, options: Mapping[str, Any], batch_records: int, batch_bytes: int
    ) -> None:
        self.topic = topic
        self.published = 0
        """Records that the service has acknowledged."""
        self._connection = connection
        self._options = options
        self._most = batch_records, batch_bytes
        self._open = Batch(new_key())
        self._full: deque[Batch] = deque()
        self._lock = anyio.Lock()

    async def send(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int | None = None,
    ) -> None:
        """Add a record. If its batch is full, write that."""
        record = NewRecord(data, tag, node, meta, delay_ms).encoded()
        if not self._open.takes(record, *self._most):
            self._close_batch()
            self._open.takes(record, *self._most)
            await self._write()

    async def flush(self) -> None:
        """Write all records that were sent. Raises what an append raises."""
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
                self.published += done.count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.flush()
        else:
            with anyio.move_on_after(FLUSH_S, shield=True):
                await self.flush()
