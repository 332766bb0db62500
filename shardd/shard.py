"""The operations of a shard. No sockets, no loop, no clock of its own: requests in, replies out.

A request comes in through `handle` and is answered by calling `respond`: at once, after the next `flush`, or after a
sync. Changes are assigned when they stage and visible when they commit (see `shardd.commit`).

If the process dies before a frame is written, its request was never answered. If it dies after, the change is there
after the restart whether or not the answer got out; a client that repeats the request may then write twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from proto.errors import ErrorCode, TopicsError, invalid, topic_not_found
from proto.frame import Columns, Frame, Kind, encode_batch, encode_map
from proto.limits import Limits
from proto.message import Message, Reply, Request
from proto.names import check_topic
from shardd.append import Write, parse_write
from shardd.body import parse
from shardd.clock import Clock
from shardd.commit import SYNC_BOUNDS_US, Commits, Timing
from shardd.config import ConfigPatch, TopicConfig, apply, as_map, decode_patch
from shardd.directory import Directory
from shardd.disk import Disk
from shardd.priority import effective_priority
from shardd.reads import Reads
from shardd.recovery import Outcome, scan
from shardd.replay import replay
from shardd.topic import Topic
from shardd.wal import Wal

Respond = Callable[[Message], None]
_json = msgspec.json.Encoder().encode


class Shard:
    def __init__(self, disk: Disk, clock: Clock, path: Path, limits: Limits) -> None:
        self._disk = disk
        self._clock = clock
        self._path = path
        self._limits = limits
        self.directory = Directory()
        self.reads = Reads(clock, limits)
        self.outcome = Outcome()
        self._operations: dict[str, Callable[[Request, Hashable, Respond], None]] = {
            "configure": self._configure,
            "state": self._state,
            "list": self._list,
            "delete_topic": self._delete_topic,
            "append": self._append,
            "diff": self._diff,
            "stats": self._stats,
        }

    def recover(self) -> Iterator[tuple[int, int]]:
        """Read everything back. Yields (bytes done, bytes to do) after each frame; the shard is usable when the
        iterator is exhausted. Raises `RecoveryError`, or OSError."""
        path = self._path / "wal"
        self._disk.make_dir(path)
        for found in scan(self._disk, path, self.outcome):
            replay(self.directory, found)
            yield found.done_bytes, found.total_bytes
        self.directory.assigned = dict(self.directory.visible)
        self._wal = Wal(
            self._disk,
            path,
            next_no=self.outcome.next_no,
            max_bytes=self._limits.wal_segment_bytes,
            resume=self.outcome.resume,
        )
        self.commits = Commits(self._wal, self._clock, window_ms=self._limits.wal_sync_window_ms)
        self.commits.after_sync = self.reads.wake

    def close(self) -> None:
        """Sync and close the log. Raises OSError if the disk refuses."""
        self.commits.sync_now()
        self._wal.close()

    def handle(self, request: Request, caller: Hashable, respond: Respond) -> None:
        """Take one request. `caller` names the peer; with the request's id it identifies a parked read."""
        try:
            operation = self._operations.get(request.op)
            if operation is None:
                raise invalid(f"operation {request.op!r} is not known to this shard")
            operation(request, caller, respond)
        except TopicsError as error:
            respond(Reply(request.id, error=error))

    def flush(self) -> None:
        """End of a group of requests: write what they staged, and wake who waited for it."""
        self.commits.flush()
        self.reads.wake()

    # Reading

    def _state(self, request: Request, caller: Hashable, respond: Respond) -> None:
        topic = self.directory.find(request.topic)
        now = self._clock.now_ms()
        if request.options.get("touch", True):
            topic.last_read_ts = now
        state = {
            "topic": topic.name,
            "type": topic.config.type,
            "head_seq": topic.head_seq,
            "earliest_seq": topic.earliest_seq,
            "next_seq": topic.head_seq + 1,
            "count": topic.records,
            "bytes": topic.bytes,
            "config": topic.config,
            "effective_priority": effective_priority(topic.config, topic.last_read_ts, now),
            "last_write_ts": topic.last_write_ts,
            "last_read_ts": topic.last_read_ts,
        }
        respond(Reply(request.id, _json(state)))

    def _list(self, request: Request, caller: Hashable, respond: Respond) -> None:
        options = request.options
        page, more = self.directory.page(options.get("prefix", ""), options.get("after", ""), options["page_size"])
        now = self._clock.now_ms()
        entries = [
            {
                "topic": topic.name,
                "head_seq": topic.head_seq,
                "earliest_seq": topic.earliest_seq,
                "count": topic.records,
                "bytes": topic.bytes,
                "durable": topic.config.durable,
                "effective_priority": effective_priority(topic.config, topic.last_read_ts, now),
            }
            for topic in page
        ]
        respond(Reply(request.id, _json(entries), extra={"names": [topic.name for topic in page], "more": more}))

    def _diff(self, request: Request, caller: Hashable, respond: Respond) -> None:
        self.reads.diff(self.directory.find(request.topic), request, caller, respond)

    def _stats(self, request: Request, caller: Hashable, respond: Respond) -> None:
        topics, records, size = self.directory.counters()
        page, truncated = self.directory.page("", "", request.options.get("per_topic", 0))
        wal = self._wal.statistics()
        commits = self.commits
        stats = {
            "topics": topics,
            "records_live": records,
            "bytes_live": size,
            "topics_by_class": self.directory.by_class(),
            "queue_topics": 0,
            "per_topic": [[t.name, t.head_seq, t.earliest_seq, t.records, t.bytes] for t in page],
            "per_topic_truncated": truncated,
            "parked_reads": len(self.reads),
            "wal": {
                "frames_total": wal.frames_total,
                "batches_total": wal.batches_total,
                "fsyncs_total": wal.fsyncs_total,
                "bytes_written_total": wal.bytes_written_total,
                "rotations_total": wal.rotations_total,
                "queue_depth": commits.depth,
                "queue_depth_peak": commits.depth_peak,
                "submit_full_total": 0,
                "read_only": int(wal.read_only),
            },
            "fsync_us": {
                "bounds": list(SYNC_BOUNDS_US),
                "counts": list(commits.sync_counts),
                "sum": commits.sync_sum_us,
                "count": sum(commits.sync_counts),
            },
        }
        respond(Reply(request.id, extra=stats))

    # Changing

    def _stage(
        self,
        topic: Topic,
        encode: Callable[[int, int], Frame],
        *,
        gated: bool,
        commit: Callable[[Timing], None],
        undo: Callable[[], None],
        request: Request,
        respond: Respond,
    ) -> Frame:
        """Stage one change of a topic. It waits for a sync if it asks to, or if an earlier change of the topic does."""
        gated = gated or topic.gated_no > self.commits.synced_no

        def undone(error: TopicsError) -> None:
            undo()
            respond(Reply(request.id, error=error))

        number, frame = self.commits.stage(encode, gated=gated, commit=commit, undo=undone)
        if gated:
            topic.gated_no = number
        return frame

    def _configure(self, request: Request, caller: Hashable, respond: Respond) -> None:
        patch = parse(decode_patch, request.body)
        topic = self.directory.assigned.get(request.topic)
        if topic is None:
            config = apply(request.topic, None, patch)
            self._create(request.topic, config, request, respond, answer=partial(_configured, True))
            return
        config = apply(topic.name, topic.assigned_config, patch)
        if config == topic.assigned_config and topic.gated_no <= self.commits.synced_no:
            respond(_configured(False, topic.name, config, request.id, Timing()))
            return
        before = topic.assigned_config
        topic.assigned_config = config

        def commit(timing: Timing) -> None:
            topic.config = config
            respond(_configured(False, topic.name, config, request.id, timing))

        def undo() -> None:
            topic.assigned_config = before

        self._stage(
            topic,
            partial(_encode_map, Kind.TOPIC_CONFIG, topic.id, {"config": as_map(config)}, self._clock.now_ms()),
            gated=True,
            commit=commit,
            undo=undo,
            request=request,
            respond=respond,
        )

    def _create(
        self,
        name: str,
        config: TopicConfig,
        request: Request,
        respond: Respond,
        answer: Callable[[str, TopicConfig, int, Timing], Reply] | None,
    ) -> Topic:
        """Stage a new topic. With `answer` the request is answered by it; without, only a failure is the caller's to
        notice, because what it stages next on the same topic fails with it."""
        check_topic(name)
        ident = self.directory.new_id()
        topic = Topic(name, ident, ident, config)
        self.directory.assigned[name] = topic

        def commit(timing: Timing) -> None:
            self.directory.show(topic)
            if answer is not None:
                respond(answer(name, config, request.id, timing))

        def undo() -> None:
            del self.directory.assigned[name]

        fields = {"name": name, "epoch": topic.epoch, "config": as_map(config)}
        self._stage(
            topic,
            partial(_encode_map, Kind.TOPIC_CREATE, ident, fields, self._clock.now_ms()),
            gated=True,
            commit=commit,
            undo=undo,
            request=request,
            respond=respond if answer is not None else _nobody,
        )
        return topic

    def _delete_topic(self, request: Request, caller: Hashable, respond: Respond) -> None:
        topic = self.directory.assigned.get(request.topic)
        if topic is None:
            body = {"topic": request.topic, "deleted": False, "routers_removed": []}
            respond(Reply(request.id, _json(body)))
            return
        pending = topic.next_seq - 1 - topic.head_seq
        if request.options.get("if_empty") and topic.records + pending:
            raise TopicsError(
                ErrorCode.TOPIC_NOT_EMPTY,
                f'topic "{topic.name}" holds {topic.records + pending} records',
                {"topic": topic.name, "count": topic.records + pending},
            )
        del self.directory.assigned[topic.name]

        def commit(timing: Timing) -> None:
            self.directory.hide(topic)
            self.reads.topic_deleted(topic)
            body = {"topic": topic.name, "deleted": True, "routers_removed": []}
            respond(Reply(request.id, _json(body), performance=_performance(timing)))

        def undo() -> None:
            self.directory.assigned[topic.name] = topic

        self._stage(
            topic,
            partial(_encode_map, Kind.TOPIC_DELETE, topic.id, {"name": topic.name}, self._clock.now_ms()),
            gated=True,
            commit=commit,
            undo=undo,
            request=request,
            respond=respond,
        )

    def _append(self, request: Request, caller: Hashable, respond: Respond) -> None:
        write, columns = parse_write(request.body, self._limits)
        if write.idempotency_key is not None or "idempotency_key" in request.options:
            raise invalid(
                "idempotency_key is not supported by this release yet",
                field="idempotency_key",
                reason="not_supported",
            )
        topic = self.directory.assigned.get(request.topic)
        created = topic is None
        if topic is None:
            config = self._lazy_config(request.topic, write)
            topic = self._create(request.topic, config, request, respond, answer=None)
        first_seq = topic.next_seq
        topic.next_seq += columns.count
        columns.ts = topic.commit_time(self._clock.now_ms())
        self._stage_batch(topic, columns, first_seq, created, request, respond)

    def _lazy_config(self, name: str, write: Write) -> TopicConfig:
        """The configuration of a topic that this write creates, or `404` if it must not."""
        config = apply(name, None, write.config or ConfigPatch())
        if write.create is False or (write.create is None and not config.auto_create):
            raise topic_not_found(name)
        return config

    def _stage_batch(
        self, topic: Topic, columns: Columns, first_seq: int, created: bool, request: Request, respond: Respond
    ) -> None:
        frame: Frame

        def encode(frame_no: int, synced_no: int) -> Frame:
            return encode_batch(columns, topic.id, first_seq, frame_no=frame_no, synced_no=synced_no)

        def commit(timing: Timing) -> None:
            self.directory.add(topic, frame.head, first_seq, columns)
            ts = columns.ts
            assert isinstance(ts, int)
            topic.last_write_ts = ts
            self.reads.grown(topic)
            last_seq = first_seq + columns.count - 1
            body: dict[str, Any] = {"topic": topic.name, "first_seq": first_seq, "last_seq": last_seq}
            if request.options.get("return_seqs", True):
                body["seqs"] = list(range(first_seq, last_seq + 1))
            body |= {"head_seq": topic.head_seq, "count": columns.count, "created": created, "deduped": False}
            if topic.assigned_config.durability != "fsync":
                timing = Timing(timing.write_ms)
            respond(Reply(request.id, _json(body), created=created, performance=_performance(timing)))

        def undo() -> None:
            topic.next_seq = first_seq

        frame = self._stage(
            topic,
            encode,
            gated=topic.assigned_config.durability == "fsync",
            commit=commit,
            undo=undo,
            request=request,
            respond=respond,
        )


def _encode_map(kind: Kind, topic_id: int, fields: dict[str, Any], ts_ms: int, frame_no: int, synced_no: int) -> Frame:
    return encode_map(kind, topic_id, fields, ts_ms, frame_no=frame_no, synced_no=synced_no)


def _configured(created: bool, name: str, config: TopicConfig, ident: int, timing: Timing) -> Reply:
    body = _json({"topic": name, "created": created, "config": config})
    return Reply(ident, body, created=created, performance=_performance(timing))


def _performance(timing: Timing) -> dict[str, float]:
    return {"wal_append_ms": round(timing.write_ms, 3), "fsync_ms": round(timing.sync_ms, 3)}


def _nobody(message: Message) -> None:
    """For a change that has no request of its own."""
