"""Event ids: the position of a stream in each of its topics, as clients see it.

The id of a frame is base64url of the JSON map {topic: seq}, without padding. A long map is replaced by a token: "c."
and base64url of the MessagePack list [generation, seq, seq, …], with the seqs in the order of the topics' names. Both
forms hold the positions of *all* topics; clients send them back unchanged.

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
from collections.abc import Mapping
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

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(dict[str, int]).decode
_encode_list = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[int]).decode


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
        self._token = len(self.seqs) > MAX_MAP_TOPICS or sum(map(len, self.seqs)) + 24 * len(self.seqs) > MAX_MAP_BYTES

    def current(self) -> bytes:
        """Return the id of a frame after which the stream is at `seqs`."""
        if self._token:
            raw = _encode_list([self.generation, *map(self.seqs.__getitem__, self._order)])
            return _TOKEN.encode() + base64.urlsafe_b64encode(raw).rstrip(b"=")
        seqs = {**self.seqs, _GENERATION: self.generation} if self.generation else self.seqs
        return base64.urlsafe_b64encode(_encode_json(seqs)).rstrip(b"=")


def decode(text: str, topics: Mapping[str, object]) -> tuple[int, dict[str, int]] | None:
    """Return the generation and seqs of an id, or None for an invalid one. `topics` are those of its session."""
    token = text.startswith(_TOKEN)
    if token:
        text = text[len(_TOKEN) :]
    text = text.rstrip("=")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if not token:
            seqs = _decode_json(raw)
            return seqs.pop(_GENERATION, 0), seqs
        generation, *values = _decode_list(raw)
        return (generation, dict(zip(sorted(topics), values, strict=True)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def rewound(positions: Mapping[str, Position], text: str) -> dict[str, Position]:
    """Return the positions, moved back to those in an id. Never moves one forward, because the session knows what was
    sent. An invalid id changes nothing."""
    found = decode(text, positions) if text else None
    if found is None:
        return dict(positions)
    generation, seqs = found
    result = dict(positions)
    for name, seq in seqs.items():
        position = positions.get(name)
        if position is None:
            continue
        if generation < position.born:
            result[name] = position._replace(epoch=GONE, seq=0)
        elif 0 <= seq < position.seq:
            result[name] = position._replace(seq=seq)
    return result
