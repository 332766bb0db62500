"""Reads for streams: what SSE and WebSocket carry, rendered here once for all who watch the same.

The gateway keeps one read of each topic that is watched live (and for each set of options) waiting here, parked like a
long poll (`shardd.delivery.parked_reads`). Its reply is a frame's payload, which the gateway hands to every watcher as
it is; then it asks for what follows. What is written in between comes with the next reply, so replies grow as readers
get slower, and there is never more than one on its way: nothing needs to be counted, paced or taken up again after a
restart. Watchers that are behind read the same way without waiting.

Options of the request, all of them checked by the gateway:

    from_seq  epoch    the position: the last seq seen, of which instance of the topic; epoch 0 if that is not known
    limit     budget   most records, most payload bytes of a reply
    nodes              records of these origins are left out
    tags  meta  data   what each record shows besides `$seq`, `$ts`, `$node`
    strong             records of `disk` topics only once a sync covers them
    wait_ms            how long to wait for something; 0 not at all
    touch              the read counts as use of the topic, whatever it brings

The reply's body is the payload `{"topic", "records", "from_seq", "to_seq", "head_seq"}`, empty if no record passed; raw
line breaks inside `data` or `meta` are blanks in it, because an event stream cannot carry them. `extra` is

    to  head  earliest  epoch    the new position, and what the topic is now
    gap                          [gap_from, gap_to, reason, cause or nil] if records before this were lost, else absent
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from proto.model.limits import MAX_WAIT_MS
from shardd.delivery.diff import Answer, Read, Record, rows
from shardd.topic.tombstones import told
from shardd.topic.topic import Topic


class StreamRead(Read, frozen=True):
    epoch: int = 0
    include_data: bool = True
    strong: bool = False


class _Bare(Struct, gc=False, omit_defaults=True):
    """A record of which only the metadata is wanted."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    data: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET


class _Payload(Struct):
    topic: str
    records: list[Any]
    from_seq: int
    to_seq: int
    head_seq: int


_encode = msgspec.json.Encoder().encode


def stream_read(options: Mapping[str, Any]) -> StreamRead:
    return StreamRead(
        options["from_seq"],
        options["limit"],
        frozenset(map(str.encode, options["nodes"])),
        options["tags"],
        options["meta"],
        min(options["wait_ms"], MAX_WAIT_MS),
        options["budget"],
        None,
        options["epoch"],
        options["data"],
        options["strong"],
    )


def stream_answer(topic: Topic, read: StreamRead, head: int) -> Answer:
    """What a stream gets that has seen up to `read.from_seq`, of records up to `head`."""
    earliest, position = topic.earliest_seq, read.from_seq
    gap: tuple[int, int, str, str | None] | None = None
    if (read.epoch and read.epoch != topic.epoch) or position > topic.head_seq:
        gap = (1, topic.head_seq, "recreated", None)
        position = earliest - 1
    elif position + 1 < topic.evict_floor:
        gap = (position + 1, earliest - 1, *told(topic.losses.reason(position + 1)))
        position = earliest - 1
    elif position < head and (found := topic.gaps.at(position + 1)) is not None:
        gap = (position + 1, found[0], *told(found[1]))
        position = found[0]
    start = max(position + 1, earliest)
    scanned = 0
    to_seq = position
    records: list[Any] = []
    if position < head:
        slices, to_seq = topic.window(start, read.limit, read.budget, head)
        scanned = sum(s.stop - s.start for s in slices)
        nodes = read.nodes if topic.config.dedupe_node else frozenset()
        make = Record if read.include_data else _bare
        kept: Iterable[Any] = (rows(s, nodes, read.include_tags, read.include_meta, make) for s in slices)
        records = list(chain.from_iterable(kept))
    body = b""
    if records:
        body = _encode(_Payload(topic.name, records, position, to_seq, topic.head_seq if not read.strong else head))
        if b"\n" in body or b"\r" in body:
            # JSON strings hold no raw line breaks, so these stand between tokens, where a blank means the same.
            body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    extra: dict[str, Any] = {
        "to": to_seq,
        "head": head if read.strong else topic.head_seq,
        "earliest": earliest,
        "epoch": topic.epoch,
    }
    if gap is not None:
        extra["gap"] = gap
    return Answer(body, to_seq, scanned, not records and gap is None, head, extra)


def _bare(seq: int, ts: int, node: Any, tag: Any, data: Raw, meta: Any) -> _Bare:
    return _Bare(seq, ts, node, tag, UNSET, meta)
