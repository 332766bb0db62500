"""Rog protocol: bytes to commands and back, without I/O. Integers are big-endian.

    create    u8 0 | u8 partitions | u8 size, log name
    publish   u8 1 | u8 partition  | u8 size, log name | u64 size, data
    fetch     u8 2 | u8 partition  | u8 size, log name | group size, group
    ack       u8 3 | u8 partition  | u8 size, log name | group size, group

    success   u8 0, and for a fetch: u64 size, message
    error     u8 1 | u64 size, text

The group size is a u64 in Rog's documentation and one byte in existing clients. Both are accepted: an allowed u64 size
starts with a zero byte, and the one-byte size of a named group is never zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from proto.wire.byte_parser import ProtocolError, Steps, too_much

SIZE = struct.Struct(">Q")
assert SIZE.size == 8
CREATE, PUBLISH, FETCH, ACK = range(4)
MAX_NAME_BYTES = 255
SUCCESS = b"\0"


@dataclass(frozen=True, slots=True)
class Create:
    log: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Publish:
    log: str
    partition: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    log: str
    partition: int
    group: str


@dataclass(frozen=True, slots=True)
class Ack:
    log: str
    partition: int
    group: str


Command = Create | Publish | Fetch | Ack


def read(max_message_bytes: int) -> Steps[Command]:
    """The next command of a connection."""
    (code,) = yield 1
    if code > ACK:
        raise ProtocolError(f"Unknown command {code}", fatal=True)
    number, size = yield 2
    name = yield size
    if code == CREATE:
        return Create(_text(name, "Log name"), number)
    if code == PUBLISH:
        (size,) = SIZE.unpack((yield SIZE.size))
        if size > max_message_bytes:
            yield from too_much(size, f"Message has {size} bytes, at most {max_message_bytes} are allowed")
        data = yield size
        return Publish(_text(name, "Log name"), number, data)
    head = yield 1
    if head == b"\0":
        (size,) = SIZE.unpack(head + (yield 7))
    else:
        size = head[0]
    if size > MAX_NAME_BYTES:
        yield from too_much(size, f"Group name has {size} bytes, at most {MAX_NAME_BYTES} are allowed")
    group = _text((yield size), "Group name")
    log = _text(name, "Log name")
    return Fetch(log, number, group) if code == FETCH else Ack(log, number, group)


def _text(name: bytes, what: str) -> str:
    if not name:
        raise ProtocolError(f"{what} must not be empty")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"{what} is not UTF-8") from None


def encode(command: Command) -> bytes:
    """Encode a command, with the group size as one byte. Raises `ProtocolError` for an empty or too long name."""
    if isinstance(command, Create):
        return bytes((CREATE, command.partitions)) + _sized(command.log)
    head = bytes((command.partition,)) + _sized(command.log)
    if isinstance(command, Publish):
        return bytes((PUBLISH,)) + head + SIZE.pack(len(command.data)) + command.data
    return bytes((FETCH if isinstance(command, Fetch) else ACK,)) + head + _sized(command.group)


def _sized(name: str) -> bytes:
    raw = name.encode()
    if not 0 < len(raw) <= MAX_NAME_BYTES:
        raise ProtocolError(f"Name has {len(raw)} bytes, but must have 1 to {MAX_NAME_BYTES}")
    return bytes((len(raw),)) + raw


def message(data: bytes) -> bytes:
    """The answer to a fetch."""
    return SUCCESS + SIZE.pack(len(data)) + data


def failure(text: str) -> bytes:
    raw = text.encode()
    return b"\1" + SIZE.pack(len(raw)) + raw
