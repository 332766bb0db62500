"""Requests about jobs: what claim, ack, nack and extend may say, and the records that are handed out."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, UnsetType

from proto.body import parse
from proto.errors import ErrorCode, TopicsError, invalid
from proto.limits import MAX_U64, Limits
from shardd.config import MAX_LEASE_MS, MIN_LEASE_MS
from shardd.diff import rows
from shardd.topic import Topic

MAX_DELAY_MS = 86_400_000
LEASE_PREFIX = "lease_"
STALE = -1
"""The token of a malformed lease id: no lease has it."""


class ClaimRequest(Struct):
    node: str
    max: int | None = None
    lease_ms: int | None = None


class HoldRequest(Struct):
    """Ack, nack or extend. `delay_ms` is for nack, `lease_ms` for extend."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None
    delay_ms: int | None = None
    lease_ms: int | None = None


class Claimed(Struct, gc=False):
    """A job as it is handed out."""

    seq: int = msgspec.field(name="$seq")
    lease_id: str
    deadline: int
    ts: int = msgspec.field(name="$ts")
    tag: str | UnsetType = msgspec.field(name="$tag")
    deliveries: int
    data: Raw
    meta: Raw | UnsetType


Found = tuple[int, int, str | UnsetType, str | UnsetType, Raw, Raw | UnsetType]
"""seq, ts, node, tag, data, meta."""

_decode_claim = msgspec.json.Decoder(ClaimRequest).decode
_decode_hold = msgspec.json.Decoder(HoldRequest).decode


def not_a_queue(topic: str) -> TopicsError:
    return TopicsError(
        ErrorCode.NOT_A_QUEUE,
        f'topic "{topic}" is a log; only a topic made with "type": "queue" has jobs',
        {"topic": topic, "type": "log"},
    )


def parse_claim(body: bytes, limits: Limits) -> ClaimRequest:
    """Raises `400 invalid_request`. `max` is clamped, `lease_ms` too; None stands for the topic's."""
    asked = parse(_decode_claim, body)
    check_claim(asked, limits)
    return asked


def check_claim(asked: ClaimRequest, limits: Limits) -> None:
    _check_node(asked.node, limits)
    asked.max = min(max(check_number("max", asked.max) or 1, 1), limits.max_claim)
    if asked.lease_ms is not None:
        asked.lease_ms = clamped_lease(check_number("lease_ms", asked.lease_ms))


def parse_hold(body: bytes, limits: Limits) -> tuple[HoldRequest, list[int | None]]:
    """The request, and per seq the token to look for, or None. Raises `400 invalid_request`."""
    asked = parse(_decode_hold, body)
    _check_node(asked.node, limits)
    if not 1 <= len(asked.seqs) <= limits.max_claim:
        raise invalid(f"seqs has {len(asked.seqs)} entries, but must have 1 to {limits.max_claim}", field="seqs")
    for seq in asked.seqs:
        check_number("seqs", seq)
    if asked.lease_ids is None:
        return asked, [None] * len(asked.seqs)
    if len(asked.lease_ids) != len(asked.seqs):
        raise invalid(
            f"lease_ids has {len(asked.lease_ids)} entries and seqs {len(asked.seqs)}: send one for each seq, in order",
            field="lease_ids",
        )
    return asked, list(map(token_of, asked.lease_ids))


def clamped_lease(lease_ms: int) -> int:
    return min(max(lease_ms, MIN_LEASE_MS), MAX_LEASE_MS)


def clamped_delay(asked: HoldRequest) -> int:
    return min(check_number("delay_ms", asked.delay_ms or 0), MAX_DELAY_MS)


def check_number(name: str, value: int | None) -> int:
    if value is not None and not 0 <= value <= MAX_U64:
        raise invalid(f"{name} is {value}, but must be between 0 and {MAX_U64}", field=name)
    return value or 0


def _check_node(node: str, limits: Limits) -> None:
    size = len(node.encode())
    if not 1 <= size <= limits.max_node_bytes:
        raise invalid(f"node has {size} bytes, but must have 1 to {limits.max_node_bytes}", field="node")


def lease_id(token: int) -> str:
    return f"{LEASE_PREFIX}{token:016x}"


def token_of(text: str) -> int:
    digits = text.removeprefix(LEASE_PREFIX)
    if len(text) != len(LEASE_PREFIX) + 16 or len(digits) != 16:
        return STALE
    try:
        token = int(digits, 16)
    except ValueError:
        return STALE
    return token if lease_id(token) == text else STALE


def new_tokens(count: int) -> Sequence[int]:
    """Random, so that none comes again after a restart."""
    return struct.unpack(f"<{count}Q", os.urandom(8 * count))


def one(topic: Topic, seq: int) -> Found | None:
    """The record of a seq; None if it is gone."""
    pieces, _ = topic.window(seq, 1, 0, upto=seq)
    return next((found for piece in pieces for found in rows(piece, frozenset(), True, True, _found)), None)


def fresh(topic: Topic, start: int, known: Callable[[int], bool], count: int, budget: int) -> tuple[list[Found], int]:
    """Up to `count` records from `start` on that nobody knows of yet, and where to go on."""
    found: list[Found] = []
    limit = count
    while len(found) < count and start <= topic.head_seq and budget > 0:
        pieces, last = topic.window(start, limit, budget)
        limit = 256  # after a restart, all of those may be known
        start = last + 1
        for piece in pieces:
            for each in rows(piece, frozenset(), True, True, _found):
                if known(each[0]):
                    continue
                if len(found) == count:
                    return found, each[0]
                found.append(each)
                budget -= size_of(each)
    return found, start


def size_of(found: Found) -> int:
    return len(found[4]) + (0 if isinstance(found[5], UnsetType) else len(found[5]))


def _found(*cells: Any) -> Any:
    return cells


def claimed(found: Found, token: int, deadline: int, deliveries: int) -> Claimed:
    seq, ts, _, tag, data, meta = found
    return Claimed(seq, lease_id(token), deadline, ts, tag, deliveries, data, meta)
