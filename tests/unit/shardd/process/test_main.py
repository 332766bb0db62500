"""The shard's process: what goes on while it does something long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import trio

from shardd.process.main import _recover, _stand_by
from shardd.replication.attach import Term


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


class Role:
    """A role whose holder is found while the first report is sent."""

    def __init__(self) -> None:
        self.held = trio.Event()
        self.holder: Term | None = None
        self.damage = ""
        self.changed: Any = lambda: None


async def test_a_holder_that_is_found_while_a_report_is_sent_is_reported_next() -> None:
    role = Role()
    term = Term(3, "nonce", "machine", 0, "http://b", endpoint="tcp://b:1", key="key")

    class Slow(Link):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if len(self.sent) == 1:
                role.holder = term
                role.changed()
            elif len(self.sent) == 2:
                scope.cancel()

    link = Slow()
    copy = SimpleNamespace(role=role)
    with trio.move_on_after(5) as scope:
        await _stand_by(copy, link)  # type: ignore[arg-type]
    assert [(each.holder, each.holder_at, each.holder_key) for each in link.sent] == [
        ("", "", ""),
        (term.shown, "tcp://b:1", "key"),
    ]
