"""HTTP/2 frames as bytes: splits what a client sends into whole frames, and counts those that bring nothing.

h2 parses frames in Python, tens of microseconds each. This module sees each frame first, at a fraction of that cost:

    frame                                       what happens to it here
    PING                                        counted; answered here
    GOAWAY without an error                     counted; `goes` is set; h2 would end the streams that are open
    PRIORITY, unknown types                     counted; dropped
    WINDOW_UPDATE, SETTINGS, RST_STREAM,        counted; h2 has it
    CONTINUATION, trailers
    DATA: tiny, or for a stream that is over    counted; h2 has it
    HEADERS of a new stream, other DATA         h2 has it
    longer than 16 KiB                          the connection ends; h2 would keep 16 MiB before it refuses
    a head of more than 64 KiB                  the connection ends before the head is whole

A client may send `IDLE_FRAMES` of the counted ones at once and `IDLE_FRAMES_PER_S` in the long run. What the gateway
sends to the client gives it more of them, because clients answer it by such frames.
"""

from __future__ import annotations

from collections.abc import Container

from gateway.admission.transfer_rate import Allowance
from gateway.errors import GatewayError
from proto.model.limits import MAX_HEADER_BYTES

PREFACE_BYTES = 24
HEAD_BYTES = 9
MAX_FRAME_BYTES = 16 << 10
MAX_SETTINGS_BYTES = 50 * 6
"""Bytes of one SETTINGS frame. A client sends a handful of settings, six bytes each."""
TURN_FRAMES = 4
"""Frames that are passed on together, before other connections have a turn."""
SMALL_DATA_BYTES = 64
"""A DATA frame with fewer bytes, and more to come, counts as a frame that brings nothing."""
IDLE_FRAMES, IDLE_FRAMES_PER_S = 300, 100
"""Frames that bring nothing which a client may send: at once, and a second in the long run."""
EARNED_BY_DATA, EARNED_BY_ANSWER = 3, 4
"""Frames that bring nothing which a client may send more: for a DATA frame it got, for a whole answer."""
SETTINGS_COST = 10
"""Frames that SETTINGS count for: they take the time of as many, and clients send one or two."""
LATE_RESET = EARNED_BY_DATA + EARNED_BY_ANSWER + 1
"""Frames that the reset of an answered stream counts for, so that a request which is reset earns nothing."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED = 0x4, 0x8
FRAME_SIZE_ERROR, CALM = 6, 11


class Refused(GatewayError):
    """The connection has to end with a GOAWAY of `code`."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Frames:
    """The bytes that one client has sent and h2 has not seen."""

    def __init__(self) -> None:
        self.replies = bytearray()
        """Frames to send to the client. The caller takes them out."""
        self.idle = Allowance(IDLE_FRAMES, IDLE_FRAMES_PER_S)
        self._rest = bytearray()
        self._preface = PREFACE_BYTES
        self._highest = 0
        """The highest stream that the client has opened."""
        self._head: int | None = None
        """Bytes of the head that has begun and continues in CONTINUATION frames; None outside a head."""
        self.goes = False
        """Whether the client has said that it ends the connection after its open streams."""

    @property
    def inside_head(self) -> bool:
        """Whether the client owes the rest of a head."""
        return self._head is not None

    def feed(self, data: bytes) -> None:
        self._rest += data

    def take(self, open_streams: Container[int], now: float) -> bytes:
        """Remove and return the next frames for h2; b"" when no whole frame is left. `now` is in seconds on the
        monotonic clock. Raises `Refused`."""
        rest = self._rest
        if self._preface:
            if len(rest) < self._preface:
                return b""
            size, self._preface = self._preface, 0
            return self._cut(size)
        at = taken = 0
        while len(rest) >= at + HEAD_BYTES:
            length = int.from_bytes(rest[at : at + 3], "big")
            if length > MAX_FRAME_BYTES:
                raise Refused(FRAME_SIZE_ERROR, "a frame is too long")
            end = at + HEAD_BYTES + length
            if len(rest) < end:
                break
            kind, flags = rest[at + 3], rest[at + 4]
            stream = int.from_bytes(rest[at + 5 : at + 9], "big") & 0x7FFFFFFF
            tokens = self._tokens(kind, flags, length, stream, at, open_streams)
            if tokens and not self.idle.spend(now, tokens):
                raise Refused(CALM, "too many frames that bring nothing")
            if self._drops(kind, flags, length, stream, at):
                del rest[at:end]
                continue
            at = end
            taken += 1
            if self._is_head(kind, flags, length) or taken == TURN_FRAMES or at >= MAX_FRAME_BYTES:
                break
        return self._cut(at)

    def _cut(self, size: int) -> bytes:
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    def _tokens(self, kind: int, flags: int, length: int, stream: int, at: int, open_streams: Container[int]) -> int:
        """Return 0 for a frame that brings something, else how many such frames it counts for."""
        if kind == HEADERS:
            new, self._highest = stream > self._highest, max(stream, self._highest)
            return not new
        if kind == RST_STREAM and stream not in open_streams:
            return LATE_RESET
        if kind == DATA:
            padding = self._rest[at + HEAD_BYTES] + 1 if flags & PADDED and length else 0
            return stream not in open_streams or (length - padding < SMALL_DATA_BYTES and not flags & END_STREAM)
        if kind == SETTINGS:
            if length > MAX_SETTINGS_BYTES:
                raise Refused(CALM, "too many settings")
            return SETTINGS_COST
        return kind != PUSH_PROMISE

    def _drops(self, kind: int, flags: int, length: int, stream: int, at: int) -> bool:
        """Whether h2 need not see a frame. Answers a PING and notes a GOAWAY. Inside a head, h2 sees every frame: it
        refuses them."""
        if self._head is not None:
            return False
        if kind == PING and length == 8 and not stream:
            if not flags & ACK:
                opaque = self._rest[at + HEAD_BYTES : at + HEAD_BYTES + 8]
                self.replies += b"\0\0\x08\x06\x01\0\0\0\0" + opaque
            return True
        if kind == GOAWAY and length >= 8 and not stream:
            ordered = not any(self._rest[at + HEAD_BYTES + 4 : at + HEAD_BYTES + 8])  # its code is NO_ERROR
            self.goes = self.goes or ordered
            return ordered
        return kind > CONTINUATION or (kind == PRIORITY and length == 5 and stream != 0)

    def _is_head(self, kind: int, flags: int, length: int) -> bool:
        """Follow the bytes of heads. Returns whether a frame belongs to one."""
        if kind not in (HEADERS, CONTINUATION):
            return False
        size = (self._head or 0) + length
        if size > MAX_HEADER_BYTES:
            raise Refused(CALM, f"a request's head may have {MAX_HEADER_BYTES} bytes")
        self._head = None if flags & END_HEADERS else size
        return True
