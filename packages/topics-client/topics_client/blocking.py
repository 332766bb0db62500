"""`Client`: the operations of `AsyncClient` for blocking code, through an event loop in a thread of its own."""

from __future__ import annotations

import functools
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import anyio.from_thread
import httpx

from topics_client.client import AsyncClient, OnlyRecords
from topics_client.items import Gap, Record, RecordFields, TopicDeleted
from topics_client.publishing import Publisher
from topics_client.reading import Gaps, Reading, ReadOptions
from topics_client.tailing import Item, Tail, TailOptions, Topics
from topics_client.working import Handler, Work

P = ParamSpec("P")
T = TypeVar("T")
I_co = TypeVar("I_co", covariant=True)
Portal = anyio.from_thread.BlockingPortal


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The blocking form of a method, with its parameters and its answer."""

    def call(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        answer: T = self.portal.call(functools.partial(method, self.client, *args, **options))
        return answer

    functools.update_wrapper(call, method)
    return call


class _Items(Generic[I_co]):
    """The blocking form of an iterator."""

    def __init__(self, portal: Portal, items: AsyncIterator[I_co]) -> None:
        self._portal = portal
        self._items = items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> I_co:
        found = self._portal.call(self._next)
        if not found:
            raise StopIteration
        return found[0]

    async def _next(self) -> list[I_co]:
        try:
            return [await anext(self._items)]
        except StopAsyncIteration:
            return []


class BlockingReading(_Items[I_co]):
    """As `Reading`."""

    _items: Reading[Any]

    @property
    def seq(self) -> int:
        return self._items.seq

    @property
    def head_seq(self) -> int:
        return self._items.head_seq


class BlockingTail(_Items[I_co]):
    """As `Tail`."""

    _items: Tail[Any]

    @property
    def seq(self) -> int:
        return self._items.seq

    @property
    def positions(self) -> dict[str, int]:
        return self._items.positions

    def commit(self) -> None:
        self._portal.call(self._items.commit)

    def __enter__(self) -> Self:
        self._portal.call(self._items.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._items.aclose)


class BlockingPublisher:
    """As `Publisher`."""

    def __init__(self, portal: Portal, publisher: Publisher) -> None:
        self._portal = portal
        self._publisher = publisher
        self._context = portal.wrap_async_context_manager(publisher)  # in one task, as its timer needs

    def send(self, data: Any, **fields: Unpack[RecordFields]) -> None:
        self._portal.call(functools.partial(self._publisher.send, data, **fields))

    def flush(self) -> None:
        self._portal.call(self._publisher.flush)

    @property
    def published(self) -> int:
        return self._publisher.published

    def __enter__(self) -> Self:
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def _publisher(
    method: Callable[Concatenate[AsyncClient, P], Publisher],
) -> Callable[Concatenate[Client, P], BlockingPublisher]:
    def call(self: Client, /, *args: P.args, **options: P.kwargs) -> BlockingPublisher:
        return BlockingPublisher(self.portal, method(self.client, *args, **options))

    return functools.update_wrapper(call, method)


class Client:
    """A client for blocking code. Use it as a context manager; threads may share it. Parameters as of `AsyncClient`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:4000",
        key: str | None = None,
        *,
        patience_s: float = 60.0,
        loads: Callable[[bytes | str], Any] = json.loads,
        transport: httpx.AsyncBaseTransport | None = None,
        backend: str = "asyncio",
    ) -> None:
        with ExitStack() as parts:
            self.portal = parts.enter_context(anyio.from_thread.start_blocking_portal(backend))
            self.client = AsyncClient(url, key, patience_s=patience_s, loads=loads, transport=transport)
            parts.callback(self.portal.call, self.client.aclose)
            self._parts = parts.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._parts.__exit__(*error)

    def close(self) -> None:
        self._parts.close()

    publish = _blocking(AsyncClient.publish)
    publisher = _publisher(AsyncClient.publisher)
    delete_records = _blocking(AsyncClient.delete_records)
    configure = _blocking(AsyncClient.configure)
    state = _blocking(AsyncClient.state)
    topics = _blocking(AsyncClient.topics)
    delete_topic = _blocking(AsyncClient.delete_topic)
    cursor = _blocking(AsyncClient.cursor)
    set_cursor = _blocking(AsyncClient.set_cursor)
    cursors = _blocking(AsyncClient.cursors)
    delete_cursor = _blocking(AsyncClient.delete_cursor)
    set_router = _blocking(AsyncClient.set_router)
    router = _blocking(AsyncClient.router)
    routers = _blocking(AsyncClient.routers)
    delete_router = _blocking(AsyncClient.delete_router)
    claim = _blocking(AsyncClient.claim)
    ack = _blocking(AsyncClient.ack)
    nack = _blocking(AsyncClient.nack)
    extend = _blocking(AsyncClient.extend)
    peek = _blocking(AsyncClient.peek)
    redrive = _blocking(AsyncClient.redrive)

    @overload
    def read(
        self, topic: str, *, gaps: OnlyRecords = "raise", **options: Unpack[ReadOptions]
    ) -> BlockingReading[Record]: ...
    @overload
    def read(self, topic: str, *, gaps: Gaps, **options: Unpack[ReadOptions]) -> BlockingReading[Record | Gap]: ...
    def read(self, topic: str, *, gaps: Gaps = "raise", **options: Unpack[ReadOptions]) -> BlockingReading[Any]:
        return BlockingReading(self.portal, self.client.read(topic, gaps=gaps, **options))

    @overload
    def tail(
        self, topics: Topics = (), *, gaps: OnlyRecords = "raise", **options: Unpack[TailOptions]
    ) -> BlockingTail[Record | TopicDeleted]: ...
    @overload
    def tail(self, topics: Topics = (), *, gaps: Gaps, **options: Unpack[TailOptions]) -> BlockingTail[Item]: ...
    def tail(self, topics: Topics = (), *, gaps: Gaps = "raise", **options: Unpack[TailOptions]) -> BlockingTail[Any]:
        return BlockingTail(self.portal, self.client.tail(topics, gaps=gaps, **options))

    def work(
        self,
        queue: str | Work,
        handler: Handler | None = None,
        *,
        stop: threading.Event | None = None,
        **options: Any,
    ) -> None:
        """Work on a queue until `stop` is set or, in the main thread, SIGTERM or SIGINT. Handlers run in threads."""
        worker = self.portal.call(functools.partial(self.client.worker, queue, handler, **options))
        worker.signals = ()  # the event loop is not in the main thread
        ended = threading.Event()
        awaited = stop or threading.Event()
        with ExitStack() as parts:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    parts.callback(signal.signal, number, signal.signal(number, lambda *_: awaited.set()))
            running = self.portal.start_task_soon(worker.run)
            running.add_done_callback(lambda _: ended.set())
            while not ended.wait(0 if awaited.is_set() else 0.1):
                if awaited.is_set():
                    self.portal.call(worker.stop)
                    break
            running.result()
