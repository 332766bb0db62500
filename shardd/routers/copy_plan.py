"""Copy plans: what a lane makes of its source's records. Plain functions from values to a plan, without side effects.

A plan lists, in order, batches to append and seqs to leave out:

    in the source                                 arithmetic lane              other lane
    a record                                      a copy for every router      a copy for every router it matches
    a deleted record, still in its batch          a deleted copy               nothing
    seqs without records: deleted                 as many seqs left out        nothing
    seqs without records: lost to cap, age, …     left out, reported lost      the most copies possible, reported lost

A lane with `allow_cycle` does not report losses: in a cycle, the gap would circulate for ever.

While copies are restored whose seqs readers have seen (`restoring`), a lane that is not arithmetic cannot pass a hole:
the number of copies it had is unknown. The plan ends there, with `source_truncated` set.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, groupby, repeat

import msgspec
from msgspec import Raw

from proto.format.columns import Column, Columns, Encoding, merge, part, plain, reordered, select
from proto.format.frame import DELETED
from proto.model.limits import RECORD_OVERHEAD
from proto.model.router import MAX_HOPS
from proto.model.surrogates import edit
from shardd.topic.batch_sequence import Piece
from shardd.topic.lane import Lane, Router

_OUR_STAMP = re.compile(
    rb'\A\{"_topics_router":\{"router":"[^"\\]*","source":"[^"\\]*","epoch":\d+,"seq":\d+,"key":"[^"\\]*"\}(?:,|(?=\}))'
)
"""The stamp as a router writes it, in front of all other members. Any other text is parsed before it is changed."""
_MAY_BE_STAMPED = re.compile(rb'_topics_router"|\\u00[567]')
"""The reserved name, or an escape of a character that may be one of its own."""
_ONE_MORE = bytes(min(hops + 1, 255) for hops in range(256))
_LIVE = bytes(0 if byte == DELETED else 1 for byte in range(256))
_FRESH = bytes(1 if hops < MAX_HOPS else 0 for hops in range(256))


@dataclass(frozen=True, slots=True)
class Pulled:
    """A part of a source: its records with seqs in (`after`, `upto`]. `lost` are the ranges of seqs that it lost other
    than by deletion; `head` is the last seq that may be forwarded."""

    after: int
    upto: int
    head: int
    pieces: list[Piece]
    lost: list[tuple[int, int]]
    settled: bool = True
    """Whether the source itself is fully restored after the last stop."""


@dataclass(frozen=True, slots=True)
class Append:
    columns: Columns
    flags: bytes | None


@dataclass(frozen=True, slots=True)
class Skip:
    count: int
    lost: bool


@dataclass(slots=True)
class Plan:
    """The copies to make. `upto` is the lane's cursor afterwards; `seqs`, `records` and `size` (bytes) are what they
    use in the destination."""

    upto: int
    steps: list[Append | Skip] = field(default_factory=list)
    forwarded: dict[str, int] = field(default_factory=dict)
    seqs: int = 0
    records: int = 0
    size: int = 0
    source_truncated: bool = False
    holes: bool = False
    """Records were missing, and the number of copies they had is unknown: this plan cannot be made again."""


def plan(lane: Lane, pulled: Pulled, target: int, *, restoring: bool = False) -> Plan:
    """The lane's plan for the pulled records, from its cursor up to source seq `target`."""
    made = Plan(lane.cursor)
    arithmetic = lane.arithmetic
    for first, last, piece in _stretches(pulled.pieces, lane.cursor + 1, min(target, pulled.upto)):
        if not arithmetic and (hole := _hole(piece, first, last)) is not None:
            if restoring:
                last, made.source_truncated = hole - 1, True
            else:
                made.holes = True
        if piece is None:
            _miss(made, lane, pulled, first, last)
        elif first <= last:
            _copy(made, lane, piece, first, last)
        made.upto = last
        if made.source_truncated:
            break
    made.steps = _joined(made.steps)
    return made


