"""Metric families: a snapshot of the metrics as Prometheus text or as JSON. Loaded by the first scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observe.metrics import Snapshot
from proto.ipc.control import PHASES
from proto.ipc.figures import (
    SYNCS,
    ClockFigures,
    CursorRow,
    DiskFigures,
    QueueRow,
    ReplicaFigures,
    ShardFigures,
    TopicRow,
    WalFigures,
)
from proto.ipc.gateway_figures import GatewayFigures, ProtocolFigures
from proto.model.durability import BY_NAME
from proto.model.visible import visible

R = TypeVar("R", TopicRow, QueueRow, CursorRow)
_TOPIC_GAUGES = (
    ("topics_topic_head_seq", "Highest assigned seq per topic."),
    ("topics_topic_earliest_seq", "Seq of the first live record per topic."),
    ("topics_topic_records_live", "Live records per topic."),
    ("topics_topic_bytes_live", "Live payload bytes per topic."),
)
_QUEUE_METRICS = (
    ("topics_topic_queue_ready", "Claimable jobs per queue."),
    ("topics_topic_queue_in_flight", "Jobs that workers hold per queue."),
    ("topics_topic_queue_dead_lettered", "Jobs that went to the dead-letter topic per queue."),
    ("topics_topic_queue_dead_lettering", "Dead letters per queue that are on their way, or wait until they may go."),
    ("topics_topic_queue_oldest_waiting_ms", "For how long the oldest claimable job has been there, per queue."),
    ("topics_topic_queue_delayed", "Jobs per queue that are held back until their time."),
)
_QUEUE_COUNTERS = {"topics_topic_queue_dead_lettered"}
_WAL_COUNTERS = (
    ("frames_total", "Frames appended to the WAL."),
    ("batches_total", "Groups of frames written together."),
    ("fsyncs_total", "Syncs of the WAL."),
    ("bytes_written_total", "Bytes appended to the WAL."),
    ("rotations_total", "WAL files begun because the one before was full."),
    ("submit_full_total", "Writes refused because the submit queue was full."),
)
_REPLICA_GAUGES = (
    ("topics_replica_lag_bytes", "lag_bytes", "Bytes of the log that the bucket does not have yet."),
    ("topics_replica_lag_seconds", "lag_ms", "Age of the oldest synced frame that the bucket does not have yet."),
    ("topics_replica_term", "term", "Term under which the shard writes to the bucket, 0 before it is attached."),
    ("topics_replica_damaged", "damaged", "Objects of the bucket that are known to be damaged or missing."),
)
_REPLICA_COUNTERS = (
    ("topics_replica_parts", "parts_total", "Parts of the log that were created in the bucket."),
    ("topics_replica_part_bytes", "part_bytes_total", "Bytes of these parts."),
    ("topics_replica_checkpoints", "manifests_total", "Checkpoints that were copied to the bucket."),
    ("topics_replica_failures", "failures_total", "Calls to the bucket that failed and were made again."),
)
_WAL_GAUGES = (
    ("queue_depth", "Writes waiting for the WAL."),
    ("queue_depth_peak", "Most writes that ever waited for the WAL."),
    ("read_only", "Shards that take no writes because their WAL failed."),
)


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The metrics, in the order they are shown."""
    stats, counted = snapshot.shard_stats, {**ShardFigures().counters(), **snapshot.counted}
    topics, records, size = (sum(column) for column in zip(*snapshot.counters, strict=True))
    yield GaugeMetricFamily("topics_topics", "Topics.", topics)
    yield _by_class(stats)
    yield GaugeMetricFamily("topics_records_live", "Live records.", records)
    yield CounterMetricFamily(
        "topics_records_written",
        "Records written since the service started, copies included.",
        counted["records_written"],
    )
    yield GaugeMetricFamily("topics_bytes_live", "Live payload bytes.", size)
    yield from _damage_families(stats)
    yield GaugeMetricFamily("topics_queue_topics", "Topics that are queues.", sum(each.queue_topics for each in stats))
    yield GaugeMetricFamily(
        "topics_queue_leases_in_flight", "Jobs that workers hold.", sum(each.queue_leases_in_flight for each in stats)
    )
    yield GaugeMetricFamily(
        "topics_letters_waiting",
        "Dead letters, and redrives of them, that have not arrived yet.",
        sum(each.letters_waiting for each in stats),
    )
    yield GaugeMetricFamily("topics_routers", "Routers.", sum(each.routers for each in stats))
    yield GaugeMetricFamily(
        "topics_routers_waiting",
        "Routers that wait: for room in their destination, under the cap over all topics, or on the disk.",
        sum(each.routers_waiting for each in stats),
    )
    yield CounterMetricFamily("topics_router_copies_total", "Records copied by routers.", counted["router_copies"])
    yield GaugeMetricFamily("topics_sse_connections", "Open event streams.", snapshot.gateways.streams)
    yield GaugeMetricFamily("topics_watch_sessions", "Watch sessions.", sum(each.watch_sessions for each in stats))
    ready = all(snapshot.serving) and not snapshot.draining
    yield GaugeMetricFamily("topics_ready", "1 when every shard serves and answers.", int(ready))
    yield GaugeMetricFamily("topics_recovery_progress", "Share of the boot that is done.", snapshot.progress)
    yield GaugeMetricFamily("topics_uptime_ms", "Milliseconds the gateway has served.", snapshot.gateways.uptime_ms)
    yield from _shard_families(snapshot)
    yield from _machine_families(snapshot)
    yield from _clock_families([each.clock for each in stats], counted)
    yield from _disk_families([each.disk for each in stats], counted)
    yield from _replica_families([each.replica for each in stats])
    yield from _request_families(snapshot)
    yield _internal_errors(snapshot)
    if snapshot.several_gateways:
        yield from _gateway_families(snapshot.gateways)
    for protocol in snapshot.gateways.protocols:
        yield from _protocol_families(protocol)
    yield from _topic_families(stats, snapshot.max_topics)
    yield from _cursor_families(stats, snapshot.max_topics)
    yield from _wal_families([each.wal for each in stats], counted)
    yield _fsync_family(counted)


