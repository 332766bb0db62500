"""Rog over topics: partition p of log L is the topic `L:p`; a group is a named cursor of that topic.

The shard that owns the name L keeps the number of partitions of L. A create makes the topics first and the definition
last, so every defined log has its topics. A create that fails in between leaves topics, which the next create takes
over. When a partition's topic was deleted over HTTP, the next publish makes it again.

A message is kept as base64 in `data`, with `meta` `{"encoding":"base64"}`. A fetch returns any other record's string as
text. Data that is no string, or a string with a lone surrogate, which no text can hold, is returned as JSON text.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections import Counter
from typing import Any

import msgspec
import trio

from gateway.errors import GatewayError
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import Append, Configure, LogCreate, LogFind, Peek, Step
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from proto.model.names import RULE, is_topic
from proto.model.surrogates import apply
from proto.process.faults import faults
from proto.wire import rog
from proto.wire.byte_parser import Steps
from proto.wire.rog import Ack, Command, Create, Fetch, Publish

META = b'{"encoding":"base64"}'
MAX_REMEMBERED = 100_000
MAX_FETCHED = 64
"""Of one connection: groups of partitions, each with the message that it fetched last."""

_to_json = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str).decode


class _Meta(msgspec.Struct):
    encoding: Any = None


_meta = msgspec.json.Decoder(_Meta).decode


class RogError(GatewayError):
    """A command failed; the text of the error is the answer."""


class Rog:
    """The part that all Rog connections share. `commands` counts by (command, result)."""

    name = "rog"

    def __init__(self, shards: Shards, limits: Limits) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self.max_message_bytes = max((limits.max_record_bytes - len(META) - 2) // 4 * 3, 0)  # in base64
        self._shards = shards
        self._config = _to_json({"durability": limits.rog_durability})
        self._partitions: dict[str, int] = {}
        """A cache of the number of partitions by log; it never changes for a log."""

    def session(self) -> RogSession:
        return RogSession(self)

    async def create(self, log: str, partitions: int) -> None:
        if not partitions:
            raise RogError("Number of partitions must be at least 1")
        if not is_topic(f"{log}:{partitions - 1}"):
            raise RogError(f"Log name {log!r} is not valid: with :{partitions - 1} behind it, it must be {RULE}")
        if await self._find(log):
            raise RogError(f"Log {log} already exists")
        errors: list[TopicsError] = []
        async with trio.open_nursery() as nursery:
            for partition in range(partitions):
                nursery.start_soon(self._make, f"{log}:{partition}", errors)
        if errors:
            raise errors[0]
        reply = (await self._shards.call(LogCreate(partitions), log)).checked()
        if not reply.created:
            raise RogError(f"Log {log} already exists")

    async def _make(self, topic: str, errors: list[TopicsError]) -> None:
        try:
            (await self._shards.call(Configure(if_absent=True), topic, self._config)).checked()
        except TopicsError as error:
            errors.append(error)

    async def publish(self, log: str, partition: int, data: bytes) -> None:
        topic = await self._topic(log, partition)
        body = b'{"config":%b,"create":true,"records":[{"data":"%b","meta":%b}]}' % (
            self._config,
            b64encode(data),
            META,
        )
        (await self._shards.call(Append(return_seqs=False), topic, body)).checked()

    async def fetch(self, log: str, partition: int, group: str) -> tuple[str, int, bytes]:
        """Return topic, seq and message. Raises `RogError` when no message is left."""
        topic = await self._topic(log, partition)
        reply = await self._shards.call(Peek(group), topic)
        _check_found(reply)
        if reply.extra is None:
            raise RogError("No data left in the log to be read")
        return topic, reply.extra.seq, _message(reply.body, reply.extra.meta)

    async def ack(self, log: str, partition: int, group: str, fetched: dict[tuple[str, str], int]) -> None:
        """Move the group's cursor onto the seq that `fetched` has for (topic, group), which then leaves it. Without
        one, move the cursor by one."""
        topic = await self._topic(log, partition)
        _check_found(await self._shards.call(Step(group, fetched.get((topic, group))), topic))
        fetched.pop((topic, group), None)  # an ack that failed may be repeated, and means the same message then

    async def _topic(self, log: str, partition: int) -> str:
        partitions = await self._find(log)
        if not partitions:
            raise RogError(f"No log registered with name {log}")
        if partition >= partitions:
            raise RogError(f"Trying to access partition {partition} but log {log} has {partitions} partitions")
        return f"{log}:{partition}"

    async def _find(self, log: str) -> int:
        """Return the number of partitions of a log; 0 when there is no such log."""
        known = self._partitions.get(log)
        if known is not None:
            return known
        if not is_topic(log):
            return 0
        partitions = (await self._shards.call(LogFind(), log)).found().partitions
        if partitions and len(self._partitions) < MAX_REMEMBERED:
            self._partitions[log] = partitions
        return partitions


class RogSession:
    """The commands of one connection. It remembers the message fetched last for each group, which the group's next ack
    acknowledges; of `MAX_FETCHED` groups at most, then it forgets the one that it fetched for longest ago."""

    def __init__(self, served: Rog) -> None:
        self._rog = served
        self._fetched: dict[tuple[str, str], int] = {}

    def read(self) -> Steps[Command]:
        return rog.read(self._rog.max_message_bytes)

    def refuse(self, message: str) -> bytes:
        self._rog.commands["none", "error"] += 1
        return rog.failure(message)

    async def answer(self, command: Command) -> bytes:
        result = "error"
        try:
            answer = await self._carry_out(command)
            result = "ok"
        except RogError as error:
            answer = rog.failure(str(error))
        except TopicsError as error:
            answer = rog.failure(error.message)
        except Exception:
            answer = rog.failure(faults.failed("rog").message.capitalize())
        self._rog.commands[type(command).__name__.lower(), result] += 1
        return answer

    async def _carry_out(self, command: Command) -> bytes:
        served = self._rog
        if isinstance(command, Publish):
            await served.publish(command.log, command.partition, command.data)
        elif isinstance(command, Fetch):
            topic, seq, data = await served.fetch(command.log, command.partition, command.group)
            self._fetched.pop((topic, command.group), None)
            self._fetched[topic, command.group] = seq  # the last one
            if len(self._fetched) > MAX_FETCHED:
                del self._fetched[next(iter(self._fetched))]
            return rog.message(data)
        elif isinstance(command, Ack):
            await served.ack(command.log, command.partition, command.group, self._fetched)
        elif isinstance(command, Create):
            await served.create(command.log, command.partitions)
        return rog.SUCCESS


def _check_found(reply: Reply) -> None:
    """Raise the error of a reply, except `topic_not_found`: a deleted partition has no messages."""
    error = reply.error
    if error is not None and error.code is not ErrorCode.TOPIC_NOT_FOUND:
        raise error


def _message(data: bytes, meta: bytes | None) -> bytes:
    if data[:1] != b'"':
        return data
    found, mask = apply(_text, data)
    if mask is not None:
        return data
    text = found.encode()
    if meta is not None and b"base64" in meta and apply(_meta, meta)[0].encoding == "base64":
        try:
            return b64decode(text, validate=True)
        except BadBase64:
            pass  # a record of another client, with this `meta` but without base64
    return text
