"""Diffs: the records after a seq, rendered as a JSON answer.

The window of `limit` records is chosen before the node filter is applied. An answer may therefore hold no records while
its `next_from_seq` advances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, repeat, starmap
from operator import and_
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from proto.api import answers as api
from proto.api.requests import DiffRequest
from proto.format.columns import Column, Columns, Encoding
from proto.ipc.message import Request
from proto.ipc.operations import Diff, Fed
from proto.model.body import Form
from proto.model.errors import invalid
from proto.model.limits import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    MAX_BATCH_BYTES,
    MAX_U64,
    MAX_WAIT_MS,
    Limits,
    clamped,
)
from shardd.storage.batch import ones
from shardd.topic.batch_sequence import Slice
from shardd.topic.tombstones import told
from shardd.topic.topic import Topic

SPARSE = 8
"""Of a slice with fewer than one live record in so many, only these are read, without the deleted ones between them."""
T = TypeVar("T")


class Read(Struct, frozen=True):
    """A diff request, checked and clamped. Records whose `node` is in `nodes` are left out."""

    from_seq: int
    limit: int
    nodes: frozenset[bytes]
    include_tags: bool
    include_meta: bool
    wait_ms: int
    budget: int
    cursor: str | None = None


_FORM = Form(DiffRequest)
_encoder = msgspec.json.Encoder()


def parse_diff(request: Request[Diff], limits: Limits) -> Read:
    """The request's diff. Clamps `limit`, `wait_ms` and `max_batch_bytes`.

    Raises `400 invalid_request` for wrong types, for a `from_seq` out of range, and for `from_seq` with `cursor`."""
    asked, request.ignored = _FORM.read(request.body)
    if asked.from_seq is not None and not 0 <= asked.from_seq <= MAX_U64:
        raise invalid(f"from_seq is {asked.from_seq}, but must be between 0 and {MAX_U64}", field="from_seq")
    if asked.cursor is not None and asked.from_seq is not None:
        raise invalid("from_seq and cursor exclude each other", field="cursor")
    node = asked.node
    names = [] if node is None else [node] if isinstance(node, str) else node
    return Read(
        asked.from_seq or 0,
        clamped(asked.limit, DEFAULT_LIMIT, limits.max_limit),
        frozenset(map(str.encode, names)),
        bool(asked.include_tags),
        asked.include_meta is not False,
        clamped(asked.wait_ms, 0, MAX_WAIT_MS, 0),
        clamped(asked.max_batch_bytes, DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
        asked.cursor,
    )


class Answer(Struct):
    """A rendered diff. `empty` means no record passed and none was lost: a long poll may continue from
    `next_from_seq`. If that is below `head`, more records are left to scan. `extra` is for the gateway."""

    body: bytes
    next_from_seq: int
    scanned: int
    empty: bool
    head: int
    extra: Fed | None = None


def answer(topic: Topic, read: Read) -> Answer:
    earliest, head = topic.records.floor, topic.records.head_seq
    tombstone: api.Tombstone | None = None
    from_seq = read.from_seq
    if from_seq > head:
        # The cursor is ahead of the log: it was made on an earlier topic of this name.
        tombstone = api.Tombstone(1, head, "recreated", head, earliest, head)
        from_seq = 0
    elif from_seq + 1 < topic.records.losses.evict_floor:
        gap_from, gap_to = from_seq + 1, earliest - 1
        reason, cause = told(topic.records.losses.reason(gap_from))
        tombstone = api.Tombstone(gap_from, gap_to, reason, gap_to - gap_from + 1, earliest, head, cause or UNSET)
    elif (gap := topic.records.gaps.at(from_seq + 1)) is not None:
        gap_to = gap[0]
        reason, cause = told(gap[1])
        tombstone = api.Tombstone(from_seq + 1, gap_to, reason, gap_to - from_seq, earliest, head, cause or UNSET)
        from_seq = gap_to
    slices, position = topic.records.window(max(from_seq + 1, earliest), read.limit, read.budget)
    scanned = sum(s.stop - s.start for s in slices)
    nodes = read.nodes if topic.config.dedupe_node else frozenset()
    records = list(
        chain.from_iterable(rows(s, nodes, read.include_tags, read.include_meta, api.Record) for s in slices)
    )
    body = _encoder.encode(
        api.Diff(topic.name, records, position, head, earliest, position == head, tombstone, head - position)
    )
    return Answer(body, position, scanned, not records and tombstone is None, head)


def rows(
    piece: Slice, nodes: frozenset[bytes], tags: bool, meta: bool, make: Callable[..., T], data: bool = True
) -> Iterable[T]:
    """The records of a slice whose node is not in `nodes`; `make` builds each from seq, ts, node, tag, data, meta. What
    a record lacks, or is left out, is UNSET."""
    columns, start, stop = piece.columns, piece.start, piece.stop
    count = stop - start
    if piece.places is not None:
        return _rows_at(columns, piece.places, piece.seqs, nodes, tags, meta, make, data)
    if piece.mask is not None and piece.mask.count(1) * SPARSE < count:
        places = ones(piece.mask, start)
        return _rows_at(columns, places, list(map(piece.first_seq.__add__, places)), nodes, tags, meta, make, data)
    keep: Sequence[int] | None = _kept(columns.node, nodes, start, stop) if nodes else None
    if keep is not None and not any(keep):
        return ()
    cells: Iterable[Any] = zip(
        range(piece.first_seq + start, piece.first_seq + stop),
        columns.times(start, stop),
        _texts(columns.node, count, Column.cells, start, stop),
        _texts(columns.tag if tags else None, count, Column.cells, start, stop),
        map(Raw, columns.data.cells(start, stop)) if data else repeat(UNSET, count),
        _raws(columns.meta if meta else None, count, Column.cells, start, stop),
        strict=False,
    )
    if piece.mask is not None:
        keep = piece.mask if keep is None else list(map(and_, keep, piece.mask))
    return starmap(make, cells if keep is None else compress(cells, keep))


def _rows_at(
    columns: Columns,
    places: Sequence[int],
    seqs: Sequence[int],
    nodes: frozenset[bytes],
    tags: bool,
    meta: bool,
    make: Callable[..., T],
    data: bool,
) -> Iterable[T]:
    """As `rows`, of the records at these places of a batch. Those between them cost nothing."""
    if nodes and columns.node is not None:
        keep = [cell not in nodes for cell in columns.node.cells_at(places)]
        places, seqs = list(compress(places, keep)), list(compress(seqs, keep))
    count = len(places)
    cells: Iterable[Any] = zip(
        seqs,
        columns.times_at(places),
        _texts(columns.node, count, Column.cells_at, places),
        _texts(columns.tag if tags else None, count, Column.cells_at, places),
        map(Raw, columns.data.cells_at(places)) if data else repeat(UNSET, count),
        _raws(columns.meta if meta else None, count, Column.cells_at, places),
        strict=False,
    )
    return starmap(make, cells)


def _kept(column: Column | None, nodes: frozenset[bytes], start: int, stop: int) -> list[bool] | None:
    """A mask of the records whose node is not in `nodes`; None if that is all of them."""
    if column is None:
        return None
    if column.encoding == Encoding.CONSTANT:
        return [False] * (stop - start) if bytes(column.values) in nodes else None
    hits = list(map(nodes.__contains__, column.cells(start, stop)))
    return [not hit for hit in hits] if any(hits) else None


def _texts(
    column: Column | None, count: int, cells: Callable[..., Iterable[Any]], *where: Any
) -> Iterable[str | UnsetType]:
    if column is None:
        return repeat(UNSET, count)
    if column.encoding == Encoding.CONSTANT:
        return repeat(str(column.values, "utf-8"), count)
    if column.validity is None:
        return map(str, cells(column, *where), repeat("utf-8"))
    return [UNSET if cell is None else cell.decode() for cell in cells(column, *where)]


def _raws(
    column: Column | None, count: int, cells: Callable[..., Iterable[Any]], *where: Any
) -> Iterable[Raw | UnsetType]:
    if column is None:
        return repeat(UNSET, count)
    if column.validity is None:
        return map(Raw, cells(column, *where))
    return [UNSET if cell is None else Raw(cell) for cell in cells(column, *where)]
