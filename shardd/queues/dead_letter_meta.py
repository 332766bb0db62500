"""Dead-letter stamps: members added to a record's `meta` when it is dead-lettered, and removed when it is redriven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, UnsetType

from proto.model.surrogates import apply, edit
from shardd.queues.job_requests import Found

ORIGIN = "$dead_letter_from"
REASON = "$dead_letter_reason"
"""Only where a nack told one."""
STAMPS = (ORIGIN, "$dead_letter_deliveries", "$dead_letter_src_seq", REASON)
_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw]).decode


class _Stamped(Struct):
    origin: str | None = msgspec.field(name=ORIGIN, default=None)


_origin = msgspec.json.Decoder(_Stamped).decode


def origin(found: Found) -> str | None:
    """The queue that a dead letter comes from; None for any other record."""
    meta = _meta(found)
    if ORIGIN.encode() not in meta and b"\\" not in meta:
        return None
    try:
        return apply(_origin, meta)[0].origin
    except msgspec.DecodeError:
        return None  # a member of that name that a client wrote


def body(
    queue: str, found: Sequence[Found], deliveries: Sequence[int], reasons: Mapping[int, str], create: bool
) -> bytes:
    """The body of the append that copies the records. `deliveries` as in `shardd.topic.outbox.Transfer`, `reasons` by
    seq."""
    records = [_record(queue, each, times, reasons) for each, times in zip(found, deliveries, strict=True)]
    return _encode({"records": records, "create": create})


def _record(queue: str, found: Found, deliveries: int, reasons: Mapping[int, str]) -> dict[str, object]:
    tag, data = found[3], found[4]
    meta = _stamped(queue, found, deliveries, reasons.get(found[0])) if deliveries else edit(_unstamped, _meta(found))
    fields: dict[str, object] = {"data": data}
    if meta:
        fields["meta"] = Raw(meta)
    if not isinstance(tag, UnsetType):
        fields["tag"] = tag
    return fields


def _meta(found: Found) -> bytes:
    meta = found[5]
    return b"" if isinstance(meta, UnsetType) else bytes(meta)


def _stamped(queue: str, found: Found, deliveries: int, reason: str | None) -> bytes:
    """The record's `meta` with the stamps after its own members."""
    values = (queue, deliveries, found[0]) if reason is None else (queue, deliveries, found[0], reason)
    stamp = _encode(dict(zip(STAMPS, values, strict=False)))
    own = _meta(found).strip()
    return stamp if own in (b"", b"null") or not own[1:-1].strip() else own[:-1] + b"," + stamp[1:]


def _unstamped(meta: bytes) -> bytes:
    """`meta` without the stamps; b"" if no member is left."""
    left = {name: value for name, value in _members(meta).items() if name not in STAMPS}
    return _encode(left) if left else b""
