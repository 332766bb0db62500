"""`Client`: the operations of `AsyncClient` for blocking code, through an event loop in a thread of its own.

the first call            starts the thread
`close`, or a `with`      ends it; a call that waits in another thread raises `RuntimeError`
the client is collected   ends it, when any client makes its next call
the interpreter exits     does not wait for it: the thread is a daemon
"""

from __future__ import annotations

import functools
import signal
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import anyio
from anyio.from_thread import BlockingPortal

from topics_client.client import AsyncClient, OnlyRecords
from topics_client.connection import ConnectionOptions
from topics_client.items import Gap, Record, RecordFields, TopicDeleted
from topics_client.options import check
from topics_client.publishing import Publisher
from topics_client.reading import Gaps, Reading, ReadOptions
from topics_client.tailing import Item, Tail, TailOptions, Topics
from topics_client.working import Handler, Work

P = ParamSpec("P")
T = TypeVar("T")
I_co = TypeVar("I_co", covariant=True)

CLOSED = "this client is closed, or was used before a fork: make another one"
_dropped: deque[Callable[[], Any]] = deque()
"""Closes what was collected. A finalizer only adds to it: it runs anywhere, so it must not wait for a thread."""


class _Loop(threading.Thread):
    """The event loop of a client. It does not refer to the client, so that this can be collected."""

    def __init__(self, client: AsyncClient, backend: str) -> None:
        super().__init__(name="topics-client", daemon=True)
        self._client, self._backend = client, backend
        self._lock = threading.Lock()
        self._portal: Future[BlockingPortal] = Future()

    def run(self) -> None:
        try:
            anyio.run(self._serve, backend=self._backend)
        except BaseException as error:
            self._portal.set_exception(error)  # there is no such backend

    async def _serve(self) -> None:
        async with self._client, BlockingPortal() as portal:
            self._portal.set_result(portal)
            await portal.sleep_until_stopped()

    @property
    def portal(self) -> BlockingPortal:
        with self._lock:
            if not (self.ident or self._portal.done()):
                self.start()
        portal = self._portal.result()
        if not self.is_alive():
            raise RuntimeError(CLOSED)
        return portal

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        with suppress(IndexError):
            while True:
                _dropped.popleft()()
        future = self.portal.start_task_soon(functools.partial(function, *args, **options))
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        finally:
            future.cancel()  # an interrupt ends the call, too

    def soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Begin a call, unless the loop has ended."""
        with suppress(RuntimeError):
            self.portal.start_task_soon(function, *args)

    def close(self) -> None:
        with self._lock:
            if not (self.ident or self._portal.done()):
                self._portal.set_exception(RuntimeError(CLOSED))
        if not self._portal.exception():
            self.soon(self._portal.result().stop, True)
            self.join()


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The blocking form of a method, with its parameters and its answer."""

    def call(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return self._loop.call(method, self.client, *args, **options)

    return functools.update_wrapper(call, method)


class _Items(Iterator[I_co], Generic[I_co]):
    """The blocking form of an iterator. It is closed when it is collected, and keeps its client from that."""

    def __init__(self, client: Client, items: Any) -> None:
        self._client = client
        self._items = items
        self._lock = threading.Lock()
        weakref.finalize(self, _dropped.append, functools.partial(client._loop.soon, items.aclose))

    def __next__(self) -> I_co:
        with self._lock:  # threads may share an iterator
            # Items that arrived together are returned without a turn of the loop for each.
            if not (self._items.waiting or self._client._loop.call(self._items.fill)):
                raise StopIteration
            found: I_co = self._items.take()
            return found


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
        self._client._loop.call(self._items.commit)

    def __enter__(self) -> Self:
        self._client._loop.call(self._items.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._client._loop.call(self._items.__aexit__, *error)


class BlockingPublisher:
    """As `Publisher`."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher
        self._context = client._loop.portal.wrap_async_context_manager(publisher)  # in one task, as its timer needs

    def send(self, data: Any, **fields: Unpack[RecordFields]) -> None:
        loop = self._client._loop
        if not loop.is_alive():
            raise RuntimeError(CLOSED)
        if self._publisher.add(data, fields):
            loop.call(self._publisher.go_on)

    def flush(self) -> None:
        self._client._loop.call(self._publisher.flush)

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
        return BlockingPublisher(self, method(self.client, *args, **options))

    return functools.update_wrapper(call, method)


class Client:
    """A client for blocking code; threads may share it. Parameters as of `AsyncClient`.

    `close`, or its end as a context manager, frees its thread and its connections; a program that exits needs neither.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        backend: str = "asyncio",
        **options: Unpack[ConnectionOptions],
    ) -> None:
        check("Client", options, ConnectionOptions, "url", "token", "backend")
        self.client = AsyncClient(url, token, **options)
        self._loop = _Loop(self.client, backend)
        weakref.finalize(self, _dropped.append, self._loop.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.close()

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
        return BlockingReading(self, self.client.read(topic, gaps=gaps, **options))

    @overload
    def tail(
        self, topics: Topics = (), *, gaps: OnlyRecords = "raise", **options: Unpack[TailOptions]
    ) -> BlockingTail[Record | TopicDeleted]: ...
    @overload
    def tail(self, topics: Topics = (), *, gaps: Gaps, **options: Unpack[TailOptions]) -> BlockingTail[Item]: ...
    def tail(self, topics: Topics = (), *, gaps: Gaps = "raise", **options: Unpack[TailOptions]) -> BlockingTail[Any]:
        return BlockingTail(self, self.client.tail(topics, gaps=gaps, **options))

    def work(
        self, queue: str | Work, handler: Handler | None = None, *, stop: threading.Event | None = None, **options: Any
    ) -> None:
        """Work on a queue until `stop` is set or, in the main thread, SIGTERM or SIGINT. Handlers run in threads."""
        portal = self._loop.portal
        worker = portal.call(functools.partial(self.client.worker, queue, handler, **options))
        worker.signals = ()  # the event loop is not in the main thread
        ended = threading.Event()
        awaited = stop or threading.Event()
        with ExitStack() as parts:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    parts.callback(signal.signal, number, signal.signal(number, lambda *_: awaited.set()))
            running = portal.start_task_soon(worker.run)
            running.add_done_callback(lambda _: ended.set())
            while not ended.wait(0 if awaited.is_set() else 0.1):
                if awaited.is_set():
                    self._loop.soon(worker.stop)
                    break
            with suppress(CancelledError):  # a `close` is a stop
                running.result()
