"""The shard's process: what goes on while it does something long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import trio

from shardd.process.main import _recover


class Link:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await trio.lowlevel.checkpoint()


async def test_the_event_loop_goes_on_while_a_held_shard_is_recovered() -> None:
    turned = threading.Event()

    def opening() -> Iterator[tuple[int, int]]:
        assert turned.wait(5), "the loop is blocked"
        yield 1, 2
        return "the shard"

    async def turn() -> None:
        turned.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        found, total = await _recover(opening(), Link(), aside=True)  # type: ignore[arg-type]
    assert (found, total) == ("the shard", 2)
