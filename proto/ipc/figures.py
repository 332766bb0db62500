"""The figures of a shard: what it counts, for metrics and the history of a gateway. Every one is zero or empty in a
shard that has not answered yet."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace


class TopicRow(NamedTuple):
    topic: str
    head_seq: int
    earliest_seq: int
    records: int
    bytes: int


class QueueRow(NamedTuple):
    topic: str
    ready: int
    in_flight: int
    dead_lettered: int
    dead_lettering: int
    oldest_waiting_ms: int
    delayed: int
    dead_letter: str
    """Its dead-letter topic, "" for none."""


class CursorRow(NamedTuple):
    topic: str
    cursor: str
    lag: int


class ClockFigures(Struct, frozen=True):
    steps: int = 0
    """Steps of the wall clock."""
    offset_ms: int = 0
    """By how much the wall clock is ahead of the shard's time."""


class DiskFigures(Struct, frozen=True):
    free_bytes: int | None = None
    """None if the shard has not looked yet."""
    refused_total: int = 0


class ReplicaFigures(Struct, frozen=True):
    """Of the shard's copy in a bucket."""

    role: str = ""
    term: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    parts_total: int = 0
    part_bytes_total: int = 0
    manifests_total: int = 0
    failures_total: int = 0
    damaged: int = 0
    machine: str = ""
    """The name of the machine that has the term, see `proto.ipc.control.Machine`."""


class WalFigures(Struct, frozen=True):
    frames_total: int = 0
    batches_total: int = 0
    fsyncs_total: int = 0
    bytes_written_total: int = 0
    rotations_total: int = 0
    submit_full_total: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    read_only: bool = False
    last_frame: int = 0
    synced_frame: int = 0


class SyncHistogram(Struct, frozen=True):
    """Durations of syncs in µs. `counts` has one more than `bounds`: what is above all of them."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0


SYNCS = "fsync_us "
"""Begins the names of the counters of a `SyncHistogram`, in `ShardFigures.counters`. The label `le` follows."""


class ShardFigures(Struct, frozen=True):
    topics: int = 0
    records_live: int = 0
    bytes_live: int = 0
    records_written: int = 0
    topics_by_class: dict[str, int] = {}
    topics_quarantined: int = 0
    files_set_apart: int = 0
    records_missing: int = 0
    """Topics whose segments lack records; one more if the shard lacks topics."""
    queue_topics: int = 0
    queue_leases_in_flight: int = 0
    letters_waiting: int = 0
    routers: int = 0
    router_copies: int = 0
    routers_waiting: int = 0
    parked_reads: int = 0
    watch_sessions: int = 0
    pressure: float = 0
    internal_errors: dict[str, int] = {}
    """By operation."""
    per_topic: list[TopicRow] = []
    per_queue: list[QueueRow] = []
    per_topic_truncated: bool = False
    """Whether there are topics without a row."""
    cursors: int = 0
    cursor_lag: list[CursorRow] = []
    cursor_lag_truncated: bool = False
    clock: ClockFigures = ClockFigures()
    disk: DiskFigures = DiskFigures()
    replica: ReplicaFigures | None = None
    wal: WalFigures = WalFigures()
    fsync_us: SyncHistogram = SyncHistogram()
    life: int = 0
    """The incarnation that has answered. The gateway adds it."""

    def bare(self) -> ShardFigures:
        """Without rows."""
        return replace(self, per_topic=[], per_queue=[], cursor_lag=[])

    def counters(self) -> dict[str, float]:
        """What the process has counted since its start, of which metrics show the sums over all shards."""
        wal = {f"wal_{name}": getattr(self.wal, name) for name in self.wal.__struct_fields__ if name.endswith("_total")}
        bounds = [f"{bound:g}" for bound in self.fsync_us.bounds] + ["+Inf"]
        counters = {
            "records_written": self.records_written,
            "router_copies": self.router_copies,
            "clock_steps": self.clock.steps,
            "disk_refused": self.disk.refused_total,
            **wal,
            "fsync_us_sum": self.fsync_us.sum,
            **{SYNCS + bound: number for bound, number in zip(bounds, self.fsync_us.counts, strict=False)},
        }
        return {name: float(number) for name, number in counters.items()}
