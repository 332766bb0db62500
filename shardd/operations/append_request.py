"""Append requests: from a request body to the columns of one batch.

C code extracts, measures and joins the fields of all records at once. Python runs once per record only to count the
keys of a `meta` that is large enough to have too many, where parsing costs far more than the loop, and to fill in the
missing `delay_ms` of jobs. `data` and `meta` stay the bytes that the client sent.
"""

from __future__ import annotations

import re
from itertools import accumulate, repeat
from operator import add, attrgetter, getitem, itemgetter
from typing import Any

import msgspec
from msgspec import Raw, Struct

from proto.api.requests import AppendOptions, AppendRequest, NewRecord
from proto.format.columns import Column, Columns, Encoding, constant, optional
from proto.ipc.message import Request
from proto.ipc.operations import Append
from proto.model import nesting
from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import MAX_IDEMPOTENCY_KEY_CHARS, MAX_META_KEYS, MAX_PUBLISH_DELAY_MS, MAX_U64, Limits
from proto.model.surrogates import MAX_MASKED_BYTES, Mask, apply
from proto.model.topic_config import ConfigPatch
from proto.model.unknown_fields import MAX_NAMED
from shardd.topic.outbox import arrival_key

_SMALLEST_META = 5 * (MAX_META_KEYS + 1)
"""Bytes. No object with more than `MAX_META_KEYS` keys is shorter: a key takes at least `"":1,`."""


class _Outline(AppendOptions, kw_only=True):
    """An append whose records are not parsed."""

    records: Raw


class _Records(Struct):
    records: list[NewRecord]


_SMALLEST_RECORD = len(b'{"data":1},')
_BUILT_ANYWAY = 4
"""A body that may hold up to this many times the allowed records is parsed without counting them first."""
_BEHIND = re.compile(r"trailing characters \(byte (\d+)\)")
_COMMA = ord(",")
_data_of, _meta_of, _tag_of, _node_of, _delay_of = map(attrgetter, ("data", "meta", "tag", "node", "delay_ms"))
_FORM = Form(AppendRequest, ConfigPatch, keeps_values=True)
_OUTLINE = Form(_Outline, ConfigPatch, keeps_values=True)
_RECORDS = Form(_Records, keeps_values=True)
_LEVELS_ABOVE = 3
"""Of `data` and `meta`: the body, its records and the record."""
_NEST = nesting.most_bytes(_LEVELS_ABOVE)
"""Only records with more bytes can be nested too deeply."""
_STORED = Limits(max_batch_records=MAX_U64, max_record_bytes=MAX_U64, max_tag_bytes=MAX_U64, max_node_bytes=MAX_U64)
"""Of stored records, which a client sent in batches of its own, and while the settings may have been higher."""
_skip = msgspec.json.Decoder(Raw).decode
_count_keys = msgspec.json.Decoder(dict[str, Raw]).decode


class Write(Struct, frozen=True):
    asked: AppendRequest
    columns: Columns
    """Its records as one batch with its key, whose times are still missing."""
    delays: list[int] | None
    """Of each job in ms; None if no job is delayed."""


