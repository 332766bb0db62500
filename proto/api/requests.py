"""The bodies of requests. Each is read by a `proto.model.body.Form`; the OpenAPI document is made from the same Struct.

Numbers "clamped" to a range may be out of it: the nearest one within counts.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Raw, Struct, field

from proto.model.fields import MATCH, U64, Match, Name, NodeId, Nodes, about, either
from proto.model.limits import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_FRAME_BYTES,
    DEFAULT_HEARTBEAT_MS,
    DEFAULT_JOBS,
    DEFAULT_LIMIT,
    MAX_BATCH_BYTES,
    MAX_DELAY_MS,
    MAX_HEARTBEAT_MS,
    MAX_IDEMPOTENCY_KEY_CHARS,
    MAX_LEASE_MS,
    MAX_META_KEYS,
    MAX_PUBLISH_DELAY_MS,
    MAX_REASON_BYTES,
    MAX_WAIT_MS,
    MIN_HEARTBEAT_MS,
    MIN_LEASE_MS,
)
from proto.model.names import TOPIC, WATCH_SESSION
from proto.model.topic_config import ConfigPatch

_BATCH_BYTES = (
    f"bytes of records in one answer, clamped to 1..{MAX_BATCH_BYTES}; 0 is as if absent; the first record always fits"
)
_LEASE = f"how long a job may be held, ms; clamped to {MIN_LEASE_MS}..{MAX_LEASE_MS}"
_OLD_NAME = {"deprecated": True}

Worker = Annotated[
    NodeId,
    about("name of the worker, 1 to {max_node_bytes} bytes of UTF-8", minLength=1, examples=["worker-eu-1"]),
]


class NewRecord(Struct, gc=False):
    """A record to append."""

    data: Annotated[
        Raw,
        about(
            "any JSON, kept as it is; with `meta` at most {max_record_bytes} bytes",
            examples=[{"type": "resize", "url": "s3://b/x.png"}],
        ),
    ]
    tag: Annotated[
        str | None,
        about(
            "what deletions and filters of routers match; at most {max_tag_bytes} bytes of UTF-8",
            maxLength="{max_tag_bytes}",
            examples=["tenant42:job-8800"],
        ),
    ] = None
    node: Annotated[
        NodeId | None,
        about("where the record comes from; at most {max_node_bytes} bytes of UTF-8; null: that of the batch"),
    ] = None
    meta: Annotated[
        Raw,
        about(
            f"at most {MAX_META_KEYS} keys and {{max_meta_bytes}} bytes; null: none",
            type=["object", "null"],
            maxProperties=MAX_META_KEYS,
        ),
    ] = field(default_factory=Raw)
    delay_ms: Annotated[
        int | None,
        about(
            "jobs of a queue only (an extension): hand it out no earlier; a log refuses any but null or 0",
            minimum=0,
            maximum=MAX_PUBLISH_DELAY_MS,
        ),
    ] = None


class AppendOptions(Struct):
    """The fields of an append beside its records."""

    node: Annotated[NodeId | None, about("that of each record without its own")] = None
    idempotency_key: Annotated[
        str | None,
        about(
            "a repeated append with the same key, within the topic's `idempotency_window_ms`, writes nothing and gets "
            "the answer of the first one. Goes before the header `Idempotency-Key`",
            maxLength=MAX_IDEMPOTENCY_KEY_CHARS,
        ),
    ] = None
    create: Annotated[
        bool | None, about("whether to create a missing topic; null: as `auto_create` of `config` says")
    ] = None
    config: Annotated[
        ConfigPatch | None,
        about("configuration of the topic, if this append creates it; needs the scope admin then"),
    ] = None
    disable_backpressure: Annotated[
        bool | None, about("queue the append where it would be refused as throttled under load", default=False)
    ] = None


class AppendRequest(AppendOptions, kw_only=True):
    """Records to append, all or none."""

    records: Annotated[list[NewRecord], about("in the order of their seqs", minItems=1, maxItems="{max_batch_records}")]


class DiffRequest(Struct):
    """Which records to read. `from_seq` and `cursor` exclude each other."""

    SCHEMA: ClassVar[dict[str, Any]] = {
        "not": {
            "required": ["from_seq", "cursor"],
            "properties": {"from_seq": {"type": "integer"}, "cursor": {"type": "string"}},
        }
    }

    from_seq: Annotated[U64 | None, about("the records after this seq", default=0, examples=[0])] = None
    limit: Annotated[
        int | None,
        about("records at most, clamped to 1..{max_limit}; 0 is as if absent", default=DEFAULT_LIMIT, examples=[100]),
    ] = None
    node: Annotated[
        Nodes | None, about("leave out records of this node, or of these, if the topic has `dedupe_node`")
    ] = None
    include_tags: Annotated[bool | None, about("whether records show `$tag`", default=False)] = None
    include_meta: Annotated[bool | None, about("whether records show `meta`", default=True)] = None
    wait_ms: Annotated[
        int | None,
        about(f"how long to wait for a record when there is none, clamped to 0..{MAX_WAIT_MS}", default=0),
    ] = None
    max_batch_bytes: Annotated[int | None, about(_BATCH_BYTES, default=DEFAULT_BATCH_BYTES)] = None
    cursor: Annotated[str | None, about("the records after this named cursor", minLength=1, maxLength=255)] = None


class DeleteRequest(Struct):
    """Which records to delete: those that fulfil every field given. It needs one of the two."""

    SCHEMA: ClassVar[dict[str, Any]] = either(before_seq={"type": "integer"}, match={"type": ["string", "array"]})

    before_seq: Annotated[U64 | None, about("those with a smaller seq", examples=[480000])] = None
    match: Annotated[Match | None, about(f"those with this tag: {MATCH}", examples=["tenant42:job-8800"])] = None


class CursorRequest(Struct):
    """Where a named cursor is to be."""

    seq: Annotated[U64, about("the last seq that was dealt with, at most the topic's `head_seq`", examples=[2])]
    force: Annotated[bool | None, about("move backwards, too", default=False)] = None


_Seqs = Annotated[list[U64], about("seqs of the jobs", minItems=1, maxItems="{max_claim}", examples=[[480101, 480104]])]
_LeaseIds = Annotated[
    list[str] | None,
    about(
        "`lease_id` of each job, as many as `seqs` and in that order; a job with another lease is skipped",
        minItems=1,
        maxItems="{max_claim}",
    ),
]
_NackDelay = Annotated[
    int | None, about(f"claim them no earlier, clamped to 0..{MAX_DELAY_MS}", default=0, examples=[1000])
]
_NackReason = Annotated[
    str | None,
    about(
        f"why the attempt failed, at most {MAX_REASON_BYTES} bytes of UTF-8; a dead letter has the last one told"
        " as `meta.$dead_letter_reason`",
        default=None,
        examples=["exit status 1: no such mailbox"],
    ),
]


class ClaimAck(Struct):
    """Jobs that a claim completes first. Those that the worker does not hold are skipped."""

    seqs: _Seqs
    lease_ids: _LeaseIds = None
    node: Annotated[Worker | None, about("who holds them; null: the `node` of the claim")] = None


class ClaimNack(ClaimAck, kw_only=True):
    """Jobs that a claim gives back first."""

    delay_ms: _NackDelay = None
    reason: _NackReason = None


class ClaimRequest(Struct):
    """A claim for jobs."""

    node: Worker
    max: Annotated[int | None, about("jobs at most, clamped to 1..{max_claim}", default=1, examples=[16])] = None
    lease_ms: Annotated[int | None, about(f"{_LEASE}; null: as the queue says", examples=[30000])] = None
    wait_ms: Annotated[
        int | None,
        about(f"how long to wait for a job when there is none (an extension), clamped to 0..{MAX_WAIT_MS}", default=0),
    ] = None
    ack: Annotated[
        ClaimAck | None, about("jobs to complete before this claim takes others, as an ack of its own (an extension)")
    ] = None
    nack: Annotated[
        ClaimNack | None,
        about("jobs to give back before this claim takes others, as a nack of its own after the ack (an extension)"),
    ] = None


class AckRequest(Struct):
    """Jobs that a worker holds. Those it does not hold are skipped."""

    node: Worker
    seqs: _Seqs
    lease_ids: _LeaseIds = None


class NackRequest(AckRequest, kw_only=True):
    """Jobs to give back."""

    delay_ms: _NackDelay = None
    reason: _NackReason = None


class ExtendRequest(AckRequest, kw_only=True):
    """Jobs to hold for longer."""

    lease_ms: Annotated[int, about(f"{_LEASE}, from now on", examples=[30000])]


class PeekRequest(Struct):
    """A page of jobs."""

    first_seq: Annotated[U64 | None, about("the first one, inclusive", default=0)] = None
    from_seq: Annotated[U64 | None, about("old name of `first_seq`; both must be equal", **_OLD_NAME)] = None
    max: Annotated[
        int | None, about("jobs at most, clamped to 1..{max_claim}", default=DEFAULT_JOBS, examples=[10])
    ] = None


class RedriveRequest(Struct):
    """Which dead letters to move back. Both bounds are inclusive."""

    queue: Annotated[
        Name, about("the queue that the letters came from, and go back to; not this topic", examples=["jobs"])
    ]
    first_seq: Annotated[U64 | None, about("the first one, inclusive", default=0)] = None
    last_seq: Annotated[U64 | None, about("the last one, inclusive; null: no bound")] = None
    from_seq: Annotated[U64 | None, about("old name of `first_seq`; both must be equal", **_OLD_NAME)] = None
    to_seq: Annotated[U64 | None, about("old name of `last_seq`; both must be equal", **_OLD_NAME)] = None
    match: Annotated[Match | None, about(f"those with this tag: {MATCH}")] = None
    max: Annotated[
        int | None, about("letters at most, clamped to 1..{max_claim}", default=DEFAULT_JOBS, examples=[10])
    ] = None


class WatchStart(Struct):
    """Where to begin in one topic. Without either field: with its first record."""

    from_seq: Annotated[U64 | None, about("the records after this seq", default=0, examples=[480100])] = None
    tail: Annotated[
        bool | None, about("only records that are not there yet; goes before `from_seq`", default=False)
    ] = None


class WatchRequest(Struct):
    """Topics to watch, and how to show their records."""

    SCHEMA: ClassVar[dict[str, Any]] = either(topics={"type": "object", "minProperties": 1}, prefix={"type": "string"})

    topics: Annotated[
        dict[Name, WatchStart | None] | None,
        about(
            "the topics by name, with the place to begin",
            maxProperties="{max_watch_topics}",
            examples=[{"jobs": {"from_seq": 0}}],
        ),
    ] = None
    prefix: Annotated[
        str | None,
        about(
            "an addition to the contract: also all topics whose names begin with this, and those made later, from "
            "their first record; at most {max_watch_topics} topics in all",
            pattern=f"^({TOPIC.pattern})?$",
        ),
    ] = None
    tail: Annotated[
        bool | None,
        about("for `prefix`: of the topics that exist now, only records that are not there yet", default=False),
    ] = None
    cursor: Annotated[
        str | None,
        about(
            "the id of a frame of an earlier watch. Topics that it holds begin at its positions; others of `prefix` "
            "came later and begin at their first record"
        ),
    ] = None
    node: Annotated[Nodes | None, about("leave out records of this node, or of these")] = None
    limit: Annotated[
        int | None, about("records of one frame, clamped to 1..{max_limit}; 0 is as if absent", default=DEFAULT_LIMIT)
    ] = None
    max_batch_bytes: Annotated[
        int | None,
        about(
            f"bytes of records in one frame, clamped to 1..{MAX_BATCH_BYTES}; 0 means {DEFAULT_BATCH_BYTES}; "
            "the first record always fits",
            default=DEFAULT_FRAME_BYTES,
        ),
    ] = None
    heartbeat_ms: Annotated[
        int | None,
        about(
            f"longest silence of the stream, clamped to {MIN_HEARTBEAT_MS}..{MAX_HEARTBEAT_MS}",
            default=DEFAULT_HEARTBEAT_MS,
        ),
    ] = None
    include_meta: Annotated[bool | None, about("whether records show `meta`", default=True)] = None
    include_tags: Annotated[bool | None, about("whether records show `$tag`", default=False)] = None
    include_data: Annotated[bool | None, about("whether records show `data` and `meta`", default=True)] = None
    consistency: Annotated[
        Literal["eventual", "strong"] | None,
        about("`strong`: only records that a crash of the machine does not take back", default="eventual"),
    ] = None


class TicketRequest(Struct):
    """What a ticket is for."""

    path: Annotated[
        str,
        about(
            "path of the stream or the WebSocket that it opens; a query is left out",
            pattern=f"^/v0/(ws|watch/{WATCH_SESSION.pattern}|topics/{TOPIC.pattern}/work)([?].*)?$",
            examples=["/v0/ws"],
        ),
    ]
