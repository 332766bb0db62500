"""The router graph: checks changes of routers and carries them out in the shards, in a safe order.

A router lives in the shard of its destination, but names, cycles and the cap concern all shards. So this module makes
changes one at a time and knows the graph. It reads the graph from the shards at the first use, and again after a shard
has been restarted or a change has ended in an unknown state.

If this process, or a shard, dies between two steps:

    what is done              steps                                     left behind
    put, new                  topics made, router made; if it is        topics without a router: harmless
                              refused, the new topics are deleted
    put, with another source  topics made, lane held, its copies        a lane on hold: its shard releases it after a
                              saved, lane exchanged in one frame        while. The router is in its old state before the
                                                                        frame, in its new state after it
    put, with another dest    new one made, old one deleted             two of a name: the older one is deleted when the
                                                                        graph is next read
    delete of a source        its lanes held, their copies saved,       a lane on hold: its shard releases it after a
                              topic deleted, routers deleted            while; routers without a source: their shards
                                                                        remove them
    delete of a destination   topic deleted, and its routers with it    nothing

A topic can be deleted while a shard is down, unless that shard last had a router from it. If the shard has one after
all, the router finds its source gone and removes itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec
import trio

from gateway.contract.auth import check_name
from gateway.shards.client import Shards
from proto.ipc.message import Reply
from proto.ipc.operations import (
    Configure,
    DeleteTopic,
    Operation,
    RouterDelete,
    RouterGet,
    RouterGraph,
    RouterHold,
    RouterPut,
    RouterSource,
    StateGet,
)
from proto.model.errors import ErrorCode, TopicsError, topic_not_found
from proto.model.keys import Key
from proto.model.limits import Limits
from proto.model.router import (
    PATCH,
    RouterConfig,
    apply,
    as_map,
    check_cycle,
    check_fan_in,
    from_map,
    router_not_found,
)

A = TypeVar("A")

RETRY_AFTER_MS = 1000
UNCERTAIN = (ErrorCode.NOT_READY, ErrorCode.INTERNAL)
"""Errors after which the change may or may not have been made."""


@dataclass(frozen=True, slots=True)
class _Known:
    config: RouterConfig
    made_ms: int


class Routers:
    def __init__(self, shards: Shards, limits: Limits) -> None:
        self._shards = shards
        self._max = limits.max_routers
        self._turn = trio.Lock()
        self._known: dict[str, _Known] | None = None
        self._seen: dict[str, _Known] = {}
        """The graph when all shards were last read."""
        self._lives: list[str] = []

    async def put(self, name: str, body: bytes, key: Key) -> Reply:
        """Create a router, or change the fields that the body names. Waits for earlier changes. Raises the error of the
        body, the names, the graph or a shard."""
        patch, _ = PATCH.read(body)
        async with self._turn:
            known = await self._graph()
            current = known.get(name)
            if current is not None:
                _check_names(key, current.config)
            config = apply(None if current is None else current.config, patch)
            _check_names(key, config)
            if current is None and self._max and len(known) >= self._max:
                raise TopicsError(
                    ErrorCode.THROTTLED,
                    f"there are as many routers as TOPICS_MAX_ROUTERS allows, {self._max}; delete some first",
                    {"limit": "max_routers", "max": self._max},
                    retry_after_ms=RETRY_AFTER_MS,
                )
            others = [other.config for other_name, other in known.items() if other_name != name]
            check_fan_in(config, others, key)
            check_cycle(config, others, key)
            made: list[str] = []
            try:
                await self._make_topics(config, made, create_dest=patch.create_dest is not False)
                return await self._put(name, current, config)
            except BaseException as error:
                self._known = None
                if isinstance(error, TopicsError) and error.code not in UNCERTAIN:
                    await self._unmake(made)
                raise

    async def _unmake(self, topics: list[str]) -> None:
        """Delete the topics made for a router that was refused, except those with records."""
        for topic in topics:
            try:
                await self._shards.call(DeleteTopic(if_empty=True), topic)
            except TopicsError:
                pass  # the shard is down: a topic without a router is harmless

    async def _make_topics(self, config: RouterConfig, made: list[str], *, create_dest: bool) -> None:
        """Make the router's missing topics and add their names to `made`."""
        if not create_dest:
            found = await self._shards.call(StateGet(touch=False), config.dest)
            if found.error is not None:
                raise topic_not_found(config.dest) if _missing(found) else found.error
        for topic in (config.source, config.dest) if create_dest else (config.source,):
            if _raise(await self._shards.call(Configure(), topic, b"")).created:
                made.append(topic)

    async def _put(self, name: str, current: _Known | None, config: RouterConfig) -> Reply:
        source = _raise(await self._shards.call(RouterSource(), config.source)).extra
        assert source is not None
        elsewhere = current is not None and current.config.dest != config.dest
        asked = RouterPut(name, as_map(config), source.epoch, source.head, False if elsewhere else None)
        reply = _raise(await self._shards.call(asked, config.dest))
        if current is not None and elsewhere:
            _raise(await self._shards.call(RouterDelete(name), current.config.dest))
        if self._known is not None:
            self._known[name] = _Known(config, 0 if reply.extra is None else reply.extra.made_ms)
        return reply

    async def delete(self, name: str, key: Key) -> Reply:
        async with self._turn:
            known = await self._graph()
            current = known.get(name)
            if current is None:
                return Reply(0, msgspec.json.encode({"router": name, "deleted": False}))
            _check_names(key, current.config)
            self._known = None  # read again unless this change succeeds
            reply = _raise(await self._shards.call(RouterDelete(name), current.config.dest))
            known.pop(name)
            self._known = known
            return reply

    async def get(self, name: str, key: Key) -> Reply:
        async with self._turn:
            current = (await self._graph()).get(name)
        if current is None:
            raise router_not_found(name)
        _check_names(key, current.config)
        reply = _raise(await self._shards.call(RouterGet(name), current.config.dest))
        if reply.extra is not None and not reply.extra.found:
            self._known = None  # the shard has removed the router, because its source is gone
            raise router_not_found(name)
        return reply

    async def delete_topic(self, topic: str, operation: DeleteTopic, key: Key) -> Reply:
        """Delete a topic and every router that names it."""
        named, _ = await self._naming(topic)
        if not named:
            return await self._shards.call(operation, topic)
        async with self._turn:
            named, everything = await self._naming(topic)
            known, self._known = self._known if everything else None, None  # read again unless this change succeeds
            sinks = {name: config.dest for name, config in named.items() if config.source == topic}
            indexes = sorted({self._shards.index_of(dest) for dest in sinks.values()})
            deleted = False
            try:
                for index in indexes:
                    await self._hold(index, topic, release=False)
                reply = await self._shards.call(operation, topic)
                deleted = reply.error is None
            finally:
                if not deleted:
                    with trio.CancelScope(shield=True):
                        for index in indexes:
                            await self._release(index, topic)
            if reply.error is not None:
                self._known = known
                return reply
            for name, dest in sinks.items():
                _raise(await self._shards.call(RouterDelete(name), dest))
            if known is not None:
                self._known = {name: each for name, each in known.items() if name not in named}
            answer = msgspec.json.decode(reply.body)
            answer["routers_removed"] = sorted(name for name in named if key.covers(name))
            reply.body = msgspec.json.encode(answer)
            return reply

    async def _naming(self, topic: str) -> tuple[dict[str, RouterConfig], bool]:
        """Return the routers that name a topic, and whether all shards were read. Routers of a shard that is down are
        those last seen."""
        try:
            known, everything = await self._graph(), True
        except TopicsError as error:
            if error.code is not ErrorCode.NOT_READY:
                raise
            known, everything = await self._graph_of_those_there(), False
        named = {name: each.config for name, each in known.items() if topic in (each.config.source, each.config.dest)}
        return named, everything

    async def _graph_of_those_there(self) -> dict[str, _Known]:
        known: dict[str, _Known] = {}
        for index in range(len(self._shards.states)):
            try:
                reply = await self._ask(index, RouterGraph())
            except TopicsError as error:
                if error.code is not ErrorCode.NOT_READY:
                    raise
                seen = self._seen.items()
                known |= {name: each for name, each in seen if self._shards.index_of(each.config.dest) == index}
                continue
            for name, fields, made_ms in () if reply.extra is None else reply.extra.routers:
                known[name] = _Known(from_map(fields), made_ms)
        return known

    async def _ask(self, index: int, operation: Operation[A]) -> Reply[A]:
        pending = self._shards.ask(index, operation)
        try:
            return _raise(await pending.reply())
        except BaseException:
            pending.abandon()
            raise

    async def _hold(self, index: int, source: str, *, release: bool) -> None:
        await self._ask(index, RouterHold(source, release))

    async def _release(self, index: int, source: str) -> None:
        try:
            await self._hold(index, source, release=True)
        except TopicsError:
            pass  # the shard is down, and the hold has ended with it

    async def _graph(self) -> dict[str, _Known]:
        """Return all routers by name. Raises `503` unless every shard serves."""
        lives = [state.endpoint for state in self._shards.states]
        if self._known is not None and lives == self._lives:
            return self._known
        known: dict[str, _Known] = {}
        older: list[tuple[str, str]] = []
        for reply in await self._shards.ask_all(RouterGraph()):
            for name, fields, made_ms in () if reply.extra is None else reply.extra.routers:
                each, other = _Known(from_map(fields), made_ms), known.get(name)
                if other is not None:
                    each, other = (other, each) if other.made_ms > made_ms else (each, other)
                    older.append((name, other.config.dest))
                known[name] = each
        for name, dest in older:
            _raise(await self._shards.call(RouterDelete(name), dest))
        self._known, self._seen, self._lives = known, known, lives
        return known


def _check_names(key: Key, config: RouterConfig) -> None:
    check_name(key, config.source)
    check_name(key, config.dest)


def _missing(reply: Reply) -> bool:
    return reply.error is not None and reply.error.code is ErrorCode.TOPIC_NOT_FOUND


def _raise(reply: Reply[A]) -> Reply[A]:
    if reply.error is not None:
        raise reply.error
    return reply