def parse_write(request: Request[Append], limits: Limits) -> Write:
    """The write of a request.

    With option `stamped`, the engine copies stored records and has added to each `meta`: it may be larger than a
    client's, and records of earlier releases may be nested deeper. `limits` are for new records of clients only: a
    batch whose answer was lost must be recognised after a restart with lower ones, too.

    Raises `400 invalid_request`, `batch_too_large` or `record_too_large`.
    """
    stamped = request.options.stamped
    limits = _STORED if stamped else limits
    masked = len(request.body) if stamped else MAX_MASKED_BYTES
    write, request.ignored = _parse(request.body, limits.max_batch_records, masked)
    records = write.records
    count = len(records)
    if not count:
        raise invalid("records must hold at least one record", field="records")
    if count > limits.max_batch_records:
        raise _batch_too_large(limits.max_batch_records, records=count)
    data = list(map(_data_of, records))
    data_sizes = list(map(len, data))
    metas = list(map(_meta_of, records))
    meta, meta_sizes = _meta(metas, None if stamped else limits)
    largest = _check_sizes(data_sizes, None if stamped else meta_sizes, limits)
    if largest > _NEST and not stamped:
        nesting.check_values(data, largest, _LEVELS_ABOVE)
        if meta_sizes is not None:
            nesting.check_values(metas, largest, _LEVELS_ABOVE)
    columns = Columns(
        count,
        0,
        Column(Encoding.PLAIN, b"".join(data), list(accumulate(data_sizes, initial=0))),
        _text(list(map(_tag_of, records)), None, "tag", limits.max_tag_bytes),
        _text(list(map(_node_of, records)), write.node, "node", limits.max_node_bytes),
        meta,
    )
    columns.key = _key(write.idempotency_key, request.options)
    return Write(write, columns, _delays(records))


def _key(asked: str | None, options: Append) -> bytes:
    """The idempotency key of a write, b"" for none; of letters, the one that names them. The body's key takes
    precedence over the header's, which must be valid all the same."""
    if options.letters is not None:
        return arrival_key(*options.letters)
    header = options.idempotency_key
    for each in (asked, header):
        if each is not None and len(each) > MAX_IDEMPOTENCY_KEY_CHARS:
            raise invalid(
                f"the idempotency key has {len(each)} characters, at most {MAX_IDEMPOTENCY_KEY_CHARS} are allowed",
                field="idempotency_key",
            )
    return ((header if asked is None else asked) or "").encode()


def _parse(body: bytes, most: int, masked: int) -> tuple[AppendRequest, list[str]]:
    """The write, and the names of its ignored fields.

    A body with far more records than `most` is refused before any record is built. A Python object takes many times the
    eleven bytes of `{"data":1},`, and a gzip body of 128 KB holds six million of them.

    Raises `400 invalid_request`, `batch_too_large`."""
    slack = _BUILT_ANYWAY * most
    if len(body) <= slack * _SMALLEST_RECORD or most_records(body) <= slack:
        return _FORM.read(body, masked)
    outline, ignored = _OUTLINE.read(body, masked)
    records = bytes(outline.records)
    if records[:1] == b"[" and not has_at_most(records, most):
        raise _batch_too_large(most)
    fields = {name: getattr(outline, name) for name in AppendOptions.__struct_fields__}
    found, further = _RECORDS.read(b'{"records":%b}' % records, masked)
    return AppendRequest(records=found.records, **fields), [*ignored, *further][:MAX_NAMED]


def most_records(body: bytes) -> int:
    """An upper bound of a body's records. Each is an object and has `data`, which may be spelled with escapes."""
    return min(body.count(b"{"), body.count(b'"data"') + body.count(rb"\u006") + body.count(rb"\u007"))


def has_at_most(array: bytes, most: int) -> bool:
    """Whether a JSON array, known to be well-formed, has at most `most` elements; `most` is 1 or more.

    Walks from element to element without building any, and stops after `most`. The parser is asked for one value; its
    error says at which byte the next one follows."""
    view = memoryview(array)
    at = 1
    for _ in range(most):
        try:
            _skip(view[at:])
        except msgspec.DecodeError as error:
            found = _BEHIND.search(str(error))
            if found is None:
                # The element has a lone surrogate, or the array is empty.
                return array.strip(b"[] \t\r\n") == b"" or has_at_most(Mask(array).text, most)
            at += int(found[1]) - 1  # the error gives the position after the first trailing byte
        if array[at] != _COMMA:
            return True
        at += 1
    return False


def _batch_too_large(most: int, **counted: int) -> TopicsError:
    many = f"{counted['records']}" if counted else f"more than {most}"
    return TopicsError(
        ErrorCode.BATCH_TOO_LARGE,
        f"{many} records in one write, at most {most} are allowed",
        {**counted, "max": most},
    )


