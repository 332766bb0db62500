"""Scheduler: the order in which topics get delivery work done, that is readers, watches and routers.

A deliverer attaches once to each topic, and is called when the topic's turn has come:

    scheduler.attach(topic, deliver)                     call `deliver` when the topic is ready and has its turn
    scheduler.attach(topic, deliver, background=True)    the same for work that waits under pressure, such as routers'
    scheduler.ready(topic)                               the topic has something to deliver: called once per commit
    scheduler.detach(topic, deliver)                     ends one `attach`

However often a topic becomes ready, it is in the ready set at most once, and once more for its background work. A topic
without deliverers is never in the set: `ready` then costs two look-ups.

    idle ──ready──► gathering ──window over──► queued ──turn──► delivered, idle again
                        │                       │ ▲
                        │                 turn, │ │ pressure fell
                        └─(no pressure:         ▼ │
                           at once)            held

The ready set is one queue per band of priority. Bands are served by deficit round-robin: each turn adds the band's
weight to its credit, and serving a topic costs the number of answers rendered. A waiting topic gains priority and moves
up to the end of a better band. It never moves down.

Deliveries are made in slices of time, so that a long ready set does not delay requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Sized

from msgspec import Struct

from proto.process.faults import faults
from shardd.clock import Clock
from shardd.delivery.pressure import Pressure
from shardd.delivery.priority import WEIGHTS, age_boost, band, effective_priority
from shardd.storage.indivisible import indivisible
from shardd.topic.topic import Topic

SLICE = 0.002
"""Seconds of delivery work in one call of `deliver`."""
REBAND_INTERVAL = 0.25
"""Seconds between updates of the bands of waiting topics. A wait gains 25 points in it, a tenth of a band."""
MAX_DEBT = 8
"""The most turns that a band misses after an expensive topic."""

Deliver = Callable[[Topic, float], int]
"""A deliverer: takes the topic and since when it has been ready (monotonic seconds). Returns the cost: the number of
answers rendered or passed on, 0 for none."""


class Rounds:
    """Deficit round-robin over queues of different weights."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._credit = [0] * len(weights)
        self._at = 0
        self._credit[0] = weights[0]

    def choose(self, queues: Sequence[Sized]) -> int | None:
        """The index of the queue whose turn it is; None if all are empty."""
        if not any(queues):
            return None
        while not queues[self._at] or self._credit[self._at] <= 0:
            if not queues[self._at]:
                # An empty queue saves no credit; its debt stays.
                self._credit[self._at] = min(self._credit[self._at], 0)
            self._at = (self._at + 1) % len(self._weights)
            self._credit[self._at] += self._weights[self._at]
        return self._at

    def spend(self, queue: int, cost: int) -> None:
        self._credit[queue] = max(self._credit[queue] - cost, -MAX_DEBT * self._weights[queue])


class _Work(Struct, eq=False):
    """The delivery work of one topic. `place` is the queue it waits in, None while there is nothing to do."""

    topic: Topic
    background: bool
    deliveries: list[Deliver] = []
    place: _Queue | None = None
    since: float = 0.0
    """When the topic became ready, in monotonic seconds."""
    ready_at: float = 0.0
    """When it could first have been delivered: later than `since` if it gathered or was held."""

    def move(self, place: _Queue | None) -> None:
        if self.place is not None:
            del self.place[self]
        self.place = place
        if place is not None:
            place[self] = None


_Queue = OrderedDict[_Work, None]


