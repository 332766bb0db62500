"""Slots: how many requests in flight or event streams may be open at once, in all and per key.

Where there are several keys, one of them gets at most half of what there is for all: see `fair`.

A slot is taken where the request begins and released in the `finally` of the server that ends the response. So every
end of a response returns the slot.

`SharedSlots` hold over all gateways of a machine: each puts its counts into a page (`proto.ipc.gateway_page`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from proto.ipc.gateway_page import Column, Row, column_of
from proto.model.errors import TopicsError, cap_reached
from proto.model.keys import Key


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit: `limit` is its name in errors, `most` its number. 0 means no limit."""

    limit: str
    most: int


@dataclass(slots=True, eq=False)
class Slot:
    _slots: Slots | None
    _digest: bytes

    def release(self) -> None:
        """Return the slot. A second call does nothing."""
        if self._slots is not None:
            self._slots._give_back(self._digest)
            self._slots = None


def fair(total: int, per_key: int, several: bool) -> int:
    """The most that one key may hold of a cap of `total`, with a limit of `per_key`; 0 means no limit. With `several`
    keys, that is at most half of the cap, so that none takes the last one from the others."""
    shares = [each for each in (per_key, max(total // 2, 1) if total and several else 0) if each]
    return min(shares, default=0)


class Slots:
    """The open slots. `total` bounds all, `per_key` those of each key. Without keys, only `total` applies. `several`
    tells whether there is more than one key."""

    def __init__(self, total: Bound | None, per_key: Bound, several: Callable[[], bool] = lambda: False) -> None:
        self._several = several
        self.open = 0
        self._total = total
        self._per_key = per_key
        self._by_key: Counter[bytes] = Counter()

    def take(self, key: Key) -> Slot:
        """Take a slot for `key`. Raises `429 throttled` with `limit` and `max` in its detail."""
        digest = key.digest
        if self._total is not None:
            _check(self._total, self.open)
        if digest:
            _check(self._bound_of_key(), self._by_key[digest])
            self._by_key[digest] += 1
        self.open += 1
        return Slot(self, digest)

    def _bound_of_key(self) -> Bound:
        total = 0 if self._total is None else self._total.most
        return Bound(self._per_key.limit, fair(total, self._per_key.most, self._several()))

    def _give_back(self, digest: bytes) -> None:
        self.open -= 1
        if digest:
            self._by_key[digest] -= 1
            if not self._by_key[digest]:
                del self._by_key[digest]


class SharedSlots(Slots):
    """Slots whose bounds hold over all gateways. `total_in` is the column of `total`, `keys_in` that of the first key;
    None if that bound is not used."""

    def __init__(
        self,
        total: Bound | None,
        per_key: Bound,
        several: Callable[[], bool],
        row: Row,
        total_in: Column | None,
        keys_in: Column | None,
    ) -> None:
        super().__init__(total, per_key, several)
        self._row = row
        self._total_in = total_in
        self._keys_in = keys_in

    def take(self, key: Key) -> Slot:
        slot = super().take(key)
        self._put(key.digest)
        try:
            if self._total is not None and self._total_in is not None:
                _check(self._total, self._row.sum(self._total_in) - 1)
            if key.digest and self._keys_in is not None:
                self._check_key(key.digest, self._keys_in)
        except TopicsError:
            slot.release()
            raise
        return slot

    def _check_key(self, digest: bytes, first: Column) -> None:
        bound, place = self._bound_of_key(), self._row.place(digest)
        if place >= 0:
            _check(bound, self._row.sum(column_of(first, place)) - 1)
        elif self._by_key[digest] > -(-bound.most // self._row.rows) > 0:
            raise _refused(bound)

    def _give_back(self, digest: bytes) -> None:
        super()._give_back(digest)
        self._put(digest)

    def _put(self, digest: bytes) -> None:
        """Put this gateway's counts into the page."""
        if self._total_in is not None:
            self._row.put(self._total_in, self.open)
        if digest and self._keys_in is not None and (place := self._row.place(digest)) >= 0:
            self._row.put(column_of(self._keys_in, place), self._by_key[digest])


def _check(bound: Bound, taken: int) -> None:
    if bound.most and taken >= bound.most:
        raise _refused(bound)


def _refused(bound: Bound) -> TopicsError:
    return cap_reached(bound.limit, bound.most, "wait until one has ended")
