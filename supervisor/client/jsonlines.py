"""JSON Lines: records as lines of JSON, the format of `topics export` and `topics import`. No I/O.

    {"topic":"jobs","$topic":{…}}                             once per topic, before its records: its configuration,
                                                              `earliest_seq`, `head_seq`
    {"topic":"jobs","$seq":7,"$ts":…,"$node":…,"$tag":…,"data":…,"meta":…}      a record as in a diff's answer
    {"topic":"jobs","$gap":{"gap_from":…,"gap_to":…,"reason":…}}                seqs lost before they could be read

`data` and `meta` are the JSON text as written, byte for byte, except that line breaks between tokens become blanks.
Lines are cut out of a diff's answer, and put into a write's body, without parsing them one by one. An import also reads
`tag` and `node` instead of `$tag` and `$node`, and ignores all other members, because the service assigns seqs and
times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, repeat
from operator import attrgetter, getitem, is_, is_not
from typing import Any, cast

import msgspec
import xxhash
from msgspec import UNSET, Raw, Struct, UnsetType

from proto.model.errors import TopicsError
from proto.model.surrogates import apply, decode

_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_REST = slice(1, None)


class LineError(ValueError):
    """A line that is not a record. The message has the line number and the reason."""


# Export


class Page(Struct):
    """A diff's answer with unparsed records."""

    records: list[Raw]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None = None


decode_page = msgspec.json.Decoder(Page).decode


def page_of(body: bytes) -> Page:
    """Decode a diff's answer. Line breaks become blanks; they occur between tokens only, since JSON strings escape
    them."""
    return decode(decode_page, body.translate(_BREAKS))


def lines_of(topic: str, page: Page) -> bytes:
    """The lines of a page's records."""
    if not page.records:
        return b""
    head = b'{"topic":%b,' % msgspec.json.encode(topic)
    members = cast(Iterable[bytes], map(getitem, map(bytes, page.records), repeat(_REST)))
    return head + (b"\n" + head).join(members) + b"\n"


def note(topic: str, kind: str, content: Any) -> bytes:
    """A line about a topic: `$topic` or `$gap`."""
    return msgspec.json.encode({"topic": topic, kind: content}) + b"\n"


# Import


class Line(Struct, gc=False):
    topic: str | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET
    tag: str | UnsetType | None = UNSET
    node: str | UnsetType | None = UNSET
    shown_tag: str | UnsetType | None = msgspec.field(name="$tag", default=UNSET)
    shown_node: str | UnsetType | None = msgspec.field(name="$node", default=UNSET)
    about: Raw | UnsetType = msgspec.field(name="$topic", default=UNSET)
    gap: Raw | UnsetType = msgspec.field(name="$gap", default=UNSET)


class _Record(Struct, omit_defaults=True, gc=False):
    data: Raw
    tag: str | UnsetType | None = UNSET
    node: str | UnsetType | None = UNSET
    meta: Raw | UnsetType = UNSET


class _Write(Struct, omit_defaults=True):
    records: list[_Record]
    idempotency_key: str


