"""Limits on what a client may send or make the service hold, from `TOPICS_*` settings.

Sizes are bytes of UTF-8 as sent, times are milliseconds. The supervisor reads the environment once, checks the bounds
that are named here, and passes the result to its children, so that all processes of one service have the same limits.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.model.durability import DurabilityName
from proto.model.replication import ReplicationName

MAX_U64 = 2**64 - 1
DEFAULT_LIMIT = 256
"""Records of a diff that names no `limit` (or names 0)."""
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
MAX_WAIT_MS = 30_000
DEFAULT_BATCH_BYTES = 1 << 20
"""Byte budget of one diff answer if the request has no `max_batch_bytes`."""
MAX_BATCH_BYTES = 8 << 20
MAX_META_KEYS = 64
MAX_IDEMPOTENCY_KEY_CHARS = 256
MAX_PUBLISH_DELAY_MS = 366 * 86_400_000
"""Longest delay before a job may be claimed, ms."""
MAX_HEADER_BYTES = 64 << 10
MAX_HEADER_COUNT = 100
DEFAULT_JOBS = 100
"""Jobs of a peek, and letters of a redrive, that names no `max`. 0 is clamped to 1, as by a claim."""
MIN_LEASE_MS, MAX_LEASE_MS = 100, 86_400_000
MAX_DELAY_MS = 86_400_000
"""Longest delay of a nack."""
MAX_REASON_BYTES = 512
"""Longest reason of a nack, in UTF-8."""
MAX_REASONS = 10_000
"""Jobs of a queue whose reasons are kept."""
DEFAULT_FRAME_BYTES = 256 << 10
"""Byte budget of a record frame of a stream unless the request names `max_batch_bytes`."""
DEFAULT_HEARTBEAT_MS = 15_000
MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS = 1_000, 60_000
TICKET_TTL_S = 60.0
MAX_CURSOR_NAME_BYTES = 255
RECORD_OVERHEAD = 16
"""Bytes of framing that each record adds to `bytes`, besides its data, meta, tag and node."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Configurable limits, with the bounds and meanings of which `supervisor.config.settings` makes settings."""

    max_batch_records: Annotated[int, Meta(ge=1, le=1_000_000, description="records per write")] = 10_000
    max_record_bytes: Annotated[int, Meta(ge=1, le=1 << 30, description="bytes of data + meta of one record")] = 1 << 20
    max_body_bytes: Annotated[int, Meta(ge=1, le=1 << 30, description="bytes of one request body")] = 64 << 20
    max_meta_bytes: Annotated[int, Meta(ge=2, description="bytes of one record's meta")] = 16 << 10
    max_tag_bytes: Annotated[int, Meta(ge=1, description="bytes of a tag")] = 256
    max_node_bytes: Annotated[int, Meta(ge=1, description="bytes of a node id")] = 128
    max_limit: Annotated[int, Meta(ge=1, le=100_000, description="records of one diff answer")] = 1000
    max_claim: Annotated[int, Meta(ge=1, le=100_000, description="jobs per claim, seqs per ack")] = 1000
    max_watch_topics: Annotated[int, Meta(ge=1, description="topics of one watch session")] = 256
    max_topics: Annotated[int, Meta(ge=0, description="topics of the service, 0 for no limit")] = 100_000
    max_routers: Annotated[int, Meta(ge=0, description="routers of the service, 0 for no limit")] = 10_000
    max_total_bytes: Annotated[int, Meta(ge=0, description="retained bytes of all topics together, 0 for no limit")] = 0
    max_inflight_per_key: Annotated[int, Meta(ge=0, description="requests of one key at a time, 0 for no limit")] = 1000
    max_watch_sessions: Annotated[int, Meta(ge=0, description="watch sessions of the service, 0 for no limit")] = 10_000
    max_watch_sessions_per_key: Annotated[int, Meta(ge=0, description="watch sessions of one key, 0 for no limit")] = (
        1000
    )
    max_tickets_per_key: Annotated[int, Meta(ge=0, description="unused tickets of one key, 0 for no limit")] = 1000
    max_cursors_per_topic: Annotated[int, Meta(ge=0, description="named cursors of one topic, 0 for no limit")] = 1000
    max_sse_connections: Annotated[int, Meta(ge=0, description="open streams, 0 for no limit")] = 10_000
    max_sse_connections_per_key: Annotated[int, Meta(ge=0, description="open streams of one key, 0 for no limit")] = (
        1000
    )
    max_connections: Annotated[int, Meta(ge=0, description="open connections, 0 for as many as descriptors allow")] = (
        12_000
    )
    min_upload_rate: Annotated[
        int, Meta(ge=0, description="bytes per second below which a body is too slow, 0 for any pace")
    ] = 256 << 10
    min_free_bytes: Annotated[
        int,
        Meta(ge=0, description="free bytes of the data directory's disk below which nothing is written, 0 for none"),
    ] = 64 << 20
    memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="bytes held for clients at once by all processes; 0: an eighth of the machine's, "
            "256 MiB to 1 GiB",
        ),
    ] = 0
    min_download_rate: Annotated[
        int, Meta(ge=0, description="bytes per second below which an answer is read too slowly, 0 for any pace")
    ] = 64 << 10
    metrics_max_topics: Annotated[
        int, Meta(ge=0, le=100_000, description="topics with metrics of their own, and cursors")
    ] = 1000
    header_timeout_ms: Annotated[int, Meta(ge=1, description="time a client has to send a request's head")] = 10_000
    body_timeout_ms: Annotated[int, Meta(ge=1, description="longest pause while a client sends a body")] = 30_000
    idle_timeout_ms: Annotated[int, Meta(ge=1, description="how long an idle kept-alive connection stays")] = 75_000
    request_timeout_ms: Annotated[int, Meta(ge=1000, description="longest a shard may take to answer")] = 60_000
    drain_timeout_ms: Annotated[int, Meta(ge=1, description="time for requests in flight when the service stops")] = (
        10_000
    )
    watch_session_ttl_ms: Annotated[
        int, Meta(ge=100, description="how long a watch session stays without a stream")
    ] = 300_000
    watch_queue_frames: Annotated[int, Meta(ge=1, description="frames that wait for a slow event stream at most")] = (
        1024
    )
    websocket_ping_ms: Annotated[
        int, Meta(ge=100, description="silence after which a WebSocket is asked for a sign")
    ] = 20_000
    websocket_queue_messages: Annotated[
        int, Meta(ge=1, description="messages that wait for a slow WebSocket at most")
    ] = 4
    watch_queue_bytes: Annotated[
        int, Meta(ge=1, description="bytes that wait for a slow stream, but one frame always")
    ] = 4 << 20
    buffer_grace_ms: Annotated[
        int, Meta(ge=1, description="how long what waits for a stalled stream is kept in memory")
    ] = 5_000
    slow_consumer_timeout_ms: Annotated[
        int, Meta(ge=1, description="how long a stream may be stalled before it is ended")
    ] = 30_000
    walrus_durability: Annotated[DurabilityName, Meta(description="class of topics that a Walrus client registers")] = (
        "fsync"
    )
    walrus_segment_entries: Annotated[int, Meta(ge=1, description="entries after which a Walrus segment is sealed")] = (
        1_000_000
    )
    rog_durability: Annotated[DurabilityName, Meta(description="class of topics that a Rog client creates")] = "fsync"
    protocol_max_connections: Annotated[
        int, Meta(ge=1, description="open Walrus connections, and open Rog connections")
    ] = 1000
    protocol_idle_timeout_ms: Annotated[
        int, Meta(ge=1, description="how long an idle Walrus or Rog connection stays")
    ] = 600_000
    wal_segment_bytes: Annotated[int, Meta(ge=4096, description="a WAL file is rotated at this size")] = 64 << 20
    checkpoint_bytes: Annotated[int, Meta(ge=4096, description="bytes of log after which a checkpoint is made")] = (
        64 << 20
    )
    checkpoint_interval_ms: Annotated[
        int, Meta(ge=100, description="longest time between checkpoints while writing")
    ] = 60_000
    segment_max_events: Annotated[int, Meta(ge=1, description="records after which a segment is sealed")] = 10_000
    segment_max_bytes: Annotated[int, Meta(ge=4096, description="bytes after which a segment is sealed")] = 64 << 20
    segment_max_age_ms: Annotated[int, Meta(ge=1, description="age at which a segment is sealed")] = 3_600_000
    cache_bytes: Annotated[
        int, Meta(ge=0, description="payload bytes each shard keeps in memory besides the log's")
    ] = 16 << 20
    cold_dir: Annotated[str, Meta(description="folder that older sealed segments move to; empty: they stay")] = ""
    hot_retain_segments: Annotated[int, Meta(ge=0, description="newest sealed segments of a topic that never move")] = 4
    hot_retain_bytes: Annotated[
        int, Meta(ge=0, description="newest bytes of a topic's sealed segments that never move")
    ] = 0
    bucket: Annotated[
        str, Meta(description="object store that the log is copied to: s3://, gs://, az:// or file:///; empty: none")
    ] = ""
    bucket_key_file: Annotated[
        str, Meta(description="file with the key that seals what the bucket holds; empty: none, the bucket is trusted")
    ] = ""
    bucket_encrypt: Annotated[
        bool,
        Meta(description="whether what is written to the bucket is encrypted with the key of TOPICS_BUCKET_KEY_FILE"),
    ] = False
    replication: Annotated[
        ReplicationName,
        Meta(description="`sync`: what waits for a sync waits for the bucket too; `async`: nothing does"),
    ] = "async"
    bucket_timeout_ms: Annotated[
        int,
        Meta(ge=100, description="with `sync`, longest time that a change waits for the bucket before it is refused"),
    ] = 5000
    seconds: Annotated[
        int,
        Meta(ge=1, description="with TOPICS_CLUSTER_LISTEN, how many machines follow each shard besides its holder"),
    ] = 1
    term_ttl_ms: Annotated[
        int,
        Meta(ge=300, description="with `sync`, silence of the machine that holds the shards until another takes over"),
    ] = 10_000
    ship_interval_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="longest time that what is synced waits to be copied to the bucket")
    ] = 1000
    bucket_retain_ms: Annotated[
        int, Meta(ge=0, description="how far back the bucket can restore, time after which it is tidied")
    ] = 604_800_000
    wal_queue_max: Annotated[int, Meta(ge=1, description="writes that may wait for a sync before more are refused")] = (
        10_000
    )
    wal_sync_window_ms: Annotated[
        float, Meta(ge=0, le=1000, description="longest pause before writes that wait for no sync are synced")
    ] = 0.5


def clamped(asked: int | None, default: int, most: int, least: int = 1) -> int:
    """A number from a request, clamped to `least`..`most`. None and 0 give `default`."""
    return min(max(asked or default, least), most)
