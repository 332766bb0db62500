"""Messages between gateway and shards: a header in MessagePack, then at most one frame of raw bytes.

    frame 1   MessagePack, the header: an array that begins with version and kind in one number
    frame 2   bytes, the body: the client's JSON in a request, the JSON answer in a reply. Absent when empty.

The Structs at the end of this module have the fields of a header; `proto.ipc.operations` has the fields of an operation
and of its answer. Decoding checks all of them: an array with a missing field or a field of another type is no message.

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
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import Struct

from proto.ipc.operations import NAMES, AnyAnswer, AnyOperation
from proto.model.errors import ErrorCode, TopicsError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Op = TypeVar("Op", covariant=True, default=Any)
    A = TypeVar("A", covariant=True, default=Any)
else:
    from typing import TypeVar

    Op, A = TypeVar("Op"), TypeVar("A")

VERSION = 2


class Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    PARKED = 3
    CANCEL = 4
    TAKEN = 5


class MessageError(Exception):
    """Bytes that are not a message of this version: the peer is another program or another release."""


@dataclass(slots=True)
class Request(Generic[Op]):
    id: int
    options: Op
    """The operation: query parameters and what the gateway knows about the client."""
    topic: str = ""
    """Topic name, "" when the operation has none."""
    body: bytes = b""
    traceparent: str = ""
    """W3C traceparent, if the client sent one."""
    deadline_ns: int = 0
    """In ns of CLOCK_MONOTONIC, which all processes of a machine share; 0: none."""
    ignored: Sequence[str] = ()
    """Unknown fields of the body, which the answer names in `ignored`. Not part of the message."""

    @property
    def op(self) -> str:
        """The name of the operation."""
        return NAMES[type(self.options)]

    def encode(self) -> list[bytes]:
        options: Any = self.options
        return _frames(_Request(self.id, options, self.topic, self.traceparent, self.deadline_ns), self.body)


@dataclass(slots=True)
class Reply(Generic[A]):
    id: int
    body: bytes = b""
    created: bool = False
    """The call created its topic: HTTP 201 instead of 200."""
    performance: dict[str, float] = field(default_factory=dict)
    """Figures in ms, added to the answer's `performance` object."""
    counters: tuple[int, int, int] = (0, 0, 0)
    """The shard's counters: topics, live records, live bytes."""
    extra: A | None = None
    """Data for the gateway besides the body, e.g. the names of a list page."""
    error: TopicsError | None = None
    """In place of a body."""
    disk_full: bool = False
    """The shard's disk is nearly full."""
    quarantined: int = 0
    """Number of quarantined topics of the shard."""

    def encode(self) -> list[bytes]:
        e = self.error
        extra: Any = self.extra
        head = _Reply(
            self.id,
            self.counters,
            self.performance,
            extra,
            self.created,
            self.disk_full,
            self.quarantined,
            None if e is None else (e.code, e.message, e.detail, e.retry_after_ms),
        )
        return _frames(head, self.body)


@dataclass(slots=True)
class Parked:
    id: int

    def encode(self) -> list[bytes]:
        return [_encode(_Parked(self.id))]


@dataclass(slots=True)
class Cancel:
    id: int

    def encode(self) -> list[bytes]:
        return [_encode(_Cancel(self.id))]


@dataclass(slots=True)
class Taken:
    id: int
    """Bytes received, not a request id."""

    def encode(self) -> list[bytes]:
        return [_encode(_Taken(self.id))]


Message = Request | Reply | Parked | Cancel | Taken


class _Request(Struct, array_like=True, tag=VERSION << 8 | Kind.REQUEST):
    id: int
    options: AnyOperation
    topic: str
    traceparent: str
    deadline_ns: int


class _Reply(Struct, array_like=True, tag=VERSION << 8 | Kind.REPLY):
    id: int
    counters: tuple[int, int, int]
    performance: dict[str, int | float]
    extra: AnyAnswer | None
    created: bool
    disk_full: bool
    quarantined: int
    error: tuple[ErrorCode, str, Any, int | None] | None


class _Parked(Struct, array_like=True, tag=VERSION << 8 | Kind.PARKED):
    id: int


class _Cancel(Struct, array_like=True, tag=VERSION << 8 | Kind.CANCEL):
    id: int


class _Taken(Struct, array_like=True, tag=VERSION << 8 | Kind.TAKEN):
    id: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Request | _Reply | _Parked | _Cancel | _Taken).decode


def _frames(head: _Request | _Reply, body: bytes) -> list[bytes]:
    return [_encode(head), body] if body else [_encode(head)]


def decode(frames: list[bytes]) -> Message:
    """Decode the frames of one ZeroMQ message, without routing frames. Raises `MessageError`."""
    try:
        head = _decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, RecursionError) as error:
        raise MessageError(f"not a message of version {VERSION}: {error!r}") from error
    body = frames[1] if len(frames) > 1 else b""
    if isinstance(head, _Request):
        return Request(head.id, head.options, head.topic, body, head.traceparent, head.deadline_ns)
    if isinstance(head, _Reply):
        failure = None
        if head.error is not None:
            code, message, detail, retry_after_ms = head.error
            failure = TopicsError(code, message, detail, retry_after_ms=retry_after_ms)
        return Reply(
            head.id,
            body,
            head.created,
            head.performance,
            head.counters,
            head.extra,
            failure,
            head.disk_full,
            head.quarantined,
        )
    if isinstance(head, _Parked):
        return Parked(head.id)
    if isinstance(head, _Cancel):
        return Cancel(head.id)
    return Taken(head.id)
