"""The source's side of routers: answers pulls, with which destinations' shards read batches to copy.

A pull is answered at once if there are records after its position, else parked. When a topic grows, all its parked
pulls are answered. A pull returns only records on the device. So copied records never vanish from their source,
whichever machine stops. A `disk` record therefore waits for the sync that follows its acknowledgement. Its writer does
not wait for the router.

The head on the device is known from syncs: the visible head is noted when a sync begins, and counts when it has ended.
`fsync` topics show only synced records. Ephemeral ones have nothing on the device, and never use a seq twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from proto.format.frame import Header, decode_batch, encode_batch
from proto.ipc import operations
from proto.ipc.message import Message, Parked, Reply, Request
from proto.model.errors import ErrorCode, TopicsError, topic_not_found
from proto.process.faults import faults
from shardd.clock import Clock
from shardd.routers.copy_plan import Pulled, together
from shardd.storage.errors import SegmentError, damaged
from shardd.storage.indivisible import indivisible
from shardd.topic.batch_sequence import Piece
from shardd.topic.topic import Topic

Respond = Callable[[Message], None]
PULL_RECORDS = 8192
PULL_BYTES = 4 << 20
MAX_PARKED_S = 20.0
"""A pull parked this long is answered without records: its asker may be gone."""


@dataclass(frozen=True, slots=True)
class _Parked:
    topic: Topic
    request: Request
    key: tuple[Hashable, int]
    respond: Respond
    since: float


class Pulls:
    def __init__(self, clock: Clock, urge: Callable[[], None]) -> None:
        """`urge` is called when a pull waits for the sync of records that are visible."""
        self._clock = clock
        self._urge = urge
        self._parked: dict[int, dict[tuple[Hashable, int], _Parked]] = {}
        self._unsynced: dict[int, Topic] = {}
        self._syncing: list[tuple[Topic, int]] = []
        self._ready: dict[int, Topic] = {}

    # Records on the device

    def grown(self, topic: Topic) -> None:
        """Notes that records became visible."""
        if topic.config.durability.final_when_visible:
            self._ready[topic.id] = topic
        else:
            self._note_unsynced(topic)

    def copied(self, topic: Topic, head_before: int) -> None:
        """Notes that copies became visible. Their source is on the device, so they count as on the device too, unless
        earlier records of the topic wait for a sync."""
        if forwardable(topic, head_before) == head_before:
            topic.position.on_device(topic.records.head_seq)
            self._ready[topic.id] = topic
        else:
            self._note_unsynced(topic)

    def _note_unsynced(self, topic: Topic) -> None:
        self._unsynced[topic.id] = topic
        if topic.id in self._parked:
            self._urge()

    def ready(self, topic: Topic) -> None:
        """Lets the next `wake` answer the topic's parked pulls."""
        self._ready[topic.id] = topic

    def sync_begins(self) -> None:
        self._syncing = [(topic, topic.records.head_seq) for topic in self._unsynced.values()]
        self._unsynced = {}

    def sync_ended(self, good: bool) -> None:
        syncing, self._syncing = self._syncing, []
        for topic, head in syncing:
            if not good:
                self._unsynced.setdefault(topic.id, topic)
                continue
            topic.position.on_device(head)
            self._ready[topic.id] = topic

    # Pulling

    def pull(self, topic: Topic | None, request: Request[operations.Pull], caller: Hashable, respond: Respond) -> None:
        """Answers a pull, or parks it. Options: `epoch` of the topic, `after` which seq, `wait` for records.

        Raises `404` if the topic does not exist or has another epoch."""
        options = request.options
        if topic is None or topic.epoch != options.epoch:
            raise topic_not_found(request.topic)
        topic.expire(self._clock.now_ms())
        if options.after >= forwardable(topic) and options.wait:
            key = (caller, request.id)
            self._parked.setdefault(topic.id, {})[key] = _Parked(topic, request, key, respond, self._clock.monotonic())
            respond(Parked(request.id))
            if options.after < topic.records.head_seq:
                self._urge()
            return
        respond(_answer(topic, request))

    def wake(self) -> None:
        """Answers the parked pulls whose topic has grown."""
        if not self._ready:
            return
        ready, self._ready = self._ready, {}
        for topic in ready.values():
            for waiting in list(self._parked.get(topic.id, {}).values()):
                if waiting.request.options.after < forwardable(topic):
                    self._over(waiting)
                    topic.expire(self._clock.now_ms())
                    waiting.respond(self._answered(topic, waiting.request))

    def expire(self) -> None:
        oldest = self._clock.monotonic() - MAX_PARKED_S
        for waiting in [w for of_topic in self._parked.values() for w in of_topic.values() if w.since <= oldest]:
            self._over(waiting)
            waiting.respond(self._answered(waiting.topic, waiting.request))

    def _answered(self, topic: Topic, request: Request[operations.Pull]) -> Reply:
        """The answer to a parked pull, or its error. One that fails concerns no other."""
        try:
            return _answer(topic, request)
        except SegmentError as error:
            return Reply(request.id, error=damaged(error))
        except Exception:
            if indivisible.broken:
                raise
            return Reply(request.id, error=faults.failed("pull"))

    def topic_deleted(self, topic: Topic) -> None:
        self._unsynced.pop(topic.id, None)
        self.refuse(topic, topic_not_found(topic.name))

    def refuse(self, topic: Topic, error: TopicsError) -> None:
        """Answers all parked pulls of the topic with `error`."""
        for waiting in list(self._parked.get(topic.id, {}).values()):
            self._over(waiting)
            waiting.respond(Reply(waiting.request.id, error=error))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Drops the parked pull of an asker that disconnected. Does nothing if it has none."""
        for of_topic in self._parked.values():
            waiting = of_topic.get((caller, ident))
            if waiting is not None:
                self._over(waiting)
                return

    def forget(self, caller: Hashable) -> None:
        """Drops the parked pulls of an asker that is gone."""
        parked = [waiting for of_topic in self._parked.values() for waiting in of_topic.values()]
        for waiting in parked:
            if waiting.key[0] == caller:
                self._over(waiting)

    def _over(self, waiting: _Parked) -> None:
        of_topic = self._parked[waiting.topic.id]
        del of_topic[waiting.key]
        if not of_topic:
            del self._parked[waiting.topic.id]


def forwardable(topic: Topic, head: int | None = None) -> int:
    """The last seq up to `head` that routers may copy: any visible one of an `ephemeral` topic, else one on disk."""
    head = topic.records.head_seq if head is None else head
    return head if topic.config.durability.final_when_visible else min(topic.position.durable_head, head)


def _answer(topic: Topic, request: Request[operations.Pull]) -> Reply:
    after, head = request.options.after, forwardable(topic)
    found: list[Piece] = []
    upto = after
    if after < head:
        found, upto = topic.records.sequence.pieces(after + 1, head, PULL_RECORDS, PULL_BYTES)
    frames = [encode_batch(p.columns, topic.id, p.first_seq, deleted=p.flags) for p in _joined(found)]
    settled = not topic.deferred and (topic.lane is None or topic.lane.settled)
    extra = operations.Pulled(after, upto, head, tuple(_lost(topic, after, upto)), settled)
    return Reply(request.id, b"".join(part for frame in frames for part in (frame.head, frame.tail)), extra=extra)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces with neighbours merged: a group of small writes is sent as one frame."""
    joined: list[Piece] = []
    run: list[Piece] = []
    for piece in pieces:
        if run and run[-1].last_seq + 1 != piece.first_seq:
            joined.append(_one(run))
            run = []
        run.append(piece)
    if run:
        joined.append(_one(run))
    return joined