def _stretches(pieces: Sequence[Piece], first: int, last: int) -> Iterator[tuple[int, int, Piece | None]]:
    """The seqs `first` to `last` in order: first and last seq of each stretch, and its piece, None without records."""
    for piece in pieces:
        start, stop = max(first, piece.first_seq), min(piece.last_seq, last)
        if start <= stop:
            if first < start:
                yield first, start - 1, None
            yield start, stop, piece
            first = stop + 1
    if first <= last:
        yield first, last, None


def _hole(piece: Piece | None, first: int, last: int) -> int | None:
    """The first seq of a stretch without a live record; None if there is none."""
    if piece is None:
        return first
    if piece.flags is None:
        return None
    place = piece.flags.find(DELETED, first - piece.first_seq, last + 1 - piece.first_seq)
    return None if place < 0 else piece.first_seq + place


def _miss(made: Plan, lane: Lane, pulled: Pulled, first: int, last: int) -> None:
    """Plans the seqs `first` to `last`, which have no records in the source."""
    at = first
    for low, high in pulled.lost:
        low, high = max(low, at), min(high, last)
        if low > high:
            continue
        _skip(made, lane, at, low - 1, lost=False)
        _skip(made, lane, low, high, lost=True)
        at = high + 1
    _skip(made, lane, at, last, lost=False)


def _skip(made: Plan, lane: Lane, first: int, last: int, *, lost: bool) -> None:
    count = lane.copies_of(first, last)
    if count and (lane.arithmetic or (lost and not lane.cyclic)):
        made.steps.append(Skip(count, lost))
        made.seqs += count


def _copy(made: Plan, lane: Lane, piece: Piece, first: int, last: int) -> None:
    arithmetic = lane.arithmetic
    found: list[tuple[Columns, Sequence[int], bytes | None]] = []
    for router in lane.routers.values():
        start = max(first, router.since + 1) - piece.first_seq
        stop = last + 1 - piece.first_seq
        if start >= stop:
            continue
        columns = part(piece.columns, start, stop)
        flags = None if piece.flags is None else piece.flags[start:stop]
        places: Sequence[int] = range(start, stop)
        count = columns.count if flags is None else columns.count - flags.count(DELETED)
        if not arithmetic:
            keep = _kept(router, columns, flags)
            flags = None
            if keep is not None:
                columns, places = select(columns, keep), list(compress(places, keep))
            count = columns.count
        if not columns.count:
            continue
        seqs = range(piece.first_seq + start, piece.first_seq + stop) if len(places) == stop - start else None
        at = seqs or [piece.first_seq + place for place in places]
        found.append((_carried(lane, router, columns, at), places, flags))
        made.forwarded[router.name] = made.forwarded.get(router.name, 0) + count
    if not found:
        return
    columns, flags = _interleaved(found)
    made.steps.append(Append(columns, flags))
    live = columns.count if flags is None else columns.count - flags.count(DELETED)
    made.seqs += columns.count
    made.records += live
    made.size += columns.size(0, columns.count) + RECORD_OVERHEAD * live


def _interleaved(found: list[tuple[Columns, Sequence[int], bytes | None]]) -> tuple[Columns, bytes | None]:
    """The copies of several routers, ordered by record, then by router."""
    if len(found) == 1:
        columns, _, flags = found[0]
        return columns, flags
    keys = [(place, which) for which, (_, places, _) in enumerate(found) for place in places]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    columns, flags = together([Append(columns, flags) for columns, _, flags in found])
    return reordered(columns, order), None if flags is None else bytes(map(flags.__getitem__, order))


def _joined(steps: list[Append | Skip]) -> list[Append | Skip]:
    """The steps with neighbouring batches merged: a group of small writes to the source makes one batch here."""
    joined: list[Append | Skip] = []
    for _, run in groupby(steps, type):
        found = list(run)
        batches = [step for step in found if isinstance(step, Append)]
        joined += [Append(*together(batches))] if batches else found
    return joined


def together(batches: Sequence[Append] | Sequence[Piece]) -> tuple[Columns, bytes | None]:
    """The records of neighbouring batches in one, and their delete flags."""
    if len(batches) == 1:
        return batches[0].columns, batches[0].flags
    flags = None
    if any(each.flags is not None for each in batches):
        flags = b"".join(each.flags or bytes(each.columns.count) for each in batches)
    return merge([each.columns for each in batches]), flags


