"""Metric families: a snapshot of the metrics as Prometheus text or as JSON. Loaded by the first scrape.

`_FAMILIES` lists all but the last one, in the order in which they are shown. The functions below it give their values
by name; a family that a service does not have is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observe.metrics import Snapshot
from proto.ipc.control import PHASES
from proto.ipc.figures import SYNCS, CursorRow, QueueRow, ReplicaFigures, ShardFigures, TopicRow, WalFigures
from proto.ipc.gateway_figures import GatewayFigures
from proto.model.durability import BY_NAME
from proto.model.visible import visible

R = TypeVar("R", TopicRow, QueueRow, CursorRow)
Rows = Iterable[tuple[Sequence[str], float]]
"""Values by their labels."""
Values = dict[str, float | Rows]
"""Values by the name of their family."""
COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily
_FAMILIES = (
    (GAUGE, "topics_topics", (), "Topics."),
    (GAUGE, "topics_topics_by_class", ("class",), "Topics per durability class."),
    (GAUGE, "topics_records_live", (), "Live records."),
    (COUNTER, "topics_records_written", (), "Records written since the service started, copies included."),
    (GAUGE, "topics_bytes_live", (), "Live payload bytes."),
    (GAUGE, "topics_quarantined", (), "Topics whose files cannot be read."),
    (GAUGE, "topics_files_set_apart", (), "Files in lost+found, because they do not belong where they were."),
    (
        GAUGE,
        "topics_records_missing",
        (),
        "Topics whose segments lack records, by their sums, and shards that lack topics.",
    ),
    (GAUGE, "topics_queue_topics", (), "Topics that are queues."),
    (GAUGE, "topics_queue_leases_in_flight", (), "Jobs that workers hold."),
    (GAUGE, "topics_letters_waiting", (), "Dead letters, and redrives of them, that have not arrived yet."),
    (GAUGE, "topics_routers", (), "Routers."),
    (
        GAUGE,
        "topics_routers_waiting",
        (),
        "Routers that wait: for room in their destination, under the cap over all topics, or on the disk.",
    ),
    (COUNTER, "topics_router_copies", (), "Records copied by routers."),
    (GAUGE, "topics_sse_connections", (), "Open event streams."),
    (GAUGE, "topics_watch_sessions", (), "Watch sessions."),
    (GAUGE, "topics_ready", (), "1 when every shard serves and answers."),
    (GAUGE, "topics_recovery_progress", (), "Share of the boot that is done."),
    (GAUGE, "topics_uptime_ms", (), "Milliseconds the gateway has served."),
    (GAUGE, "topics_shard_up", ("shard",), "1 when the shard serves and answers."),
    (GAUGE, "topics_shard_phase", ("shard", "phase"), "1 for the phase the shard is in."),
    (
        COUNTER,
        "topics_shard_restarts",
        ("shard",),
        "How often the shard died and was started again. Planned ends, and those because another machine holds it, do "
        "not count.",
    ),
    (COUNTER, "topics_shard_hangs", ("shard",), "How often the shard was killed because it did not answer."),
    (GAUGE, "topics_member", ("node", "machine"), "1 for each machine of the service."),
    (GAUGE, "topics_shard_holder", ("shard", "machine"), "1 for the machine that holds the shard, as this one knows."),
    (COUNTER, "topics_clock_steps", (), "Steps of the wall clock that shards noticed."),
    (GAUGE, "topics_clock_offset_ms", (), "Wall clock ahead of shard time, where most."),
    (GAUGE, "topics_disk_free_bytes", (), "Bytes free on the disk of the shard that has the fewest."),
    (COUNTER, "topics_disk_refused", (), "Writes refused because the disk was nearly full."),
    (GAUGE, "topics_replica_lag_bytes", ("shard",), "Bytes of the log that the bucket does not have yet."),
    (
        GAUGE,
        "topics_replica_lag_seconds",
        ("shard",),
        "Age of the oldest synced frame that the bucket does not have yet.",
    ),
    (
        GAUGE,
        "topics_replica_term",
        ("shard",),
        "Term under which the shard writes to the bucket, 0 before it is attached.",
    ),
    (GAUGE, "topics_replica_damaged", ("shard",), "Objects of the bucket that are known to be damaged or missing."),
    (COUNTER, "topics_replica_parts", ("shard",), "Parts of the log that were created in the bucket."),
    (COUNTER, "topics_replica_part_bytes", ("shard",), "Bytes of these parts."),
    (COUNTER, "topics_replica_checkpoints", ("shard",), "Checkpoints that were copied to the bucket."),
    (COUNTER, "topics_replica_failures", ("shard",), "Calls to the bucket that failed and were made again."),
    (GAUGE, "topics_replica_role", ("shard", "role"), "1 for the role of the shard's copy."),
    (COUNTER, "topics_http_requests", ("operation", "status"), "Answers by operation and HTTP status."),
    (GAUGE, "topics_http_requests_in_flight", (), "Requests being served."),
    (
        COUNTER,
        "topics_internal_errors",
        ("process", "operation"),
        "Exceptions that failed one request, reader or task.",
    ),
    (GAUGE, "topics_gateways", (), "Gateways that live."),
    (COUNTER, "topics_gateway_restarts", (), "How often a gateway died and was started again."),
    (GAUGE, "topics_walrus_connections", (), "Open Walrus connections."),
    (COUNTER, "topics_walrus_commands", ("command", "result"), "Walrus commands by result."),
    (GAUGE, "topics_rog_connections", (), "Open Rog connections."),
    (COUNTER, "topics_rog_commands", ("command", "result"), "Rog commands by result."),
    (GAUGE, "topics_topic_head_seq", ("topic",), "Highest assigned seq per topic."),
    (GAUGE, "topics_topic_earliest_seq", ("topic",), "Seq of the first live record per topic."),
    (GAUGE, "topics_topic_records_live", ("topic",), "Live records per topic."),
    (GAUGE, "topics_topic_bytes_live", ("topic",), "Live payload bytes per topic."),
    (GAUGE, "topics_topic_queue_ready", ("topic",), "Claimable jobs per queue."),
    (GAUGE, "topics_topic_queue_in_flight", ("topic",), "Jobs that workers hold per queue."),
    (
        COUNTER,
        "topics_topic_queue_dead_lettered",
        ("topic",),
        "Jobs that went to the dead-letter topic per queue.",
    ),
    (
        GAUGE,
        "topics_topic_queue_dead_lettering",
        ("topic",),
        "Dead letters per queue that are on their way, or wait until they may go.",
    ),
    (
        GAUGE,
        "topics_topic_queue_oldest_waiting_ms",
        ("topic",),
        "For how long the oldest claimable job has been there, per queue.",
    ),
    (GAUGE, "topics_topic_queue_delayed", ("topic",), "Jobs per queue that are held back until their time."),
    (
        GAUGE,
        "topics_topic_queue_dead_letters",
        ("topic",),
        "Records in the dead-letter topic of a queue, also those of other queues.",
    ),
    (GAUGE, "topics_topic_metrics_truncated", (), "1 when the per-topic metrics leave topics out."),
    (GAUGE, "topics_cursors", (), "Named cursors."),
    (GAUGE, "topics_cursor_lag", ("topic", "cursor"), "Records between a named cursor and the head of its topic."),
    (GAUGE, "topics_cursor_metrics_truncated", (), "1 when the per-cursor metrics leave cursors out."),
    (COUNTER, "topics_wal_frames", (), "Frames appended to the WAL."),
    (COUNTER, "topics_wal_batches", (), "Groups of frames written together."),
    (COUNTER, "topics_wal_fsyncs", (), "Syncs of the WAL."),
    (COUNTER, "topics_wal_bytes_written", (), "Bytes appended to the WAL."),
    (COUNTER, "topics_wal_rotations", (), "WAL files begun because the one before was full."),
    (COUNTER, "topics_wal_submit_full", (), "Writes refused because the submit queue was full."),
    (GAUGE, "topics_wal_queue_depth", (), "Writes waiting for the WAL."),
    (GAUGE, "topics_wal_queue_depth_peak", (), "Most writes that ever waited for the WAL."),
    (GAUGE, "topics_wal_read_only", (), "Shards that take no writes because their WAL failed."),
)
_SUMS = (
    "files_set_apart",
    "records_missing",
    "queue_topics",
    "queue_leases_in_flight",
    "letters_waiting",
    "routers",
    "routers_waiting",
    "watch_sessions",
    "cursors",
)
"""Fields of `ShardFigures` whose sums are metrics."""


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The metrics, in the order they are shown."""
    stats, counted = snapshot.shard_stats, {**ShardFigures().counters(), **snapshot.counted}
    topics, records, size = (sum(column) for column in zip(*snapshot.counters, strict=True))
    values: Values = {
        "topics_topics": topics,
        "topics_records_live": records,
        "topics_bytes_live": size,
        "topics_ready": all(snapshot.serving) and not snapshot.draining,
        "topics_recovery_progress": snapshot.progress,
        "topics_quarantined": sum(each.topics_quarantined for each in stats),
        **{f"topics_{name}": sum(getattr(each, name) for each in stats) for name in _SUMS},
        **{f"topics_{name.removesuffix('_total')}": number for name, number in counted.items()},
        **_of_shards(snapshot),
        **_of_machines(snapshot),
        **_of_replicas([each.replica for each in stats]),
        **_of_gateways(snapshot.gateways, several=snapshot.several_gateways),
        **_of_topics(stats, snapshot.max_topics),
        **_of_cursors(stats, snapshot.max_topics),
        **_of_wals([each.wal for each in stats]),
    }
    for kind, name, labels, summary in _FAMILIES:
        if (found := values.get(name)) is not None:
            family = kind(name, summary, labels=labels)
            for row, number in [((), found)] if isinstance(found, int | float) else found:
                family.add_metric(row, number)
            yield family
    yield _fsync_family(counted)