def _one(run: list[Piece]) -> Piece:
    return Piece(run[0].first_seq, *together(run))


def _lost(topic: Topic, after: int, upto: int) -> list[tuple[int, int]]:
    """Ranges in (after, upto] that the topic lost, or never received because its own source had lost them."""
    ranges = []
    if after + 1 < topic.records.losses.evict_floor:
        ranges.append((after + 1, min(topic.records.losses.evict_floor - 1, upto)))
    ranges += [(max(first, after + 1), min(last, upto)) for first, last, _ in topic.records.gaps.ranges]
    return [(first, last) for first, last in ranges if first <= last]


def read(reply: Reply[operations.Pulled]) -> Pulled:
    """Decodes a pull's reply, on the destination's side. Raises `TopicsError` if the reply has no positions."""
    extra = reply.extra
    if extra is None:
        raise TopicsError(ErrorCode.INTERNAL, "a pull was answered without its positions")
    pieces: list[Piece] = []
    offset = 0
    while offset < len(reply.body):
        header = Header(reply.body, offset)
        flags_at = offset + header.flags_at
        flags = reply.body[flags_at : flags_at + header.count]
        columns = decode_batch(reply.body, header, offset)
        pieces.append(Piece(header.first_seq, columns, flags if any(flags) else None))
        offset += header.length
    return Pulled(extra.after, extra.upto, extra.head, pieces, list(extra.lost), settled=extra.settled)
