"""Watch sessions: what a client subscribed to, and how far each topic was handed to it.

A session lives in the shard that owns its name, `xxh3_64(wid) % shards`, which need not be one that owns its topics:
so it outlives the gateway, and moves with `reshard` like a topic. The gateway that streams it says now and then how far
it is. What it did not say yet is delivered again if it dies: a position is never ahead of what the client was sent.

    made ──► streaming ──► idle ──(ttl without a word)──► ended
                 ▲           │
                 └───────────┘ another GET

In the log (frame kind SESSION, topic id 0), one of

    made     the whole session, as a catalog has it
    moved    {wid: [generation, {topic: position}]}, positions that changed; written in groups, a few times a second
    ended    [wid]

and a later one replaces what an earlier one said, so reading them twice changes nothing. Frames are written before a
request is answered, and synced with whatever is synced next. If the machine stops before that, a position is an older
one, or the session is unknown and its client makes a new one.

A position is [epoch, seq, born]: the last seq handed over, of which instance of the topic (-1: of one that was gone
already, -2: and the client was told so), and the session's generation when it began to read that instance. A generation
ends when a topic turns out to have been deleted, so that an id from before that can be told from one that came after.

Whether a session has a stream is known to the gateway alone; it says a word for each of those well within the ttl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

Position = tuple[int, int, int]


class Session(Struct):
    """`owner` is the digest of the key that made it, b"" where none was asked for. `options` is what to show of the
    records and how, as the gateway reads it."""

    wid: str
    owner: bytes
    options: dict[str, Any]
    topics: dict[str, Position]
    generation: int = 0
    used_ms: int = 0


class Sessions:
    """All sessions of a shard, by wid."""

    def __init__(self) -> None:
        self.by_wid: dict[str, Session] = {}
        self._owned: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self.by_wid)

    def owned_by(self, owner: bytes) -> int:
        """How many there are of one key."""
        return self._owned[owner]

    def add(self, session: Session) -> None:
        self.remove(session.wid)
        self.by_wid[session.wid] = session
        self._owned[session.owner] += 1

    def remove(self, wid: str) -> None:
        """Does nothing for one there is not."""
        session = self.by_wid.pop(wid, None)
        if session is not None:
            self._owned[session.owner] -= 1
            if not self._owned[session.owner]:
                del self._owned[session.owner]

    def apply(self, fields: Mapping[str, Any]) -> None:
        """What a frame says."""
        if "made" in fields:
            self.load([fields["made"]])
        for wid, (generation, topics) in fields.get("moved", {}).items():
            session = self.by_wid.get(wid)
            if session is not None:
                session.generation = generation
                session.topics |= {name: _position(position) for name, position in topics.items()}
        for wid in fields.get("ended", ()):
            self.remove(wid)

    def dump(self) -> list[dict[str, Any]]:
        """For a catalog."""
        return [as_map(session) for session in self.by_wid.values()]

    def load(self, entries: Iterable[Mapping[str, Any]]) -> None:
        for entry in entries:
            topics = {name: _position(position) for name, position in entry["topics"].items()}
            session = Session(entry["wid"], entry["owner"], entry["options"], topics, entry["generation"])
            self.add(session)

    def woken(self, now_ms: int) -> None:
        """The shard was away, so nobody could say a word: time begins anew."""
        for session in self.by_wid.values():
            session.used_ms = now_ms

    def shift(self, ms: int) -> None:
        """The clock was set: they stay as long as before."""
        for session in self.by_wid.values():
            session.used_ms += ms

    def idle(self, since_ms: int) -> list[str]:
        """The sessions nobody said a word for since then."""
        return [session.wid for session in self.by_wid.values() if session.used_ms < since_ms]


def _position(value: Any) -> Position:
    epoch, seq, born = value
    return (int(epoch), int(seq), int(born))


def as_map(session: Session) -> dict[str, Any]:
    return {
        "wid": session.wid,
        "owner": session.owner,
        "options": dict(session.options),
        "topics": {name: list(position) for name, position in session.topics.items()},
        "generation": session.generation,
    }
