"""Frames of the log that have a map: the fields of each kind, and what it does when the log is read back.

A kind has one Struct, or one for each of its forms (`FORMS`). The Struct writes the frame (`MapBody.encode`), and its
`apply` replays it. Frames may follow a catalog that covers them already: applying one twice changes nothing. The
fields are described in `docs/format.md`.

A BATCH is no map: `shardd.recovery.replay` applies it. RESCUED says nothing of topics: `shardd.storage.wal` owns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from proto.format.buffer import Buffer
from proto.format.frame import Header, Kind, decode_map
from proto.format.map_body import MapBody
from proto.model.topic_config import from_map
from shardd.topic.cursors import Cursor, moved
from shardd.topic.directory import Directory
from shardd.topic.lane import Lane, load
from shardd.topic.tag_index import Match
from shardd.topic.topic import Topic


class ShardFrame(MapBody):
    """A frame that belongs to no topic, or creates one."""

    def apply(self, directory: Directory, header: Header) -> None:
        raise NotImplementedError


class TopicFrame(MapBody):
    """A frame of a topic that exists."""

    @classmethod
    def has(cls, fields: Mapping[str, Any]) -> bool:
        """Whether a frame with these fields has this form of its kind; the first such form in `FORMS` counts."""
        return True

    def waits(self, topic: Topic) -> bool:
        """Whether the frame and the topic's later ones are deferred, until missing copies are made again."""
        return False

    @property
    def reads(self) -> bool:
        """Whether `apply` reads records, so that it raises `SegmentError` if their file is damaged."""
        return False

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        raise NotImplementedError


# Topics


class TopicCreated(ShardFrame):
    kind: ClassVar = Kind.TOPIC_CREATE

    name: str
    epoch: int
    config: dict[str, Any]
    ceiling: int | UnsetType = UNSET
    boot: str | UnsetType = UNSET

    def apply(self, directory: Directory, header: Header) -> None:
        if header.topic_id in directory.by_id:
            return
        directory.used_id(header.topic_id)
        topic = Topic(self.name, header.topic_id, self.epoch, from_map(self.config))
        topic.position.reserve(self.ceiling or 0, self.boot or "")
        directory.show(topic)


class TopicConfigured(TopicFrame):
    kind: ClassVar = Kind.TOPIC_CONFIG

    config: dict[str, Any]
    now: int
    next_seq: int
    floor: int = 0
    lost: int = -1

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        topic.expire(self.now)
        before = topic.config.durability
        topic.config = topic.assigned_config = from_map(self.config)
        if before.logged:
            topic.skip(self.next_seq)
        elif topic.position.next_seq < self.next_seq:
            # These seqs were written while the topic was ephemeral, so the log does not have them.
            topic.lose_tail(self.next_seq - 1)
        if before.reserves_per_boot and not topic.config.durability.reserves_per_boot:
            topic.position.reserve(0, "")
        # Ephemeral records, which the log does not have, may have evicted logged ones. Those must not come back.
        topic.records.losses.add(self.lost, "cap")
        topic.expire(self.now)
        topic.records.cut_below(self.floor, "cap")
        topic.records.evict(topic.config)


class TopicDeleted(TopicFrame):
    kind: ClassVar = Kind.TOPIC_DELETE

    name: str

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        directory.hide(topic)


class RecordsDeleted(TopicFrame):
    kind: ClassVar = Kind.RECORD_DELETE

    before: int | None
    match: Match | None
    bound: int
    now: int
    seqs: list[int] | UnsetType = UNSET
    dead_lettered: int | UnsetType = UNSET

    @property
    def reads(self) -> bool:
        return self.seqs is UNSET and self.match is not None

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        topic.expire(self.now)
        if self.seqs is UNSET:
            topic.records.delete(self.before, self.match, self.bound)
            return
        topic.records.delete_seqs(self.seqs)
        topic.outbox.gone(self.seqs)
        if topic.queue is not None:
            topic.queue.apply(self.fields())


class Ceiling(TopicFrame):
    """Seqs are reserved, see `shardd.changes.seq_reservation`."""

    kind: ClassVar = Kind.CEILING

    seq: int
    boot: str = ""
    next_seq: int = 0

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        topic.position.reserve(max(topic.position.ceiling, self.seq), self.boot)
        if self.boot:
            topic.skip(self.next_seq)


class Floor(TopicFrame):
    """Ephemeral records evicted logged ones."""

    kind: ClassVar = Kind.CEILING

    floor: int
    now: int

    @classmethod
    def has(cls, fields: Mapping[str, Any]) -> bool:
        return "floor" in fields

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        topic.expire(self.now)
        topic.records.cut_below(self.floor, "cap")


# Readers


class CursorMoved(TopicFrame):
    kind: ClassVar = Kind.CURSOR

    name: str
    seq: int
    ts: int
    force: bool
    maker: bytes | UnsetType = UNSET
    """The key that makes the cursor, unless it exists."""

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        self.move(topic)

    def move(self, topic: Topic) -> Cursor:
        """Moves the cursor from where it is now. Also for commits: an earlier move may have committed meanwhile."""
        current = topic.cursors.get(self.name)
        cursor = topic.cursors[self.name] = moved(current, self.seq, self.force, self.ts, self.maker or b"")
        return cursor


