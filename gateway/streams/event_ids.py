"""Event ids: the position of a stream in each of its topics, as clients see it.

The id of a frame is base64url of the JSON map {topic: seq}, without padding. A long map is replaced by a token: "p."
and base64url of the MessagePack list [generation, marks, [seq, seq, …]], with a mark of 6 bytes for each name. Both
forms hold the positions of *all* topics; clients send them back unchanged.

The topics of a stream that watches a prefix come and go. Its ids hold the positions of the topics that it has sent a
frame of and not told as deleted. A topic that such an id does not hold came later, so the id means that topic's
beginning.

Release 0.1.0 made tokens without names: "c." and [generation, seq, seq, …], in the order of the topics' names. They are
read as the `Last-Event-ID` of their session, whose topics stay the same. Another watch refuses them: its topics would
get each other's positions.

Seqs restart when a topic is deleted and created again:

1. When a session learns of it, the session begins a new generation, and the topic's position is `born` in it.
2. A client returns with an id of an earlier generation than the position's.
3. That id is of the deleted topic, so it means the beginning of the present one.

A deletion that was sent to a client also begins a generation: a client that returns with an earlier id was not told.
Once there is a generation, the map holds it as `$generation`, which cannot be a topic's name.

An id that no stream could have made is refused with 400 wherever it comes: numbers that are no integers from 0 to
2^63 - 1, names that are none, a name or mark twice, base64 that would be written in another way, the wrong number of
seqs, or topics none of which the stream has. An EventSource does not connect again after a 400. It never sends such an
id, since it only repeats what it was sent. An old id of the stream is no such id, whatever became of its topics.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from proto.model.errors import TopicsError, invalid
from proto.model.names import is_topic

MAX_POSITION = 2**63 - 1
"""The largest number in an id."""
MAX_MAP_TOPICS = 64
MAX_MAP_BYTES = 4 << 10
"""Larger maps become tokens, because proxies and this server limit the header that brings ids back."""
GONE = -1
"""The epoch of a position in a topic that no longer exists."""
TOLD = -2
"""The epoch of a position in a deleted topic after the deletion was sent to the session's client."""
_GENERATION = "$generation"
_TOKEN = "c."
_MARKED = "p."
_MARK_BYTES = 6
_BLANKS = b" \t\r\n"

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(dict[str, int]).decode
_encode_list = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[int]).decode
_decode_marked = msgspec.msgpack.Decoder(tuple[int, bytes, list[int]]).decode


class Position(NamedTuple):
    """The last seq handed to the connection, its topic's epoch, and the generation in which the position was born."""

    epoch: int
    seq: int
    born: int


class Ids:
    """The encoder of one stream's ids. The stream keeps `seqs` and `generation` up to date."""

    def __init__(self, seqs: Mapping[str, int], generation: int, *, growing: bool = False) -> None:
        """`growing`: `seqs` may gain and lose topics, because the stream watches a prefix."""
        self.seqs = dict(seqs)
        self.generation = generation
        self._marks = None if growing else _marks(self.seqs)

    def current(self) -> bytes:
        """Return the id of a frame after which the stream is at `seqs`."""
        marks = _marks(self.seqs) if self._marks is None else self._marks
        if marks:
            raw = _encode_list((self.generation, marks, list(self.seqs.values())))
            return _MARKED.encode() + base64.urlsafe_b64encode(raw).rstrip(b"=")
        seqs = {**self.seqs, _GENERATION: self.generation} if self.generation else self.seqs
        return base64.urlsafe_b64encode(_encode_json(seqs)).rstrip(b"=")


def _marks(seqs: Mapping[str, int]) -> bytes:
    """The marks for a token, in the order of `seqs`; b"" if their map is short enough."""
    long = len(seqs) > MAX_MAP_TOPICS or sum(map(len, seqs)) + 24 * len(seqs) > MAX_MAP_BYTES
    return b"".join(map(mark, seqs)) if long else b""


@lru_cache(1 << 14)
def mark(name: str) -> bytes:
    """The mark of a name in ids."""
    return hashlib.blake2b(name.encode(), digest_size=_MARK_BYTES).digest()


