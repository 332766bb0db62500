"""Watch sessions: the topics that a client subscribed to, and the position sent to the client in each.

A session lives in shard `xxh3_64(wid) % shards`, which need not own any of its topics. So it outlives the gateway, and
moves with `reshard` like a topic. The gateway that streams the session reports its positions now and then. If the
gateway dies, the records since its last report are delivered again: a position is never ahead of what was sent.

    made ──► streaming ──► idle ──(ttl without a stream)──► ended
                 ▲           │
                 └───────────┘ another GET

In the log (frame kind SESSION, topic id 0), one or more of

    made     the whole session, as a catalog has it
    moved    {wid: [generation, {topic: position}]}, positions that changed; written in groups, a few times a second
    ended    [wid]
    taken    {wid: number}, streams that begin (see `shardd.operations.session_streams`)

A later frame replaces what an earlier one said, so replaying them twice changes nothing. A frame is written before the
request is answered, and synced with the next sync. If the machine stops before that sync, a position is an older one,
or the session is unknown and the client makes a new one.

A position is [epoch, seq, born]:

    epoch    the instance of the topic; -1: it was gone already; -2: it was gone, and the client knows it
    seq      the last seq sent to the client
    born     the session's generation when it began to read that instance

The topics of a session that watches a prefix come and go. So it keeps only the last `MOST_TOLD` of the deleted ones
that the prefix covers; the client named the others.

A generation ends when a topic turns out to have been deleted. So an id from before the deletion differs from one after.

A shard's new process does not know which sessions have streams. The ttl of all begins again (`Sessions.woken`), and
gateways report their streams within a quarter of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

TOLD = -2
MOST_TOLD = 256

Position = tuple[int, int, int]


class Session(Struct):
    """One session. `owner` is the digest of the API key that made it, b"" if keys are not required. `options` says what
    to send of the records and how. Of them, the shard reads only the `prefix`, if there is one."""

    wid: str
    owner: bytes
    options: dict[str, Any]
    topics: dict[str, Position]
    generation: int = 0
    used_ms: int = 0
    stream: int = 0
    """Number of the last stream that began; 0 for none."""


class Sessions:
    """All sessions of a shard, by wid."""

    def __init__(self) -> None:
        self.by_wid: dict[str, Session] = {}
        self._owned: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self.by_wid)

    def owned_by(self, owner: bytes) -> int:
        """Number of sessions of one API key."""
        return self._owned[owner]

    def add(self, session: Session) -> None:
        self.remove(session.wid)
        self.by_wid[session.wid] = session
        self._owned[session.owner] += 1

    def remove(self, wid: str) -> None:
        """Remove a session. Does nothing if it does not exist."""
        session = self.by_wid.pop(wid, None)
        if session is not None:
            self._owned[session.owner] -= 1
            if not self._owned[session.owner]:
                del self._owned[session.owner]

    def apply(self, fields: Mapping[str, Any]) -> None:
        """Apply the fields of a SESSION frame."""
        if "made" in fields:
            self.load([fields["made"]])
        for wid, (generation, topics) in fields.get("moved", {}).items():
            session = self.by_wid.get(wid)
            if session is not None:
                session.generation = generation
                session.topics |= {name: _position(position) for name, position in topics.items()}
                if "prefix" in session.options:
                    _forget(session)
        for wid, number in fields.get("taken", {}).items():
            session = self.by_wid.get(wid)
            if session is not None:
                session.stream = max(session.stream, number)
        for wid in fields.get("ended", ()):
            self.remove(wid)

    def dump(self) -> list[dict[str, Any]]:
        """All sessions as maps for a catalog."""
        return [as_map(session) for session in self.by_wid.values()]

    def load(self, entries: Iterable[Mapping[str, Any]]) -> None:
        for entry in entries:
            topics = {name: _position(position) for name, position in entry["topics"].items()}
            session = Session(entry["wid"], entry["owner"], entry["options"], topics, entry["generation"])
            session.stream = entry.get("stream", 0)
            self.add(session)

    def woken(self, now_ms: int) -> None:
        """Restart the idle time of all sessions at `now_ms`: gateways could not report while the shard was away."""
        for session in self.by_wid.values():
            session.used_ms = now_ms

    def shift(self, ms: int) -> None:
        """The clock was set ahead by `ms`. Moves the idle times with it, so that sessions last as long as before."""
        for session in self.by_wid.values():
            session.used_ms += ms

    def idle(self, since_ms: int) -> list[str]:
        """Names of the sessions without a report since `since_ms`."""
        return [session.wid for session in self.by_wid.values() if session.used_ms < since_ms]


def _forget(session: Session) -> None:
    prefix = session.options["prefix"]
    told = [name for name, (epoch, _, _) in session.topics.items() if epoch == TOLD and name.startswith(prefix)]
    for name in told[: max(len(told) - MOST_TOLD, 0)]:
        del session.topics[name]


def _position(value: Any) -> Position:
    epoch, seq, born = value
    return (int(epoch), int(seq), int(born))


def as_map(session: Session) -> dict[str, Any]:
    fields = {
        "wid": session.wid,
        "owner": session.owner,
        "options": dict(session.options),
        "topics": {name: list(position) for name, position in session.topics.items()},
        "generation": session.generation,
    }
    if session.stream:
        fields["stream"] = session.stream
    return fields