class CursorDeleted(TopicFrame):
    kind: ClassVar = Kind.CURSOR

    name: str
    seq: None = None

    @classmethod
    def has(cls, fields: Mapping[str, Any]) -> bool:
        return fields["seq"] is None

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        topic.cursors.pop(self.name, None)


class WatchSessions(ShardFrame):
    """See `shardd.topic.watch_session`."""

    kind: ClassVar = Kind.SESSION

    made: dict[str, Any] | UnsetType = UNSET
    moved: dict[str, Any] | UnsetType = UNSET
    ended: list[str] | UnsetType = UNSET
    taken: dict[str, int] | UnsetType = UNSET

    def apply(self, directory: Directory, header: Header) -> None:
        directory.sessions.apply(self.fields())


class RogLog(ShardFrame):
    kind: ClassVar = Kind.LOGDEF

    name: str
    partitions: int

    def apply(self, directory: Directory, header: Header) -> None:
        directory.logs[self.name] = self.partitions


# Queues


class Leases(TopicFrame):
    """See `shardd.topic.job_table`, and `shardd.topic.outbox` for `letters` and `called_back`."""

    kind: ClassVar = Kind.LEASE

    rows: list[Any] | UnsetType = UNSET
    forget: bool | UnsetType = UNSET
    letters: list[Any] | UnsetType = UNSET
    called_back: list[int] | UnsetType = UNSET
    reasons: list[list[Any]] | UnsetType = UNSET
    """`[seq, reason]` of jobs among `rows` and `letters`. Releases without it read past it."""
    set_back: tuple[int, int] | UnsetType = UNSET
    """As `Queue.ahead`: the clock was set back since the frames before this one. Releases without it read past it."""

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        fields = self.fields()
        if topic.queue is not None and self.set_back is not UNSET:
            topic.queue.set_back(*self.set_back, header.ts_ms)
        elif topic.queue is not None:
            topic.queue.apply(fields)
            topic.queue.rows_at = max(topic.queue.rows_at, header.ts_ms)
        topic.outbox.apply(fields, topic.queue)


# Routers


class RoutersChanged(TopicFrame):
    """The destination's lane from now on."""

    kind: ClassVar = Kind.ROUTER

    lane: dict[str, Any]

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        changed = load(self.lane)
        if topic.lane is None or changed.version > topic.lane.version:
            topic.lane = topic.lane_visible = changed


class Pin(TopicFrame):
    """Copies that have no frames end here, see `shardd.routers.copy_recovery`."""

    kind: ClassVar = Kind.ROUTER

    pin: int
    """Source seq up to which there are copies."""
    head: int
    """Their last seq in this topic."""
    ts: int
    version: int
    exact: bool
    """Whether the copies can be made again."""
    stopped: bool = False

    @classmethod
    def has(cls, fields: Mapping[str, Any]) -> bool:
        return "pin" in fields

    def lane_of(self, topic: Topic) -> Lane | None:
        """The lane that it pins; None if the catalog already has a later change of the routers."""
        lane = topic.lane
        return lane if lane is not None and lane.version == self.version else None

    def waits(self, topic: Topic) -> bool:
        behind = topic.config.durability.lasts and self.head >= topic.position.next_seq
        return behind and self.lane_of(topic) is not None

    def apply(self, directory: Directory, topic: Topic, header: Header) -> None:
        lane = self.lane_of(topic)
        if lane is not None:
            lane.cursor = lane.done = max(lane.cursor, self.pin)
            lane.resume(self.stopped)


SHARD_FORMS: dict[int, type[ShardFrame]] = {form.kind: form for form in (TopicCreated, WatchSessions, RogLog)}
FORMS: dict[int, tuple[type[TopicFrame], ...]] = {
    Kind.TOPIC_CONFIG: (TopicConfigured,),
    Kind.TOPIC_DELETE: (TopicDeleted,),
    Kind.RECORD_DELETE: (RecordsDeleted,),
    Kind.CEILING: (Floor, Ceiling),
    Kind.CURSOR: (CursorDeleted, CursorMoved),
    Kind.LEASE: (Leases,),
    Kind.ROUTER: (Pin, RoutersChanged),
}


def shard_frame(buffer: Buffer, header: Header) -> ShardFrame:
    """The decoded frame, of a kind in `SHARD_FORMS`. Raises `msgspec.ValidationError`."""
    return msgspec.convert(decode_map(buffer, header), SHARD_FORMS[header.kind])


def topic_frame(buffer: Buffer, header: Header) -> TopicFrame:
    """The decoded frame of a topic. Raises `msgspec.ValidationError`, or ValueError for an unknown kind."""
    forms = FORMS.get(header.kind)
    if forms is None:
        raise ValueError(f"frame kind {header.kind} is not known")
    fields = decode_map(buffer, header)
    return msgspec.convert(fields, next(form for form in forms if form.has(fields)))
