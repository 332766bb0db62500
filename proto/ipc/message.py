"""Messages between gateway and shards, and the packets that carry them.

Everything that one turn of a process has for a peer leaves as one packet. So a busy service pays the price of sending,
waking and receiving once for many messages.

    frame 1    MessagePack, an array: version, messages, status, places
    frame 2…   bytes: the bodies larger than `INLINE_BYTES`, in order. `places` are the indices of their messages

Each message is an array that begins with its kind: `Request`, `Reply`, `Parked`, `Cancel`, `Taken`, `NoMore`.
`proto.ipc.operations` has the fields of an operation and of its answer. Decoding checks all of them: a packet with a
missing field or a field of another type is refused as a whole.

Kinds and their direction:

    1  Request  asker → shard     starts a request. A shard that takes it after its deadline does not execute it and
                                  replies with an error. The asker abandons it some time after the deadline, so an
                                  abandoned request is never started later.
    2  Reply    shard → asker     ends the request; a reply to an abandoned request is dropped
    3  Parked   shard → asker     the request waits for records; the gateway watches the client's connection from
                                  then on
    4  Cancel   asker → shard     the asker does not want the reply; the shard drops the request if it is parked, or
                                  deferred because the asker is full. It answers a deferred one with an empty reply
    5  Taken    asker → shard     the asker received `id` more bytes of reply bodies; see `shardd.process.reply_queue`
    6  NoMore   asker → shard     no more requests come by this link: the shard is `given` away, as its status says, or
                                  the link was between machines and ends

The status is the shard's when the packet leaves, so it counts what every reply of the packet has added.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic

import msgspec
from msgspec import Meta, Struct

from proto.errors import ProtoError
from proto.ipc.operations import NAMES, AnyAnswer, AnyOperation
from proto.model.errors import ErrorCode, TopicsError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Op = TypeVar("Op", covariant=True, default=Any)
    A = TypeVar("A", covariant=True, default=Any)
else:
    from typing import TypeVar

    Op, A = TypeVar("Op"), TypeVar("A")

VERSION = 3
INLINE_BYTES = 8 << 10
"""Bodies up to this size are part of the first frame. Larger ones cost less as frames of their own, by measurement."""


class MessageError(ProtoError):
    """Bytes that are not a packet of this version: the peer is another program or another release."""


_Unsigned = Annotated[int, Meta(ge=0)]
"""Shards keep it as u64 (`proto.ipc.in_hand`)."""


class Request(Struct, Generic[Op], array_like=True, tag=1):
    id: _Unsigned
    options: Op
    """The operation: query parameters and what the gateway knows about the client."""
    topic: str = ""
    """Topic name, "" when the operation has none."""
    body: bytes = b""
    traceparent: str = ""
    """W3C traceparent, if the client sent one."""
    deadline_ns: _Unsigned = 0
    """In ns of CLOCK_MONOTONIC, which all processes of a machine share; 0: none."""
    ignored: Sequence[str] = []
    """Unknown fields of the body, which the answer names in `ignored`. The shard sets it."""

    @property
    def op(self) -> str:
        """The name of the operation."""
        return NAMES[type(self.options)]


class Reply(Struct, Generic[A], array_like=True, tag=2):
    id: int
    body: bytes = b""
    created: bool = False
    """The call created its topic: HTTP 201 instead of 200."""
    performance: dict[str, int | float] = {}
    """Figures in ms, added to the answer's `performance` object."""
    extra: A | None = None
    """Data for the gateway besides the body, e.g. the names of a list page."""
    error: TopicsError | None = None
    """In place of a body."""

    def checked(self) -> Reply[A]:
        """This reply. Raises its error."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                del self  # or else its error's traceback holds all frames until the garbage collector runs
        return self

    def found(self) -> A:
        """The `extra` of a reply that has one unless it is an error, which is raised."""
        extra = self.checked().extra
        assert extra is not None
        return extra


class Parked(Struct, array_like=True, tag=3):
    id: int
    body: ClassVar[bytes] = b""


class Cancel(Struct, array_like=True, tag=4):
    id: int
    body: ClassVar[bytes] = b""


class Taken(Struct, array_like=True, tag=5):
    id: _Unsigned
    """Bytes received, not a request id."""
    body: ClassVar[bytes] = b""


class NoMore(Struct, array_like=True, tag=6):
    id: ClassVar[int] = 0
    body: ClassVar[bytes] = b""


Message = Request | Reply | Parked | Cancel | Taken | NoMore


class Status(Struct, array_like=True, frozen=True):
    """The contents of a shard, and its condition."""

    topics: int = 0
    records: int = 0
    """Live ones."""
    bytes: int = 0
    quarantined: int = 0
    """Number of quarantined topics."""
    disk_full: bool = False
    """The shard's disk is nearly full."""
    silent: bool = False
    """The shard may not answer: another machine may hold it."""
    bucket_damaged: int = 0
    """Number of objects of the shard's bucket that are known to be damaged or missing."""
    window: int = 0
    """The size of the send window of each asker, and of its reply window, in bytes; 0: not stated. See
    `proto.ipc.send_window`."""
    given: bool = False
    """The shard is given away: its process ends when each asker has said that it sends no more."""
    clock_ns: int = 0
    """Between machines: the shard's CLOCK_MONOTONIC when the packet leaves, see `proto.ipc.remote_link`."""
    over: bool = False
    """Between machines: the link of this asker counts as lost."""
    died_over: tuple[tuple[int, int], ...] = ()
    """Between machines: what the last process of the shard died over, if that was a short time ago; see
    `proto.ipc.in_hand`."""


