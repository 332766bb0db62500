"""Reading a topic from a position to its head, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, TypedDict, TypeVar

from topics_client.connection import Connection, segment
from topics_client.errors import DecodeError, GapError
from topics_client.items import Gap, Record
from topics_client.payloads import Reader, decoder

Gaps = Literal["raise", "yield"]
I_co = TypeVar("I_co", bound=Record | Gap, covariant=True)


class ReadOptions(TypedDict, total=False):
    """Options of a read. `from_seq` 0 is the beginning; a `cursor` takes its place. `type` is that of the data."""

    from_seq: int | None
    cursor: str | None
    limit: int
    wait_ms: int
    node: str | Sequence[str] | None
    tags: bool
    meta: bool
    type: Any


def typed(record: Record, read: Reader) -> Any:
    """The record with its data as a value of a type. Raises `DecodeError`."""
    try:
        return replace(record, data=read(record.data))
    except Exception as error:
        raise DecodeError(record, error) from error


class Reading(AsyncIterator[I_co], Generic[I_co]):
    """An iterator of the records after a position, to the head; with `wait_ms` until nothing came for that long.

    `seq` is the position: the seq of the last item that the iterator gave. `head_seq` is that of the last page.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        gaps: Gaps,
        *,
        from_seq: int | None = 0,
        cursor: str | None = None,
        limit: int = 1000,
        wait_ms: int = 0,
        node: str | Sequence[str] | None = None,
        tags: bool = True,
        meta: bool = True,
        type: Any = None,
    ) -> None:
        self.topic = topic
        self.seq = 0 if cursor is not None else from_seq or 0
        self.head_seq = 0
        self._connection = connection
        self._next: dict[str, Any] = {"cursor": cursor} if cursor is not None else {"from_seq": self.seq}
        self._options = {"limit": limit, "node": node, "include_tags": tags, "include_meta": meta}
        self._wait_ms = self._left_ms = wait_ms
        self._gaps = gaps
        self._decode = decoder(connection.decode, type)
        self._page: deque[Any] = deque()
        self._after_page = self.seq
        self._ended = False

    async def __anext__(self) -> I_co:
        if not (self.waiting or await self.fill()):
            raise StopAsyncIteration
        return self.take()

    @property
    def waiting(self) -> int:
        """Number of items that `take` has."""
        return len(self._page)

    async def fill(self) -> bool:
        """Read pages until an item waits. Returns False at the end."""
        while not self._page:
            self.seq = self._after_page
            if self._ended:  # the next iteration reads later records
                self._ended, self._left_ms = False, self._wait_ms
                return False
            path, wait_ms = f"/v0/topics/{segment(self.topic)}/diff", min(self._left_ms, 30_000)  # the service's cap
            told = await self._connection.call("POST", path, self._options | self._next | {"wait_ms": wait_ms})
            if told["tombstone"]:
                self._page.append(Gap.of(self.topic, told["tombstone"]))
            self._page.extend(Record.of(self.topic, each) for each in told["records"])
            self._next = {"from_seq": told["next_from_seq"]}
            self._after_page, self.head_seq = told["next_from_seq"], told["head_seq"]
            quiet = told["caught_up"] and not self._page
            self._left_ms = self._left_ms - wait_ms if quiet else self._wait_ms
            self._ended = told["caught_up"] and self._left_ms <= 0
        return True

    def take(self) -> I_co:
        """The next item of those that wait. Raises `GapError`, `DecodeError`, `IndexError`."""
        item: I_co = self._page.popleft()
        self.seq = item.seq
        if isinstance(item, Record):
            return item if self._decode is None else typed(item, self._decode)
        if self._gaps == "raise":
            raise GapError(item)
        return item

    async def aclose(self) -> None:
        """Nothing is held between pages."""
