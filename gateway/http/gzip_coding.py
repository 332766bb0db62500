"""The gzip content coding: decompresses request bodies and compresses responses.

Responses are compressed only when the client sends `Accept-Encoding: gzip`: on one machine the processor is the
bottleneck, not the network.
"""

from __future__ import annotations

import re
import zlib

import trio

from gateway.http.short_cache import short_cache
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.process.driven import in_task

SMALLEST_ANSWER = 1024
"""Bytes. Shorter responses are sent uncompressed."""
IN_THREAD = 64 << 10
"""Bytes from which on a worker thread does the work."""
MAX_MEMBERS = 100
"""Each gzip member costs a copy of all bytes after it, and a body has room for millions of empty members."""
LEVEL = 5
MAX_RATIO = 1032
"""The most bytes that one byte of deflate can expand to."""
_GZIP = 16 + zlib.MAX_WBITS
_WEIGHT = re.compile(rb"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


async def inflated(body: bytes, limit: int) -> bytes:
    """Return the decompressed body. Raises `413` as soon as it exceeds `limit` bytes, `400` if `body` is not gzip. A
    worker thread decompresses large bodies."""
    if len(body) < IN_THREAD >> 6:  # at best deflate shrinks a thousandfold, so a small body may hold a large one
        return inflate(body, limit)
    await in_task()
    return await trio.to_thread.run_sync(inflate, body, limit)


def inflate(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while body:
        if len(parts) == MAX_MEMBERS:
            raise invalid(f"the body has more than {MAX_MEMBERS} gzip members; compress it as one")
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(body, left + 1)
        except zlib.error as error:
            raise invalid(f"the body is not gzip: {error}") from None
        if len(part) > left:
            raise TopicsError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"the body holds more than {limit} bytes once it is decompressed",
                {"max_body_bytes": limit},
            )
        if not member.eof:
            raise invalid("the body is not gzip: it ends too early")
        parts.append(part)
        left -= len(part)
        body = member.unused_data
    return b"".join(parts)


async def deflated(body: bytes) -> bytes:
    if len(body) < IN_THREAD:
        return deflate(body)
    await in_task()
    return await trio.to_thread.run_sync(deflate, body)


def deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()


@short_cache(256)
def accepts_gzip(header: bytes) -> bool:
    """Whether an Accept-Encoding header asks for gzip, by name or by `*`, with a weight not below that of `identity`.
    A malformed weight counts as 0."""
    weights: dict[bytes, float] = {}
    for item in header.lower().split(b","):
        name, *parameters = [part.strip() for part in item.split(b";")]
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                weight = float(parameter[2:]) if _WEIGHT.fullmatch(parameter[2:]) else 0.0
        weights[name] = weight
    gzip = weights.get(b"gzip", weights.get(b"x-gzip", weights.get(b"*", 0.0)))
    return gzip > 0 and gzip >= weights.get(b"identity", 0.0)
