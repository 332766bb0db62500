"""Where a watcher is in each of its topics, and the ids that say so to clients.

The id of a frame is base64url of the JSON map {topic: seq}, without padding. When that would be long it is a token
instead: "c." and base64url of the MessagePack list [generation, seq, seq, …], seqs in the order of the topics' names.
Both say where *all* topics are; clients send them back as they are.

Seqs begin anew when a topic is deleted and made again. Whenever a session learns of that, it begins a new generation,
and each position remembers in which one it was `born`. An id of an earlier generation than a topic's position is from
before, so it means the beginning of the topic that is there now. A deletion that was told begins a generation, too: a
client that comes back with an id from before was not told. The map names the generation, once there was one, as
`$generation`, which cannot be a topic.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

MAX_MAP_TOPICS = 64
MAX_MAP_BYTES = 4 << 10
"""Larger maps become tokens: proxies and this server bound the header that brings them back."""
GONE = -1
"""The epoch of a position in a topic that is not there any more."""
TOLD = -2
"""The same, and the session's client was told so."""
_GENERATION = "$generation"
_TOKEN = "c."

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(dict[str, int]).decode
_encode_list = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[int]).decode


class Position(NamedTuple):
    """The last seq handed over, of which instance of the topic, since which generation."""

    epoch: int
    seq: int
    born: int


class Ids:
    """Makes the ids of one stream. `seqs` is kept up to date by the stream, `generation` too."""

    def __init__(self, seqs: Mapping[str, int], generation: int) -> None:
        self.seqs = dict(seqs)
        self.generation = generation
        self._order = sorted(self.seqs)
        self._token = len(self.seqs) > MAX_MAP_TOPICS or sum(map(len, self.seqs)) + 24 * len(self.seqs) > MAX_MAP_BYTES

    def current(self) -> bytes:
        """The id of a frame after which the stream is at `seqs`."""
        if self._token:
            raw = _encode_list([self.generation, *map(self.seqs.__getitem__, self._order)])
            return _TOKEN.encode() + base64.urlsafe_b64encode(raw).rstrip(b"=")
        seqs = {**self.seqs, _GENERATION: self.generation} if self.generation else self.seqs
        return base64.urlsafe_b64encode(_encode_json(seqs)).rstrip(b"=")


def decode(text: str, topics: Mapping[str, object]) -> tuple[int, dict[str, int]] | None:
    """Generation and seqs of an id; None for what is none of ours. `topics` are those of the session it came from."""
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
    """Positions taken back to where an id says; never forward, because the session knows best what was sent."""
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
