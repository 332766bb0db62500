"""The registrar: checks changes of routers and carries them out in the shards, in a safe order. Shard 0 is it.

A router is kept by the shard of its destination, but names, cycles and the cap concern all shards. So one shard makes
all changes, one at a time, and knows the graph. It reads the graph from the shards at the first use, again after a
shard has been restarted or a change has ended in an unknown state, and before it refuses a router because of others: a
shard may have removed those by itself. Its steps are requests to the shards, itself included
(`shardd.process.peers`); it does not block its own shard while it waits for them.

A request takes these states:

    state      event → next
    WAITING    for its turn, or for the graph
               its turn comes → BEGUN · its deadline has passed, or its asker cancels it → ended: not done
    BEGUN      a cancellation changes nothing
               its last step is answered → ended: done · a step is refused or not answered → ended: the step's error

A step that can still be left out has the deadline of the request, so it is not carried out after the asker has given
the request up. A step that completes others, or takes them back, has a deadline of its own. The deletion of a topic
waits for no turn if no router names it, nor the one that is being made.

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

The request then ends as `503`, `outcome: "unknown"`. While this shard does not serve, gateways refuse such requests,
and all other requests are served.

A topic can be deleted while a shard is down, unless that shard last had a router from it. If the shard has one after
all, the router finds its source gone and removes itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio

from proto.api.answers import RouterDeleted
from proto.ipc.in_hand import continue_with
from proto.ipc.message import Reply, Request
from proto.ipc.operations import (
    Configure,
    DeleteTopic,
    RegistrarDelete,
    RegistrarDeleteTopic,
    RegistrarGet,
    RegistrarPut,
    RegistrarRequest,
    RouterDelete,
    RouterGet,
    RouterHold,
    RouterPut,
    RouterSource,
    StateGet,
)
from proto.model.errors import ErrorCode, TopicsError, starting
from proto.model.keys import Key, check_name
from proto.model.router import (
    PATCH,
    RouterConfig,
    RouterPatch,
    apply,
    as_map,
    check_cycle,
    check_fan_in,
    router_not_found,
)
from proto.process.faults import faults
from shardd.changes.transactions import Respond, Staging, to_json, too_late
from shardd.routers.router_graph import Asking, Graph, Known, is_certain
from shardd.storage.indivisible import indivisible

RETRY_AFTER_MS = 1000
MOST_BYTES = 8 << 20
"""Bytes of the bodies of all requests that are not answered yet. One key may have half of them."""
LEAST_BYTES = 4 << 10
"""Each request counts as at least this many."""
BECAUSE_OF_OTHERS = (ErrorCode.THROTTLED, ErrorCode.TOPIC_EXISTS_INCOMPATIBLE, ErrorCode.ROUTER_CYCLE)
"""Errors of a router that is refused because of the other ones."""


@dataclass(slots=True, eq=False)
class _Open:
    """A request that is not answered yet."""

    request: Request[RegistrarRequest]
    caller: Hashable
    respond: Respond
    size: int
    waiting: bool = True
    """Whether it has not begun."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def key(self) -> Key:
        """The key that asks: the part of it that decides which names an error may show."""
        return Key(b"", prefixes=self.request.options.prefixes)


_Work = Callable[[_Open], Awaitable[Reply]]