class Id(NamedTuple):
    """A decoded id: the seqs of known topics, and the marks of the others."""

    generation: int
    seqs: dict[str, int]
    unknown: frozenset[bytes]


def check(text: str, field: str) -> None:
    """Check an id without its stream. Raises `400 invalid_request`."""
    if _read(text) is None:
        raise _impossible(field)


def decode(text: str, topics: Iterable[str], prefix: str | None = None, field: str = "cursor") -> Id:
    """Return an id. `topics` and `prefix` are those of its stream, or of the new watch of which it is the `cursor`.
    Raises `400 invalid_request` for one that no stream of them could have made."""
    names = sorted(topics)
    read = _read(text)
    if read is None:
        raise _impossible(field)
    generation, keys, values = read
    if keys is None:
        if field == "cursor" or len(values) != len(names):
            raise _impossible(field)
        return Id(generation, dict(zip(names, values, strict=True)), frozenset())
    found = dict[str | bytes, int](zip(keys, values, strict=True))
    seqs = {name: found[key] for name in names for key in (name, mark(name)) if key in found}
    named = [key for key in keys if isinstance(key, str)]
    if not seqs and (prefix is None or (named and not any(name.startswith(prefix) for name in named))):
        raise _impossible(field)
    marks = frozenset(mark(key) if isinstance(key, str) else key for key in keys)
    return Id(generation, seqs, marks - frozenset(map(mark, names)))


_Read = tuple[int, list[str] | list[bytes] | None, list[int]]
"""The generation, names or marks of the topics or None for all of the stream, and their seqs."""


def _read(text: str) -> _Read | None:
    """Return what an id says, None if no stream could have made it."""
    form = text[:2] if text.startswith((_TOKEN, _MARKED)) else ""
    text = text[len(form) :]
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        written = base64.urlsafe_b64encode(raw).decode()
        if text not in (written, written.rstrip("=")):
            return None
        generation, keys, values = _content(form, raw)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    twice = keys is not None and len(set[Any](keys)) < len(keys)
    possible = not twice and all(0 <= each <= MAX_POSITION for each in (generation, *values))
    return (generation, keys, values) if possible else None


def _content(form: str, raw: bytes) -> _Read:
    """Raises `ValueError` for bytes that would be written in another way."""
    if form == _TOKEN:
        listed = _decode_list(raw)
        if not listed or _encode_list(listed) != raw:
            raise ValueError
        return listed[0], None, listed[1:]
    if form == _MARKED:
        marked = _decode_marked(raw)
        generation, marks, values = marked
        if _encode_list(marked) != raw or len(marks) != _MARK_BYTES * len(values):
            raise ValueError
        return generation, [marks[at : at + _MARK_BYTES] for at in range(0, len(marks), _MARK_BYTES)], values
    seqs = _decode_json(raw)
    # A client may put such a map together itself, with blanks.
    if _encode_json(seqs) != raw.translate(None, _BLANKS):
        raise ValueError
    generation = seqs.pop(_GENERATION, 0)
    if not all(map(is_topic, seqs)):
        raise ValueError
    return generation, list(seqs), list(seqs.values())


def _impossible(field: str) -> TopicsError:
    return invalid(f"{field} is not the id of a frame of a watch over these topics", field=field)


def rewound(positions: Mapping[str, Position], found: Id, *, growing: bool = False) -> dict[str, Position]:
    """Return the positions, moved back to those in an id. Never moves one forward, because the session knows what was
    sent. `growing`: a topic that the id does not hold came later."""
    result = dict(positions)
    for name, position in positions.items():
        seq = found.seqs.get(name)
        if seq is None and not growing:
            continue
        if found.generation < position.born and (seq is not None or position.epoch == TOLD):
            result[name] = position._replace(epoch=GONE, seq=0)
        elif seq is None and position.epoch != TOLD:
            result[name] = position._replace(seq=0)
        elif seq is not None and 0 <= seq < position.seq:
            result[name] = position._replace(seq=seq)
    return result
