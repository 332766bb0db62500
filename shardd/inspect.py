"""Inspection: answers requests for a topic's state, lists of topics and statistics. It changes no records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    ShardFigures,
    SyncHistogram,
    TopicRow,
    WalFigures,
)
from proto.ipc.message import Reply, Request
from proto.ipc.operations import Figures, Led, ListTopics, Page, Sample, Sampled, StateGet, Stats
from proto.process.faults import faults
from shardd.assembly import Assembly
from shardd.changes.transactions import Respond, to_json
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.delivery.priority import age_boost, effective_priority
from shardd.leaders import runs
from shardd.storage.group_commit import SYNC_BOUNDS_US
from shardd.topic.topic import Topic


class Inspect:
    """That of the shard with these parts, to all of which it looks, and with these checkpoints."""

    def __init__(self, parts: Assembly, checkpoints: Checkpoints) -> None:
        self._parts = parts
        self._directory = parts.staging.directory
        self._clock = parts.staging.clock
        self._checkpoints = checkpoints

    @property
    def handlers(self) -> dict[type, Callable[[Request[Any], Respond], None]]:
        """The operations that only look, by their Struct."""
        return {StateGet: self.state, ListTopics: self.list, Stats: self.stats, Sample: self.sample}

    def state(self, request: Request[StateGet], respond: Respond) -> None:
        topic = self._directory.find(request.topic)
        now = self._clock.now_ms()
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
            queue=self._parts.leases.counters(topic) if is_queue else UNSET,
            quarantined=UNSET if topic.damage is None else Damage("damaged", topic.damage.since_ms),
        )
        led = Led(self._runs(topic)) if request.options.led else None
        respond(Reply(request.id, to_json(state), extra=led))

    def _runs(self, topic: Topic) -> tuple[tuple[int, str], ...]:
        """Raises `SegmentError`."""
        records = topic.records
        ended = records.head_seq + 1
        oldest = records.batches[0].first_seq if records.batches else ended
        return runs(self._parts.follower.copy.leaders(), lambda ms: records.sequence.first_since(ms) or ended, oldest)

    def _priority(self, topic: Topic, now_ms: int) -> int:
        own = effective_priority(topic.config, topic.last_read_ts, now_ms)
        return own + age_boost(self._parts.scheduler.waited(topic))

    def list(self, request: Request[ListTopics], respond: Respond) -> None:
        options = request.options
        page, more = self._directory.page(options.prefix, options.after, options.page_size, options.prefixes)
        now = self._clock.now_ms()
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
            records=self._directory.totals.written,
            copies=self._parts.copier.copied_records,
            bytes=self._parts.log.statistics().bytes_written_total,
            waiting=self._parts.commits.depth,
            bounds=SYNC_BOUNDS_US,
            syncs=tuple(self._parts.commits.sync_counts),
        )
        respond(Reply(request.id, extra=sampled))

    def stats(self, request: Request[Stats], respond: Respond) -> None:
        self._directory.expire(self._clock.now_ms())
        topics, records, size = self._directory.counters()
        options, parts, commits = request.options, self._parts, self._parts.commits
        page, truncated = self._directory.page("", "", options.per_topic, options.prefixes)
        queues = [topic for topic in self._directory.visible.values() if topic.queue is not None]
        seen = [topic for topic in queues if topic.name.startswith(tuple(options.prefixes) or ("",))]
        everything, _ = self._directory.page("", "", topics, options.prefixes) if options.cursors else ([], False)
        lags = list(islice(_lags(everything), options.cursors + 1))
        stats = ShardFigures(
            topics=topics,
            records_live=records,
            bytes_live=size,
            records_written=self._directory.totals.written,
            topics_by_class=self._directory.by_class(),
            topics_quarantined=len(self._checkpoints.quarantine),
            files_set_apart=self._checkpoints.inventory.files_apart,
            records_missing=len(self._checkpoints.inventory.problems()),
            queue_topics=len(queues),
            queue_leases_in_flight=sum(topic.queue.in_flight for topic in queues if topic.queue is not None),
            # Queues are few and are watched, so they do not compete with all the other topics for the places.
            per_queue=[QueueRow(*parts.leases.row(t)) for t in nsmallest(options.per_topic, seen, attrgetter("name"))],
            letters_waiting=len(parts.mover),
            routers=len(parts.routing.routers()),
            router_copies=parts.copier.copied_records,
            routers_waiting=parts.routing.waiting(),
            per_topic=[TopicRow(t.name, r.head_seq, r.floor, r.count, r.bytes) for t in page for r in [t.records]],
            per_topic_truncated=truncated,
            cursors=sum(len(t.cursors) for t in everything),
            cursor_lag=lags[: options.cursors],
            cursor_lag_truncated=len(lags) > options.cursors,
            parked_reads=len(parts.reads),
            internal_errors=dict(faults.counts),
            watch_sessions=len(self._directory.sessions),
            clock=self._clock.statistics(),
            disk=DiskFigures(parts.space.free_bytes, parts.space.refused_total),
            replica=parts.follower.figures(),
            pressure=round(parts.pressure.level, 3),
            wal=self._log(),
            fsync_us=SyncHistogram(SYNC_BOUNDS_US, tuple(commits.sync_counts), commits.sync_sum_us),
        )
        respond(Reply(request.id, extra=Figures(stats)))

    def _log(self) -> WalFigures:
        return replace(
            self._parts.log.statistics(),
            submit_full_total=self._parts.pressure.refused_total,
            queue_depth=self._parts.commits.depth,
            queue_depth_peak=self._parts.commits.depth_peak,
            synced_frame=self._parts.commits.synced_no,
        )


def _lags(topics: Iterable[Topic]) -> Iterator[CursorRow]:
    """The cursors of topics, in order of names."""
    for topic in topics:
        for name, cursor in sorted(topic.cursors.items()):
            yield CursorRow(topic.name, name, max(topic.records.head_seq - cursor.seq, 0))
