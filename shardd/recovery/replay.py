"""Replay: applies each kind of log frame to the directory when the log is read back.

The log may have frames that the snapshot already covers: batches that exist, changes of topics that are gone. They
change nothing, because seqs and ids only increase.

Frames that follow missing copies are deferred until the copies are made again (`shardd.routers.copy_recovery`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from proto.format.frame import Buffer, Header, Kind, decode_batch, decode_map
from proto.model.topic_config import from_map
from shardd.recovery.quarantine import defer
from shardd.recovery.wal_scan import Found, RecoveryError
from shardd.topic.cursors import moved
from shardd.topic.directory import Directory
from shardd.topic.lane import load
from shardd.topic.outbox import MARK
from shardd.topic.topic import Topic


def replay(directory: Directory, found: Found) -> None:
    """Apply one frame, or defer it. Raises `RecoveryError` for a valid frame that contradicts those before it."""
    header, buffer = found.header, found.buffer
    try:
        if header.kind == Kind.RESCUED:
            return
        if header.kind == Kind.SESSION:
            directory.sessions.apply(decode_map(found.buffer, header))
            return
        if header.kind == Kind.TOPIC_CREATE:
            _create(directory, header, decode_map(buffer, header))
            return
        if header.kind == Kind.LOGDEF:
            fields = decode_map(found.buffer, header)
            directory.logs[fields["name"]] = fields["partitions"]
            return
        topic = directory.by_id.get(header.topic_id)
        if topic is None:
            if header.topic_id < directory.next_id:
                return  # deleted, here or before the snapshot was taken
            raise ValueError(f"topic {header.topic_id} was never created")
        if 0 < header.frame_no <= topic.as_of:
            return
        topic.catalogued = None
        if header.kind == Kind.TOPIC_DELETE:
            topic.deferred.clear()
        elif topic.unloaded is not None:
            defer(topic, header, buffer)
            return
        if topic.deferred or (header.kind == Kind.ROUTER and not _router(topic, decode_map(buffer, header))):
            topic.deferred.append((header, buffer))
            return
        _apply(directory, topic, header, buffer)
    except (KeyError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise _nonsense(header, error) from error


def replay_deferred(directory: Directory, topic: Topic, header: Header, buffer: Buffer) -> None:
    """Apply a deferred frame, when the copies before it exist. Raises `RecoveryError`."""
    topic.catalogued = None
    try:
        if header.kind == Kind.ROUTER:
            _router(topic, decode_map(buffer, header))
        else:
            _apply(directory, topic, header, buffer)
    except (KeyError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise _nonsense(header, error) from error


def _nonsense(header: Header, error: Exception) -> RecoveryError:
    return RecoveryError(f"frame {header.frame_no} of the log is valid but contradicts earlier ones: {error!r}")


def _apply(directory: Directory, topic: Topic, header: Header, buffer: Buffer) -> None:
    if header.kind == Kind.BATCH:
        _batch(topic, header, buffer)
    else:
        _change(directory, topic, header, decode_map(buffer, header))


def _create(directory: Directory, header: Header, fields: dict[str, Any]) -> None:
    if header.topic_id in directory.by_id:
        return
    directory.used_id(header.topic_id)
    topic = Topic(fields["name"], header.topic_id, fields["epoch"], from_map(fields["config"]))
    topic.ceiling, topic.reserved_in = fields.get("ceiling", 0), fields.get("boot", "")
    directory.show(topic)


def _batch(topic: Topic, header: Header, buffer: Buffer) -> None:
    if header.first_seq + header.count <= topic.next_seq:
        return
    if header.first_seq != topic.next_seq:
        raise ValueError(f"topic {topic.id}: a batch at seq {header.first_seq}, expected {topic.next_seq}")
    columns = decode_batch(buffer, header)
    first_ts, last_ts = next(iter(columns.times(0, 1))), next(iter(columns.times(columns.count - 1, columns.count)))
    topic.expire(first_ts)
    topic.add(buffer, header.first_seq, columns)
    if topic.queue is not None and columns.due is not None:
        topic.queue.schedule(header.first_seq, columns.due, first_ts)
    topic.next_seq = topic.head_seq + 1
    topic.last_write_ts = topic.commit_time(last_ts)
    if columns.key.startswith(MARK):
        topic.arrivals.add(columns.key)
    elif columns.key:
        topic.keys.done(columns.key, header.first_seq, header.count, first_ts)


def _router(topic: Topic, fields: dict[str, Any]) -> bool:
    """Apply a ROUTER frame. Returns False for a pin of missing copies: it and the topic's later frames are deferred."""
    if "pin" in fields:
        lane = topic.lane
        if lane is None or fields["version"] != lane.version:
            return True  # the catalog already has a later change of the routers
        if fields["head"] >= topic.next_seq and topic.config.durability.lasts:
            return False
        lane.cursor = lane.done = max(lane.cursor, fields["pin"])
        lane.stopped = lane.waits = fields.get("stopped", False)
        return True
    changed = load(fields["lane"])
    if topic.lane is None or changed.version > topic.lane.version:
        topic.lane = topic.lane_visible = changed
    return True


def _change(directory: Directory, topic: Topic, header: Header, fields: dict[str, Any]) -> None:
    kind = header.kind
    if kind == Kind.ROUTER:
        return  # see `_router`
    if kind == Kind.TOPIC_CONFIG:
        topic.expire(fields["now"])
        before = topic.config.durability
        topic.config = topic.assigned_config = from_map(fields["config"])
        if before.logged:
            topic.skip(fields["next_seq"])
        elif topic.next_seq < fields["next_seq"]:
            # These seqs were written while the topic was ephemeral, so the log does not have them.
            topic.lose_tail(fields["next_seq"] - 1)
        if before.reserves_per_boot and not topic.config.durability.reserves_per_boot:
            topic.reserve_nothing()
        # Ephemeral records, which the log does not have, may have evicted logged ones. Those must not come back.
        topic.losses.add(fields.get("lost", -1), "cap")
        topic.expire(fields["now"])
        topic.lose_below(fields.get("floor", 0), "cap")
        topic.evict()
    elif kind == Kind.TOPIC_DELETE:
        directory.hide(topic)
    elif kind == Kind.RECORD_DELETE:
        topic.expire(fields["now"])
        if "seqs" in fields:
            topic.delete_seqs(fields["seqs"])
            topic.outbox.gone(fields["seqs"])
            if topic.queue is not None:
                topic.queue.apply(fields)
            return
        match = fields["match"]
        topic.delete(fields["before"], None if match is None else (match[0], match[1]), fields["bound"])
    elif kind == Kind.LEASE:
        if topic.queue is not None:
            topic.queue.apply(fields)
            topic.queue.rows_at = max(topic.queue.rows_at, header.ts_ms)
        topic.outbox.apply(fields, topic.queue)
    elif kind == Kind.CEILING and "floor" in fields:
        topic.expire(fields["now"])
        topic.lose_below(fields["floor"], "cap")
    elif kind == Kind.CEILING:
        topic.ceiling, topic.reserved_in = max(topic.ceiling, fields["seq"]), fields.get("boot", "")
        if topic.reserved_in:
            topic.skip(fields["next_seq"])
    elif kind == Kind.CURSOR:
        if fields["seq"] is None:
            topic.cursors.pop(fields["name"], None)
        else:
            name = fields["name"]
            topic.cursors[name] = moved(topic.cursors.get(name), fields["seq"], fields["force"], fields["ts"])
    else:
        raise ValueError(f"frame kind {kind} is not known")
