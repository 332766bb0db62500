"""Walrus protocol: bytes to commands and back, without I/O.

Commands and answers alike are frames:

    offset  size    field    meaning
         0     4    length   u32, little-endian, bytes of the text; at most 65 536
         4  length  text     UTF-8

    REGISTER <topic>         OK
    PUT <topic> <payload>    OK
    GET <topic>              OK <payload> | EMPTY
    STATE <topic>            JSON
    METRICS                  JSON

or `ERR <message>`. White space at the end of a command is dropped. One space ends the topic of a PUT; everything after
it is the payload, further spaces included. A frame that is too long is skipped and refused; one of more than 16 MiB
ends the connection.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from proto.model.names import RULE, is_topic
from proto.wire.byte_parser import ProtocolError, Steps, too_much

LENGTH = struct.Struct("<I")
assert LENGTH.size == 4
MAX_FRAME_BYTES = 64 << 10
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Characters with Unicode's White_Space property. Python's `str.strip` drops four control characters more."""

OK = b"OK"
EMPTY = b"EMPTY"


@dataclass(frozen=True, slots=True)
class Register:
    topic: str


@dataclass(frozen=True, slots=True)
class Put:
    topic: str
    payload: str


@dataclass(frozen=True, slots=True)
class Get:
    topic: str


@dataclass(frozen=True, slots=True)
class StateCommand:
    topic: str


@dataclass(frozen=True, slots=True)
class Metrics:
    pass


Command = Register | Put | Get | StateCommand | Metrics
_WITH_TOPIC: dict[str, type[Register | Get | StateCommand]] = {"REGISTER": Register, "GET": Get, "STATE": StateCommand}


def read() -> Steps[Command]:
    """The next command of a connection."""
    (length,) = LENGTH.unpack((yield LENGTH.size))
    if length > MAX_FRAME_BYTES:
        yield from too_much(length, f"a command has at most {MAX_FRAME_BYTES} bytes, not {length}")
    return parse((yield length))


def parse(frame: bytes) -> Command:
    """The text of one frame as a command. Raises `ProtocolError`."""
    try:
        text = frame.decode().rstrip(WHITE)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the command is not UTF-8: {error.reason} at byte {error.start}") from None
    verb, _, rest = text.partition(" ")
    if verb == "PUT":
        topic, _, payload = rest.partition(" ")
        if not payload:
            raise ProtocolError("usage: PUT <topic> <payload>")
        return Put(_checked(topic), payload)
    if verb == "METRICS" and not rest:
        return Metrics()
    kind = _WITH_TOPIC.get(verb)
    if kind is not None:
        if not rest or " " in rest:
            raise ProtocolError(f"usage: {verb} <topic>")
        return kind(_checked(rest))
    if verb == "METRICS":
        raise ProtocolError("usage: METRICS")
    raise ProtocolError(f"unknown command {verb[:32]!r}: there are REGISTER, PUT, GET, STATE and METRICS")


def _checked(topic: str) -> str:
    if not is_topic(topic):
        raise ProtocolError(f"topic name {topic[:64]!r} is not valid: {RULE}")
    return topic


def encode(text: bytes) -> bytes:
    """The text as a frame."""
    return LENGTH.pack(len(text)) + text


def failure(message: str) -> bytes:
    """The text of an error frame, as one line."""
    return b"ERR " + " ".join(message.split()).encode()
