"""The source's side of routers: records as they are in their batches, for shards whose topics copy them.

A pull is answered at once if there is something after its position, and parked otherwise; all that wait on a topic are
answered when it grows. Only what is on the device is given out: what a destination has copied can then never vanish
from its source, whichever machine stops when. A `disk` record therefore waits for the sync that follows its
acknowledgement anyway; nobody waits for the router.

How far a topic is on the device: while a sync runs, what was visible when it began is noted, and counts when it has
ended. `fsync` topics show only what is synced; ephemeral ones have nothing on the device, and never use a seq twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from proto.format.frame import Header, decode_batch, encode_batch, merge
from proto.ipc.message import Message, Parked, Reply, Request
from proto.model.errors import ErrorCode, TopicsError, topic_not_found
from shardd.clock import Clock
from shardd.routers.copy_plan import Pulled
from shardd.storage.errors import SegmentError, damaged
from shardd.topic.piece import Piece
from shardd.topic.topic import Topic

Respond = Callable[[Message], None]
PULL_RECORDS = 8192
PULL_BYTES = 4 << 20
MAX_PARKED_S = 20.0
"""A pull that was parked for this long is answered with nothing: its asker may be gone."""


@dataclass(frozen=True, slots=True)
class _Parked:
    topic: Topic
    request: Request
    key: Hashable
    respond: Respond
    since: float


class Pulls:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parked: dict[int, dict[Hashable, _Parked]] = {}
        self._unsynced: dict[int, Topic] = {}
        self._syncing: list[tuple[Topic, int]] = []
        self._ready: dict[int, Topic] = {}

    # What is on the device

    def grown(self, topic: Topic) -> None:
        """Records became visible."""
        if topic.config.durability.final_when_visible:
            self._ready[topic.id] = topic
        else:
            self._unsynced[topic.id] = topic

    def copied(self, topic: Topic, head_before: int) -> None:
        """Copies became visible. Their source is on the device, and they are as good as it if nothing before them
        waits."""
        if forwardable(topic, head_before) == head_before:
            topic.durable_head = topic.head_seq
            self._ready[topic.id] = topic
        else:
            self._unsynced[topic.id] = topic

    def ready(self, topic: Topic) -> None:
        """Whoever waits for this topic is served by the next `wake`."""
        self._ready[topic.id] = topic

    def sync_begins(self) -> None:
        self._syncing = [(topic, topic.head_seq) for topic in self._unsynced.values()]
        self._unsynced = {}

    def sync_ended(self, good: bool) -> None:
        syncing, self._syncing = self._syncing, []
        for topic, head in syncing:
            if not good:
                self._unsynced.setdefault(topic.id, topic)
                continue
            topic.durable_head = max(topic.durable_head, head)
            self._ready[topic.id] = topic

    # Pulling

    def pull(self, topic: Topic | None, request: Request, caller: Hashable, respond: Respond) -> None:
        """Options: `epoch` of the topic that is meant, `after` which seq, `wait` for records if there are none."""
        options = request.options
        if topic is None or topic.epoch != options["epoch"]:
            raise topic_not_found(request.topic)
        topic.expire(self._clock.now_ms())
        if options["after"] >= forwardable(topic) and options.get("wait"):
            key = (caller, request.id)
            self._parked.setdefault(topic.id, {})[key] = _Parked(topic, request, key, respond, self._clock.monotonic())
            respond(Parked(request.id))
            return
        respond(_answer(topic, request))

    def wake(self) -> None:
        """Answer those whose topic has grown."""
        if not self._ready:
            return
        ready, self._ready = self._ready, {}
        for topic in ready.values():
            for waiting in list(self._parked.get(topic.id, {}).values()):
                if waiting.request.options["after"] < forwardable(topic):
                    self._over(waiting)
                    topic.expire(self._clock.now_ms())
                    waiting.respond(_answered(topic, waiting.request))

    def expire(self) -> None:
        oldest = self._clock.monotonic() - MAX_PARKED_S
        for waiting in [w for of_topic in self._parked.values() for w in of_topic.values() if w.since <= oldest]:
            self._over(waiting)
            waiting.respond(_answered(waiting.topic, waiting.request))

    def topic_deleted(self, topic: Topic) -> None:
        self._unsynced.pop(topic.id, None)
        self.refuse(topic, topic_not_found(topic.name))

    def refuse(self, topic: Topic, error: TopicsError) -> None:
        """Whoever waits for this topic waits in vain."""
        for waiting in list(self._parked.get(topic.id, {}).values()):
            self._over(waiting)
            waiting.respond(Reply(waiting.request.id, error=error))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """The asker went away. Nothing if it has no pull parked."""
        for of_topic in self._parked.values():
            waiting = of_topic.get((caller, ident))
            if waiting is not None:
                self._over(waiting)
                return

    def _over(self, waiting: _Parked) -> None:
        of_topic = self._parked[waiting.topic.id]
        del of_topic[waiting.key]
        if not of_topic:
            del self._parked[waiting.topic.id]


def forwardable(topic: Topic, head: int | None = None) -> int:
    """The last seq that may be given to routers, of what is visible up to `head`."""
    head = topic.head_seq if head is None else head
    return head if topic.config.durability.final_when_visible else min(topic.durable_head, head)


def _answered(topic: Topic, request: Request) -> Reply:
    """The same where no caller takes care of damage."""
    try:
        return _answer(topic, request)
    except SegmentError as error:
        return Reply(request.id, error=damaged(error))


def _answer(topic: Topic, request: Request) -> Reply:
    after, head = request.options["after"], forwardable(topic)
    found: list[Piece] = []
    upto = after
    if after < head:
        found, upto = topic.pieces(after + 1, head, PULL_RECORDS, PULL_BYTES)
    frames = [encode_batch(p.columns, topic.id, p.first_seq, deleted=p.flags) for p in _joined(found)]
    extra: dict[str, Any] = {
        "after": after,
        "upto": upto,
        "head": head,
        "lost": _lost(topic, after, upto),
        "settled": not topic.deferred and (topic.lane is None or topic.lane.settled),
    }
    return Reply(request.id, b"".join(part for frame in frames for part in (frame.head, frame.tail)), extra=extra)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours as one: a group of small writes travels as one frame."""
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
    if len(run) == 1:
        return run[0]
    flags = None
    if any(piece.flags is not None for piece in run):
        flags = b"".join(piece.flags or bytes(piece.columns.count) for piece in run)
    return Piece(run[0].first_seq, merge([piece.columns for piece in run]), flags)


def _lost(topic: Topic, after: int, upto: int) -> list[tuple[int, int]]:
    """Ranges in (after, upto] that the topic lost, or never had for the same reason."""
    ranges = []
    if after + 1 < topic.evict_floor:
        ranges.append((after + 1, min(topic.evict_floor - 1, upto)))
    ranges += [(max(first, after + 1), min(last, upto)) for first, last, _ in topic.gaps.ranges]
    return [(first, last) for first, last in ranges if first <= last]


def read(reply: Reply) -> Pulled:
    """A pull's reply, on the side that asked."""
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
    lost = [(first, last) for first, last in extra["lost"]]
    return Pulled(extra["after"], extra["upto"], extra["head"], pieces, lost, settled=extra["settled"])
