"""Job requests: parsing of claim, ack, nack and extend, and the jobs that a claim returns."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from msgspec import Raw, Struct, UnsetType

from proto.api.answers import ClaimedJob
from proto.api.requests import AckRequest, ClaimAck, ClaimNack, ClaimRequest, ExtendRequest, NackRequest
from proto.ipc.message import Request
from proto.ipc.operations import Ack, Claim, Extend, Nack
from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import (
    MAX_BATCH_BYTES,
    MAX_DELAY_MS,
    MAX_LEASE_MS,
    MAX_REASON_BYTES,
    MAX_U64,
    MAX_WAIT_MS,
    MIN_LEASE_MS,
    Limits,
    clamped,
)
from shardd.delivery.diff import rows
from shardd.topic.job_table import Queue
from shardd.topic.topic import Topic

LEASE_PREFIX = "lease_"
STALE = -1
"""The token of a malformed lease id. No lease has this token."""
Found = tuple[int, int, str | UnsetType, str | UnsetType, Raw, Raw | UnsetType]
"""seq, ts, node, tag, data, meta."""

_CLAIM = Form(ClaimRequest)
ACK, NACK, EXTEND = Form(AckRequest), Form(NackRequest), Form(ExtendRequest)
Jobs = TypeVar("Jobs", bound=AckRequest)


class Named(NamedTuple):
    """Jobs that a request names: the worker that holds them, as it says, and per seq the token of its lease id, None
    without lease ids."""

    node: str
    seqs: list[int]
    tokens: list[int | None]


class Finish(NamedTuple):
    """What a claim finishes before it takes jobs."""

    ack: Named | None
    nack: Named | None
    delay_ms: int
    reason: str | None


def parse_claim(request: Request[Claim], limits: Limits) -> tuple[ClaimRequest, Finish | None]:
    """The request's claim, its numbers clamped; `lease_ms` None means the topic's. Then what it finishes, if anything.
    Raises `400 invalid_request` or `batch_too_large`."""
    asked, request.ignored = _CLAIM.read(request.body)
    check_claim(asked, limits)
    ack, nack = asked.ack, asked.nack
    if ack is None and nack is None:
        return asked, None
    acked = None if ack is None else _named(ack, limits, asked.node, "ack.")
    if nack is None:
        return asked, Finish(acked, None, 0, None)
    nacked = _named(nack, limits, asked.node, "nack.")
    return asked, Finish(acked, nacked, clamped_delay(nack), told_reason(nack, "nack."))


def check_claim(asked: ClaimRequest, limits: Limits) -> None:
    _check_node(asked.node, limits)
    asked.max = clamped(asked.max, 1, limits.max_claim)
    if asked.lease_ms is not None:
        asked.lease_ms = clamped_lease(asked.lease_ms)
    asked.wait_ms = clamped(asked.wait_ms, 0, MAX_WAIT_MS, 0)


def parse_jobs(form: Form[Jobs], request: Request[Ack | Nack | Extend], limits: Limits) -> tuple[Jobs, Named]:
    """The request, and the jobs it names. Raises `400 invalid_request` or `batch_too_large`."""
    asked, request.ignored = form.read(request.body)
    return asked, _named(asked, limits, asked.node)


def _named(asked: AckRequest | ClaimAck, limits: Limits, node: str, within: str = "") -> Named:
    """The jobs of a request, or of the part of one that its fields are `within`; `node` holds them if it names none."""
    node = node if asked.node is None else asked.node
    _check_node(node, limits, within)
    if not asked.seqs:
        raise invalid(f"{within}seqs is empty: send the seqs of one job or more", field=f"{within}seqs")
    if len(asked.seqs) > limits.max_claim:
        raise TopicsError(
            ErrorCode.BATCH_TOO_LARGE,
            f"{within}seqs has {len(asked.seqs)} entries; at most {limits.max_claim} are allowed in one request",
            {"field": f"{within}seqs", "count": len(asked.seqs), "max": limits.max_claim},
        )
    for seq in (min(asked.seqs), max(asked.seqs)):
        check_number(f"{within}seqs", seq)
    if asked.lease_ids is None:
        return Named(node, asked.seqs, [None] * len(asked.seqs))
    if len(asked.lease_ids) != len(asked.seqs):
        raise invalid(
            f"{within}lease_ids has {len(asked.lease_ids)} entries and seqs {len(asked.seqs)}: "
            "send one for each seq, in order",
            field=f"{within}lease_ids",
        )
    return Named(node, asked.seqs, list(map(token_of, asked.lease_ids)))


def clamped_lease(lease_ms: int) -> int:
    return clamped(lease_ms, MIN_LEASE_MS, MAX_LEASE_MS, MIN_LEASE_MS)


def clamped_delay(asked: NackRequest | ClaimNack) -> int:
    return clamped(asked.delay_ms, 0, MAX_DELAY_MS, 0)


def told_reason(asked: NackRequest | ClaimNack, within: str = "") -> str | None:
    """The reason of a nack, None without one. Raises `400 invalid_request`."""
    size = len((asked.reason or "").encode())
    if size > MAX_REASON_BYTES:
        message = f"{within}reason has {size} bytes; at most {MAX_REASON_BYTES} are allowed: cut it"
        raise invalid(message, field=f"{within}reason")
    return asked.reason or None


def bound(asked: Struct, name: str, old_name: str) -> int | None:
    """A seq that a request may give under either name; None if absent. Raises `400` for two different values."""
    found: list[int | None] = [getattr(asked, each) for each in (name, old_name)]
    if None not in found and found[0] != found[1]:
        raise invalid(f"{old_name} is the old name of {name}: send one of them", field=old_name)
    for each, value in zip((name, old_name), found, strict=True):
        if value is not None:
            return check_number(each, value)
    return None


def check_number(name: str, value: int | None) -> int:
    if value is not None and not 0 <= value <= MAX_U64:
        raise invalid(f"{name} is {value}, but must be between 0 and {MAX_U64}", field=name)
    return value or 0


def _check_node(node: str, limits: Limits, within: str = "") -> None:
    size = len(node.encode())
    if not 1 <= size <= limits.max_node_bytes:
        message = f"{within}node has {size} bytes, but must have 1 to {limits.max_node_bytes}"
        raise invalid(message, field=f"{within}node")


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
    """`count` random tokens. Random, so that none repeats after a restart."""
    return struct.unpack(f"<{count}Q", os.urandom(8 * count))


def chosen(topic: Topic, seqs: Sequence[int]) -> Iterator[Found]:
    """The records with these seqs, which are ascending and distinct, without those that are gone."""
    return chain.from_iterable(
        rows(piece, frozenset(), True, True, _found) for piece in topic.records.sequence.chosen(seqs)
    )


def fresh(topic: Topic, start: int, known: Callable[[int], bool], count: int, budget: int) -> tuple[list[Found], int]:
    """Up to `count` records from seq `start` on for which `known` is False, and the seq to continue at. `budget` limits
    their bytes. Skips gaps."""
    found: list[Found] = []
    limit = count
    while len(found) < count and start <= topic.records.head_seq and budget > 0:
        pieces, last = topic.records.window(topic.records.gaps.after(start), limit, budget)
        limit = 256  # after a restart, a whole window may be known records
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


def longest_wait(topic: Topic, queue: Queue, now_ms: int) -> int:
    """Age of the oldest claimable job in ms; 0 if there is none. The age of a job with a publish delay counts from the
    delay's end."""
    if not queue.ready(topic.records.count):
        return 0
    found, queue.cursor = fresh(topic, queue.cursor, queue.jobs.__contains__, 1, MAX_BATCH_BYTES)
    since = [now_ms]
    if found:
        queue.cursor = found[0][0]
        since.append(found[0][1])
    seq = queue.first_ready()
    if seq is not None and topic.records.alive(seq):
        job = queue.jobs[seq]
        since.append(max(topic.records.written_at(seq), 0 if job.deliveries else job.until))
    return now_ms - min(since)


def size_of(found: Found) -> int:
    return len(found[4]) + (0 if isinstance(found[5], UnsetType) else len(found[5]))


def _found(*cells: Any) -> Any:
    return cells


def claimed(found: Found, token: int, deadline: int, deliveries: int) -> ClaimedJob:
    seq, ts, _, tag, data, meta = found
    return ClaimedJob(seq, lease_id(token), deadline, ts, tag, deliveries, data, meta)