def _of_shards(snapshot: Snapshot) -> Values:
    stats, states = snapshot.shard_stats, snapshot.states
    classes: Counter[str] = Counter()
    for shard in stats:
        classes.update(shard.topics_by_class)
    errors = {"gateway": snapshot.gateways.internal_errors}
    errors |= {f"shard-{index:02d}": shard.internal_errors for index, shard in enumerate(stats)}
    free = [each.disk.free_bytes for each in stats if each.disk.free_bytes is not None]
    return {
        "topics_topics_by_class": [([name], classes[name]) for name in sorted(BY_NAME.keys() | classes.keys())],
        "topics_internal_errors": [
            ([process, name], count) for process, counts in errors.items() for name, count in sorted(counts.items())
        ],
        "topics_shard_up": _by_shard(snapshot.serving),
        "topics_shard_phase": [
            ([str(index), name], name == each.phase) for index, each in enumerate(states) for name in PHASES
        ],
        "topics_shard_restarts": _by_shard([each.deaths for each in states]),
        "topics_shard_hangs": _by_shard([each.hangs for each in states]),
        "topics_clock_offset_ms": max((float(each.clock.offset_ms) for each in stats), key=abs, default=0.0),
        "topics_disk_free_bytes": min(free) if free else (),
    }


def _by_shard(values: Iterable[float]) -> Rows:
    return [([str(index)], value) for index, value in enumerate(values)]


