"""Delete requests: which records are meant."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from proto.body import parse
from proto.errors import invalid
from proto.limits import MAX_U64
from proto.match import Match, parse_match


class DeleteRequest(Struct):
    before_seq: int | None = None
    match: str | list[Any] | None = None


_decode = msgspec.json.Decoder(DeleteRequest).decode


def parse_delete(body: bytes) -> tuple[int | None, Match | None]:
    """`before_seq` and `match`, at least one of them not None. Raises `400 invalid_request`."""
    request = parse(_decode, body)
    if request.before_seq is None and request.match is None:
        raise invalid("a deletion needs before_seq, match or both", field="before_seq")
    if request.before_seq is not None and not 0 <= request.before_seq <= MAX_U64:
        raise invalid(f"before_seq is {request.before_seq}, but must be between 0 and {MAX_U64}", field="before_seq")
    return request.before_seq, None if request.match is None else parse_match(request.match, "match")