def _damage_families(stats: list[ShardFigures]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "topics_quarantined", "Topics whose files cannot be read.", sum(each.topics_quarantined for each in stats)
    )
    yield GaugeMetricFamily(
        "topics_files_set_apart",
        "Files in lost+found, because they do not belong where they were.",
        sum(each.files_set_apart for each in stats),
    )
    yield GaugeMetricFamily(
        "topics_records_missing",
        "Topics whose segments lack records, by their sums, and shards that lack topics.",
        sum(each.records_missing for each in stats),
    )


def _by_class(stats: list[ShardFigures]) -> Metric:
    classes: Counter[str] = Counter()
    for shard in stats:
        classes.update(shard.topics_by_class)
    family = GaugeMetricFamily("topics_topics_by_class", "Topics per durability class.", labels=["class"])
    for name in sorted(BY_NAME.keys() | classes.keys()):
        family.add_metric([name], classes[name])
    return family


def _internal_errors(snapshot: Snapshot) -> Metric:
    family = CounterMetricFamily(
        "topics_internal_errors_total",
        "Exceptions that failed one request, reader or task.",
        labels=["process", "operation"],
    )
    processes = {"gateway": snapshot.gateways.internal_errors}
    for index, shard in enumerate(snapshot.shard_stats):
        processes[f"shard-{index:02d}"] = shard.internal_errors
    for process, counts in processes.items():
        for operation, count in sorted(counts.items()):
            family.add_metric([process, operation], count)
    return family