class Registrar:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._limits = staging.limits
        self._graph: Graph
        """Set by `run`."""
        self._nursery: trio.Nursery | None = None
        self._open: dict[tuple[Hashable, int], _Open] = {}
        """By asker and id."""
        self._sizes: Counter[bytes] = Counter()
        """Bytes of the open requests by key."""
        self._making: tuple[str, ...] = ()
        """Source and destination of the router that the request with the turn makes; none while it makes none."""

    async def run(self, peers: Asking, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the registrar until cancelled. A shard that does not run this refuses the requests."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._graph = Graph(peers, self._limits.request_timeout_ms / 1000)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # Requests

    def put(self, request: Request[RegistrarPut], caller: Hashable, respond: Respond) -> None:
        """Create a router, or change the fields that the body names. Raises `400`, `429`, `503`."""
        patch, _ = PATCH.read(request.body)
        self._take(request, caller, respond, partial(self._put, request.options.router, patch))

    def get(self, request: Request[RegistrarGet], caller: Hashable, respond: Respond) -> None:
        """Answer with one router. Raises `429`, `503`."""
        self._take(request, caller, respond, partial(self._get, request.options.router))

    def delete(self, request: Request[RegistrarDelete], caller: Hashable, respond: Respond) -> None:
        """Delete a router. Raises `429`, `503`."""
        self._take(request, caller, respond, partial(self._delete, request.options.router))

    def delete_topic(self, request: Request[RegistrarDeleteTopic], caller: Hashable, respond: Respond) -> None:
        """Delete a topic and every router that names it. Raises `429`, `503`."""
        deletion = DeleteTopic(request.options.if_empty)
        self._take(request, caller, respond, partial(self._delete_topic, request.topic, deletion))

    def _take(self, request: Request[RegistrarRequest], caller: Hashable, respond: Respond, work: _Work) -> None:
        if self._nursery is None:
            raise starting("changes of routers are made by shard 0 only, and not before it serves")
        key, size = request.options.key, max(len(request.body), LEAST_BYTES)
        if self._open and self._sizes.total() + size > MOST_BYTES:
            raise _too_many_bytes("", MOST_BYTES)
        if key and self._sizes[key] and self._sizes[key] + size > MOST_BYTES // 2:
            raise _too_many_bytes(" of one key", MOST_BYTES // 2)
        taken = self._open[caller, request.id] = _Open(request, caller, respond, size)
        self._sizes[key] += size
        self._nursery.start_soon(self._carry_out, taken, work)

    async def _carry_out(self, taken: _Open, work: _Work) -> None:
        request = taken.request
        continue_with(request)
        reply: Reply = Reply(request.id, error=too_late())
        try:
            with taken.scope:
                done = await work(taken)
                reply = Reply(request.id, done.body, done.created, done.performance)
        except TopicsError as error:
            reply.error = error
        except Exception:
            if indivisible.broken:
                raise
            reply.error = faults.failed(request.op)
        finally:
            self._open.pop((taken.caller, request.id), None)
            self._sizes[request.options.key] -= taken.size
            self._sizes += Counter()  # forgets the keys of which no request is open
        taken.respond(reply)

    def cancel(self, caller: Hashable, ident: int) -> None:
        """End a request that has not begun, because its asker no longer waits for it."""
        taken = self._open.get((caller, ident))
        if taken is not None and taken.waiting:
            taken.scope.cancel()

    def forget(self, caller: Hashable) -> None:
        """End the requests of an asker that is gone, as far as they have not begun."""
        for taken in self._open.values():
            if taken.caller == caller and taken.waiting:
                taken.scope.cancel()

    def expire(self) -> None:
        """End the requests that have not begun and are past their deadline. Called several times a second, so that
        their askers hear of it before they give up."""
        now_ns = self._staging.clock.monotonic() * 1e9
        for taken in self._open.values():
            if taken.waiting and 0 < taken.request.deadline_ns < now_ns:
                taken.scope.cancel()

    def _begin(self, taken: _Open) -> None:
        """From now on the request is not cancelled. Raises `503` if it is past its deadline, or was cancelled just now:
        its task would notice that only during a step."""
        self._staging.check_deadline(taken.request)
        if taken.scope.cancel_called:
            raise too_late()
        taken.waiting = False

    # What they do

    async def _put(self, name: str, patch: RouterPatch, taken: _Open) -> Reply:
        deadline_ns = taken.request.deadline_ns
        async with self._graph.turn:
            known, config = await self._allowed(name, patch, taken.key)
            self._begin(taken)
            current = known.get(name)
            made: list[str] = []
            self._making = config.source, config.dest
            try:
                await self._make_topics(config, made, deadline_ns, create_dest=patch.create_dest is not False)
                reply, made_ms = await self._route(name, current, config, deadline_ns)
            except BaseException as error:
                self._graph.forget()
                if is_certain(error):
                    await self._unmake(made)
                raise
            finally:
                self._making = ()
            known[name] = Known(config, made_ms)
            return reply

    async def _allowed(self, name: str, patch: RouterPatch, key: Key) -> tuple[dict[str, Known], RouterConfig]:
        """Return all routers, and this one as it will be. Raises as `_checked`, and `503`. Call it with the turn.

        A refusal because of other routers rests on a graph that was read for it. A request that has not begun can
        still be cancelled during that reading."""
        known = await self._graph.whole()
        try:
            return known, self._checked(name, patch, known, key)
        except TopicsError as error:
            if error.code not in BECAUSE_OF_OTHERS:
                raise
        self._graph.forget()
        known = await self._graph.whole()
        return known, self._checked(name, patch, known, key)

    def _checked(self, name: str, patch: RouterPatch, known: dict[str, Known], key: Key) -> RouterConfig:
        """The router as it will be. Raises `400`, `403`, and the errors `BECAUSE_OF_OTHERS`: `409`, `429`."""
        current = known.get(name)
        if current is not None:
            _check_names(key, current.config)
        config = apply(None if current is None else current.config, patch)
        _check_names(key, config)
        most = self._limits.max_routers
        if current is None and most and len(known) >= most:
            message = f"there are as many routers as TOPICS_MAX_ROUTERS allows, {most}; delete some first"
            raise _too_many("max_routers", most, message)
        others = [other.config for other_name, other in known.items() if other_name != name]
        check_fan_in(config, others, key)
        check_cycle(config, others, key)
        return config

    async def _unmake(self, topics: list[str]) -> None:
        """Delete the topics made for a router that was refused, except those with records."""
        for topic in topics:
            try:
                await self._graph.ask(topic, DeleteTopic(if_empty=True))
            except TopicsError:
                pass  # the shard is down: a topic without a router is harmless

    async def _make_topics(self, config: RouterConfig, made: list[str], deadline_ns: int, *, create_dest: bool) -> None:
        """Make the router's missing topics, within the cap over all shards, and add their names to `made`."""
        if not create_dest:
            await self._graph.ask(config.dest, StateGet(touch=False), deadline_ns)
        for topic in (config.source, config.dest) if create_dest else (config.source,):
            if (await self._graph.ask(topic, Configure(), deadline_ns)).created:
                made.append(topic)

    async def _route(
        self, name: str, current: Known | None, config: RouterConfig, deadline_ns: int
    ) -> tuple[Reply, int]:
        """Make or change a router between topics that exist. Returns the answer, and when the router was made."""
        source = (await self._graph.ask(config.source, RouterSource(), deadline_ns)).extra
        assert source is not None
        elsewhere = current is not None and current.config.dest != config.dest
        created, reading = False if elsewhere else None, self._graph.reading
        change = RouterPut(name, as_map(config), source.epoch, source.head, created, reading)
        reply = await self._graph.ask(config.dest, change, deadline_ns)
        if current is not None and elsewhere:
            await self._remove(name, current.config.dest)
        return reply, 0 if reply.extra is None else reply.extra.made_ms

    async def _remove(self, name: str, dest: str) -> None:
        """Delete a router, as a rest of a change that is made."""
        try:
            await self._graph.ask(dest, RouterDelete(name, self._graph.reading))
        except TopicsError as error:
            detail = {**(error.detail or {}), "outcome": "unknown"}
            raise TopicsError(error.code, error.message, detail, retry_after_ms=error.retry_after_ms) from None

    async def _delete(self, name: str, taken: _Open) -> Reply:
        async with self._graph.turn:
            known = await self._graph.whole()
            self._begin(taken)
            current = known.get(name)
            if current is None:
                return Reply(0, to_json(RouterDeleted(name, False)))
            _check_names(taken.key, current.config)
            with self._graph.changing():
                deletion = RouterDelete(name, self._graph.reading)
                reply = await self._graph.ask(current.config.dest, deletion, taken.request.deadline_ns)
            known.pop(name)
            return reply

    async def _get(self, name: str, taken: _Open) -> Reply:
        async with self._graph.turn:
            current = (await self._graph.whole()).get(name)
        if current is None:
            raise router_not_found(name)
        _check_names(taken.key, current.config)
        reply = await self._graph.ask(current.config.dest, RouterGet(name), taken.request.deadline_ns)
        if reply.extra is not None and not reply.extra.found:
            self._graph.forget()  # the shard has removed the router, because its source is gone
            raise router_not_found(name)
        return reply

    async def _delete_topic(self, topic: str, deletion: DeleteTopic, taken: _Open) -> Reply:
        known = await self._graph.glance()
        if topic not in self._making and not _naming(topic, known):
            self._begin(taken)
            return await self._graph.ask(topic, deletion, taken.request.deadline_ns)
        async with self._graph.turn:
            known = await self._graph.known()
            self._begin(taken)
            named = _naming(topic, known)
            with self._graph.changing():
                reply = await self._delete_named(topic, named, deletion, taken.request.deadline_ns)
            for name in named:
                known.pop(name)
            answer = msgspec.json.decode(reply.body)
            answer["routers_removed"] = sorted(name for name in named if taken.key.covers(name))
            reply.body = msgspec.json.encode(answer)
            return reply

    async def _delete_named(
        self, topic: str, named: dict[str, RouterConfig], deletion: DeleteTopic, deadline_ns: int
    ) -> Reply:
        """Delete a topic, and the routers from it. Those to it end with it."""
        sinks = {name: config.dest for name, config in named.items() if config.source == topic}
        indexes = sorted({self._graph.index_of(dest) for dest in sinks.values()})
        try:
            for outcome in await self._graph.ask_each(indexes, RouterHold(topic), deadline_ns):
                if isinstance(outcome, TopicsError):
                    raise outcome
            reply = await self._graph.ask(topic, deletion, deadline_ns)
        except Exception:
            # A release that fails does no harm: its shard is down, and the hold has ended with it.
            await self._graph.ask_each(indexes, RouterHold(topic, release=True))
            raise
        for name, dest in sinks.items():
            await self._remove(name, dest)
        return reply


def _naming(topic: str, known: dict[str, Known]) -> dict[str, RouterConfig]:
    """The routers that name a topic."""
    return {name: each.config for name, each in known.items() if topic in (each.config.source, each.config.dest)}


def _check_names(key: Key, config: RouterConfig) -> None:
    check_name(key, config.source)
    check_name(key, config.dest)


def _too_many_bytes(whose: str, most: int) -> TopicsError:
    what = f"changes of routers and deletions of topics{whose}"
    return _too_many("registrar_bytes", most, f"{what} that wait for their turn have {most} bytes; retry shortly")


def _too_many(limit: str, most: int, message: str) -> TopicsError:
    return TopicsError(ErrorCode.THROTTLED, message, {"limit": limit, "max": most}, retry_after_ms=RETRY_AFTER_MS)
