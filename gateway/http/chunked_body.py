"""The chunked body decoder: strict, without I/O.

    chunked-body = *( size [ ";" extension ] CRLF data CRLF ) "0" [ ";" extension ] CRLF *( trailer CRLF ) CRLF

The decoder refuses what two parsers could read differently: lines that end in a bare LF, sizes with a sign, a prefix or
white space, lines without end. Extensions and trailers are read and discarded.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from proto.model.errors import ErrorCode, TopicsError, invalid

MAX_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 8 << 10

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class DecoderState(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


class ChunkDecoder:
    """The decoder of one body. `feed` takes bytes and appends the payload to `body`, one buffer for all chunks. `size`
    is the payload announced so far, in bytes; above `limit`, `feed` raises `413 payload_too_large` before those bytes
    arrive. Once `done`, `rest` holds the bytes after the body."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.body = bytearray()
        self.rest = b""
        self._state = DecoderState.SIZE
        self._missing = 0
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        return self._state is DecoderState.DONE

    def feed(self, data: bytes) -> None:
        """Decode the next bytes. Raises `400 invalid_request` for anything but the grammar above, and `413`."""
        buffer = self.rest + data if self.rest else data
        at = 0
        while self._state is not DecoderState.DONE:
            if self._state is DecoderState.DATA:
                piece = buffer[at : at + self._missing]
                if not piece:
                    break
                self.body += piece
                at += len(piece)
                self._missing -= len(piece)
                if self._missing:
                    break
                self._state = DecoderState.DATA_END
            elif self._state is DecoderState.DATA_END:
                ending = buffer[at : at + 2]
                if ending != b"\r\n":
                    if b"\r\n".startswith(ending):
                        break
                    raise invalid("chunked body: a chunk is longer than its size says")
                at += 2
                self._state = DecoderState.SIZE
            else:
                end = buffer.find(b"\r\n", at, at + MAX_LINE_BYTES)
                if end < 0:
                    if len(buffer) - at >= MAX_LINE_BYTES:
                        raise invalid("chunked body: a line without end")
                    if b"\n" in buffer[at:]:
                        raise invalid("chunked body: a line must end in CR LF")
                    break
                line = buffer[at:end]
                at = end + 2
                if self._state is DecoderState.SIZE:
                    self._size_line(line)
                else:
                    self._trailer_line(line)
        self.rest = buffer[at:]

    def _size_line(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise invalid("chunked body: a chunk must begin with its size in hexadecimal digits")
        self._missing = int(match[1], 16)
        self.size += self._missing
        if self.size > self.limit:
            raise too_large(self.limit)
        self._state = DecoderState.DATA if self._missing else DecoderState.TRAILER

    def _trailer_line(self, line: bytes) -> None:
        if not line:
            self._state = DecoderState.DONE
            return
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MAX_TRAILER_BYTES or _TRAILER_LINE.fullmatch(line) is None:
            raise invalid("chunked body: bad trailer after the last chunk")


def too_large(limit: int) -> TopicsError:
    return TopicsError(
        ErrorCode.PAYLOAD_TOO_LARGE,
        f"the body is larger than {limit} bytes; send it in several requests",
        {"max_body_bytes": limit},
    )
