"""Event ids: the position of a stream in each of its topics, as clients see it.

The id of a frame is base64url of the JSON map {topic: seq}, without padding. A long map is replaced by a token: "c."
and base64url of the MessagePack list [generation, seq, seq, …], with the seqs in the order of the topics' names. Both
forms hold the positions of *all* topics; clients send them back unchanged.

The topics of a stream that watches a prefix come and go. Its ids hold the positions of the topics that it has sent a
frame of and not told as deleted. Its token is "p." and [generation, marks, [seq, seq, …]], with a mark of 6 bytes for
each name. A topic that such an id does not hold came later, so the id means that topic's beginning.

Seqs restart when a topic is deleted and created again:

1. When a session learns of it, the session begins a new generation, and the topic's position is `born` in it.
2. A client returns with an id of an earlier generation than the position's.
3. That id is of the deleted topic, so it means the beginning of the present one.

A deletion that a client was told of also begins a generation: a client that returns with an earlier id was not told.
Once there is a generation, the map holds it as `$generation`, which cannot be a topic's name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

MAX_MAP_TOPICS = 64
MAX_MAP_BYTES = 4 << 10
"""Larger maps become tokens, because proxies and this server limit the header that brings ids back."""
GONE = -1
"""The epoch of a position in a topic that no longer exists."""
TOLD = -2
"""The epoch of a position in a deleted topic after the session's client was told."""
_GENERATION = "$generation"
_TOKEN = "c."
_MARKED = "p."
_MARK_BYTES = 6

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

    def __init__(self, seqs: Mapping[str, int], generation: int) -> None:
        self.seqs = dict(seqs)
        self.generation = generation
        self._order = sorted(self.seqs)
        self._token = _too_long(self.seqs)

    def current(self) -> bytes:
        """Return the id of a frame after which the stream is at `seqs`."""
        if self._token:
            raw = _encode_list([self.generation, *map(self.seqs.__getitem__, self._order)])
            return _TOKEN.encode() + base64.urlsafe_b64encode(raw).rstrip(b"=")
        seqs = {**self.seqs, _GENERATION: self.generation} if self.generation else self.seqs
        return base64.urlsafe_b64encode(_encode_json(seqs)).rstrip(b"=")


class GrowingIds(Ids):
    """The ids of a stream that watches a prefix. `seqs` may gain and lose topics."""

    def current(self) -> bytes:
        self._token = False
        if not _too_long(self.seqs):
            return super().current()
        raw = _encode_list((self.generation, b"".join(map(mark, self.seqs)), list(self.seqs.values())))
        return _MARKED.encode() + base64.urlsafe_b64encode(raw).rstrip(b"=")


def _too_long(seqs: Mapping[str, int]) -> bool:
    return len(seqs) > MAX_MAP_TOPICS or sum(map(len, seqs)) + 24 * len(seqs) > MAX_MAP_BYTES


@lru_cache(1 << 14)
def mark(name: str) -> bytes:
    """The mark of a name in ids."""
    return hashlib.blake2b(name.encode(), digest_size=_MARK_BYTES).digest()


class Id(NamedTuple):
    """A decoded id: the seqs of known topics, and the marks of the others."""

    generation: int
    seqs: dict[str, int]
    unknown: frozenset[bytes]


def decode(text: str, topics: Iterable[str]) -> Id | None:
    """Return an id, or None for an invalid one. `topics` are those of its session."""
    form = text[:2] if text.startswith((_TOKEN, _MARKED)) else ""
    text = text[len(form) :].rstrip("=")
    names = sorted(topics)
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if form == _TOKEN:
            generation, *values = _decode_list(raw)
            return Id(generation, dict(zip(names, values, strict=True)), frozenset())
        if form == _MARKED:
            generation, marks, values = _decode_marked(raw)
            each = [marks[at : at + _MARK_BYTES] for at in range(0, len(marks), _MARK_BYTES)]
            marked = dict(zip(each, values, strict=True))
            seqs = {name: marked[mark(name)] for name in names if mark(name) in marked}
        else:
            seqs = _decode_json(raw)
            generation = seqs.pop(_GENERATION, 0)
            marked = {mark(name): seq for name, seq in seqs.items()}
        return Id(generation, seqs, frozenset(marked) - frozenset(map(mark, names)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def rewound(positions: Mapping[str, Position], text: str, *, growing: bool = False) -> dict[str, Position]:
    """Return the positions, moved back to those in an id. Never moves one forward, because the session knows what was
    sent. An invalid id changes nothing. `growing`: a topic that the id does not hold came later."""
    found = decode(text, positions) if text else None
    if found is None:
        return dict(positions)
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