# The records that one router forwards, and its changes to them


def _kept(router: Router, columns: Columns, flags: bytes | None) -> Sequence[int] | None:
    """A mask with 1 for each record that the router forwards; None if it forwards all."""
    masks: list[Sequence[int]] = []
    if flags is not None:
        masks.append(flags.translate(_LIVE))
    if router.config.allow_cycle and columns.hops is not None:
        masks.append(columns.hops.translate(_FRESH))
    if router.match is not None:
        masks.append(_matching(router, columns))
    if not masks:
        return None
    keep = masks[0]
    for mask in masks[1:]:
        keep = bytes(map(operator.and_, keep, mask))
    return None if all(keep) else keep


def _matching(router: Router, columns: Columns) -> Sequence[int]:
    assert router.match is not None
    op, text = router.match
    column, count = columns.tag, columns.count
    if column is None:
        return bytes(count)
    if column.encoding == Encoding.CONSTANT:
        value = bytes(column.values)
        return (b"\1" if (value == text if op == "Eq" else value.startswith(text)) else b"\0") * count
    cells = list(column.cells(0, count))
    if op == "Eq":
        return bytes(map(operator.eq, cells, repeat(text)))
    # An absent tag becomes one that starts with no prefix: 0xFF is not UTF-8. `present` covers the empty prefix.
    present = column.present(0, count)
    filled = map({None: b"\xff"}.get, cells, cells) if column.validity is not None else cells
    found = bytes(map(bytes.startswith, filled, repeat(text)))
    return bytes(map(operator.and_, found, present))


def _carried(lane: Lane, router: Router, columns: Columns, seqs: Sequence[int]) -> Columns:
    """The columns of the copies: with the router's stamp, without the cleared tags and nodes, one hop added."""
    count = columns.count
    meta = columns.meta
    if router.config.guarantee == "exactly_once":
        meta = _stamped(lane, router, columns, seqs)
    hops = b"\1" * count if columns.hops is None else columns.hops.translate(_ONE_MORE)
    return Columns(
        count,
        0,
        columns.data,
        columns.tag if router.config.preserve_tag else None,
        columns.node if router.config.preserve_node else None,
        meta,
        hops=hops,
    )


def _stamped(lane: Lane, router: Router, columns: Columns, seqs: Sequence[int]) -> Column:
    """`meta` with `_topics_router` in front of the writer's own members."""
    count = columns.count
    # Names hold no character that JSON or a format string would have to escape.
    form = (
        f'{{"_topics_router":{{"router":"{router.name}","source":"{lane.source}","epoch":{lane.epoch},'
        f'"seq":%d,"key":"{router.name}/{lane.epoch}/%d"}}'
    ).encode()
    heads = map(form.__mod__, zip(seqs, seqs, strict=True))
    if columns.meta is None:
        return plain(list(map(operator.add, heads, repeat(b"}"))))
    cells: list[bytes] = list(map({None: b"{}"}.get, columns.meta.cells(0, count), columns.meta.cells(0, count)))
    if _MAY_BE_STAMPED.search(b"".join(cells)):
        cells = list(map(partial(_OUR_STAMP.sub, b"{"), cells))
        if _MAY_BE_STAMPED.search(b"".join(cells)):
            cells = [edit(_without_stamp, cell) if _MAY_BE_STAMPED.search(cell) else cell for cell in cells]
    rests = list(map(operator.methodcaller("lstrip"), map(operator.getitem, cells, repeat(slice(1, None)))))
    tails = map({b"}": b"}"}.get, rests, map(operator.add, repeat(b","), rests))
    return plain(list(map(operator.add, heads, tails)))


def _without_stamp(meta: bytes) -> bytes:
    """`meta` without a `_topics_router` member anywhere among its members: the name is reserved."""
    members = msgspec.json.decode(meta, type=dict[str, Raw])
    return meta if members.pop("_topics_router", None) is None else msgspec.json.encode(members)
