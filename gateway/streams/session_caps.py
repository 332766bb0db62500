"""The caps on watch sessions: makes sessions in the shards that may hold one more.

Each shard has an even share of the cap on all sessions, and a session is made in a shard that has less than
its share. So the cap holds at any number of gateways. The cap per key is compared with the latest counts of the shards:
exact with one gateway, which makes one session of a key at a time. One of several gateways asks for the counts each
time. Gateways that make sessions of a key at the same moment may pass the cap by one for each other gateway.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec
import trio
from msgspec.structs import asdict, replace

from gateway.admission.slots import fair
from gateway.contract.auth import Keyring
from gateway.shards.client import Shards
from gateway.streams.event_ids import Position
from gateway.streams.watch_request import Options
from proto.ipc.message import Reply
from proto.ipc.operations import SessionCount, SessionMake, Sessions
from proto.model.errors import ErrorCode, TopicsError, cap_reached
from proto.model.keys import Key
from proto.model.limits import Limits

IN_ALL = "max_watch_sessions"
PER_KEY = "max_watch_sessions_per_key"
WID_BYTES = 16
COUNT_S = 1.0
"""How long one of several gateways waits for the counts. Of a shard that is silent, the latest one holds."""

_encode = msgspec.json.Encoder().encode


def share_of(most: int, index: int, count: int) -> int:
    """A shard's even share of a cap over `count` shards. The shares add up to the cap."""
    return most // count + (index < most % count)


def _was_away(error: TopicsError) -> bool:
    """Whether the shard did not get the request."""
    return error.code is ErrorCode.NOT_READY and (error.detail or {}).get("outcome") == "not_done"


def _cap_of(error: TopicsError) -> str:
    """The cap that an error names as reached; empty for another error."""
    return str((error.detail or {}).get("limit", "")) if error.code is ErrorCode.THROTTLED else ""


def _drawn() -> str:
    return "wid_" + secrets.token_urlsafe(WID_BYTES)


class SessionCaps:
    def __init__(self, shards: Shards, limits: Limits, keyring: Keyring, *, several_gateways: bool = False) -> None:
        self._shards = shards
        self._keyring = keyring
        self._most = limits.max_watch_sessions
        self._most_owned = limits.max_watch_sessions_per_key
        self._several_gateways = several_gateways
        self._owned: dict[bytes, list[int | None]] = {}
        """For each key that made a session, its number of sessions in each shard's latest reply."""
        self._making = WeakValueDictionary[bytes, trio.Lock]()
        """For each key that is making a session, its lock: a shard that does not answer one key delays no other."""

    async def make(
        self, key: Key, options: Options, heartbeat_ms: int, topics: Mapping[str, Position], prefix: str | None
    ) -> str:
        """Make a session and return its wid. Raises `429` when a cap on sessions is reached, and `503`."""
        shown = {**asdict(options), "heartbeat_ms": heartbeat_ms}
        if prefix is not None:
            shown["prefix"] = prefix
        body = _encode(topics)
        # Without keys, sessions have no owner, so the cap per key does not apply.
        most_owned = fair(self._most, self._most_owned, self._keyring.several) if key.digest else 0
        if not most_owned:
            return await self._make_somewhere(SessionMake(key.digest, shown), body)
        async with self._making.setdefault(key.digest, trio.Lock()):
            counts = self._owned.setdefault(key.digest, [None] * len(self._shards.states))
            if self._several_gateways:
                with trio.move_on_after(COUNT_S):
                    await self._count(key.digest)
            elif None in counts:
                await self._count(key.digest)
            asked = SessionMake(key.digest, shown, most_per_key=most_owned)
            try:
                return await self._make_somewhere(asked, body)
            except TopicsError as error:
                if _cap_of(error) != PER_KEY:
                    raise
            # Sessions in the latest counts of the other shards may have ended meanwhile.
            await self._count(key.digest)
            return await self._make_somewhere(asked, body)

    async def _make_somewhere(self, asked: SessionMake, body: bytes) -> str:
        """Make a session in a shard that serves and has less than its share of the cap on all sessions. The wid says
        which shard it is. Raises `503` if a shard that may have room does not serve, else `429`."""
        wid = _drawn()
        count = len(self._shards.states)
        first = self._shards.index_of(wid)
        full = cap_reached(IN_ALL, self._most, "wait until one ends")
        away: TopicsError | None = None
        for index in (each % count for each in range(first, first + count)):
            share = share_of(self._most, index, count) if self._most else None
            if share == 0:
                continue
            while self._shards.index_of(wid) != index:
                wid = _drawn()
            try:
                await self._make_at(index, replace(asked, most_sessions=share), wid, body)
                return wid
            except TopicsError as error:
                if _was_away(error):
                    away = error
                elif _cap_of(error) == IN_ALL:
                    full = error
                else:
                    raise
        raise away or full

    async def _make_at(self, index: int, asked: SessionMake, wid: str, body: bytes) -> None:
        if asked.most_per_key:
            counts = self._owned[asked.owner]
            others = sum(count or 0 for at, count in enumerate(counts) if at != index)
            asked = replace(asked, most_owned=asked.most_per_key - others)
        reply = (await self._shards.call(asked, wid, body)).checked()
        if asked.most_per_key and reply.extra is not None:
            self._owned[asked.owner][index] = reply.extra.owned

    async def _count(self, owner: bytes) -> None:
        """Ask the serving shards for their number of sessions of a key. Of one that is down, the latest count holds."""
        replies: dict[int, Reply[Sessions]] = {}
        await self._shards.ask_serving(SessionCount(owner), replies)
        for index, reply in replies.items():
            if reply.extra is not None:
                self._owned[owner][index] = reply.extra.owned