NO_STATUS = Status()


class Packet(Struct, array_like=True, tag=VERSION):
    messages: list[Request[AnyOperation] | Reply[AnyAnswer] | Parked | Cancel | Taken | NoMore]
    status: Status = NO_STATUS
    """The shard's; an asker has none."""
    places: tuple[int, ...] = ()
    """Indices of the messages whose bodies are frames of their own."""


def _plain(value: Any) -> Any:
    if isinstance(value, TopicsError):
        return value.code, value.message, value.detail, value.retry_after_ms
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def _of_plain(kind: type, value: Any) -> Any:
    code, message, detail, retry_after_ms = msgspec.convert(value, tuple[ErrorCode, str, Any, int | None])
    return TopicsError(code, message, detail, retry_after_ms=retry_after_ms)


class Packing:
    """A packet for one peer that is being filled. A message is encoded when it is added, so one that cannot be encoded
    fails its sender and not the packet."""

    __slots__ = ("_bodies", "_encoded", "_places", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Bytes of the bodies."""
        self._encoded = bytearray(_ARRAY.size)
        self._places: list[int] = []
        self._bodies: list[bytes] = []

    def add(self, message: Message) -> None:
        end = len(self._encoded)
        try:
            if len(message.body) <= INLINE_BYTES:
                _encode_into(message, self._encoded, end)
            else:
                self._add_large(message, end)
        except BaseException:
            del self._encoded[end:]
            raise
        self.count += 1
        self.size += len(message.body)

    def _add_large(self, message: Message, end: int) -> None:
        assert isinstance(message, (Request, Reply))
        body, message.body = message.body, b""
        try:
            _encode_into(message, self._encoded, end)
        finally:
            message.body = body
        self._places.append(self.count)
        self._bodies.append(body)

    def frames(self, status: Status) -> list[bytes]:
        """The frames of the packet."""
        _ARRAY.pack_into(self._encoded, 0, _ARRAY_16, self.count)
        return [_encode((VERSION, msgspec.Raw(self._encoded), status, self._places)), *self._bodies]


_ARRAY = struct.Struct(">BH")
_ARRAY_16 = 0xDC
"""MessagePack's mark of an array with two bytes of length."""
_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_encode, _encode_into = _encoder.encode, _encoder.encode_into
_decode = msgspec.msgpack.Decoder(Packet, dec_hook=_of_plain).decode


def unpack(frames: Sequence[bytes]) -> Packet:
    """Decode a packet, without routing frames. Raises `MessageError`."""
    try:
        packet = _decode(frames[0])
        for place, body in zip(packet.places, frames[1:], strict=True):
            message = packet.messages[place]
            if not isinstance(message, (Request, Reply)):
                raise MessageError(f"a {type(message).__name__} has no body")
            message.body = body
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, RecursionError, ValueError) as error:
        raise MessageError(f"not a packet of version {VERSION}: {type(error).__name__}") from error
    return packet
