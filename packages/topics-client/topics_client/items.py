"""The values that are sent and returned: records, gaps, jobs, and the fields of configurations and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Required, Self, TypedDict

from topics_client.options import check

Durability = Literal["ephemeral", "memory", "disk", "fsync"]
Match = str | tuple[str, str, str] | list[str]
"""A tag, or `("tag", "Eq" | "Glob", text)`; a Glob ends with `*`."""


class Json(bytes):
    """JSON text that is published as it is: its numbers keep their digits."""


class RecordFields(TypedDict, total=False):
    """The optional fields of a record besides its data."""

    tag: str | None
    node: str | None
    meta: Mapping[str, Any] | None
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be published. `data` is what the client can write as JSON, or `Json`; `delay_ms` holds a job back."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None
    delay_ms: int | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Raises `TypeError` for a field that records do not have, and without data."""
        with suppress(TypeError):
            return cls(**fields)
        check("a record", fields, cls)
        raise TypeError("a record needs data")

    def encoded(self, write: Callable[[Any], bytes]) -> bytes:
        given = [b'"data":%s' % write(self.data)]
        if self.tag is not None:
            given.append(b'"tag":%s' % write(self.tag))
        if self.node is not None:
            given.append(b'"node":%s' % write(self.node))
        if self.meta is not None:
            given.append(b'"meta":%s' % write(self.meta))
        if self.delay_ms is not None:
            given.append(b'"delay_ms":%s' % write(self.delay_ms))
        return b"{%s}" % b",".join(given)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. `ts` is in milliseconds since 1970."""

    topic: str
    seq: int
    ts: int
    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, topic: str, told: Mapping[str, Any]) -> Record:
        of = told.get
        return cls(topic, told["$seq"], told["$ts"], of("data"), of("$tag"), of("$node"), of("meta"))


@dataclass(frozen=True, slots=True)
class Gap:
    """Records `first_seq` to `last_seq`, both included, are lost.

    `reason` is `cap`, `ttl`, `mixed`, `recreated`, `source_trim` or `from_seq_too_old`. The first record after the gap
    is `earliest_seq` or later. If the topic was deleted and made again (`recreated`), its seqs begin again.
    """

    topic: str
    first_seq: int
    last_seq: int
    reason: str
    earliest_seq: int

    @classmethod
    def of(cls, topic: str, told: Mapping[str, Any]) -> Gap:
        return cls(topic, told["gap_from"], told["gap_to"], told["reason"], told["earliest_seq"])

    @property
    def seq(self) -> int:
        """The position after the gap."""
        return self.earliest_seq - 1 if self.reason == "recreated" else self.last_seq


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic that is tailed was deleted; no record of it follows."""

    topic: str
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publish: `count` records, the first `first_seq`, the last `last_seq`.

    `deduped`: an earlier request with the same idempotency key had written (some of) them.
    """

    topic: str
    first_seq: int
    last_seq: int
    count: int
    created: bool = False
    deduped: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A job that is leased to this worker until `deadline` (ms since 1970). `deliveries` counts this one."""

    queue: str
    seq: int
    ts: int
    data: Any
    lease_id: str = field(repr=False)
    deadline: int
    deliveries: int
    tag: str | None = None
    meta: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, queue: str, told: Mapping[str, Any]) -> Job:
        lease = told["lease_id"], told["deadline"], told["deliveries"]
        return cls(queue, told["$seq"], told["$ts"], told.get("data"), *lease, told.get("$tag"), told.get("meta"))


class TopicConfig(TypedDict, total=False):
    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durable: bool
    durability: Durability
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


class QueueState(TypedDict, total=False):
    ready: Required[int]
    in_flight: Required[int]
    delayed: int
    dead_lettering: int
    dead_lettered: Required[int]
    waits_for: str


class TopicState(TypedDict, total=False):
    """The state of a topic, with the fields that the service sends; a list has fewer of them."""

    topic: Required[str]
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    epoch: int
    config: TopicConfig
    queue: QueueState
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None


class RouterConfig(TypedDict, total=False):
    source: Required[str]
    dest: Required[str]
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: Match | None
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]


class RouterState(RouterConfig, total=False):
    router: Required[str]
    created: bool
    forwarded_total: int
    waits_for: str


class CursorState(TypedDict, total=False):
    cursor: Required[str]
    seq: Required[int]
    lag: int
    updated_ts: int


class Leases(TypedDict, total=False):
    """Answer of an ack, nack or extend: how many jobs it changed, and which it skipped since others hold them."""

    acked: int
    nacked: int
    extended: int
    skipped: Required[list[int]]


class Claimed(list[Job]):
    """The jobs of a claim. `ack` and `nack` tell of the jobs that it finished, None if there were none."""

    ack: Leases | None = None
    nack: Leases | None = None
