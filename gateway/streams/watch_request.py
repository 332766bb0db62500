"""The watch request: the body of `POST /v0/watch` and of the `subscribe` command, checked and resolved.

Wrong types are `400`; numbers out of range are clamped, as in other requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from gateway.shards.client import Shards
from gateway.streams.event_ids import GONE, MAX_POSITION, Position, check, decode
from proto.api.answers import WatchedTopic
from proto.api.requests import WatchRequest, WatchStart
from proto.ipc.operations import WatchNames, WatchResolve
from proto.model.body import Form
from proto.model.errors import invalid, topic_not_found
from proto.model.keys import Key, check_name
from proto.model.limits import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_FRAME_BYTES,
    DEFAULT_HEARTBEAT_MS,
    DEFAULT_LIMIT,
    MAX_BATCH_BYTES,
    MAX_HEARTBEAT_MS,
    MAX_U64,
    MIN_HEARTBEAT_MS,
    Limits,
    clamped,
)
from proto.model.names import check_topic

WATCH_REQUEST = Form(WatchRequest)


class Options(Struct, frozen=True):
    """Which fields of records a watch shows, and how many records at a time. Streams with equal options share the same
    bytes. Without `data` there is no `meta` either: only `$seq`, `$ts`, `$tag`, `$node` are left."""

    limit: int
    budget: int
    nodes: tuple[str, ...]
    tags: bool
    meta: bool
    data: bool
    strong: bool


def options_of(asked: WatchRequest, limits: Limits) -> Options:
    """Return the options of a request, with numbers out of range clamped."""
    node, budget = asked.node, asked.max_batch_bytes
    return Options(
        clamped(asked.limit, DEFAULT_LIMIT, limits.max_limit),
        clamped(DEFAULT_FRAME_BYTES if budget is None else budget, DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
        tuple(sorted({node} if isinstance(node, str) else set(node or ()))),
        bool(asked.include_tags),
        asked.include_meta is not False and asked.include_data is not False,
        asked.include_data is not False,
        asked.consistency == "strong",
    )


def heartbeat_of(asked: WatchRequest) -> int:
    """Return the heartbeat interval of a request in milliseconds, clamped."""
    wanted = DEFAULT_HEARTBEAT_MS if asked.heartbeat_ms is None else asked.heartbeat_ms
    return min(max(wanted, MIN_HEARTBEAT_MS), MAX_HEARTBEAT_MS)


Starts = Mapping[str, WatchStart | None]


async def begun(
    shards: Shards, named: Starts, asked: WatchRequest, key: Key, limits: Limits, *, lenient: bool
) -> dict[str, Found]:
    """Return the topics of a request, those of its prefix included, and where each begins. Raises `400`, `403`, `404`,
    `503`."""
    listed: Mapping[str, int] = {}
    if asked.cursor is not None:
        check(asked.cursor, "cursor")
    if asked.prefix is not None:
        check_prefix(asked.prefix, key)
        listed = await _listed(shards, asked.prefix, key, limits)
    begins = {name: WatchStart(tail=asked.tail) for name in listed if name not in named}
    starts = from_cursor(named, begins, asked.cursor, asked.prefix)
    if named or asked.prefix is None:
        check_topics(starts, key, limits)
    found = await resolve(shards, starts)
    if not lenient:
        for name in named:
            if name not in found:
                raise topic_not_found(name)
    return found


async def _listed(shards: Shards, prefix: str, key: Key, limits: Limits) -> Mapping[str, int]:
    most = limits.max_watch_topics
    replies = await shards.ask_all(WatchNames(prefix, key.prefixes, most + 1))
    listed = {name: epoch for reply in replies if reply.extra for name, epoch in reply.extra.epochs.items()}
    if len(listed) > most:
        raise invalid(
            f'more topics begin with "{prefix}" than can be watched at once, {most}: use a longer prefix',
            field="prefix",
            max=most,
        )
    return listed


def check_prefix(prefix: str, key: Key) -> None:
    """Check a prefix. Raises `400`, or `403` if no name with it is among those of the key."""
    if prefix:
        check_topic(prefix, "prefix")
    if key.prefixes and not any(each.startswith(prefix) or prefix.startswith(each) for each in key.prefixes):
        check_name(key, prefix)


def from_cursor(named: Starts, listed: Starts, cursor: str | None, prefix: str | None) -> Starts:
    """Return all starting positions with a cursor applied. Raises `400` for an invalid cursor."""
    starts = {**named, **listed}
    if cursor is None:
        return starts
    found = decode(cursor, starts, prefix)
    later = dict.fromkeys(listed, WatchStart())
    return {**starts, **later, **{name: WatchStart(seq) for name, seq in found.seqs.items() if name in starts}}


def check_topics(starts: Starts, key: Key, limits: Limits) -> None:
    """Check names, number and positions of the topics. Raises `400`, or `403` for a name outside the key's prefixes."""
    if not starts:
        raise invalid("topics must name at least one topic", field="topics")
    if len(starts) > limits.max_watch_topics:
        raise invalid(
            f"{len(starts)} topics, at most {limits.max_watch_topics} can be watched at once",
            field="topics",
            max=limits.max_watch_topics,
        )
    for name, start in starts.items():
        check_topic(name)
        check_name(key, name)
        if start is not None and start.from_seq is not None and not 0 <= start.from_seq <= MAX_U64:
            raise invalid(
                f"from_seq is {start.from_seq}, but must be between 0 and {MAX_U64}", field=f"topics.{name}.from_seq"
            )


@dataclass(frozen=True, slots=True)
class Found:
    """A topic's state when it was looked up, and the position at which its stream begins."""

    position: Position
    shown: WatchedTopic


async def resolve(shards: Shards, starts: Starts) -> dict[str, Found]:
    """Look up the topics in their shards and resolve `tail` to the head of now. Leaves missing topics out. Raises `503`
    unless their shards serve."""
    by_shard: dict[int, list[str]] = {}
    for name in starts:
        by_shard.setdefault(shards.index_of(name), []).append(name)
    states: dict[str, tuple[int, int, int]] = {}
    asked = {index: WatchResolve(tuple(names)) for index, names in by_shard.items()}
    for reply in await shards.ask_each(asked):
        states |= reply.found().topics
    return {name: _found(start or WatchStart(), *states[name]) for name, start in starts.items() if name in states}


def _found(start: WatchStart, epoch: int, head: int, earliest: int) -> Found:
    from_seq = head if start.tail else start.from_seq or 0
    # A position ahead of the head belongs to an earlier topic of this name, even if this topic grows beyond it later.
    position = Position(GONE, min(from_seq, MAX_POSITION), 0) if from_seq > head else Position(epoch, from_seq, 0)
    return Found(position, WatchedTopic(from_seq, head, earliest))


def described(found: Mapping[str, Found]) -> dict[str, WatchedTopic]:
    """Return the `topics` field of the response."""
    return {name: each.shown for name, each in found.items()}
