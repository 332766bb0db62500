"""Turns: items that wait to be served, fair by key. Keys take turns; of one key, the oldest item is first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Turns(Generic[T]):
    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, dict[T, None]] = OrderedDict()
        self._some = trio.Event()

    def add(self, key: bytes, what: T) -> None:
        """Let something of a key wait, if it does not wait already."""
        self._waiting.setdefault(key, {})[what] = None
        self._some.set()

    def remove(self, key: bytes, what: T) -> None:
        """Remove something of a key. Does nothing if it does not wait."""
        of_key = self._waiting.get(key)
        if of_key is not None:
            of_key.pop(what, None)
            if not of_key:
                del self._waiting[key]

    def take(self) -> T | None:
        """Remove the next item and return it. Returns None if nothing waits."""
        if not self._waiting:
            return None
        key, of_key = self._waiting.popitem(last=False)
        what = next(iter(of_key))
        del of_key[what]
        if of_key:
            self._waiting[key] = of_key
        return what

    async def some(self) -> None:
        """Wait until something waits."""
        while not self._waiting:
            self._some = trio.Event()
            await self._some.wait()
