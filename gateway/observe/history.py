"""History: rates and latencies of the last hour, a sample every ten seconds, in the memory of the gateway. Of several
gateways, each keeps one of the whole service, since its own start.

A sample is what counters have changed by since the one before. They are counted anyway, so a request pays nothing; a
shard answers with a few numbers, however much it stores. A sample takes 180 bytes, the whole ring 64 KiB at most. It
ends with the process and has no names in it: every key that may see metrics may see all of it.

A shard that does not answer adds nothing to a sample; what it counted meanwhile is in the next that it answers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from math import nan
from time import monotonic

import trio

from gateway.contract.operations import OPERATIONS
from gateway.shards.client import Shards
from proto.api.answers import History
from proto.ipc.message import Reply
from proto.ipc.operations import Sample, Sampled
from proto.model.keys import Scope
from proto.process.faults import faults

EVERY_S = 10.0
MOST = 360
PATIENCE_S = 5.0
"""Longest wait for the shards."""
_RATES = ("reads", "writes", "errors", "records", "copies", "bytes")
_ROW = ("at", *_RATES, "waiting", "answer_us", "sync_median_us", "sync_p99_us")
_READS = frozenset(each.name for each in OPERATIONS if each.scope == Scope.READ and not each.always)
_WRITES = frozenset(each.name for each in OPERATIONS if each.scope is not None and not each.always) - _READS
"""Probes, metrics and documents count as neither."""
Served = Mapping[tuple[str, int], int]
"""Answers by operation and status."""


class Recorder:
    """The recorder: `run` takes the samples, `answer` shows them. `served` counts answers by operation and status,
    `others` returns those of other gateways."""

    def __init__(
        self,
        shards: Shards,
        served: Served,
        others: Callable[[], Awaitable[Served]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._shards = shards
        self._served = served
        self._others = others
        self._clock = clock
        self._rows: deque[array[float]] = deque(maxlen=MOST)
        self._since = self._at = clock()
        self._requests = (0, 0, 0)
        self._seen: dict[int, tuple[int, Sampled]] = {}
        """For each shard its last answer, and in which of its lives."""

    async def run(self) -> None:
        self._requests = _requests(await self._others())
        while True:
            await trio.sleep(max(self._at + EVERY_S - self._clock(), 0))
            try:
                await self.sample()
            except Exception:
                faults.failed("history")
                self._at = self._clock()

    async def sample(self) -> None:
        """Ask the shards, and add a sample of what changed since the one before."""
        replies: dict[int, Reply[Sampled]] = {}
        begun = self._clock()
        with trio.move_on_after(PATIENCE_S):
            await self._shards.ask_serving(Sample(), replies, here=True)
        now = self._clock()
        requests = _requests(self._served, await self._others())
        changed = [after - before for after, before in zip(requests, self._requests, strict=True)]
        shards, syncs, waiting = self._changes(replies)
        seconds = max(now - self._at, 0.001)
        rates = [number / seconds for number in (*changed, *shards)]
        latency = (now - begun) * 1e6 if replies else nan
        self._rows.append(array("d", (now, *rates, waiting, latency, *syncs)))
        self._at, self._requests = now, requests

    def _changes(self, replies: Mapping[int, Reply[Sampled]]) -> tuple[list[float], tuple[float, float], float]:
        """Return by how much records, copies and bytes of the log grew, the quantiles of syncs, and what waits. A shard
        that is heard of for the first time, or was started again, has grown by nothing yet."""
        grown, waiting = [0.0, 0.0, 0.0], 0.0
        bounds: Sequence[float] = ()
        counts: list[int] = []
        for index, reply in replies.items():
            if reply.extra is None:
                continue
            figures, incarnation = reply.extra, self._shards.states[index].incarnation
            life, before = self._seen.get(index, (None, figures))
            self._seen[index] = incarnation, figures
            waiting += figures.waiting
            if life != incarnation:
                continue
            for at, (now, then) in enumerate(zip(_counters(figures), _counters(before), strict=True)):
                grown[at] += max(now - then, 0)
            bounds = figures.bounds
            synced = [now - then for now, then in zip(figures.syncs, before.syncs, strict=True)]
            counts = [one + other for one, other in zip(counts or [0] * len(synced), synced, strict=True)]
        return grown, (quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)), waiting

    def answer(self) -> History:
        now = self._clock()
        columns = list(zip(*self._rows, strict=True)) or [()] * len(_ROW)
        ages = [round((now - at) * 1000) for at in columns[0]]
        named = {name: [round(value, 2) for value in each] for name, each in zip(_ROW[1:], columns[1:], strict=True)}
        return History(every_ms=round(EVERY_S * 1000), since_ms=round((now - self._since) * 1000), ago_ms=ages, **named)


def _counters(sampled: Sampled) -> tuple[int, int, int]:
    return sampled.records, sampled.copies, sampled.bytes


def _requests(*served: Served) -> tuple[int, int, int]:
    """How many requests were answered: reads, others, and errors among both."""
    rows = [row for each in served for row in each.items()]
    reads = sum(number for (name, _), number in rows if name in _READS)
    writes = sum(number for (name, _), number in rows if name in _WRITES)
    errors = sum(number for (name, status), number in rows if status >= 400 and (name in _READS or name in _WRITES))
    return reads, writes, errors


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the quantile of a histogram, linear between its bounds; NaN without a value. `counts` has one more than
    `bounds`: what is above all of them, for which the last bound stands."""
    whole = sum(counts)
    if whole <= 0:
        return nan
    low, under = 0.0, 0
    for bound, upto in zip(bounds, accumulate(counts), strict=False):
        if upto >= share * whole:
            return low + (bound - low) * (share * whole - under) / max(upto - under, 1)
        low, under = bound, upto
    return low
