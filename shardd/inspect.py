"""Inspection: answers requests for a topic's state, lists of topics and statistics. It changes no records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from proto.api.answers import Damage, TopicEntry, TopicState
from proto.ipc.figures import (
    CursorRow,
    DiskFigures,
    QueueRow,
    ReplicaFigures,
    ShardFigures,
    SyncHistogram,
    TopicRow,
    WalFigures,
)
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Figures, Led, ListTopics, Page, Sample, Sampled, StateGet, Stats
from proto.process.faults import faults
from shardd.changes.transactions import Respond, to_json
from shardd.clock import Clock
from shardd.delivery.parked_reads import Reads
from shardd.delivery.pressure import Pressure
from shardd.delivery.priority import age_boost, effective_priority
from shardd.delivery.scheduler import Scheduler
from shardd.leaders import Leader, runs
from shardd.queues.leases import Leases
from shardd.queues.transfers import Mover
from shardd.recovery.quarantine import Quarantine
from shardd.routers.copier import Copier
from shardd.routers.router_operations import Routing
from shardd.storage.free_space import Space
from shardd.storage.group_commit import SYNC_BOUNDS_US, Commits
from shardd.storage.wal import Wal
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic


@dataclass(frozen=True, slots=True)
class Inspect:
    directory: Directory
    clock: Clock
    wal: Wal
    commits: Commits
    space: Space
    scheduler: Scheduler
    pressure: Pressure
    reads: Reads
    leases: Leases
    mover: Mover
    routing: Routing
    copier: Copier
    quarantine: Quarantine
    replica: Callable[[], ReplicaFigures | None]
    leaders: Callable[[], Sequence[Leader]]
    files_set_apart: Callable[[], int]
    records_missing: Callable[[], int]

    @property
    def handlers(self) -> dict[type, Callable[[Request[Any], Respond], None]]:
        """The operations that only look, by their Struct."""
        return {StateGet: self.state, ListTopics: self.list, Stats: self.stats, Sample: self.sample}

    def state(self, request: Request[StateGet], respond: Respond) -> None:
        topic = self.directory.find(request.topic)
        now = self.clock.now_ms()
        topic.expire(now)
        if request.options.touch:
            topic.last_read_ts = now
        is_queue = topic.queue is not None and topic.unloaded is None
        state = TopicState(
            topic=topic.name,
            type=topic.config.type,
            head_seq=topic.records.head_seq,
            earliest_seq=topic.records.floor,
            next_seq=topic.records.head_seq + 1,
            epoch=topic.epoch,
            count=topic.records.count,
            bytes=topic.records.bytes,
            config=topic.config,
            effective_priority=self._priority(topic, now),
            last_write_ts=topic.last_write_ts,
            last_read_ts=topic.last_read_ts,
            queue=self.leases.counters(topic) if is_queue else UNSET,
            quarantined=UNSET if topic.damage is None else Damage("damaged", topic.damage.since_ms),
        )
        led = Led(self._runs(topic)) if request.options.led else None
        respond(Reply(request.id, to_json(state), extra=led))

    def _runs(self, topic: Topic) -> tuple[tuple[int, str], ...]:
        """Raises `SegmentError`."""
        records = topic.records
        ended = records.head_seq + 1
        oldest = records.batches[0].first_seq if records.batches else ended
        return runs(self.leaders(), lambda ms: records.sequence.first_since(ms) or ended, oldest)

    def _priority(self, topic: Topic, now_ms: int) -> int:
        own = effective_priority(topic.config, topic.last_read_ts, now_ms)
        return own + age_boost(self.scheduler.waited(topic))

    def list(self, request: Request[ListTopics], respond: Respond) -> None:
        options = request.options
        page, more = self.directory.page(options.prefix, options.after, options.page_size, options.prefixes)
        now = self.clock.now_ms()
        entries = []
        for topic in page:
            topic.expire(now)
            if options.touch:
                topic.last_read_ts = now
            entries.append(
                TopicEntry(
                    topic=topic.name,
                    head_seq=topic.records.head_seq,
                    earliest_seq=topic.records.floor,
                    epoch=topic.epoch,
                    count=topic.records.count,
                    bytes=topic.records.bytes,
                    durable=topic.config.durable,
                    effective_priority=self._priority(topic, now),
                    quarantined=UNSET if topic.damage is None else True,
                )
            )
        respond(Reply(request.id, to_json(entries), extra=Page(tuple(topic.name for topic in page), more)))

    def sample(self, request: Request[Sample], respond: Respond) -> None:
        sampled = Sampled(
            records=self.directory.totals.written,
            copies=self.copier.copied_records,
            bytes=self.wal.statistics().bytes_written_total,
            waiting=self.commits.depth,
            bounds=SYNC_BOUNDS_US,
            syncs=tuple(self.commits.sync_counts),
        )
        respond(Reply(request.id, extra=sampled))

    def stats(self, request: Request[Stats], respond: Respond) -> None:
        self.directory.expire(self.clock.now_ms())
        topics, records, size = self.directory.counters()
        options = request.options
        page, truncated = self.directory.page("", "", options.per_topic, options.prefixes)
        queues = [topic for topic in self.directory.visible.values() if topic.queue is not None]
        seen = [topic for topic in queues if topic.name.startswith(tuple(options.prefixes) or ("",))]
        most = options.cursors
        everything, _ = self.directory.page("", "", topics, options.prefixes) if most else ([], False)
        named = (
            CursorRow(t.name, name, max(t.records.head_seq - cursor.seq, 0))
            for t in everything
            for name, cursor in sorted(t.cursors.items())
        )
        lags = list(islice(named, most + 1))
        commits = self.commits
        stats = ShardFigures(
            topics=topics,
            records_live=records,
            bytes_live=size,
            records_written=self.directory.totals.written,
            topics_by_class=self.directory.by_class(),
            topics_quarantined=len(self.quarantine),
            files_set_apart=self.files_set_apart(),
            records_missing=self.records_missing(),
            queue_topics=len(queues),
            queue_leases_in_flight=sum(topic.queue.in_flight for topic in queues if topic.queue is not None),
            # Queues are few and are watched, so they do not compete with all the other topics for the places.
            per_queue=[
                QueueRow(*self.leases.row(t)) for t in nsmallest(options.per_topic, seen, key=attrgetter("name"))
            ],
            letters_waiting=len(self.mover),
            routers=len(self.routing.routers()),
            router_copies=self.copier.copied_records,
            routers_waiting=self.routing.waiting(),
            per_topic=[TopicRow(t.name, r.head_seq, r.floor, r.count, r.bytes) for t in page for r in [t.records]],
            per_topic_truncated=truncated,
            cursors=sum(len(t.cursors) for t in everything),
            cursor_lag=lags[:most],
            cursor_lag_truncated=len(lags) > most,
            parked_reads=len(self.reads),
            internal_errors=dict(faults.counts),
            watch_sessions=len(self.directory.sessions),
            clock=self.clock.statistics(),
            disk=DiskFigures(self.space.free_bytes, self.space.refused_total),
            replica=self.replica(),
            pressure=round(self.pressure.level, 3),
            wal=self._log(),
            fsync_us=SyncHistogram(SYNC_BOUNDS_US, tuple(commits.sync_counts), commits.sync_sum_us),
        )
        respond(Reply(request.id, extra=Figures(stats)))

    def _log(self) -> WalFigures:
        return replace(
            self.wal.statistics(),
            submit_full_total=self.pressure.refused_total,
            queue_depth=self.commits.depth,
            queue_depth_peak=self.commits.depth_peak,
            synced_frame=self.commits.synced_no,
        )
