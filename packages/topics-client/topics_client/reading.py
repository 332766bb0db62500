"""Reading a topic from a position to its head, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Self

from topics_client.connection import Connection, segment
from topics_client.errors import GapError
from topics_client.items import Gap, Record

Gaps = Literal["raise", "yield"]


class Reading:
    """An iterator of the records behind a position, to the head; with `wait_ms` until nothing came for that long.

    `seq` is the position: the seq of the last item that the iterator gave. `head_seq` is that of the last page.
    """

    def __init__(
        self, connection: Connection, topic: str, *, from_seq: int | None, gaps: Gaps, options: Mapping[str, Any]
    ) -> None:
        self.topic = topic
        self.seq = from_seq or 0
        self.head_seq = 0
        self._connection = connection
        self._next: dict[str, Any] = {"cursor": options["cursor"]} if from_seq is None else {"from_seq": from_seq}
        self._options = {name: value for name, value in options.items() if name != "cursor"}
        self._gaps = gaps
        self._page: deque[Record | Gap] = deque()
        self._after_page = self.seq
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record | Gap:
        while not self._page:
            self.seq = self._after_page
            if self._ended:
                self._ended = False  # the next iteration reads what came since
                raise StopAsyncIteration
            await self._turn()
        item = self._page.popleft()
        self.seq = item.seq
        if isinstance(item, Gap) and self._gaps == "raise":
            raise GapError(item)
        return item

    async def _turn(self) -> None:
        """Read the next page."""
        path = f"/v0/topics/{segment(self.topic)}/diff"
        told = await self._connection.call("POST", path, self._options | self._next)
        if told["tombstone"]:
            self._page.append(Gap.of(self.topic, told["tombstone"]))
        self._page.extend(Record.of(self.topic, each) for each in told["records"])
        self._next = {"from_seq": told["next_from_seq"]}
        self._after_page, self.head_seq = told["next_from_seq"], told["head_seq"]
        self._ended = told["caught_up"] and not (self._options.get("wait_ms") and self._page)

    async def aclose(self) -> None:
        """Nothing is held between pages."""
