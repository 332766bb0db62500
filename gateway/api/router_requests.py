"""The operations of routers, and the deletion of a topic, which ends its routers too: asked of the registrar.

The registrar (`shardd.routers.registrar`) is shard 0. It gets the restrictions of the client's key, because only it
knows the names that a change concerns. Lists of routers do not need it (`gateway.api.lists`).
"""

from __future__ import annotations

from gateway.api.plan import Handler, Plan
from gateway.http.messages import Request
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import (
    REGISTRAR,
    RegistrarDelete,
    RegistrarDeleteTopic,
    RegistrarGet,
    RegistrarPut,
    RegistrarRequest,
)
from proto.model.errors import ErrorCode, TopicsError


class RouterRequests:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.handlers: dict[str, Handler] = {
            "put_router": self._put,
            "get_router": self._get,
            "delete_router": self._delete,
            "delete_topic": self._delete_topic,
        }

    async def _put(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._ask(RegistrarPut(plan.key.id, plan.key.prefixes, str(plan.options["router"])), body=body)

    async def _get(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._ask(RegistrarGet(plan.key.id, plan.key.prefixes, str(plan.options["router"])))

    async def _delete(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._ask(RegistrarDelete(plan.key.id, plan.key.prefixes, str(plan.options["router"])))

    async def _delete_topic(self, plan: Plan, body: bytes, request: Request) -> Reply:
        if_empty = bool(plan.options["if_empty"])
        return await self._ask(RegistrarDeleteTopic(plan.key.id, plan.key.prefixes, if_empty), plan.topic)

    async def _ask(self, operation: RegistrarRequest, topic: str = "", body: bytes = b"") -> Reply:
        """Ask the registrar, if need be after a restart of its shard. Raises `503`."""
        try:
            return await self._shards.ask_one(REGISTRAR, operation, topic, body)
        except TopicsError as error:
            if error.code is not ErrorCode.NOT_READY:
                raise
            message = f"routers, and deletions of topics, need shard {REGISTRAR}: {error.message}"
            raise TopicsError(error.code, message, error.detail, retry_after_ms=error.retry_after_ms) from None
