"""Cohorts: the claims that wait together for jobs of one queue, and the share that each gets."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TypeVar

from msgspec import Struct

from proto.model.errors import TopicsError
from shardd.changes.transactions import Respond, refuse
from shardd.queues.finishing import Finished
from shardd.topic.job_table import Queue
from shardd.topic.topic import Topic

F = TypeVar("F")
Key = tuple[Hashable, int]
"""An asker, and the id of its request."""
STREAM_WAIT_S = 15.0
"""A stream that has waited this long for jobs gets an empty answer, and asks again."""


class Claimer(Struct, eq=False):
    """One claim. `stream` names its stream, empty for a poller. A `patient` claimer waits instead of getting none.
    `finished` is what it has finished first, if anything. It is `refused` once at most."""

    node: str
    max: int
    lease_ms: int | None
    patience_s: float
    stream: str
    key: Key
    respond: Respond
    deadline: float = inf
    finished: Finished | None = None
    refused: bool = False

    @property
    def patient(self) -> bool:
        return self.patience_s > 0

    @property
    def unsettled(self) -> bool:
        """Whether something that it has finished is not committed yet."""
        return self.finished is not None and not self.finished.settled

    def refuse(self, error: TopicsError) -> None:
        if not self.refused:
            self.refused = True
            refuse(self.key[1], self.respond, error)

    def wants(self, queue: Queue) -> int:
        return max(self.max - queue.streams.get(self.stream, 0), 0) if self.stream else self.max


class Cohort:
    """The claimers that wait for one queue. `due` is when its window closes, None while none is open. `told` has the
    `due` and the queue's `next_wake` that the loop heard of last."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.due: float | None = None
        self.told: tuple[float | None, int | None] | None = None
        self.claimers: dict[Key, Claimer] = {}


def shares(wants: list[int], available: int) -> list[int]:
    """How many of the `available` jobs each claimer gets: in proportion to its want, the remainder one by one."""
    total = sum(wants)
    if available >= total:
        return list(wants)
    given = [want * available // total for want in wants]
    rest = available - sum(given)
    while rest:
        for place, want in enumerate(wants):
            if rest and given[place] < want:
                given[place] += 1
                rest -= 1
    return given


def dealt(found: list[F], wants: list[int]) -> list[list[F]]:
    """The jobs of each claimer: its share, dealt in turn in the order of arrival."""
    if len(wants) == 1:
        return [found]
    parts: list[list[F]] = [[] for _ in wants]
    left = shares(wants, len(found))
    place = 0
    for each in found:
        while not left[place]:
            place = (place + 1) % len(wants)
        left[place] -= 1
        parts[place].append(each)
        place = (place + 1) % len(wants)
    return parts