def _of_machines(snapshot: Snapshot) -> Values:
    if not snapshot.holders:
        return {}
    return {
        "topics_member": [([str(node), address], 1) for node, address in snapshot.members],
        "topics_shard_holder": [
            ([str(index), address], 1) for index, address in enumerate(snapshot.holders) if address
        ],
    }


def _of_replicas(replicas: list[ReplicaFigures | None]) -> Values:
    """Of shards that have a bucket."""
    known = [([str(index)], each) for index, each in enumerate(replicas) if each]
    if not known:
        return {}
    return {
        "topics_replica_lag_bytes": [(shard, each.lag_bytes) for shard, each in known],
        "topics_replica_lag_seconds": [(shard, each.lag_ms / 1000) for shard, each in known],
        "topics_replica_term": [(shard, each.term) for shard, each in known],
        "topics_replica_damaged": [(shard, each.damaged) for shard, each in known],
        "topics_replica_parts": [(shard, each.parts_total) for shard, each in known],
        "topics_replica_part_bytes": [(shard, each.part_bytes_total) for shard, each in known],
        "topics_replica_checkpoints": [(shard, each.manifests_total) for shard, each in known],
        "topics_replica_failures": [(shard, each.failures_total) for shard, each in known],
        "topics_replica_role": [([*shard, each.role], 1) for shard, each in known],
    }


def _of_gateways(gateways: GatewayFigures, *, several: bool) -> Values:
    found: Values = {
        "topics_sse_connections": gateways.streams,
        "topics_uptime_ms": gateways.uptime_ms,
        "topics_http_requests": [([name, str(status)], number) for name, status, number in sorted(gateways.requests)],
        "topics_http_requests_in_flight": gateways.in_flight,
    }
    if several:
        found |= {"topics_gateways": gateways.gateways, "topics_gateway_restarts": gateways.deaths}
    for each in gateways.protocols:
        found[f"topics_{each.name}_connections"] = each.connections
        found[f"topics_{each.name}_commands"] = [(names, number) for *names, number in sorted(each.commands)]
    return found


