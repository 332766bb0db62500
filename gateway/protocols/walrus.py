"""Walrus over topics: REGISTER makes a log topic, PUT appends its payload as a JSON string, GET takes the next record.
All GETs share one cursor, the topic's named cursor `walrus`.

Every machine is a node, whatever the number of its addresses, and serves every topic. The machine that holds a topic's
shard leads its segments. A segment is a run of `walrus_segment_entries` seqs. A full one is sealed, and its leader is
the node that led when its last entry was written. The cluster's leader is the node with shard 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

import msgspec

from gateway.shards.client import Shards
from proto.ipc import operations
from proto.ipc.figures import ReplicaFigures, ShardFigures
from proto.ipc.message import Reply
from proto.ipc.operations import Append, Configure, Figures, Stats, Take
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from proto.model.surrogates import apply
from proto.process.faults import faults
from proto.wire import walrus
from proto.wire.byte_parser import Steps
from proto.wire.walrus import EMPTY, MAX_FRAME_BYTES, OK, Command, Get, Put, Register, StateCommand

CURSOR = "walrus"
UNKNOWN_TOPIC = "unknown topic"
RETRY = "NotLeaderForPartition"
"""The error after which Walrus clients try again in a moment."""

UNKNOWN = 0
"""The number of a node that is not known."""

_to_json = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str).decode


class Walrus:
    """Walrus of all connections: none has a state of its own. `commands` counts by (command, result)."""

    name = "walrus"

    def __init__(self, shards: Shards, limits: Limits) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self._shards = shards
        self._term = 1
        """The last one that was seen."""
        self._segment = limits.walrus_segment_entries
        self._config = _to_json({"durability": limits.walrus_durability})

    def session(self) -> Walrus:
        return self

    def read(self) -> Steps[Command]:
        return walrus.read()

    def refuse(self, message: str) -> bytes:
        self.commands["none", "error"] += 1
        return walrus.encode(walrus.failure(message))

    async def answer(self, command: Command) -> bytes:
        result = "ok"
        try:
            text = await self._carry_out(command)
            if text == EMPTY:
                result = "empty"
            elif text.startswith(b"ERR "):
                result = "error"
        except TopicsError as error:
            result = "error"
            text = walrus.failure(_explained(error))
        except Exception:
            result = "error"
            text = walrus.failure(faults.failed("walrus").message)
        self.commands[type(command).__name__.lower(), result] += 1
        return walrus.encode(text)

    async def _carry_out(self, command: Command) -> bytes:
        if isinstance(command, Put):
            return await self._put(command.topic, command.payload)
        if isinstance(command, Get):
            return await self._get(command.topic)
        if isinstance(command, Register):
            return await self._register(command.topic)
        if isinstance(command, StateCommand):
            return await self._state(command.topic)
        return await self._metrics()

    async def _register(self, topic: str) -> bytes:
        (await self._shards.call(Configure(if_absent=True), topic, self._config)).checked()
        return OK

    async def _put(self, topic: str, payload: str) -> bytes:
        body = b'{"create":false,"records":[{"data":%b}]}' % _to_json(payload)
        (await self._shards.call(Append(return_seqs=False), topic, body)).checked()
        return OK

    async def _get(self, topic: str) -> bytes:
        reply = (await self._shards.call(Take(CURSOR), topic)).checked()
        if reply.extra is None:
            return EMPTY
        data = reply.body
        content = _content(data)
        if len(content) + 3 > MAX_FRAME_BYTES:
            seq = reply.extra.seq
            return walrus.failure(f"record {seq} has {len(content)} bytes and does not fit a frame; it is passed over")
        return b"OK " + content

    async def _state(self, topic: str) -> bytes:
        reply = (await self._shards.call(operations.StateGet(touch=False, led=True), topic)).checked()
        entries = msgspec.json.decode(reply.body)["head_seq"]
        sealed = entries // self._segment
        runs = ((1, ""),) if reply.extra is None else reply.extra.runs
        firsts, leaders = [first for first, _ in runs], [self._node(machine) or UNKNOWN for _, machine in runs]
        ends = range(self._segment, sealed * self._segment + 1, self._segment)
        by_segment = {str(k): leaders[bisect_right(firsts, end) - 1] for k, end in enumerate(ends, 1)}
        return _to_json(
            {
                "current_segment": sealed + 1,
                "leader_node": leaders[-1],
                "last_sealed_entry_offset": sealed * self._segment,
                "sealed_segments": dict.fromkeys(by_segment, self._segment),
                "segment_leaders": {**by_segment, str(sealed + 1): leaders[-1]},
            }
        )

    async def _metrics(self) -> bytes:
        """Return the metrics of the cluster. Log indexes are sums over the shards that answer."""
        replies: dict[int, Reply[Figures]] = {}
        await self._shards.ask_serving(Stats(), replies)
        figures = {index: reply.extra.figures for index, reply in replies.items() if reply.extra is not None}
        leader = self._leader(figures.get(0))
        machines, own = self._shards.machines, self._node(self._shards.machine)
        return _to_json(
            {
                "id": own or UNKNOWN,
                "current_term": self._term,
                "current_leader": leader,
                "state": "Candidate" if leader is None else "Leader" if leader == own else "Follower",
                "last_log_index": sum(each.wal.last_frame for each in figures.values()),
                "last_applied": sum(each.wal.synced_frame for each in figures.values()),
                "membership_config": {
                    "voters": sorted(each.node for each in machines if each.address) if self._shards.machine else [1],
                    "learners": [],
                },
            }
        )

    def _leader(self, shard: ShardFigures | None) -> int | None:
        """The node with shard 0, which has answered this; None if it is not known."""
        if shard is None:
            return None
        replica = shard.replica or ReplicaFigures()
        self._term = max(self._term, replica.term)
        return self._node(replica.machine)

    def _node(self, machine: str) -> int | None:
        """The number of a machine; None if it is not known. Without members, there is one node."""
        if not self._shards.machine:
            return 1
        return next((each.node for each in self._shards.machines if each.name == machine), None)


def _content(data: bytes) -> bytes:
    """Return a string's text. Other JSON, and a string with a lone surrogate, is returned as JSON text."""
    if data[:1] != b'"':
        return data
    text, mask = apply(_text, data)
    return text.encode() if mask is None else data


def _explained(error: TopicsError) -> str:
    if error.code is ErrorCode.TOPIC_NOT_FOUND:
        return UNKNOWN_TOPIC
    if error.code in (ErrorCode.NOT_READY, ErrorCode.SHUTTING_DOWN):
        return f"{RETRY}: {error.message}"
    return error.message
