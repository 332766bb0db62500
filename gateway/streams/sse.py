"""The event stream of a watch session: its frames as text/event-stream, and the checks when it is opened.

retry: 2000                            once, at the beginning

id: <positions of all topics>          of a record, tombstone, caught-up, topic-deleted frame
event: record
data: {"topic":…,"records":[…],"from_seq":…,"to_seq":…,"head_seq":…}

event: error
data: {"code":…,"error":…}

: hb <ms since 1970>                   when nothing was sent for heartbeat_ms
"""

from __future__ import annotations

from time import monotonic, time
from typing import Any

import msgspec

from gateway.http.accept_header import named, weight
from gateway.http.messages import DirectWrite, Response, Write
from gateway.streams.event_ids import TOLD, Ids, decode, rewound
from gateway.streams.stream import Shown, Stream
from gateway.streams.subscription import Item, Subscription
from gateway.streams.topic_feed import Batch
from gateway.streams.watch_sessions import Opened, Progress
from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key

MEDIA = b"text/event-stream"
CONTENT_TYPE = MEDIA + b"; charset=utf-8"
HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
LAST_EVENT_ID = "Last-Event-ID"
RETRY_S = b"2"
RETRY = b"retry: %b000\n\n" % RETRY_S
GATHER_BYTES = 64 << 10
"""Bytes of frames that are sent together."""

_encode = msgspec.json.Encoder().encode


def check_accept(accept: bytes) -> None:
    """Check that the client accepts an event stream. Raises `406 not_acceptable`."""
    if not weight(accept, MEDIA):
        raise TopicsError(ErrorCode.NOT_ACCEPTABLE, "this is an event stream: send `Accept: text/event-stream`")


def retries(error: TopicsError, accept: bytes) -> bool:
    """Whether to send this error, raised when a stream is opened, inside a stream. A client that names the media type
    is an EventSource or works like one; any other client understands a status and `Retry-After`."""
    return error.status == 503 and named(accept, MEDIA)


def come_back(error: TopicsError) -> Response:
    """Return an error as a stream that ends at once. A browser's EventSource never retries after a status other than
    200; after this stream it connects again, once `retry` has passed. `Retry-After` says it to clients that do not read
    `retry`."""
    told = error_frame(error.status, error.message, retry_after_ms=error.retry_after_ms)
    return Response(200, RETRY + told, CONTENT_TYPE, (*HEADERS, (b"retry-after", RETRY_S)))


TAKEN_OVER = 409, "another connection has opened this watch session"


class EventStream(Stream):
    def __init__(
        self,
        live: Shown,
        key: Key,
        opened: Opened,
        progress: Progress,
        last_event_id: str,
        write: Write,
    ) -> None:
        # Before anything else: it may raise.
        found = decode(last_event_id, opened.topics, opened.prefix, LAST_EVENT_ID) if last_event_id else None
        super().__init__(live, key, most_items=live.limits.watch_queue_frames, generation=opened.generation)
        self._write = write
        self._heartbeat_s = opened.heartbeat_ms / 1000
        prefix = opened.prefix
        self._growing = prefix is not None
        positions = dict(opened.topics)
        if found is not None:
            positions = rewound(positions, found, growing=self._growing)
        told: set[str] = set()
        if prefix is not None:
            # The client knows that these are deleted. A new topic of the name comes with the prefix, or, outside it,
            # is read from its beginning.
            told = {name for name, position in positions.items() if position.epoch == TOLD}
            for name in told:
                if name.startswith(prefix):
                    del positions[name]
        shown = {name: max(position.seq, 0) for name, position in positions.items() if name not in told}
        self._ids = Ids(shown, opened.generation, growing=self._growing)
        self._single = len(positions) == 1 and not self._growing
        # A stream of several topics gathers what they bring at the same time.
        self._direct = write if self._single and isinstance(write, DirectWrite) else None
        self.put(Item("raw", None, RETRY, None, 0))
        self._progress = progress
        for name, position in positions.items():
            subscription = self.add(name, opened.options, position)
            if position != opened.topics[name]:
                self.progressed(subscription)  # the id set it back; it must stay there if this stream ends at once
        if prefix is not None:
            self.add_prefix(prefix, opened.options, unknown=found.unknown if found else frozenset())

    async def send(self) -> None:
        parts: list[bytes] = []
        # Unsent bytes count, too: a frame on its way is held in two forms, and no second one begins beside it.
        size = len(self._direct.unsent) if self._direct is not None else 0
        while self.queue and size < GATHER_BYTES:
            form = self._form(self.taken())
            if form:
                parts.append(form)
                size += len(form)
        if parts or size:
            await self._write(parts[0] if len(parts) == 1 else b"".join(parts))
            self.sent_at = monotonic()

    def _hand_over(self, item: Item) -> bool:
        if self._direct is None:
            return False
        try:
            form = self._form(item)
        except Exception:
            return False  # a bug; in the sender's task it ends this stream and no other
        if form and not self._direct.offer(form):
            return False
        self.handed_over(item, unsent=bool(self._direct.unsent))
        return True

    def _form(self, item: Item) -> bytes:
        if item.kind == "raw":
            what: bytes = item.what
            return what
        assert item.subscription is not None
        assert item.after is not None
        if self._growing and item.kind == "topic-deleted":
            self._ids.seqs.pop(item.subscription.name, None)
        else:
            self._ids.seqs[item.subscription.name] = item.after.seq
        self._ids.generation = max(self._ids.generation, item.after.born)
        if item.kind == "position":
            return b""
        if item.kind == "record":
            batch: Batch = item.what
            shared = self._single and not self._ids.generation
            if shared and (form := batch.forms.get(EventStream)) is not None:
                return form
            form = _frame(b"record", batch.payload, self._ids.current())
            if shared:
                batch.keep(EventStream, form)
            return form
        return _frame(item.kind.encode(), _encode(item.what), self._ids.current())

    def problem(
        self, code: int, message: str, topics: list[str] | None = None, retry_after_ms: int | None = None
    ) -> Item:
        return Item("raw", None, error_frame(code, message, topics, retry_after_ms), None, 0)

    def tick(self, now: float) -> None:
        super().tick(now)
        if now - self.sent_at >= self._heartbeat_s and not self.sending:
            self.put(Item("raw", None, b": hb %d\n\n" % (time() * 1000), None, 0))

    def progressed(self, subscription: Subscription) -> None:
        self._progress.reached(subscription.name, subscription.handed, self.generation)

    def forget(self, name: str) -> None:
        if self._progress.forget(name):
            super().forget(name)

    def forgotten(self) -> None:
        self.end(self.problem(410, "topics of this Last-Event-ID were deleted; make a new watch with POST /v0/watch"))

    def taken_over(self) -> None:
        self.end(self.problem(*TAKEN_OVER))

    def unknown(self) -> None:
        self.end(self.problem(410, "the watch session is gone; make a new one with POST /v0/watch"))


def error_frame(code: int, message: str, topics: list[str] | None = None, retry_after_ms: int | None = None) -> bytes:
    fields: dict[str, Any] = {"code": code, "error": message}
    if retry_after_ms is not None:
        fields["retry_after_ms"] = retry_after_ms
    if topics:
        fields["topics"] = topics
    return b"event: error\ndata: %b\n\n" % _encode(fields)


def _frame(event: bytes, payload: bytes, ident: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (ident, event, payload)
