"""`Client`: the operations of `AsyncClient` for blocking code, through an event loop in a thread of its own."""

from __future__ import annotations

import functools
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio.from_thread
import httpx

from topics_client.client import AsyncClient
from topics_client.publishing import Publisher
from topics_client.reading import Reading
from topics_client.tailing import Item, Tail
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


class BlockingReading(_Items[Any]):
    """As `Reading`."""

    def __init__(self, portal: Portal, reading: Reading) -> None:
        super().__init__(portal, reading)
        self._reading = reading

    @property
    def seq(self) -> int:
        return self._reading.seq

    @property
    def head_seq(self) -> int:
        return self._reading.head_seq


class BlockingTail(_Items[Item]):
    """As `Tail`."""

    def __init__(self, portal: Portal, tail: Tail) -> None:
        super().__init__(portal, tail)
        self._tail = tail

    @property
    def seq(self) -> int:
        return self._tail.seq

    @property
    def positions(self) -> dict[str, int]:
        return self._tail.positions

    def commit(self) -> None:
        self._portal.call(self._tail.commit)

    def __enter__(self) -> Self:
        self._portal.call(self._tail.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._tail.aclose)


class BlockingPublisher:
    """As `Publisher`."""

    def __init__(self, portal: Portal, publisher: Publisher) -> None:
        self._portal = portal
        self._publisher = publisher

    def send(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int | None = None,
    ) -> None:
        add = functools.partial(self._publisher.send, data, tag=tag, node=node, meta=meta, delay_ms=delay_ms)
        self._portal.call(add)

    def flush(self) -> None:
        self._portal.call(self._publisher.flush)

    @property
    def published(self) -> int:
        return self._publisher.published

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._publisher.__aexit__, kind, error, trace)


def _wrapped(
    method: Callable[Concatenate[AsyncClient, P], T], kind: Callable[[Portal, T], I_co]
) -> Callable[Concatenate[Client, P], I_co]:
    """The blocking form of a method that makes an iterator or a publisher."""

    def call(self: Client, /, *args: P.args, **options: P.kwargs) -> I_co:
        return kind(self.portal, method(self.client, *args, **options))

    functools.update_wrapper(call, method)
    return call


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.__exit__(kind, error, trace)

    def close(self) -> None:
        self._parts.close()

    publish = _blocking(AsyncClient.publish)
    publisher = _wrapped(AsyncClient.publisher, BlockingPublisher)
    read = _wrapped(AsyncClient.read, BlockingReading)
    tail = _wrapped(AsyncClient.tail, BlockingTail)
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

    def work(
        self,
        queue: str | Work,
        handler: Handler | None = None,
        *,
        stop: threading.Event | None = None,
        **options: Any,
    ) -> None:
        """Work on a queue until SIGTERM, SIGINT or `stop` is set. Handlers run in threads.

        Signals are heeded if this is called in the main thread.
        """
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
