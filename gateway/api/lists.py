"""Lists over one or all shards, a page at a time."""

from __future__ import annotations

from collections.abc import Callable

from gateway.api import pagination
from gateway.api.plan import Handler, Plan
from gateway.http.messages import Request
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import AllCursors, CursorList, ListTopics, Operation, Page, RouterList
from proto.model.names import is_cursor, is_place_of_cursor, is_router, is_topic


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
        size, after = _page(plan, is_topic)
        prefix, touch = str(plan.options["prefix"]), bool(plan.options["touch"])
        return await self._merged("topics", ListTopics(size, after, prefix, plan.key.prefixes, touch), size)

    async def _cursors(self, plan: Plan, body: bytes, request: Request) -> Reply:
        size, after = _page(plan, is_cursor)
        reply = (await self._shards.call(CursorList(size, after), plan.topic)).checked()
        return Reply(0, pagination.merge_pages("cursors", [reply], size))

    async def _all_cursors(self, plan: Plan, body: bytes, request: Request) -> Reply:
        size, after = _page(plan, is_place_of_cursor)
        asked = AllCursors(size, after, str(plan.options["prefix"]), plan.key.prefixes)
        return await self._merged("cursors", asked, size)

    async def _routers(self, plan: Plan, body: bytes, request: Request) -> Reply:
        size, after = _page(plan, is_router)
        prefix, source, dest = (str(plan.options[name]) for name in ("prefix", "source", "dest"))
        return await self._merged("routers", RouterList(size, after, prefix, plan.key.prefixes, source, dest), size)

    async def _merged(self, what: str, asked: Operation[Page], size: int) -> Reply:
        return Reply(0, pagination.merge_pages(what, await self._shards.ask_all(asked), size))


def _page(plan: Plan, valid: Callable[[str], bool]) -> tuple[int, str]:
    """Return the number of entries of a page, and the name after which it begins. Raises `400`."""
    size, cursor = int(plan.options["page_size"]), str(plan.options["cursor"])
    return pagination.page_size(size), pagination.decode_cursor(cursor, valid) if cursor else ""
