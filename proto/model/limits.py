"""Limits on what a client may send or make the service hold, from `TOPICS_*` settings.

Sizes are bytes of UTF-8 as sent, times are milliseconds. The supervisor reads the environment once and passes the
result to its children, so that all processes of one service have the same limits.
"""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from proto.model.durability import DurabilityName

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
"""Jobs of a peek, and letters of a redrive, that names no `max` (or names 0)."""
MIN_LEASE_MS, MAX_LEASE_MS = 100, 86_400_000
MAX_DELAY_MS = 86_400_000
"""Longest delay of a nack."""
DEFAULT_FRAME_BYTES = 256 << 10
"""Byte budget of a record frame of a stream unless the request names `max_batch_bytes`."""
DEFAULT_HEARTBEAT_MS = 15_000
MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS = 1_000, 60_000
MAX_CURSOR_NAME_BYTES = 255
RECORD_OVERHEAD = 16
"""Bytes of framing that each record adds to `bytes`, besides its data, meta, tag and node."""


class Limits(BaseSettings):
    """Configurable limits. A value out of range stops the start; the error names the variable."""

    model_config = SettingsConfigDict(env_prefix="TOPICS_", extra="ignore", frozen=True)

    max_batch_records: int = Field(10_000, ge=1, le=1_000_000, description="records per write")
    max_record_bytes: int = Field(1 << 20, ge=1, le=1 << 30, description="bytes of data + meta of one record")
    max_body_bytes: int = Field(64 << 20, ge=1, le=1 << 30, description="bytes of one request body")
    max_meta_bytes: int = Field(16 << 10, ge=2, description="bytes of one record's meta")
    max_tag_bytes: int = Field(256, ge=1, description="bytes of a tag")
    max_node_bytes: int = Field(128, ge=1, description="bytes of a node id")
    max_limit: int = Field(1000, ge=1, le=100_000, description="records of one diff answer")
    max_claim: int = Field(1000, ge=1, le=100_000, description="jobs per claim, seqs per ack")
    max_watch_topics: int = Field(256, ge=1, description="topics of one watch session")
    max_topics: int = Field(100_000, ge=0, description="topics of the service, 0 for no limit")
    max_routers: int = Field(10_000, ge=0, description="routers of the service, 0 for no limit")
    max_total_bytes: int = Field(0, ge=0, description="retained bytes of all topics together, 0 for no limit")
    max_inflight_per_key: int = Field(1000, ge=0, description="requests of one key at a time, 0 for no limit")
    max_watch_sessions: int = Field(10_000, ge=0, description="watch sessions of the service, 0 for no limit")
    max_watch_sessions_per_key: int = Field(1000, ge=0, description="watch sessions of one key, 0 for no limit")
    max_tickets_per_key: int = Field(1000, ge=0, description="unused tickets of one key, 0 for no limit")
    max_cursors_per_topic: int = Field(1000, ge=0, description="named cursors of one topic, 0 for no limit")
    max_sse_connections: int = Field(10_000, ge=0, description="open streams, 0 for no limit")
    max_sse_connections_per_key: int = Field(1000, ge=0, description="open streams of one key, 0 for no limit")
    max_connections: int = Field(12_000, ge=0, description="open connections, 0 for as many as descriptors allow")
    min_upload_rate: int = Field(
        256 << 10, ge=0, description="bytes per second below which a body is too slow, 0 for any pace"
    )
    min_free_bytes: int = Field(
        64 << 20, ge=0, description="free bytes of the data directory's disk below which nothing is written, 0 for none"
    )
    memory_bytes: int = Field(
        0,
        ge=0,
        description="bytes held for clients at once by all processes; 0: an eighth of the machine's, 256 MiB to 1 GiB",
    )
    min_download_rate: int = Field(
        64 << 10, ge=0, description="bytes per second below which an answer is read too slowly, 0 for any pace"
    )
    metrics_max_topics: int = Field(1000, ge=0, le=100_000, description="topics with metrics of their own, and cursors")
    header_timeout_ms: int = Field(10_000, ge=1, description="time a client has to send a request's head")
    body_timeout_ms: int = Field(30_000, ge=1, description="longest pause while a client sends a body")
    idle_timeout_ms: int = Field(75_000, ge=1, description="how long an idle kept-alive connection stays")
    request_timeout_ms: int = Field(60_000, ge=1000, description="longest a shard may take to answer")
    drain_timeout_ms: int = Field(10_000, ge=1, description="time for requests in flight when the service stops")
    watch_session_ttl_ms: int = Field(300_000, ge=100, description="how long a watch session stays without a stream")
    watch_queue_frames: int = Field(1024, ge=1, description="frames that wait for a slow event stream at most")
    websocket_ping_ms: int = Field(20_000, ge=100, description="silence after which a WebSocket is asked for a sign")
    websocket_queue_messages: int = Field(4, ge=1, description="messages that wait for a slow WebSocket at most")
    watch_queue_bytes: int = Field(4 << 20, ge=1, description="bytes that wait for a slow stream, but one frame always")
    buffer_grace_ms: int = Field(5_000, ge=1, description="how long what waits for a stalled stream is kept in memory")
    slow_consumer_timeout_ms: int = Field(
        30_000, ge=1, description="how long a stream may be stalled before it is ended"
    )
    walrus_durability: DurabilityName = Field("fsync", description="class of topics that a Walrus client registers")
    walrus_segment_entries: int = Field(1_000_000, ge=1, description="entries after which a Walrus segment is sealed")
    rog_durability: DurabilityName = Field("fsync", description="class of topics that a Rog client creates")
    protocol_max_connections: int = Field(1000, ge=1, description="open Walrus connections, and open Rog connections")
    protocol_idle_timeout_ms: int = Field(600_000, ge=1, description="how long an idle Walrus or Rog connection stays")
    wal_segment_bytes: int = Field(64 << 20, ge=4096, description="a WAL file is rotated at this size")
    checkpoint_bytes: int = Field(64 << 20, ge=4096, description="bytes of log after which a checkpoint is made")
    checkpoint_interval_ms: int = Field(60_000, ge=100, description="longest time between checkpoints while writing")
    segment_max_events: int = Field(10_000, ge=1, description="records after which a segment is sealed")
    segment_max_bytes: int = Field(64 << 20, ge=4096, description="bytes after which a segment is sealed")
    segment_max_age_ms: int = Field(3_600_000, ge=1, description="age at which a segment is sealed")
    cache_bytes: int = Field(64 << 20, ge=0, description="payload bytes each shard keeps in memory besides the log's")
    cold_dir: str = Field("", description="folder that older sealed segments move to; empty: they stay")
    hot_retain_segments: int = Field(4, ge=0, description="newest sealed segments of a topic that never move")
    hot_retain_bytes: int = Field(0, ge=0, description="newest bytes of a topic's sealed segments that never move")
    wal_queue_max: int = Field(10_000, ge=1, description="writes that may wait for a sync before more are refused")
    wal_sync_window_ms: float = Field(
        0.5, ge=0, le=1000, description="longest pause before writes that wait for no sync are synced"
    )


def clamped(asked: int | None, default: int, most: int, least: int = 1) -> int:
    """A number from a request, clamped to `least`..`most`. None and 0 give `default`."""
    return min(max(asked or default, least), most)