def _shard_families(snapshot: Snapshot) -> Iterator[Metric]:
    up = GaugeMetricFamily("topics_shard_up", "1 when the shard serves and answers.", labels=["shard"])
    phase = GaugeMetricFamily("topics_shard_phase", "1 for the phase the shard is in.", labels=["shard", "phase"])
    for index, (serving, current) in enumerate(zip(snapshot.serving, snapshot.phases, strict=True)):
        up.add_metric([str(index)], int(serving))
        for name in PHASES:
            phase.add_metric([str(index), name], int(name == current))
    yield up
    yield phase
    restarts = CounterMetricFamily(
        "topics_shard_restarts",
        "How often the shard died and was started again. Planned ends, and those because another machine holds it, do "
        "not count.",
        labels=["shard"],
    )
    for index, times in enumerate(snapshot.restarts):
        restarts.add_metric([str(index)], times)
    yield restarts
    hangs = CounterMetricFamily(
        "topics_shard_hangs", "How often the shard was killed because it did not answer.", labels=["shard"]
    )
    for index, times in enumerate(snapshot.hangs):
        hangs.add_metric([str(index)], times)
    yield hangs


def _machine_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Of several machines."""
    if not snapshot.holders:
        return
    member = GaugeMetricFamily("topics_member", "1 for each machine of the service.", labels=["node", "machine"])
    for node, address in snapshot.members:
        member.add_metric([str(node), address], 1)
    yield member
    holder = GaugeMetricFamily(
        "topics_shard_holder", "1 for the machine that holds the shard, as this one knows.", labels=["shard", "machine"]
    )
    for index, address in enumerate(snapshot.holders):
        if address:
            holder.add_metric([str(index), address], 1)
    yield holder


def _clock_families(clocks: list[ClockFigures], counted: Mapping[str, float]) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "topics_clock_steps", "Steps of the wall clock that shards noticed.", counted["clock_steps"]
    )
    furthest = max((float(each.offset_ms) for each in clocks), key=abs, default=0.0)
    yield GaugeMetricFamily("topics_clock_offset_ms", "Wall clock ahead of shard time, where most.", furthest)


def _disk_families(disks: list[DiskFigures], counted: Mapping[str, float]) -> Iterator[Metric]:
    known = [each.free_bytes for each in disks if each.free_bytes is not None]
    free = GaugeMetricFamily("topics_disk_free_bytes", "Bytes free on the disk of the shard that has the fewest.")
    if known:
        free.add_metric([], min(known))
    yield free
    yield CounterMetricFamily(
        "topics_disk_refused",
        "Writes refused because the disk was nearly full.",
        counted["disk_refused"],
    )


def _replica_families(replicas: list[ReplicaFigures | None]) -> Iterator[Metric]:
    """Of shards that have a bucket."""
    known = [(str(index), each) for index, each in enumerate(replicas) if each]
    if not known:
        return
    for name, key, summary in _REPLICA_GAUGES:
        gauge = GaugeMetricFamily(name, summary, labels=["shard"])
        for shard, figures in known:
            gauge.add_metric([shard], getattr(figures, key) / (1000 if key.endswith("_ms") else 1))
        yield gauge
    for name, key, summary in _REPLICA_COUNTERS:
        counter = CounterMetricFamily(name, summary, labels=["shard"])
        for shard, figures in known:
            counter.add_metric([shard], getattr(figures, key))
        yield counter
    role = GaugeMetricFamily("topics_replica_role", "1 for the role of the shard's copy.", labels=["shard", "role"])
    for shard, figures in known:
        role.add_metric([shard, figures.role], 1)
    yield role


def _gateway_families(gateways: GatewayFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily("topics_gateways", "Gateways that live.", gateways.gateways)
    yield CounterMetricFamily(
        "topics_gateway_restarts", "How often a gateway died and was started again.", gateways.deaths
    )


def _request_families(snapshot: Snapshot) -> Iterator[Metric]:
    served = CounterMetricFamily(
        "topics_http_requests", "Answers by operation and HTTP status.", labels=["operation", "status"]
    )
    for operation, status, number in sorted(snapshot.gateways.requests):
        served.add_metric([operation, str(status)], number)
    yield served
    yield GaugeMetricFamily("topics_http_requests_in_flight", "Requests being served.", snapshot.gateways.in_flight)


def _protocol_families(protocol: ProtocolFigures) -> Iterator[Metric]:
    name = protocol.name
    yield GaugeMetricFamily(
        f"topics_{name}_connections", f"Open {name.capitalize()} connections.", protocol.connections
    )
    commands = CounterMetricFamily(
        f"topics_{name}_commands", f"{name.capitalize()} commands by result.", labels=["command", "result"]
    )
    for command, result, number in sorted(protocol.commands):
        commands.add_metric([command, result], number)
    yield commands


def _topic_families(stats: list[ShardFigures], most: int) -> Iterator[Metric]:
    rows, left_out = _first([each.per_topic for each in stats], most)
    for column, (name, summary) in enumerate(_TOPIC_GAUGES, 1):
        family = GaugeMetricFamily(name, summary, labels=["topic"])
        for row in rows:
            family.add_metric([row.topic], float(row[column]))
        yield family
    queues, _ = _first([each.per_queue for each in stats], most)
    for column, (name, summary) in enumerate(_QUEUE_METRICS, 1):
        kind = CounterMetricFamily if name in _QUEUE_COUNTERS else GaugeMetricFamily
        of_queues = kind(name, summary, labels=["topic"])
        for queue in queues:
            of_queues.add_metric([queue.topic], float(queue[column]))
        yield of_queues
    yield _dead_letters(rows, queues)
    truncated = left_out or any(each.per_topic_truncated for each in stats)
    yield GaugeMetricFamily(
        "topics_topic_metrics_truncated", "1 when the per-topic metrics leave topics out.", int(truncated)
    )


def _dead_letters(topics: list[TopicRow], queues: list[QueueRow]) -> Metric:
    """Of queues whose dead-letter topic has metrics of its own: a key that may not see it learns nothing here."""
    family = GaugeMetricFamily(
        "topics_topic_queue_dead_letters",
        "Records in the dead-letter topic of a queue, also those of other queues.",
        labels=["topic"],
    )
    records = {row.topic: row.records for row in topics}
    for row in queues:
        if row.dead_letter in records:
            family.add_metric([row.topic], records[row.dead_letter])
    return family


def _cursor_families(stats: list[ShardFigures], most: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("topics_cursors", "Named cursors.", sum(each.cursors for each in stats))
    rows, left_out = _first([each.cursor_lag for each in stats], most)
    family = GaugeMetricFamily(
        "topics_cursor_lag", "Records between a named cursor and the head of its topic.", labels=["topic", "cursor"]
    )
    lags: dict[tuple[str, str], int] = {}
    for topic, cursor, lag in rows:
        # The exposition escapes line breaks itself. Two names may look the same then, and equal series end a scrape.
        label = topic, "\n".join(map(visible, cursor.split("\n")))
        lags[label] = max(lag, lags.get(label, 0))
    for label, lag in lags.items():
        family.add_metric(label, lag)
    yield family
    truncated = left_out or any(each.cursor_lag_truncated for each in stats)
    yield GaugeMetricFamily(
        "topics_cursor_metrics_truncated", "1 when the per-cursor metrics leave cursors out.", int(truncated)
    )


def _first(lists: list[list[R]], most: int) -> tuple[list[R], bool]:
    """Merge the shards' lists; return the first `most` rows, and whether there are more."""
    rows = sorted(chain.from_iterable(lists))
    return rows[:most], len(rows) > most


def _wal_families(wals: list[WalFigures], counted: Mapping[str, float]) -> Iterator[Metric]:
    for name, summary in _WAL_COUNTERS:
        yield CounterMetricFamily(f"topics_wal_{name}", summary, counted[f"wal_{name}"])
    for name, summary in _WAL_GAUGES:
        values = [getattr(each, name) for each in wals]
        value = max(values, default=0) if name.endswith("_peak") else sum(values)
        yield GaugeMetricFamily(f"topics_wal_{name}", summary, value)


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
    registry = CollectorRegistry()
    registry.register(_Once(list(families(snapshot))))
    return generate_latest(registry)


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