def _of_topics(stats: list[ShardFigures], most: int) -> Values:
    topics, left_out = _first([each.per_topic for each in stats], most)
    queues, _ = _first([each.per_queue for each in stats], most)
    records = {row.topic: row.records for row in topics}
    found: Values = {
        "topics_topic_head_seq": [([row.topic], row.head_seq) for row in topics],
        "topics_topic_earliest_seq": [([row.topic], row.earliest_seq) for row in topics],
        "topics_topic_records_live": [([row.topic], row.records) for row in topics],
        "topics_topic_bytes_live": [([row.topic], row.bytes) for row in topics],
        # Of queues whose dead-letter topic has metrics of its own: a key that may not see it learns nothing here.
        "topics_topic_queue_dead_letters": [
            ([row.topic], records[row.dead_letter]) for row in queues if row.dead_letter in records
        ],
        "topics_topic_metrics_truncated": left_out or any(each.per_topic_truncated for each in stats),
    }
    for name in ("ready", "in_flight", "dead_lettered", "dead_lettering", "oldest_waiting_ms", "delayed"):
        found[f"topics_topic_queue_{name}"] = [([row.topic], getattr(row, name)) for row in queues]
    return found


def _of_cursors(stats: list[ShardFigures], most: int) -> Values:
    rows, left_out = _first([each.cursor_lag for each in stats], most)
    lags: dict[tuple[str, str], int] = {}
    for topic, cursor, lag in rows:
        # The exposition escapes line breaks itself. Two names may look the same then, and equal series end a scrape.
        label = topic, "\n".join(map(visible, cursor.split("\n")))
        lags[label] = max(lag, lags.get(label, 0))
    return {
        "topics_cursor_lag": lags.items(),
        "topics_cursor_metrics_truncated": left_out or any(each.cursor_lag_truncated for each in stats),
    }


def _of_wals(wals: list[WalFigures]) -> Values:
    return {
        "topics_wal_queue_depth": sum(each.queue_depth for each in wals),
        "topics_wal_queue_depth_peak": max((each.queue_depth_peak for each in wals), default=0),
        "topics_wal_read_only": sum(each.read_only for each in wals),
    }


def _first(lists: list[list[R]], most: int) -> tuple[list[R], bool]:
    """Merge the shards' lists; return the first `most` rows, and whether there are more."""
    rows = sorted(chain.from_iterable(lists))
    return rows[:most], len(rows) > most


def _fsync_family(counted: Mapping[str, float]) -> Metric:
    syncs = {name.removeprefix(SYNCS): number for name, number in counted.items() if name.startswith(SYNCS)}
    syncs.setdefault("+Inf", 0)
    labels = sorted(syncs, key=float)
    return HistogramMetricFamily(
        "topics_wal_fsync_latency_us",
        "Microseconds a sync of the WAL took.",
        buckets=list(zip(labels, accumulate(syncs[label] for label in labels), strict=True)),
        sum_value=counted["fsync_us_sum"],
    )


class _Once(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text(snapshot: Snapshot) -> bytes:
    """Render the metrics in the Prometheus text format, version 0.0.4."""
    return generate_latest(_Once(list(families(snapshot))))


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def json(snapshot: Snapshot) -> bytes:
    """Render the metrics as a JSON object with one member per metric. A metric without labels is a number; a labelled
    one is a list of `{"labels", "value"}`. A histogram is `{"buckets": [{"le", "count"}], "sum", "count"}`, cumulative
    as in the text form."""
    content: dict[str, Any] = {}
    for family in families(snapshot):
        if family.type == "histogram":
            buckets = [s for s in family.samples if s.name.endswith("_bucket")]
            content[family.name] = {
                "buckets": [{"le": s.labels["le"], "count": _number(s.value)} for s in buckets],
                "sum": sum(s.value for s in family.samples if s.name.endswith("_sum")),
                "count": _number(sum(s.value for s in family.samples if s.name.endswith("_count"))),
            }
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if any(sample.labels for sample in family.samples) or not family.samples:
            content[name] = [{"labels": sample.labels, "value": _number(sample.value)} for sample in family.samples]
        else:
            content[name] = _number(family.samples[0].value)
    return msgspec.json.encode(content)
