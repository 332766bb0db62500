"""The bodies of answers, a Struct each, and of errors.

Where a Struct has UNSET as its default, an answer may lack the field. Every other field is always there. The service
adds `performance` to most answers, and `ignored` where a body had fields that it does not know; neither is here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from proto.model.errors import STATUS
from proto.model.fields import U64, Name, RouterName, about
from proto.model.names import WATCH_SESSION
from proto.model.router import RouterConfig
from proto.model.topic_config import TopicConfig

_Topic = Annotated[Name, about("the topic", examples=["jobs"])]
_Head = Annotated[U64, about("seq of the newest record; 0: there never was one", examples=[480104])]
_Earliest = Annotated[
    U64, about("seq of the oldest record still there; `head_seq` + 1: there is none", examples=[480001])
]
_Count = Annotated[U64, about("records", examples=[104])]
_Bytes = Annotated[U64, about("bytes of these records", examples=[20480])]
_Epoch = Annotated[U64, about("another one for each topic of this name, one after the other", examples=[7])]
_Priority = Annotated[int, about("order among topics under load, at this time", examples=[0])]
_Millis = Annotated[int, about("ms since 1970", examples=[1748450001000])]
_Ready = Annotated[U64, about("jobs that can be claimed", examples=[840])]
_InFlight = Annotated[U64, about("jobs that are leased", examples=[2])]
_Delayed = Annotated[U64, about("jobs that cannot be claimed yet", examples=[0])]
_DeadLettering = Annotated[
    U64, about("jobs on their way to another topic, or waiting for room there; no claim gets them", examples=[0])
]
_LettersWait = Annotated[
    str | UnsetType,
    about(
        "dead_lettering: what keeps jobs from the other topic, if anything does: the limit that is reached, or the "
        "error that it answers, as topic_full",
        examples=["topic_full"],
    ),
]
_Acked = Annotated[U64, about("jobs completed", examples=[2])]
_Nacked = Annotated[U64, about("jobs given back", examples=[2])]
_Skipped = Annotated[list[U64], about("seqs whose job the worker does not hold", examples=[[]])]
_Seq = Annotated[U64, about("seq", examples=[480101])]
_Tag = Annotated[str | UnsetType, about("the tag, if asked for and there is one", examples=["tenant42:job-8800"])]
_JobTag = Annotated[str | UnsetType, about("the tag, if there is one", examples=["tenant42:job-8800"])]
_Data = Annotated[Raw, about("any JSON, as it was appended", examples=[{"type": "resize", "url": "s3://b/x.png"}])]
_Meta = Annotated[
    Raw | UnsetType, about("as it was appended, if there is one", type="object", examples=[{"trace": "z9"}])
]
_Created = Annotated[bool, about("whether this request made it")]
_Deleted = Annotated[bool, about("false: there was none", examples=[True])]
_Next = Annotated[
    str | UnsetType, about("`cursor` of the next page; absent on the last page", examples=["eyJhZnRlciI6ImpvYnMifQ"])
]
_After = Annotated[U64, about("where the next page begins", examples=[480105])]
_More = Annotated[bool, about("whether there is a next page")]
_Reason = Annotated[str, about("why")]


# Errors and what is common


class Error(Struct):
    code: Annotated[str, about("stable word to branch on", enum=sorted(code.value for code in STATUS))]
    message: Annotated[str, about("text for people; it may change", examples=['topic "jobs" does not exist'])]
    detail: Annotated[dict[str, Any] | UnsetType, about("facts about the error", examples=[{"topic": "jobs"}])] = UNSET


class Performance(Struct):
    """How long the request took, ms. Which figures there are depends on the operation."""

    server_total_ms: Annotated[float, about("from the head of the request to the answer", examples=[0.41])]
    wal_append_ms: Annotated[float | UnsetType, about("the write to the log", examples=[0.12])] = UNSET
    fsync_ms: Annotated[float | UnsetType, about("the wait for the device; 0: there was none", examples=[0.0])] = UNSET
    records_scanned: Annotated[float | UnsetType, about("records looked at, a number", examples=[128])] = UNSET
    throttle_wait_ms: Annotated[float | UnsetType, about("the wait for a turn", examples=[0.0])] = UNSET


class ErrorAnswer(Struct):
    """Every answer that is no success."""

    error: Error
    performance: Performance | UnsetType = UNSET


# Topics


class Configured(Struct):
    topic: _Topic
    created: _Created
    config: TopicConfig


class QueueState(Struct):
    ready: _Ready
    in_flight: _InFlight
    delayed: _Delayed
    dead_lettering: _DeadLettering
    dead_lettered: Annotated[U64, about("jobs that became dead letters since the topic was made", examples=[0])]
    waits_for: _LettersWait = UNSET


class Damage(Struct):
    """The topic is set apart: files of it are damaged, and its records cannot be read."""

    reason: _Reason
    since_ms: _Millis


class TopicState(Struct, kw_only=True):
    topic: _Topic
    type: Annotated[Literal["log", "queue"], about("kind of topic")]
    head_seq: _Head
    earliest_seq: _Earliest
    next_seq: Annotated[U64, about("seq of the next record", examples=[480105])]
    epoch: _Epoch
    count: _Count
    bytes: _Bytes
    config: TopicConfig
    effective_priority: _Priority
    last_write_ts: Annotated[int | None, about("time of the newest append, ms since 1970; null: none yet")]
    last_read_ts: Annotated[
        int | None, about("time of the newest read, ms since 1970; null: none since the shard started")
    ]
    queue: QueueState | UnsetType = UNSET
    quarantined: Damage | UnsetType = UNSET


class TopicEntry(Struct, kw_only=True):
    topic: _Topic
    head_seq: _Head
    earliest_seq: _Earliest
    epoch: _Epoch
    count: _Count
    bytes: _Bytes
    durable: Annotated[bool, about("whether the durability is fsync")]
    effective_priority: _Priority
    quarantined: Annotated[bool | UnsetType, about("true: the topic is set apart, because files of it are damaged")] = (
        UNSET
    )


class TopicPage(Struct):
    topics: list[TopicEntry]
    next_cursor: _Next = UNSET


class TopicDeleted(Struct):
    topic: _Topic
    deleted: _Deleted
    routers_removed: Annotated[list[RouterName], about("the routers from and to it", examples=[["jobs>audit"]])]


# Records


class Appended(Struct, kw_only=True):
    topic: _Topic
    first_seq: Annotated[U64, about("seq of the first record of the batch", examples=[480101])]
    last_seq: Annotated[U64, about("seq of the last record of the batch", examples=[480101])]
    seqs: Annotated[list[U64] | UnsetType, about("all seqs, unless `return_seqs` is false", examples=[[480101]])] = (
        UNSET
    )
    head_seq: _Head
    count: Annotated[U64, about("records of the batch", examples=[1])]
    created: Annotated[bool, about("whether this append made the topic")]
    deduped: Annotated[bool, about("whether the idempotency key was used before: this request wrote nothing")]


class RecordHead(Struct):
    seq: _Seq = field(name="$seq")
    ts: _Millis = field(name="$ts")
    node: Annotated[str | UnsetType, about("the node, if there is one", examples=["eu-1"])] = field(
        name="$node", default=UNSET
    )
    tag: _Tag = field(name="$tag", default=UNSET)


class Record(RecordHead, gc=False, omit_defaults=True):
    data: _Data = field(default_factory=Raw)
    meta: _Meta = UNSET


class Tombstone(Struct):
    """Records that the reader missed. They are gone."""

    gap_from: Annotated[U64, about("first missed seq, inclusive", examples=[479001])]
    gap_to: Annotated[U64, about("last missed seq, inclusive", examples=[480000])]
    reason: _Reason
    missed_estimate: Annotated[U64, about("seqs of the gap, deleted ones included", examples=[1000])]
    earliest_seq: _Earliest
    head_seq: _Head
    cause: Annotated[str | UnsetType, about("more about the reason, for some reasons")] = UNSET


class Diff(Struct):
    topic: _Topic
    records: list[Record]
    next_from_seq: Annotated[U64, about("`from_seq` of the next diff", examples=[480104])]
    head_seq: _Head
    earliest_seq: _Earliest
    caught_up: Annotated[bool, about("whether there are no more records at this time", examples=[True])]
    tombstone: Tombstone | None
    lag: Annotated[U64, about("`head_seq` - `next_from_seq`", examples=[0])]


class RecordsDeleted(Struct):
    topic: _Topic
    deleted: Annotated[U64, about("records that this request deleted", examples=[3])]
    earliest_seq: _Earliest
    head_seq: _Head
    count: Annotated[U64, about("records left", examples=[104])]
    bytes: Annotated[U64, about("bytes left", examples=[20480])]


# Cursors

_CursorName = Annotated[str, about("name of the cursor", examples=["billing"])]
_Position = Annotated[U64, about("the last seq that was dealt with", examples=[480100])]
_Lag = Annotated[U64, about("seqs up to the head", examples=[4])]
_Updated = Annotated[int, about("when it last moved, ms since 1970", examples=[1748450001000])]


class CursorEntry(Struct):
    cursor: _CursorName
    seq: _Position
    lag: _Lag
    updated_ts: _Updated


class TopicCursor(Struct):
    topic: _Topic
    cursor: _CursorName
    seq: _Position
    lag: _Lag
    updated_ts: _Updated


class CursorState(TopicCursor):
    """An answer of its own."""


class CursorPage(Struct):
    cursors: list[CursorEntry]
    next_cursor: _Next = UNSET


class AllCursorsPage(Struct):
    cursors: list[TopicCursor]
    next_cursor: _Next = UNSET


class CursorDeleted(Struct):
    topic: _Topic
    cursor: _CursorName
    deleted: _Deleted


# Queues


class ClaimedJob(Struct, gc=False):
    seq: _Seq = field(name="$seq")
    lease_id: Annotated[
        str, about("of this delivery", pattern="^lease_[0-9a-f]{16}$", examples=["lease_00000000007f3a9c"])
    ]
    deadline: Annotated[int, about("when the lease ends, ms since 1970", examples=[1748450039000])]
    ts: _Millis = field(name="$ts")
    tag: _JobTag = field(name="$tag")
    deliveries: Annotated[U64, about("this one included", examples=[1])]
    data: _Data
    meta: _Meta


class ClaimAcked(Struct):
    """What became of the jobs in the `ack` of a claim."""

    acked: _Acked
    skipped: _Skipped


class ClaimNacked(Struct):
    """What became of the jobs in the `nack` of a claim."""

    nacked: _Nacked
    skipped: _Skipped


class ClaimedJobs(Struct):
    topic: _Topic
    claimed: list[ClaimedJob]
    count: Annotated[U64, about("length of `claimed`", examples=[1])]
    ready: _Ready
    ack: Annotated[ClaimAcked | UnsetType, about("if the claim had an `ack`")] = UNSET
    nack: Annotated[ClaimNacked | UnsetType, about("if the claim had a `nack`")] = UNSET


class Acked(Struct):
    topic: _Topic
    acked: _Acked
    skipped: _Skipped
    ready: _Ready
    in_flight: _InFlight


class Nacked(Struct):
    topic: _Topic
    nacked: _Nacked
    skipped: _Skipped
    ready: _Ready
    in_flight: _InFlight


class Extended(Struct):
    topic: _Topic
    extended: Annotated[U64, about("jobs held for longer", examples=[1])]
    skipped: _Skipped
    deadlines: Annotated[
        dict[str, int], about("end of each lease, ms since 1970, by seq", examples=[{"480101": 1748450039000}])
    ]
    lease_ids: Annotated[
        dict[str, str], about("`lease_id` of each job, by seq", examples=[{"480101": "lease_00000000007f3a9c"}])
    ]


class PeekedJob(Struct, gc=False):
    """A job, in any state. Its lease id is not shown."""

    seq: _Seq = field(name="$seq")
    ts: _Millis = field(name="$ts")
    tag: _JobTag = field(name="$tag")
    state: Annotated[
        str,
        about("state of the job", enum=["ready", "in_flight", "delayed", "dead_lettering"], examples=["ready"]),
    ]
    deliveries: Annotated[U64, about("deliveries so far", examples=[0])]
    data: _Data
    meta: _Meta
    node: Annotated[str | UnsetType, about("in_flight: the worker")] = UNSET
    deadline: Annotated[int | UnsetType, about("in_flight: when the lease ends, ms since 1970")] = UNSET
    due: Annotated[int | UnsetType, about("delayed: when it can be claimed, ms since 1970")] = UNSET
    reason: Annotated[str | UnsetType, about("why an attempt failed, as the last nack told that gave a reason")] = UNSET
    dead_letter: Annotated[
        str | UnsetType, about("dead_lettering: the topic it goes to; for a redrive the queue it came from")
    ] = UNSET
    waits_for: _LettersWait = UNSET


class Peeked(Struct):
    topic: _Topic
    jobs: list[PeekedJob]
    count: Annotated[U64, about("length of `jobs`", examples=[1])]
    next_seq: _After
    more: _More
    ready: _Ready
    in_flight: _InFlight
    delayed: _Delayed
    dead_lettering: _DeadLettering


class Redriven(Struct):
    topic: _Topic
    queue: Annotated[Name, about("the queue that the letters are in again", examples=["jobs"])]
    redriven: Annotated[U64, about("letters moved", examples=[1])]
    seqs: Annotated[list[U64], about("the seqs that they had here", examples=[[12]])]
    next_seq: _After
    more: _More


# Streams

_Wid = Annotated[
    str,
    about("name of the watch session", pattern=f"^{WATCH_SESSION.pattern}$", examples=["wid_Zm9vYmFyYmF6cXV4MTIzNA"]),
]


class WatchedTopic(Struct):
    from_seq: Annotated[U64, about("the stream begins after this seq", examples=[480100])]
    head_seq: _Head
    earliest_seq: _Earliest


class Watch(Struct):
    wid: _Wid
    stream_url: Annotated[str, about("the stream of the session", examples=["/v0/watch/wid_Zm9vYmFyYmF6cXV4MTIzNA"])]
    session_ttl_ms: Annotated[U64, about("how long the session lasts without a stream", examples=[300000])]
    topics: Annotated[
        dict[str, WatchedTopic],
        about(
            "the watched topics by name",
            examples=[{"jobs": {"from_seq": 480100, "head_seq": 480104, "earliest_seq": 480001}}],
        ),
    ]


class Ticket(Struct):
    ticket: Annotated[str, about("opens the path once", examples=["ticket_Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MDEy"])]
    path: Annotated[str, about("the path it is for", examples=["/v0/ws"])]
    url: Annotated[str, about("path and ticket", examples=["/v0/ws?ticket=ticket_Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MDEy"])]
    ttl_ms: Annotated[U64, about("how long the ticket is good", examples=[60000])]


# Routers

_Router = Annotated[RouterName, about("the router", examples=["jobs>audit"])]
_RouterWaits = Annotated[
    str | UnsetType,
    about(
        "what keeps it from copying, if anything does: topic_full or record_too_large of its destination, "
        "max_total_bytes, disk_free",
        examples=["topic_full"],
    ),
]
_Forwarded = Annotated[U64, about("records copied since the router was made, or got another `dest`", examples=[104])]


class RouterPut(RouterConfig, frozen=True, kw_only=True):
    router: _Router
    created: _Created


class RouterState(RouterConfig, frozen=True, kw_only=True):
    router: _Router
    forwarded_total: _Forwarded
    waits_for: _RouterWaits = UNSET


class RouterEntry(Struct):
    router: _Router
    source: Annotated[Name, about("copies from this topic", examples=["jobs"])]
    dest: Annotated[Name, about("copies to this topic", examples=["audit"])]
    guarantee: Annotated[str, about("what a crash may do to copies", enum=["at_least_once", "exactly_once"])]
    forwarded_total: _Forwarded
    waits_for: _RouterWaits = UNSET


class RouterPage(Struct):
    routers: list[RouterEntry]
    next_cursor: _Next = UNSET


class RouterDeleted(Struct):
    router: _Router
    deleted: _Deleted


# Probes


_Rates = list[Annotated[float, Meta(ge=0)]]
_Latencies = list[Annotated[float, Meta(ge=0)] | None]


class History(Struct):
    """Columns: the entries of each belong to the same samples, the oldest first. Those of the service as a whole."""

    every_ms: Annotated[U64, about("time between two samples", examples=[10000])]
    since_ms: Annotated[U64, about("for how long samples have been taken: since the gateway started")]
    ago_ms: Annotated[list[U64], about("how long ago the sample was taken", examples=[[12000, 2000]])]
    reads: Annotated[_Rates, about("requests a second that need `read` alone", examples=[[10.5, 12]])]
    writes: Annotated[_Rates, about("other requests a second, without probes and metrics", examples=[[10.5, 12]])]
    errors: Annotated[_Rates, about("requests a second, of both kinds, that were answered with an error")]
    records: Annotated[_Rates, about("records written a second, copies included")]
    copies: Annotated[_Rates, about("records copied a second by routers")]
    bytes: Annotated[_Rates, about("bytes written to the log a second")]
    waiting: Annotated[_Rates, about("writes that waited for the log at that moment")]
    answer_us: Annotated[_Latencies, about("how long the slowest shard took to answer; null: none did")]
    sync_median_us: Annotated[_Latencies, about("median time that a sync of the log took; null: there was none")]
    sync_p99_us: Annotated[_Latencies, about("99 % of the syncs took no longer; null: there was none")]


class Health(Struct):
    status: Annotated[str, about("ok", examples=["ok"])]
    version: Annotated[str, about("of the service", examples=["0.1.0"])]
    uptime_ms: Annotated[U64, about("since the gateway started", examples=[86400000])]


class ReadyDetail(Struct):
    """Shards that write nothing, because the disk is nearly full. They still serve reads, deletions and acks."""

    limit: Annotated[str, about("disk_free", examples=["disk_free"])]
    shards: Annotated[list[int], about("their numbers", examples=[[0]])]


class Ready(Struct):
    status: Annotated[str, about("ready", examples=["ready"])]
    wal_replay_complete: Annotated[bool, about("true", examples=[True])]
    topics: Annotated[U64, about("topics of the service", examples=[12])]
    detail: ReadyDetail | UnsetType = UNSET
    topics_quarantined: Annotated[U64 | UnsetType, about("topics set apart, because files of them are damaged")] = UNSET
    bucket_damaged: Annotated[U64 | UnsetType, about("objects of the bucket that are damaged or missing")] = UNSET
