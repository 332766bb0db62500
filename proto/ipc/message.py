"""Messages between gateway and shards: a CBOR header, then at most one frame of raw bytes.

    frame 1   CBOR map, the header
    frame 2   bytes, the body: the client's JSON in a request, the JSON answer in a reply. Absent when empty.

Header keys (short, because every request carries them):

    v   int    version of this layout, 1
    k   int    kind, see `Kind`
    id  int    request id, chosen by the asking side, unique on its socket
    op  str    operation (request)
    t   str    topic name, "" when the operation has none (request)
    o   map    options: query parameters and what the gateway knows about the client (request)
    tr  str    W3C traceparent, if the client sent one (request)
    d   int    deadline, ns of CLOCK_MONOTONIC, which all processes of a machine share; absent: none (request)
    p   map    performance figures in ms, added to the answer's `performance` object (reply)
    q   int    number of quarantined topics of the shard; absent: 0 (reply)
    n   list   the shard's counters [topics, records live, bytes live] (reply)
    f   bool   the shard's disk is nearly full (reply)
    e   list   [code, message, detail or nil, retry_after_ms or nil] in place of a body (reply)
    c   bool   the call created its topic: HTTP 201 instead of 200 (reply)
    x   map    data for the gateway besides the body, e.g. the names of a list page (reply)

Kinds and their direction:

    REQUEST  asker → shard     starts a request. A shard that takes it after its deadline does not execute it and
                               replies with an error. The asker abandons it some time after the deadline, so an
                               abandoned request is never started later.
    REPLY    shard → asker     ends the request; a reply to an abandoned request is dropped
    PARKED   shard → asker     the request waits for records; the gateway watches the client's connection from then on
    CANCEL   asker → shard     the asker does not want the reply; the shard drops the request if it is parked
    TAKEN    asker → shard     the asker received `id` more bytes of reply bodies; see `shardd.process.reply_queue`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import cbor2

from proto.model.errors import ErrorCode, TopicsError

VERSION = 1


class Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    PARKED = 3
    CANCEL = 4
    TAKEN = 5


class MessageError(Exception):
    """Bytes that are not a message of this version: the peer is another program or another release."""


@dataclass(slots=True)
class Request:
    id: int
    op: str
    topic: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    traceparent: str = ""
    deadline_ns: int = 0
    ignored: Sequence[str] = ()
    """Unknown fields of the body, which the answer names in `ignored`. Not part of the message."""

    def encode(self) -> list[bytes]:
        head = {"v": VERSION, "k": 1, "id": self.id, "op": self.op, "t": self.topic, "o": self.options}
        if self.traceparent:
            head["tr"] = self.traceparent
        if self.deadline_ns:
            head["d"] = self.deadline_ns
        return [cbor2.dumps(head), self.body] if self.body else [cbor2.dumps(head)]


@dataclass(slots=True)
class Reply:
    id: int
    body: bytes = b""
    created: bool = False
    performance: dict[str, float] = field(default_factory=dict)
    counters: tuple[int, int, int] = (0, 0, 0)
    extra: dict[str, Any] | None = None
    error: TopicsError | None = None
    disk_full: bool = False
    quarantined: int = 0

    def encode(self) -> list[bytes]:
        head: dict[str, Any] = {"v": VERSION, "k": 2, "id": self.id, "p": self.performance, "n": self.counters}
        if self.disk_full:
            head["f"] = True
        if self.created:
            head["c"] = True
        if self.extra is not None:
            head["x"] = self.extra
        if self.quarantined:
            head["q"] = self.quarantined
        if self.error is not None:
            e = self.error
            head["e"] = [e.code.value, e.message, e.detail, e.retry_after_ms]
        return [cbor2.dumps(head), self.body] if self.body else [cbor2.dumps(head)]


@dataclass(slots=True)
class Parked:
    id: int

    def encode(self) -> list[bytes]:
        return [cbor2.dumps({"v": VERSION, "k": 3, "id": self.id})]


@dataclass(slots=True)
class Cancel:
    id: int

    def encode(self) -> list[bytes]:
        return [cbor2.dumps({"v": VERSION, "k": 4, "id": self.id})]


@dataclass(slots=True)
class Taken:
    id: int
    """Bytes received, not a request id."""

    def encode(self) -> list[bytes]:
        return [cbor2.dumps({"v": VERSION, "k": 5, "id": self.id})]


Message = Request | Reply | Parked | Cancel | Taken


def decode(frames: list[bytes]) -> Message:
    """Decode the frames of one ZeroMQ message, without routing frames. Raises `MessageError`."""
    try:
        head = cbor2.loads(frames[0])
        if head["v"] == VERSION:
            return _message(head, frames[1] if len(frames) > 1 else b"")
    except (cbor2.CBORDecodeError, LookupError, TypeError, ValueError) as error:
        raise MessageError(f"not a message: {error!r}") from error
    raise MessageError(f"message version {head['v']!r}, this release speaks {VERSION}")


def _message(head: dict[str, Any], body: bytes) -> Message:
    kind, ident = head["k"], head["id"]
    if kind == 1:
        return Request(ident, head["op"], head["t"], head["o"], body, head.get("tr", ""), head.get("d", 0))
    if kind == 2:
        failure = None
        if (e := head.get("e")) is not None:
            failure = TopicsError(ErrorCode(e[0]), e[1], e[2], retry_after_ms=e[3])
        topics, records, size = head["n"]
        full = head.get("f", False)
        return Reply(
            ident,
            body,
            head.get("c", False),
            head["p"],
            (topics, records, size),
            head.get("x"),
            failure,
            full,
            head.get("q", 0),
        )
    if kind == 3:
        return Parked(ident)
    if kind == 4:
        return Cancel(ident)
    if kind == 5:
        return Taken(ident)
    raise MessageError(f"unknown message kind {kind!r}")