_decode_lines = msgspec.json.Decoder(list[Line]).decode
_decode_raws = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Note:
    """Line `number` of the file, if it is not a record. `kind` is `$topic` or `$gap`."""

    topic: str
    number: int
    kind: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one write: the lines from line `number` on."""

    topic: str
    number: int
    lines: list[Line]

    @property
    def last(self) -> int:
        return self.number + len(self.lines) - 1

    def body(self) -> bytes:
        """Body of the write. Its idempotency key is derived from the line number and the content of the records."""
        lines = self.lines
        tags, nodes = _either(lines, "shown_tag", "tag"), _either(lines, "shown_node", "node")
        records = list(map(_Record, map(attrgetter("data"), lines), tags, nodes, map(attrgetter("meta"), lines)))
        digest = xxhash.xxh3_128_hexdigest(_encode(records))
        return _encode(_Write(records, f"import:{self.number}:{digest}"))

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.lines) // 2
        return (
            Batch(self.topic, self.number, self.lines[:middle]),
            Batch(self.topic, self.number + middle, self.lines[middle:]),
        )


def _either(lines: Sequence[Line], first: str, second: str) -> Iterable[Any]:
    firsts, seconds = list(map(attrgetter(first), lines)), list(map(attrgetter(second), lines))
    if all(map(is_, seconds, repeat(UNSET))):
        return firsts
    return [two if one is UNSET else one for one, two in zip(firsts, seconds, strict=True)]


def parse(raw: Sequence[bytes], number: int, *, whole: bool = False) -> list[Line]:
    """Parse lines, of which the first has number `number`. With `whole`, each line is the `data` of a record.

    Raises `LineError`.
    """
    text = b"[" + b",".join(raw) + b"]"
    try:
        values = decode(_decode_raws, text)
        # Values with the same lengths as the lines are the lines: no value spans two lines and no line has two values.
        if list(map(len, map(bytes, values))) == list(map(len, map(bytes.strip, raw))):
            return list(map(Line, repeat(UNSET), values)) if whole else decode(_decode_lines, text)
    except (msgspec.MsgspecError, TopicsError):
        pass
    for at, line in enumerate(raw, number):  # find the invalid line
        try:
            (apply if whole else decode)(partial(msgspec.json.decode, type=Any if whole else Line), line)
        except (msgspec.MsgspecError, UnicodeDecodeError, TopicsError) as error:
            raise LineError(f"line {at}: {error}") from None
    raise AssertionError("lines that are JSON one by one are so together")


def batches(
    chunks: Iterable[tuple[int, list[bytes]]],
    topic: str | None,
    *,
    whole: bool = False,
    max_records: int,
    max_bytes: int,
) -> Iterator[Batch | Note]:
    """Batches and notes in file order. `chunks` are lines with the number of the first; `topic` is the topic of all
    lines, None if each line names its topic.

    A batch has as many adjacent lines of one topic as the bounds allow, or a single line beyond them. Batches depend on
    the first line but not on the chunks. Starting again after any batch therefore yields the same following batches.
    Raises `LineError`.
    """
    name = ""
    number = 0
    run: list[Line] = []
    sizes: list[int] = []
    for first, raw in chunks:
        lines = parse(raw, first, whole=whole)
        at = 0
        for key, group in groupby(lines, _key(lines, topic)):
            members = list(group)
            start, at = at, at + len(members)
            where, kind = _place(key, first + start, topic)
            if run and (where != name or kind):
                yield from _cut(name, number, run, sizes, max_records, max_bytes, rest=True)
                run, sizes = [], []
            if kind:
                for offset, line in enumerate(members):
                    content = line.about if kind == "$topic" else line.gap
                    yield Note(where, first + start + offset, kind, _content(content, first + start + offset))
                continue
            if not run:
                name, number = where, first + start
            run += members
            sizes += map(len, raw[start:at])
            ready = list(_cut(name, number, run, sizes, max_records, max_bytes, rest=False))
            yield from ready
            done = sum(len(batch.lines) for batch in ready)
            number += done
            del run[:done], sizes[:done]
    yield from _cut(name, number, run, sizes, max_records, max_bytes, rest=True)


def _key(lines: Sequence[Line], topic: str | None) -> Any:
    """Key function that groups adjacent lines: by topic, and by whether they are records."""
    if all(map(is_not, map(attrgetter("data"), lines), repeat(UNSET))):
        return attrgetter("topic", "data.__class__") if topic is None else lambda line: ("", Raw)
    return lambda line: (line.topic, line.data.__class__, line.about is UNSET)


def _place(key: tuple[Any, ...], number: int, topic: str | None) -> tuple[str, str]:
    where = topic if topic is not None else key[0]
    if where is UNSET:
        raise LineError(f"line {number}: it names no topic; give one with --topic")
    if key[1] is not UnsetType:
        return str(where), ""
    return str(where), "$gap" if key[2] else "$topic"


def _content(raw: Raw | UnsetType, number: int) -> dict[str, Any]:
    try:
        if raw is not UNSET:
            return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise LineError(f"line {number}: {error}") from None
    raise LineError(f'line {number}: it has no "data"; with --raw, each line is the data of a record')


def _cut(
    name: str, number: int, run: list[Line], sizes: list[int], max_records: int, max_bytes: int, *, rest: bool
) -> Iterator[Batch]:
    """The complete batches at the start of a run; with `rest`, all, because no line will be added to it."""
    at = 0
    while at < len(run):
        upto = list(accumulate(sizes[at : at + max_records]))
        count = max(sum(map(max_bytes.__ge__, upto)), 1)
        if at + count == len(run) and not rest and count < max_records:
            return  # more lines may fit
        yield Batch(name, number + at, run[at : at + count])
        at += count
