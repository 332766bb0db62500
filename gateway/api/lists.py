"""Lists over one or all shards, a page at a time."""

from __future__ import annotations

from gateway.api import pagination
from gateway.api.plan import Handler, Plan
from gateway.http.messages import Request
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import AllCursors, CursorList, ListTopics, RouterList
from proto.model.names import is_cursor, is_place_of_cursor, is_router


class Lists:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.handlers: dict[str, Handler] = {
            "list_topics": self._topics,
            "list_cursors": self._cursors,
            "list_all_cursors": self._all_cursors,
            "list_routers": self._routers,
        }

    async def _topics(self, plan: Plan, body: bytes, request: Request) -> Reply:
        options = plan.options
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"])) if options["cursor"] else ""
        asked = ListTopics(size, after, str(options["prefix"]), plan.key.prefixes, bool(options["touch"]))
        return Reply(0, pagination.merge_pages("topics", await self._shards.ask_all(asked), size))

    async def _cursors(self, plan: Plan, body: bytes, request: Request) -> Reply:
        options = plan.options
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"]), is_cursor) if options["cursor"] else ""
        reply = await self._shards.call(CursorList(size, after), plan.topic)
        if reply.error is not None:
            raise reply.error
        return Reply(0, pagination.merge_pages("cursors", [reply], size))

    async def _all_cursors(self, plan: Plan, body: bytes, request: Request) -> Reply:
        options = plan.options
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"]), is_place_of_cursor) if options["cursor"] else ""
        asked = AllCursors(size, after, str(options["prefix"]), plan.key.prefixes)
        return Reply(0, pagination.merge_pages("cursors", await self._shards.ask_all(asked), size))

    async def _routers(self, plan: Plan, body: bytes, request: Request) -> Reply:
        options = plan.options
        size = pagination.page_size(int(options["page_size"]))
        after = pagination.decode_cursor(str(options["cursor"]), is_router) if options["cursor"] else ""
        source, dest = str(options["source"]), str(options["dest"])
        asked = RouterList(size, after, str(options["prefix"]), plan.key.prefixes, source, dest)
        return Reply(0, pagination.merge_pages("routers", await self._shards.ask_all(asked), size))
