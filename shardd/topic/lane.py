"""A lane: everything that routers bring into one topic. It belongs to its destination, which has at most one.

A destination has one source, so its routers share one position in it, and what they copy is a function of the source's
records alone: record by record, and for each record router by router. That is why copies need no place in the log:
they can be made again, with the same seqs, from where the last checkpoint was.

    cursor      source seq up to which copies were given seqs            (assigned, see `shardd.storage.group_commit`)
    done        the same for copies that are visible; what a checkpoint keeps
    head        the destination's last seq when copies were last given some
    unpinned    seqs were given since the log was last told; see `shardd.changes.transactions`
    version     raised with every change of a router, and kept in its frame: replay then knows which frames the
                catalog it began with has seen

A change makes a new `Lane`: the old one stays what is visible until the change commits.

A lane is *arithmetic* if none of its routers has a filter or counts hops: each source seq then takes the same number of
destination seqs, also when its record is gone. Of other lanes only the records themselves tell how many they take.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from proto.model.match import Match, parse_match
from proto.model.router import RouterConfig, as_map, from_map


@dataclass(slots=True)
class Router:
    """`since` is the source seq from which on it forwards (exclusive), `forwarded` how many records it has."""

    name: str
    config: RouterConfig
    since: int
    made_ms: int = 0
    """When it got this configuration. Of two routers of a name, which a crash may leave, the later one counts."""
    forwarded: int = 0
    match: Match | None = None

    def __post_init__(self) -> None:
        if self.config.filter is not None:
            self.match = parse_match(self.config.filter, "filter")


@dataclass(slots=True)
class Lane:
    source: str
    epoch: int
    """Of the source: a topic of its name that was created later is another topic."""
    cursor: int
    done: int
    version: int
    routers: dict[str, Router] = field(default_factory=dict)
    """Without any, the destination is free for another source."""
    head: int = 0
    ts: int = 0
    """Commit time of the last copies, in ms."""
    unpinned: bool = False
    unsaved: bool = False
    """There are copies that no checkpoint has."""
    settled: bool = True
    """Whether everything there was at the last stop has been copied again."""
    source_truncated: bool = False
    """While it is not settled: its source has lost something, and it waits to know how far the source goes."""
    asked: int = -1
    """While it is not settled: how far its source was when that was of no help."""
    waits: bool = False
    """Is there no room under the cap over all topics for what comes next?"""
    stopped: bool = False
    """The same, and the log knows."""
    held: bool = False
    """Whether the source is about to be deleted: nothing more is copied."""
    gone: bool = False
    """Whether this lane has been taken away from its topic."""

    @property
    def arithmetic(self) -> bool:
        return all(r.match is None and not r.config.allow_cycle for r in self.routers.values())

    @property
    def cyclic(self) -> bool:
        return any(router.config.allow_cycle for router in self.routers.values())

    def copies_of(self, first: int, last: int) -> int:
        """The most copies that the source's records `first` to `last` can have."""
        return sum(max(last - max(first, router.since + 1) + 1, 0) for router in self.routers.values())

    def changed(self, routers: dict[str, Router]) -> Lane:
        """This lane with other routers. Nothing may be unpinned."""
        unsaved = self.unsaved or self.done != self.cursor
        return replace(self, version=self.version + 1, routers=routers, done=self.cursor, unsaved=unsaved)

    def dump(self, cursor: int) -> dict[str, Any]:
        """For catalog and log, with the position that they are to have."""
        return {
            "source": self.source,
            "epoch": self.epoch,
            "cursor": cursor,
            "version": self.version,
            "stopped": self.stopped,
            "routers": [[r.name, as_map(r.config), r.since, r.made_ms, r.forwarded] for r in self.routers.values()],
        }


def load(fields: dict[str, Any]) -> Lane:
    """From catalog or log."""
    routers = {
        name: Router(name, from_map(config), since, made_ms, forwarded)
        for name, config, since, made_ms, forwarded in fields["routers"]
    }
    cursor = fields["cursor"]
    lane = Lane(fields["source"], fields["epoch"], cursor, cursor, fields["version"], routers, settled=not routers)
    lane.stopped = lane.waits = fields.get("stopped", False)
    return lane
