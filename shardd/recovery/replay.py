"""Replay: applies each log frame to the directory when the log is read back. `shardd.frames` has each kind's effect.

The log may have frames that the snapshot already covers: batches that exist, changes of topics that are gone. They
change nothing, because seqs and ids only increase.

Frames that follow missing copies are deferred until the copies are made again (`shardd.routers.copy_recovery`). The
files that they need are read before that.
"""

from __future__ import annotations

import msgspec

from proto.format.buffer import Buffer
from proto.format.frame import Header, Kind, decode_batch
from shardd.frames import SHARD_FORMS, shard_frame, topic_frame
from shardd.recovery.quarantine import defer
from shardd.recovery.wal_scan import RecoveryError
from shardd.topic.directory import Directory
from shardd.topic.outbox import MARK
from shardd.topic.topic import Topic

_CONTRADICTIONS = (KeyError, ValueError, TypeError, msgspec.ValidationError)
_KINDS = frozenset(Kind)


def replay(directory: Directory, header: Header, buffer: Buffer) -> None:
    """Apply one frame, or defer it. Raises `RecoveryError` for a valid frame that contradicts those before it,
    or of an unknown kind: also for a topic that is gone, because a new kind may concern more than its topic."""
    if header.kind not in _KINDS:
        raise RecoveryError(
            f"frame {header.frame_no} of the log is of kind {header.kind}, which this release does not know: use the "
            "release that wrote it"
        )
    try:
        if header.kind == Kind.RESCUED:
            return
        if header.kind in SHARD_FORMS:
            shard_frame(buffer, header).apply(directory, header)
            return
        if not header.topic_id:
            raise ValueError(f"kind {header.kind} belongs to a topic")
        topic = directory.by_id.get(header.topic_id)
        if topic is None:
            if header.topic_id < directory.next_id:
                return  # deleted, here or before the snapshot was taken
            raise ValueError(f"topic {header.topic_id} was never created")
        if 0 < header.frame_no <= topic.position.as_of:
            return
        topic.catalogued = None
        if header.kind == Kind.TOPIC_DELETE:
            topic.deferred.clear()
        elif topic.unloaded is not None:
            defer(topic, header, buffer)
            return
        if topic.deferred or not _applied(directory, topic, header, buffer):
            topic.deferred.append((header, buffer))
    except _CONTRADICTIONS as error:
        raise _nonsense(header, error) from error


def read_ahead(topic: Topic) -> None:
    """Read the tags that the topic's deferred deletions will read. A start does so while it can still set the topic
    apart from its first frame on: later, some of its frames have been applied, and others use its copies. Raises
    `SegmentError`, `RecoveryError`."""
    for header, buffer in topic.deferred:
        if header.kind != Kind.RECORD_DELETE:
            continue
        try:
            frame = topic_frame(buffer, header)
        except _CONTRADICTIONS as error:
            raise _nonsense(header, error) from error
        if frame.reads:
            topic.records.index()
            return


def replay_deferred(directory: Directory, topic: Topic, header: Header, buffer: Buffer) -> None:
    """Apply a deferred frame, when the copies before it exist. Raises `RecoveryError`."""
    topic.catalogued = None
    try:
        _applied(directory, topic, header, buffer)
    except _CONTRADICTIONS as error:
        raise _nonsense(header, error) from error


def _nonsense(header: Header, error: Exception) -> RecoveryError:
    return RecoveryError(f"frame {header.frame_no} of the log is valid but contradicts earlier ones: {error!r}")


def _applied(directory: Directory, topic: Topic, header: Header, buffer: Buffer) -> bool:
    """Apply a frame of a topic. Returns False, and changes nothing, if the frame waits for missing copies."""
    if header.kind == Kind.BATCH:
        _batch(topic, header, buffer)
        return True
    frame = topic_frame(buffer, header)
    if frame.waits(topic):
        return False
    frame.apply(directory, topic, header)
    return True


def _batch(topic: Topic, header: Header, buffer: Buffer) -> None:
    if header.first_seq + header.count <= topic.position.next_seq:
        return
    if header.first_seq != topic.position.next_seq:
        raise ValueError(f"topic {topic.id}: a batch at seq {header.first_seq}, expected {topic.position.next_seq}")
    columns = decode_batch(buffer, header)
    first_ts, last_ts = next(iter(columns.times(0, 1))), next(iter(columns.times(columns.count - 1, columns.count)))
    topic.expire(first_ts)
    topic.add(buffer, header.first_seq, columns)
    if topic.queue is not None and columns.due is not None:
        topic.queue.schedule(header.first_seq, columns.due, 0)  # the topic's time may be ahead of the shard's
    topic.position.used(topic.records.head_seq)
    topic.last_write_ts = topic.position.commit_time(last_ts)
    if columns.key.startswith(MARK):
        topic.arrivals.add(columns.key)
    elif columns.key:
        topic.keys.done(columns.key, header.first_seq, header.count, first_ts)