def _delays(records: list[NewRecord]) -> list[int] | None:
    asked = list(map(_delay_of, records))
    if asked.count(None) == len(asked):
        return None
    found = [delay or 0 for delay in asked]
    if not 0 <= min(found) <= max(found) <= MAX_PUBLISH_DELAY_MS:
        index = next(i for i, delay in enumerate(found) if not 0 <= delay <= MAX_PUBLISH_DELAY_MS)
        raise invalid(
            f"delay_ms of records[{index}] is {found[index]}, but must be between 0 and {MAX_PUBLISH_DELAY_MS}",
            field="delay_ms",
            index=index,
        )
    return found if any(found) else None


def _check_sizes(data: list[int], meta: list[int] | None, limits: Limits) -> int:
    """The size of the largest record. Raises `400 record_too_large`."""
    sizes = data if meta is None else list(map(add, data, meta))
    largest = max(sizes)
    if largest > limits.max_record_bytes:
        index = sizes.index(largest)
        raise TopicsError(
            ErrorCode.RECORD_TOO_LARGE,
            f"data and meta of records[{index}] have {largest} bytes, at most {limits.max_record_bytes} are allowed",
            {"index": index, "bytes": largest, "max": limits.max_record_bytes},
        )
    return largest


def _text(values: list[Any], default: str | None, name: str, limit: int) -> Column | None:
    """The column of tags or nodes, None if there are none. A record without a value gets `default`."""
    missing = values.count(None)
    if default is not None:
        if len(default.encode()) > limit:
            raise invalid(f"{name} has {len(default.encode())} bytes, at most {limit} are allowed", field=name)
        if missing == len(values):
            return constant(default.encode()) if len(values) > 1 else optional([default.encode()])
        if missing:
            values = list(map({None: default}.get, values, values))
            missing = 0
    if missing == len(values):
        return None
    filled = list(map({None: ""}.get, values, values)) if missing else values
    encoded: list[Any] = list(map(str.encode, filled))
    sizes = list(map(len, encoded))
    largest = max(sizes)
    if largest > limit:
        index = sizes.index(largest)
        raise invalid(
            f"{name} of records[{index}] has {largest} bytes, at most {limit} are allowed", field=name, index=index
        )
    if missing:
        present = map(_IS_TEXT.__getitem__, map(type, values))
        encoded = list(map(getitem, zip(repeat(None), encoded), present))
    return optional(encoded)


_IS_TEXT: dict[type, int] = {str: 1, type(None): 0}


def _meta(values: list[Raw], limits: Limits | None) -> tuple[Column | None, list[int] | None]:
    sizes = list(map(len, values))
    if not any(sizes):
        return None, None
    cells: list[Any] = list(map(bytes, values))
    # An explicit null means the same as an absent meta.
    cells = list(map({b"null": None, b"": None}.get, cells, cells))
    if cells.count(None) == len(cells):
        return None, None
    filled: list[Any] = list(map({None: b"{}"}.get, cells, cells))
    firsts = list(map(itemgetter(0), filled))
    if firsts.count(0x7B) != len(firsts):
        index = next(i for i, first in enumerate(firsts) if first != 0x7B)
        raise invalid(f"meta of records[{index}] must be an object", field="meta", index=index)
    if limits is None:
        return optional(cells), sizes
    largest = max(sizes)
    if largest > limits.max_meta_bytes:
        index = sizes.index(largest)
        raise invalid(
            f"meta of records[{index}] has {largest} bytes, at most {limits.max_meta_bytes} are allowed",
            field="meta",
            index=index,
        )
    if largest >= _SMALLEST_META:
        for index, size in enumerate(sizes):
            if size >= _SMALLEST_META and len(apply(_count_keys, filled[index])[0]) > MAX_META_KEYS:
                raise invalid(f"meta of records[{index}] has more than {MAX_META_KEYS} keys", field="meta", index=index)
    return optional(cells), sizes
