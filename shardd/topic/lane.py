"""The lane of a destination topic: its routers and their position in the source. A topic has at most one lane.

A destination has one source, so its routers share one position in it. The copies are a function of the source's records
alone: record by record, and for each record router by router. So copies are not in the log: recovery makes them again,
with the same seqs, from the position of the last checkpoint.

    cursor      source seq up to which copies were given seqs            (assigned, see `shardd.storage.group_commit`)
    done        the same for copies that are visible; a checkpoint stores it
    head        the destination's last seq when copies were last given seqs
    unpinned    seqs were given since the log last had the position; see `shardd.changes.transactions`
    version     raised with every change of a router, and stored in its frame: replay then knows which frames the
                catalog already contains

`shardd.topic.lane_states` has what a lane does while there is no room.

A change of routers makes a new `Lane`. The old one stays visible until the change commits.

A lane is *arithmetic* if none of its routers has a filter or counts hops. Each source seq then takes the same number of
destination seqs, also when its record is gone. In other lanes the number depends on the records themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from proto.model.match import Match, parse_match
from proto.model.router import RouterConfig, as_map, from_map
from shardd.topic.lane_states import FOLLOWING, LaneEvent, LaneState

ROOM = "max_total_bytes"


@dataclass(slots=True)
class Router:
    """One router of a lane. It forwards records after source seq `since`, and has forwarded `forwarded` records."""

    name: str
    config: RouterConfig
    since: int
    made_ms: int = 0
    """Time at which the router got this configuration, in ms. A crash may leave two routers of one name; the later one
    counts."""
    forwarded: int = 0
    match: Match | None = None

    def __post_init__(self) -> None:
        if self.config.filter is not None:
            self.match = parse_match(self.config.filter, "filter")


@dataclass(slots=True)
class Lane:
    source: str
    epoch: int
    """Epoch of the source. A topic of the same name that was created later is another topic."""
    cursor: int
    done: int
    version: int
    routers: dict[str, Router] = field(default_factory=dict)
    """Routers by name. If there are none, the destination may get another source."""
    head: int = 0
    ts: int = 0
    """Commit time of the last copies, in ms."""
    unpinned: bool = False
    unsaved: bool = False
    """True if there are copies that no checkpoint has."""
    settled: bool = True
    """True when all copies that existed at the last stop have been made again."""
    source_truncated: bool = False
    """While the lane is not settled: the source has lost records, and the lane waits for the source's head."""
    asked: int = -1
    """While the lane is not settled: the source's head at the last attempt that did not settle it."""
    state: LaneState = LaneState.COPYING
    obstacle: str | None = None
    """The limit that refused the last copies, if any were left: the name of a limit, or of an error of a write."""
    held: bool = False
    """True while the source is about to be deleted: no more records are copied."""
    gone: bool = False
    """True if this lane has been removed from its topic."""

    @property
    def waits(self) -> bool:
        """True if the cap over all topics had no room for the last copies."""
        return self.state is not LaneState.COPYING

    @property
    def waits_for(self) -> str | None:
        """The obstacle to copying; None if there is none."""
        return self.obstacle or (ROOM if self.waits else None)

    @property
    def stopped(self) -> bool:
        """True if the lane `waits` and the log has this."""
        return self.state is LaneState.STOPPED

    def happens(self, event: LaneEvent) -> None:
        """Go to the state after `event`. Raises `KeyError` if it cannot happen, which is a bug."""
        self.state = FOLLOWING[event][self.state]

    def resume(self, stopped: bool) -> None:
        """Take the state that the log or the catalog has."""
        self.state = LaneState.STOPPED if stopped else LaneState.COPYING

    @property
    def arithmetic(self) -> bool:
        return all(r.match is None and not r.config.allow_cycle for r in self.routers.values())

    @property
    def cyclic(self) -> bool:
        return any(router.config.allow_cycle for router in self.routers.values())

    def copies_of(self, first: int, last: int) -> int:
        """The largest number of copies that the source's records `first` to `last` can have."""
        return sum(max(last - max(first, router.since + 1) + 1, 0) for router in self.routers.values())

    def changed(self, routers: dict[str, Router]) -> Lane:
        """A new lane with these routers. Requires that the lane is not `unpinned`."""
        unsaved = self.unsaved or self.done != self.cursor
        return replace(self, version=self.version + 1, routers=routers, done=self.cursor, unsaved=unsaved)

    def dump(self, cursor: int) -> dict[str, Any]:
        """The lane as a map for the catalog or the log, with the position `cursor`."""
        return {
            "source": self.source,
            "epoch": self.epoch,
            "cursor": cursor,
            "version": self.version,
            "stopped": self.stopped,
            "routers": [[r.name, as_map(r.config), r.since, r.made_ms, r.forwarded] for r in self.routers.values()],
        }


def load(fields: dict[str, Any]) -> Lane:
    """The lane of a map from the catalog or the log."""
    routers = {
        name: Router(name, from_map(config), since, made_ms, forwarded)
        for name, config, since, made_ms, forwarded in fields["routers"]
    }
    cursor = fields["cursor"]
    lane = Lane(fields["source"], fields["epoch"], cursor, cursor, fields["version"], routers, settled=not routers)
    lane.resume(fields.get("stopped", False))
    return lane
