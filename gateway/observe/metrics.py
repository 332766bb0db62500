"""Metrics: the shards' statistics, summed, as Prometheus text or as JSON.

A shard that is down counts with its last statistics, so that a restart does not look like lost topics. Of several
gateways, each shows the same ones: the last that any of them got. A shard that another machine holds does not count,
so that the sum over all machines has each shard once; but sums of counters keep what it counted here, as they keep what
it counted before it was started again: see `proto.ipc.gateway_figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.http.accept_header import named, weight
from gateway.http.messages import JSON
from gateway.observe.colleagues import Colleagues
from gateway.shards.client import Shards
from proto.ipc.control import ShardState
from proto.ipc.figures import ShardFigures
from proto.ipc.gateway_figures import GatewayFigures, together
from proto.ipc.message import Reply
from proto.ipc.operations import Figures, Stats
from proto.model.keys import Key

TEXT = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of one scrape. `counters` are those of the shards that this machine holds, and 0 for the others.
    `shard_stats` are the figures of the shards' `stats` replies, `counted` what they have counted, as
    `ShardFigures.counters`, `gateways` the figures of all gateways together. `max_topics` limits the topics, and the
    cursors, of all shards that have metrics of their own."""

    states: Sequence[ShardState]
    serving: list[bool]
    progress: float
    counters: list[tuple[int, int, int]]
    shard_stats: list[ShardFigures]
    counted: Mapping[str, float]
    draining: bool
    gateways: GatewayFigures
    max_topics: int
    several_gateways: bool = False
    members: Sequence[tuple[int, str]] = ()
    """Number and address of each machine, if the service has several."""
    holders: Sequence[str] = ()
    """By shard, the address of the machine that holds it, "" if it is not known; empty where there are no others."""


class Scraper:
    """The scraper: asks the shards for statistics and keeps their last replies."""

    def __init__(self, shards: Shards, colleagues: Colleagues, max_topics: int) -> None:
        self._shards = shards
        self._colleagues = colleagues
        self._max_topics = max_topics
        self._last: list[ShardFigures] = [ShardFigures()] * len(shards.states)

    async def scrape(self, key: Key) -> tuple[list[ShardFigures], Mapping[str, float], GatewayFigures]:
        """Return the latest statistics of every shard, the sums of their counters, and the statistics of all gateways
        together. Rows per topic and cursor cover only the key's topics. Raises no errors of shards: a shard that does
        not reply counts with its last statistics."""
        asked = Stats(self._max_topics, self._max_topics, key.prefixes)
        here = [not self._shards.elsewhere(index) for index in range(len(self._last))]
        self._last = [last if held else ShardFigures() for last, held in zip(self._last, here, strict=True)]
        latest = list(self._last)
        replies: dict[int, Reply[Figures]] = {}
        lives = [state.incarnation for state in self._shards.states]  # of those that are asked now
        await self._shards.ask_serving(asked, replies, here=True)
        answered: dict[int, ShardFigures] = {}
        for index, reply in replies.items():
            if reply.extra is not None:
                latest[index] = figures = replace(reply.extra.figures, life=lives[index])
                answered[index] = figures.bare()
                self._last[index] = _kept(self._last[index], figures, key)
        missing = [index for index, held in enumerate(here) if held and index not in answered]
        gateways = together(await self._colleagues.ask(answered, missing))
        for index in missing:
            known = self._colleagues.shards.get(index)
            if known is not None and known != latest[index].bare():  # another gateway has asked since: without rows
                latest[index] = known
        return [_covered(stats, key) for stats in latest], self._colleagues.counted, gateways


def _kept(last: ShardFigures, now: ShardFigures, key: Key) -> ShardFigures:
    """Return `now`, but what covers only topics of the key as in `last`: another key's scrape may be next."""
    if not key.prefixes:
        return now
    return replace(
        now,
        per_topic=last.per_topic,
        per_queue=last.per_queue,
        per_topic_truncated=last.per_topic_truncated,
        cursors=last.cursors,
        cursor_lag=last.cursor_lag,
        cursor_lag_truncated=last.cursor_lag_truncated,
    )


def _covered(stats: ShardFigures, key: Key) -> ShardFigures:
    """Return `stats` with the rows that the key covers: statistics kept from another key's scrape name any topic."""
    if not key.prefixes:
        return stats
    return replace(
        stats,
        per_topic=[row for row in stats.per_topic if key.covers(row.topic)],
        per_queue=[row for row in stats.per_queue if key.covers(row.topic)],
        cursor_lag=[row for row in stats.cursor_lag if key.covers(row.topic)],
    )


def as_json(accept: bytes) -> bool:
    """Whether an Accept header asks for JSON: with a higher weight than text, or with the same weight and by name."""
    wanted = weight(accept, JSON)
    return wanted > weight(accept, b"text/plain") or (named(accept, JSON) and wanted == weight(accept, b"text/plain"))
