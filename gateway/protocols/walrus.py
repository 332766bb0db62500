"""Walrus over topics: REGISTER makes a log topic, PUT appends its payload as a JSON string, GET takes the next record.
All GETs share one cursor, the topic's named cursor `walrus`.

Every listening address is a node, numbered from 1. All nodes serve every topic. A fixed rule names the leader of a
segment, so that it never changes: the nodes take turns, and the topic's hash decides which one begins. A segment is a
run of `walrus_segment_entries` seqs; a full segment is sealed.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from gateway.shards.client import Shards
from proto.ipc import operations
from proto.ipc.operations import Append, Configure, Stats, Take
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from proto.model.names import shard_of
from proto.model.surrogates import apply
from proto.process.faults import faults
from proto.wire import walrus
from proto.wire.byte_parser import Steps
from proto.wire.walrus import EMPTY, MAX_FRAME_BYTES, OK, Command, Get, Put, Register, StateCommand

CURSOR = "walrus"
UNKNOWN_TOPIC = "unknown topic"
RETRY = "NotLeaderForPartition"
"""The error after which Walrus clients try again in a moment."""

_to_json = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str).decode


class Walrus:
    """The part that all Walrus connections share. `commands` counts by (command, result)."""

    def __init__(self, shards: Shards, limits: Limits, nodes: int) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self._shards = shards
        self._nodes = nodes
        self._segment = limits.walrus_segment_entries
        self._config = _to_json({"durability": limits.walrus_durability})

    def session(self, node: int) -> WalrusSession:
        return WalrusSession(self, node)

    async def register(self, topic: str) -> bytes:
        (await self._shards.call(Configure(if_absent=True), topic, self._config)).checked()
        return OK

    async def put(self, topic: str, payload: str) -> bytes:
        body = b'{"create":false,"records":[{"data":%b}]}' % _to_json(payload)
        (await self._shards.call(Append(return_seqs=False), topic, body)).checked()
        return OK

    async def get(self, topic: str) -> bytes:
        reply = (await self._shards.call(Take(CURSOR), topic)).checked()
        if reply.extra is None:
            return EMPTY
        data = reply.body
        content = _content(data)
        if len(content) + 3 > MAX_FRAME_BYTES:
            seq = reply.extra.seq
            return walrus.failure(f"record {seq} has {len(content)} bytes and does not fit a frame; it is passed over")
        return b"OK " + content

    async def state(self, topic: str) -> bytes:
        reply = (await self._shards.call(operations.StateGet(touch=False), topic)).checked()
        entries = msgspec.json.decode(reply.body)["head_seq"]
        sealed = entries // self._segment
        first = shard_of(topic, self._nodes)
        leaders = {str(number): (first + number - 1) % self._nodes + 1 for number in range(1, sealed + 2)}
        return _to_json(
            {
                "current_segment": sealed + 1,
                "leader_node": leaders[str(sealed + 1)],
                "last_sealed_entry_offset": sealed * self._segment,
                "sealed_segments": {str(number): self._segment for number in range(1, sealed + 1)},
                "segment_leaders": leaders,
            }
        )

    async def metrics(self, node: int) -> bytes:
        """Return the metrics of a cluster in its first term: node 1 leads. Log indexes are sums over all shards."""
        wals = [reply.extra.figures.wal for reply in await self._shards.ask_all(Stats()) if reply.extra is not None]
        return _to_json(
            {
                "id": node,
                "current_term": 1,
                "current_leader": 1,
                "state": "Leader" if node == 1 else "Follower",
                "last_log_index": sum(wal.last_frame for wal in wals),
                "last_applied": sum(wal.synced_frame for wal in wals),
                "membership_config": {"voters": list(range(1, self._nodes + 1)), "learners": []},
            }
        )


class WalrusSession:
    """The commands of one connection to `node`."""

    def __init__(self, served: Walrus, node: int) -> None:
        self._walrus = served
        self._node = node

    def read(self) -> Steps[Command]:
        return walrus.read()

    def refuse(self, message: str) -> bytes:
        self._walrus.commands["none", "error"] += 1
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
        self._walrus.commands[type(command).__name__.lower(), result] += 1
        return walrus.encode(text)

    async def _carry_out(self, command: Command) -> bytes:
        served = self._walrus
        if isinstance(command, Put):
            return await served.put(command.topic, command.payload)
        if isinstance(command, Get):
            return await served.get(command.topic)
        if isinstance(command, Register):
            return await served.register(command.topic)
        if isinstance(command, StateCommand):
            return await served.state(command.topic)
        return await served.metrics(self._node)


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