class Scheduler:
    def __init__(self, clock: Clock, pressure: Pressure) -> None:
        self._clock = clock
        self.pressure = pressure
        self._works: tuple[dict[int, _Work], dict[int, _Work]] = {}, {}
        """By topic id: the foreground works, and the background works."""
        self._gathering: _Queue = OrderedDict()
        self._bands: tuple[_Queue, ...] = tuple(OrderedDict() for _ in WEIGHTS)
        self._held: _Queue = OrderedDict()
        self._rounds = Rounds(WEIGHTS)
        self._banded_at = 0.0
        self._delays = 0.0
        self._served = 0
        self.more: Callable[[], None] = lambda: None
        """Called when `deliver`, a read or a claim leaves work for later: look at `next_due` and deadlines again."""

    def __len__(self) -> int:
        """Number of works to do, wherever they wait."""
        return self.depth + len(self._gathering) + len(self._held)

    @property
    def depth(self) -> int:
        """Number of works that could be done now."""
        return sum(map(len, self._bands))

    @property
    def next_due(self) -> float | None:
        """When `deliver` next has work, in monotonic seconds, 0.0 for now; None if it has none or pressure holds it."""
        if any(self._bands) or (self._held and not self.pressure.holding):
            return 0.0
        if self._gathering:
            return next(iter(self._gathering)).since + self.pressure.coalesce_s
        return None

    def attach(self, topic: Topic, deliver: Deliver, *, background: bool = False) -> None:
        """Calls `deliver` whenever the topic is ready and its turn has come, until `detach`."""
        works = self._works[background]
        work = works.get(topic.id)
        if work is None:
            work = works[topic.id] = _Work(topic, background)
        work.deliveries.append(deliver)

    def detach(self, topic: Topic, deliver: Deliver, *, background: bool = False) -> None:
        """Ends one `attach`."""
        work = self._works[background][topic.id]
        work.deliveries.remove(deliver)
        if not work.deliveries:
            work.move(None)
            del self._works[background][topic.id]

    def ready(self, topic: Topic) -> None:
        """Queues the topic's work: there is something to deliver. Changes nothing if it waits for its turn already."""
        for works in self._works:
            work = works.get(topic.id)
            if work is not None and work.place is None:
                work.since = work.ready_at = self._clock.monotonic()
                work.move(self._gathering if self.pressure.coalesce_s else self._bands[self._band(work, 0.0)])

    def holds(self, topic: Topic) -> bool:
        """Whether the topic's deliveries must wait until pressure falls."""
        return self.pressure.holding and _is_low(topic)

    def held_topics(self) -> list[Topic]:
        """The topics whose foreground work is ready and must wait until pressure falls."""
        return [work.topic for work in self._held if not work.background]

    def waited(self, topic: Topic) -> float:
        """Seconds that the topic's work has been waiting; 0 if it has none."""
        waiting = [works[topic.id] for works in self._works if topic.id in works]
        now = self._clock.monotonic()
        return max((now - work.since for work in waiting if work.place is not None), default=0.0)

    def deliver(self) -> None:
        """Serves ready topics in order, for about a slice of time. Calls `more` if work is left."""
        if not any(self._bands) and not self._gathering and not self._held:
            return
        now = self._clock.monotonic()
        self._make_ready(now)
        end = now + SLICE
        while now < end and (chosen := self._rounds.choose(self._bands)) is not None:
            work = next(iter(self._bands[chosen]))
            if self.pressure.holding and (work.background or _is_low(work.topic)):
                work.move(self._held)
                continue
            work.move(None)
            self._delays += now - work.ready_at
            self._served += 1
            self._rounds.spend(chosen, max(self._serve(work), 1))
            now = self._clock.monotonic()
        if len(self):
            self.more()

    def _serve(self, work: _Work) -> int:
        """Calls the work's deliverers. Returns their cost. One that fails concerns no other."""
        cost = 0
        for deliver in (*work.deliveries,):
            try:
                cost += deliver(work.topic, work.since)
            except Exception:
                if indivisible.broken:
                    raise
                faults.failed("deliver")
        return cost

    def take_delay(self) -> float:
        """The delay since the last call, in seconds: the served works' mean wait, or the longest present wait at the
        front of a band, whichever is longer."""
        now = self._clock.monotonic()
        served = self._delays / self._served if self._served else 0.0
        self._delays, self._served = 0.0, 0
        return max([served, *(now - next(iter(queue)).ready_at for queue in self._bands if queue)])

    def _band(self, work: _Work, waited_s: float) -> int:
        topic = work.topic
        own = effective_priority(topic.config, topic.last_read_ts, self._clock.now_ms())
        return band(own + age_boost(waited_s))

    def _make_ready(self, now: float) -> None:
        if self._held and not self.pressure.holding:
            self._queue(list(self._held), now)
        if self._gathering:
            due = now - self.pressure.coalesce_s
            over = []
            for work in self._gathering:
                if work.since > due:
                    break
                over.append(work)
            self._queue(over, now)
        if now - self._banded_at >= REBAND_INTERVAL:
            self._banded_at = now
            self._move_up(now)

    def _queue(self, works: list[_Work], now: float) -> None:
        for work in works:
            work.ready_at = now
            work.move(self._bands[self._band(work, now - work.since)])

    def _move_up(self, now: float) -> None:
        for place in range(1, len(self._bands)):
            for work in list(self._bands[place]):
                better = self._band(work, now - work.since)
                if better < place:
                    work.move(self._bands[better])


def _is_low(topic: Topic) -> bool:
    priority = topic.config.priority
    return priority is not None and priority < 0
