"""The fourth step of a request: its operation is carried out, by the topic's shard or by a handler of the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import Struct

from gateway.admission.body_budget import FREE_BYTES
from gateway.admission.slots import fair
from gateway.api.plan import Handler, Plan
from gateway.contract.auth import Keyring, key_is_gone, restrictions
from gateway.http.messages import ClientGone, Request, Response, Shared
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import Configure, Growing, LettersSent
from proto.ipc.operations import Operation as ShardOperation
from proto.model.errors import TopicsError, invalid, is_passing
from proto.model.limits import DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES, Limits
from proto.model.surrogates import apply
from proto.process.driven import in_task

HOLDER = b"topics-holder"
MAKING_S = 2.0
"""How long a claim's response waits for the dead-letter topics to be made."""

A = TypeVar("A")


class _Asked(Struct):
    max_batch_bytes: int | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode


def answer_bytes(body: bytes) -> int:
    """Return the most bytes that the response to a read may have, by the `max_batch_bytes` of its body."""
    try:
        asked = apply(_decode_asked, body)[0].max_batch_bytes if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        asked = None  # the shard refuses the body
    return min(asked if asked is not None and asked > 0 else DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES)


class Forwarding:
    def __init__(self, shards: Shards, keyring: Keyring, limits: Limits, handlers: dict[str, Handler]) -> None:
        self.handlers = handlers
        self._shards = shards
        self._keyring = keyring
        self._most_cursors = limits.max_cursors_per_topic
        self.several = shards.machine != ""
        """Whether the service has several machines."""

    async def forward(self, plan: Plan, body: bytes, request: Request) -> Reply[Any] | Response:
        """Return what the shard or the handler answers. A shard's error is in its reply; others are raised."""
        operation = plan.operation
        if not operation.shard_op:
            if not operation.at_once:
                await in_task()
            elif request.plan is not plan:
                self._remember(plan, request)
            return await self.handlers[operation.name](plan, body, request)
        asked = plan.asked
        if asked is None:
            asked = plan.asked = self._asked(plan, request)
            self._remember(plan, request)
        if isinstance(asked, Growing):
            return await self._shards.call(asked, plan.topic, body)
        if not operation.records:
            return await self._shards.call(asked, plan.topic, body, request.disconnected)
        reply = await self._read(plan, asked, body, request)
        if isinstance(reply.extra, LettersSent):
            await in_task()
            await self._make(reply.extra.dead_letters)
        return reply

    def tell_holder(self, plan: Plan, response: Response) -> None:
        """Have an answer name the machine that holds its topic, if it is another one."""
        if plan.operation.shard_op and plan.topic and (holder := self._shards.holder_elsewhere(plan.topic)):
            named = _named(holder)
            response.headers = (*response.headers, *named) if response.headers else named

    def _remember(self, plan: Plan, request: Request) -> None:
        """Have the plan serve requests with an equal head, unless the keys changed while the body was read."""
        if plan.keys == self._keyring.version:
            request.remember(plan)

    def _asked(self, plan: Plan, request: Request) -> ShardOperation[Any]:
        """Return what the shard is asked for. Raises `400`."""
        operation, key = plan.operation, plan.key
        assert operation.shard_op is not None
        options: dict[str, Any] = {**plan.options}
        for header in operation.headers:
            if header.option and (value := request.headers.get(header.name.lower().encode())) is not None:
                options[header.option] = _text(value, header.name)
        if key.digest and "maker" in operation.shard_op.__struct_fields__:  # the shard bounds what each key makes
            options["maker"] = key.id
            options["most_made"] = fair(self._most_cursors, 0, self._keyring.several)
        asked: ShardOperation[Any] = operation.shard_op(*(restrictions(key) if operation.grows else ()), **options)
        return asked

    async def _read(self, plan: Plan, asked: ShardOperation[A], body: bytes, request: Request) -> Reply[A]:
        """Ask for a reply that holds records. The budget reserves its bytes before the shard is asked; a parked request
        releases them and reserves them when its reply arrives. A parked request ends with its client or its key."""
        key = plan.key
        hold = request.hold_answer()
        most = answer_bytes(body)

        async def gone() -> None:
            with trio.CancelScope() as scope, self._keyring.while_known(key, scope.cancel):
                await request.disconnected()

        was_parked = False

        def parked() -> None:
            nonlocal was_parked
            was_parked = True
            hold.release()

        while True:
            await hold.grow(most)
            was_parked = False
            try:
                reply = await self._shards.call(asked, plan.topic, body, gone, parked)
            except ClientGone:
                if self._keyring.knows(key):
                    raise
                raise key_is_gone() from None
            if was_parked and is_passing(reply.error, self._shards.index_of(plan.topic)):
                continue  # its shard has moved
            kept = hold.size or not plan.operation.repeatable or len(reply.body) <= FREE_BYTES
            if kept or hold.take(len(reply.body)):
                hold.set(len(reply.body))
                return reply
            # Many parked requests were answered at once, and the budget is full. A diff may be asked again; other
            # replies are kept, because their jobs are leased by now.

    async def _make(self, topics: Sequence[str]) -> None:
        """Make the topics that a claim's dead letters go to. The first letter would create its topic anyway, but the
        client of the claim may read the topic at once. Errors are ignored, because the claim itself succeeded."""
        with trio.move_on_after(MAKING_S):
            for topic in topics:
                with contextlib.suppress(TopicsError):
                    await self._shards.call(Configure(if_absent=True), topic, b"")


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"header {what} is not UTF-8") from None


@lru_cache(64)
def _named(holder: bytes) -> Shared:
    return Shared([(HOLDER, holder)])
