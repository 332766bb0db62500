"""Cohorts: the claims that wait together for jobs of one queue, and the share that each gets."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from proto.api.requests import ClaimRequest
from shardd.changes.transactions import Respond
from shardd.topic.job_table import Queue
from shardd.topic.topic import Topic

STREAM_WAIT_S = 15.0
"""A stream that has waited this long for jobs gets an empty answer, and asks again."""


class Claimer:
    """One claim. `stream` names its stream, empty for a poller. A `patient` claimer waits instead of getting none."""

    __slots__ = ("deadline", "ident", "key", "lease_ms", "max", "node", "patience_s", "respond", "stream")

    def __init__(self, asked: ClaimRequest, stream: str, key: Hashable, ident: int, respond: Respond) -> None:
        assert asked.max is not None
        self.node = asked.node
        self.max = asked.max
        self.lease_ms = asked.lease_ms
        self.stream = stream
        self.key = key
        self.ident = ident
        self.respond = respond
        self.patience_s = STREAM_WAIT_S if stream else (asked.wait_ms or 0) / 1000
        self.deadline = inf

    @property
    def patient(self) -> bool:
        return self.patience_s > 0

    def wants(self, queue: Queue) -> int:
        return max(self.max - queue.streams.get(self.stream, 0), 0) if self.stream else self.max


class Cohort:
    """The claimers that wait for one queue. `due` is when its window closes, None while none is open. `told` has the
    `due` and the queue's `next_wake` that the loop heard of last."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.due: float | None = None
        self.told: tuple[float | None, int | None] | None = None
        self.claimers: dict[Hashable, Claimer] = {}


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
