"""Stream reads: the payload of SSE events and WebSocket frames, rendered once for all equal watchers.

The gateway keeps one read parked for each topic watched live and each set of options, like a long poll
(`shardd.delivery.parked_reads`). The reply is a frame's payload. The gateway passes it to every watcher unchanged, then
asks for the next. Records written in between come with the next reply, so replies grow when readers are slower. At most
one reply is in flight, so nothing has to be counted, paced or resumed after a restart. Watchers that are behind read
the same way, without waiting.

Options of the request; the gateway has checked them:

    from_seq  epoch    the position: the last seq seen and the topic's epoch; epoch 0 if it is not known
    limit     budget   the most records and the most payload bytes of a reply
    nodes              records of these origins are left out
    tags  meta  data   which fields each record has besides `$seq`, `$ts`, `$node`
    strong             records of `disk` topics are returned only once a sync covers them
    wait_ms            how long to wait for records; 0: answer at once
    touch              the read counts as use of the topic, even if it returns nothing

The reply's body is the payload `{"topic", "records", "from_seq", "to_seq", "head_seq"}`, empty if no record passed. Raw
line breaks inside `data` or `meta` become blanks, because an event stream cannot carry them. `extra` is

    to  head  earliest  epoch    the new position and the topic's present state
    gap                          [gap_from, gap_to, reason, cause or nil] if records before this were lost, else absent
"""

from __future__ import annotations

from itertools import chain

import msgspec
from msgspec import Struct

from proto.api.answers import Record
from proto.ipc.operations import Fed, Feed
from shardd.delivery.diff import Answer, rows
from shardd.topic.tombstones import told
from shardd.topic.topic import Topic


class _Payload(Struct):
    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


_encode = msgspec.json.Encoder().encode


def stream_answer(topic: Topic, read: Feed, head: int) -> Answer:
    """The answer for a stream that has seen records up to `read.from_seq`; it gets records up to `head`."""
    earliest, position = topic.records.floor, read.from_seq
    gap: tuple[int, int, str, str | None] | None = None
    if (read.epoch and read.epoch != topic.epoch) or position > topic.records.head_seq:
        gap = (1, topic.records.head_seq, "recreated", None)
        position = earliest - 1
    elif position + 1 < topic.records.losses.evict_floor:
        gap = (position + 1, earliest - 1, *told(topic.records.losses.reason(position + 1)))
        position = earliest - 1
    elif position < head and (found := topic.records.gaps.at(position + 1)) is not None:
        gap = (position + 1, found[0], *told(found[1]))
        position = found[0]
    start = max(position + 1, earliest)
    scanned = 0
    to_seq = position
    records: list[Record] = []
    if position < head:
        slices, to_seq = topic.records.window(start, read.limit, read.budget, head)
        scanned = sum(s.stop - s.start for s in slices)
        nodes = frozenset(map(str.encode, read.nodes)) if topic.config.dedupe_node else frozenset()
        kept = (rows(s, nodes, read.tags, read.meta, Record, read.data) for s in slices)
        records = list(chain.from_iterable(kept))
    body = b""
    shown = head if read.strong else topic.records.head_seq
    if records:
        body = _encode(_Payload(topic.name, records, position, to_seq, shown))
        if b"\n" in body or b"\r" in body:
            # JSON strings hold no raw line breaks. These are between tokens, where a blank means the same.
            body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    extra = Fed(to_seq, shown, earliest, topic.epoch, gap)
    return Answer(body, to_seq, scanned, not records and gap is None, head, extra)
