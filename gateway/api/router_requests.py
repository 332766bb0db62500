"""The operations of routers, and the deletion of a topic, which ends its routers too."""

from __future__ import annotations

from gateway.api.plan import Handler, Plan
from gateway.api.router_graph import Routers
from gateway.http.messages import Request
from proto.ipc.message import Reply
from proto.ipc.operations import DeleteTopic


class RouterRequests:
    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self.handlers: dict[str, Handler] = {
            "put_router": self._put,
            "get_router": self._get,
            "delete_router": self._delete,
            "delete_topic": self._delete_topic,
        }

    async def _put(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._routers.put(str(plan.options["router"]), body, plan.key)

    async def _get(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._routers.get(str(plan.options["router"]), plan.key)

    async def _delete(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._routers.delete(str(plan.options["router"]), plan.key)

    async def _delete_topic(self, plan: Plan, body: bytes, request: Request) -> Reply:
        return await self._routers.delete_topic(plan.topic, DeleteTopic(bool(plan.options["if_empty"])), plan.key)
