"""Rog over topics: partition p of log L is the topic `L:p`, a group its named cursor of the same name there.

How many partitions L has is kept by the shard that its name belongs to. A create makes the topics first and the
definition last, so what a log promises is always there; if it dies in between, topics are left, and the next create
takes them over. A partition's topic that was deleted over HTTP is made again by the next publish.

A message is kept as base64 in `data`, with `meta` `{"encoding":"base64"}`. A record that somebody else wrote is fetched
as its string, or as its JSON text if it is none (or one with a lone surrogate, which no text can hold).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections import Counter
from typing import Any

import msgspec
import structlog
import trio

from gateway.shards.client import Shards
from gateway.shards.quota import Quota
from proto.ipc.message import Reply
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from proto.model.names import RULE, is_topic
from proto.model.surrogates import apply
from proto.wire import rog
from proto.wire.byte_parser import Steps
from proto.wire.rog import Ack, Command, Create, Fetch, Publish

META = b'{"encoding":"base64"}'
MAX_REMEMBERED = 100_000

_log: Any = structlog.get_logger()
_to_json = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str).decode


class _Meta(msgspec.Struct):
    encoding: Any = None


_meta = msgspec.json.Decoder(_Meta).decode


class RogError(Exception):
    """The text is the answer."""


def largest_message(max_record_bytes: int) -> int:
    """Bytes of the largest message whose record is not too large."""
    return max((max_record_bytes - len(META) - 2) // 4 * 3, 0)


class Rog:
    """What all Rog connections share. `commands` counts by (command, result)."""

    def __init__(self, shards: Shards, quota: Quota, limits: Limits) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self.max_message_bytes = largest_message(limits.max_record_bytes)
        self._shards = shards
        self._quota = quota
        self._config = _to_json({"durability": limits.rog_durability})
        self._partitions: dict[str, int] = {}
        """Of logs that were asked for; a log's number never changes."""

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
        reply = _check(await self._shards.call("log_create", log, {"partitions": partitions}))
        if not reply.created:
            raise RogError(f"Log {log} already exists")

    async def _make(self, topic: str, errors: list[TopicsError]) -> None:
        try:
            _check(await self._quota.call("configure", topic, {"if_absent": True}, self._config))
        except TopicsError as error:
            errors.append(error)

    async def publish(self, log: str, partition: int, data: bytes) -> None:
        topic = await self._topic(log, partition)
        body = b'{"config":%b,"create":true,"records":[{"data":"%b","meta":%b}]}' % (
            self._config,
            b64encode(data),
            META,
        )
        _check(await self._quota.call("append", topic, {"return_seqs": False}, body))

    async def fetch(self, log: str, partition: int, group: str) -> tuple[str, int, bytes]:
        """Topic, seq and message."""
        topic = await self._topic(log, partition)
        reply = await self._shards.call("peek", topic, {"cursor": group})
        _check_found(reply)
        if reply.extra is None:
            raise RogError("No data left in the log to be read")
        return topic, reply.extra["seq"], _message(reply.body, reply.extra.get("meta"))

    async def ack(self, log: str, partition: int, group: str, had: tuple[str, str, int] | None) -> None:
        """Move the group's cursor onto what it `had` (topic, group, seq), or else by one."""
        topic = await self._topic(log, partition)
        options: dict[str, Any] = {"cursor": group}
        if had is not None and had[:2] == (topic, group):
            options["seq"] = had[2]
        _check_found(await self._shards.call("step", topic, options))

    async def _topic(self, log: str, partition: int) -> str:
        partitions = await self._find(log)
        if not partitions:
            raise RogError(f"No log registered with name {log}")
        if partition >= partitions:
            raise RogError(f"Trying to access partition {partition} but log {log} has {partitions} partitions")
        return f"{log}:{partition}"

    async def _find(self, log: str) -> int:
        """Its number of partitions, 0 for a log there is not."""
        known = self._partitions.get(log)
        if known is not None:
            return known
        if not is_topic(log):
            return 0
        extra = _check(await self._shards.call("log_find", log)).extra
        partitions = int((extra or {})["partitions"])
        if partitions and len(self._partitions) < MAX_REMEMBERED:
            self._partitions[log] = partitions
        return partitions


class RogSession:
    """One connection. It remembers what was fetched last, so that an ack means exactly that."""

    def __init__(self, served: Rog) -> None:
        self._rog = served
        self._had: tuple[str, str, int] | None = None

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
            _log.exception("rog_command_failed")
            answer = rog.failure("Internal error; the log of the service has the details")
        self._rog.commands[type(command).__name__.lower(), result] += 1
        return answer

    async def _carry_out(self, command: Command) -> bytes:
        served = self._rog
        if isinstance(command, Publish):
            await served.publish(command.log, command.partition, command.data)
        elif isinstance(command, Fetch):
            topic, seq, data = await served.fetch(command.log, command.partition, command.group)
            self._had = (topic, command.group, seq)
            return rog.message(data)
        elif isinstance(command, Ack):
            had, self._had = self._had, None
            await served.ack(command.log, command.partition, command.group, had)
        elif isinstance(command, Create):
            await served.create(command.log, command.partitions)
        return rog.SUCCESS


def _check(reply: Reply) -> Reply:
    if reply.error is not None:
        raise reply.error
    return reply


def _check_found(reply: Reply) -> None:
    """Raises the error of a reply, unless there is no such topic: a partition that was deleted has no messages."""
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
            pass  # somebody else's record, which only says so
    return text
