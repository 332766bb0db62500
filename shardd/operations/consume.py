"""Consume: reads of one record at a time through a named cursor, for the gateway's line protocols.

    take    return the record after the cursor and move the cursor to it, as one change
    peek    return the record after the cursor
    step    move the cursor to the record after it

The search starts from where the cursor *will* be once all staged moves have committed. So two takers never get the same
record, however many wait for one sync. Deleted records and gaps are skipped. A cursor never moves past the head.

If the process dies before the move is in the log, the record was not delivered, and the next take returns it. If it
dies between the log and the answer, the taker loses that record: at most one for each connection.

The answer's body is the record's `data`. Without a record there is no `extra`.
"""

from __future__ import annotations

from proto.ipc.message import Reply, Request
from proto.ipc.operations import Peek, Record, Step, Take
from proto.model.errors import invalid
from proto.model.limits import MAX_U64
from shardd.changes.transactions import Respond, Staging, performance
from shardd.frames import CursorMoved
from shardd.operations.cursors import CursorChange
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.batch_sequence import Slice
from shardd.topic.cursors import Assigned, check_count, check_name
from shardd.topic.topic import Topic

_Found = tuple[int, bytes, Record]
"""Seq, data, and `extra` of the answer."""


class Consume:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def take(self, request: Request[Take], respond: Respond) -> None:
        self._staging.check_term()
        topic, name, before = self._asked(request)
        found = _next(topic, before.seq)
        if found is None:
            respond(Reply(request.id))
        else:
            self._move(topic, name, before, found[0], request, respond, found)

    def peek(self, request: Request[Peek], respond: Respond) -> None:
        topic, _, before = self._asked(request)
        found = _next(topic, before.seq)
        respond(Reply(request.id) if found is None else Reply(request.id, found[1], extra=found[2]))

    def step(self, request: Request[Step], respond: Respond) -> None:
        topic, name, before = self._asked(request)
        seq = request.options.seq
        if seq is None:
            found = _next(topic, before.seq)
            seq = 0 if found is None else found[0]
        if before.seq < seq <= topic.records.head_seq:
            self._move(topic, name, before, seq, request, respond, None)
        else:
            respond(Reply(request.id))

    def _asked(self, request: Request[Take | Peek | Step]) -> tuple[Topic, str, Assigned]:
        topic = self._staging.directory.changing(request.topic)
        if topic.config.type != "log":
            raise invalid(f'topic "{topic.name}" is a {topic.config.type}: its records are not read through a cursor')
        now = self._staging.clock.now_ms()
        topic.expire(now)
        topic.last_read_ts = now
        name = check_name(request.options.cursor)
        return topic, name, topic.moving.assigned(name, topic.cursors.get(name))

    def _move(
        self,
        topic: Topic,
        name: str,
        before: Assigned,
        seq: int,
        request: Request,
        respond: Respond,
        found: _Found | None,
    ) -> None:
        if before.maker is None:
            check_count(topic.cursors, topic.moving, self._staging.limits.max_cursors_per_topic)
        move = CursorMoved(name, seq, self._staging.clock.now_ms(), False)
        requires_sync = topic.assigned_config.durability.acks_synced
        change = _Consumed(topic, name, before, request, respond, move, found, body=move, requires_sync=requires_sync)
        with indivisible:
            topic.moving.begin(name, Assigned(seq, before.maker or b""))
            self._staging.stage(change)


class _Consumed(CursorChange, eq=False):
    move: CursorMoved
    found: _Found | None
    """What the answer has."""

    def done(self, timing: Timing) -> Reply:
        self.move.move(self.topic)
        body, extra = (b"", None) if self.found is None else self.found[1:]
        return Reply(self.request.id, body, extra=extra, performance=performance(timing))


def _next(topic: Topic, position: int) -> _Found | None:
    """The first live record after `position`; None if there is none."""
    records = topic.records
    slices: list[Slice] = []
    last = max(position, records.floor - 1)
    while not slices:  # a window ends before a gap, whether it has records or not
        if last >= records.head_seq:
            return None
        slices, last = records.window(records.gaps.after(last + 1), 1, MAX_U64)
    (piece,) = slices
    columns = piece.columns
    if piece.places is not None:
        at, seq = piece.places[0], piece.seqs[0]
    else:
        at = piece.start if piece.mask is None else piece.start + piece.mask.index(1)
        seq = piece.first_seq + at
    meta = None
    if columns.meta is not None:
        (meta,) = columns.meta.cells(at, at + 1)
    (data,) = columns.data.cells(at, at + 1)
    return seq, data, Record(seq, meta)
