"""This machine among the others of its service: the keys by which they know each other, and the roster's news.

The supervisor makes a nonce and a key pair for the askers of this machine at each start. The roster, a child, publishes
them, and reports the members of the service; the shards hear the askers of these. It decides what the shards are to do,
too, and which of them have a process here. All that is carried out here, and nothing is decided. When the roster dies,
what it said stays, and what it was giving away is kept. Before it has said anything, the shards with files have one.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from urllib.parse import urlsplit

from msgspec.structs import replace

from proto.ipc.control import (
    HELD_ELSEWHERE,
    Cluster,
    Control,
    Followed,
    Local,
    Members,
    Orders,
    Placement,
    StepDone,
    TakeOver,
)
from supervisor.config.settings import Settings
from supervisor.process import listener
from supervisor.process.child import Child
from supervisor.process.datadir import DataDir
from supervisor.process.listener import ListenError
from supervisor.process.states import ChildState

VARIABLE = "TOPICS_CLUSTER_LISTEN"


@dataclass(frozen=True, slots=True)
class Address:
    """Where shard 0 listens for other machines; the others at the ports after it. `at` is where they find it."""

    host: str
    port: int
    at: str
    machine: str = ""
    """The name of this machine, and where it is: as in `proto.ipc.control.Cluster`."""
    place: str = ""

    def of(self, index: int) -> str:
        return f"{self.host}:{self.port + index if self.port else 0}"


def address(settings: Settings, data: DataDir) -> Address | None:
    """None without `TOPICS_CLUSTER_LISTEN`. Raises `ListenError`, `DataDirError`."""
    shards = data.shards
    given = settings.cluster_listen
    if not given:
        return None
    if not settings.bucket or settings.replication != "sync":
        raise ListenError(
            f"{VARIABLE}={given} needs TOPICS_BUCKET and TOPICS_REPLICATION=sync, which decide which machine holds "
            "a shard"
        )
    found = listener.addresses(given, VARIABLE, allowed=True)
    if len(found) != 1:
        raise ListenError(f"{VARIABLE}={given}: one address is needed, 10.0.0.5:4100 for example")
    resolved = found[0][1]
    host, port = str(resolved[0]), int(resolved[1])
    if port + shards > 65536:
        raise ListenError(
            f"{VARIABLE}={given}: {shards} shards need ports up to {port + shards - 1}: choose a lower one"
        )
    at = given.rpartition(":")[0]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        at = (urlsplit(settings.advertise).hostname if settings.advertise else None) or socket.gethostname()
        at = f"[{at}]" if ":" in at else at
    return Address(f"[{host}]" if ":" in host else host, port, f"tcp://{at}", data.machine(), data.place())


class Machines:
    """What this machine and the others know of each other. `changed` is called at news for the shards, `reported` at
    those for the roster."""

    def __init__(self, at: Address, changed: Callable[[], None], reported: Callable[[], None]) -> None:
        from proto.ipc.remote import KeyPair  # loads ZeroMQ

        keys = KeyPair.new()
        self._at = at
        self._cluster = Cluster(f"m{secrets.token_hex(8)}", keys.public, keys.secret, member=at.machine)
        self._changed = changed
        self._reported = reported
        self.members = Members({})
        self.placement = Placement([])
        self._roster: Child | None = None
        self._shards: Sequence[Child] = ()
        self.local = Local({})
        self._taking: dict[int, bool] = {}
        """Shards that were started to be taken over, and whether their processes know that."""

    def of_asker(self) -> Cluster:
        """For a gateway, which asks other machines."""
        return replace(self._cluster, known=self.members.known)

    def of_shard(self, index: int) -> Cluster:
        """For a shard, which hears them as well; and for the roster, as shard 0."""
        return replace(
            self._cluster,
            listen=self._at.of(index),
            at=self._at.at,
            members=self.members.machines,
            place=self._at.place,
            rank=self.orders(index).rank,
        )

    def orders(self, index: int) -> Orders:
        """What the roster has decided about a shard."""
        ranks, step = self.placement.ranks, self.placement.step
        mine = step is not None and step.shard == index
        rank = ranks[index] if index < len(ranks) else inf
        return Orders(rank, step if mine else None, index in self.placement.moving)

    def phase(self, index: int, phase: str) -> str:
        """The phase of a shard. One whose term is being ended takes no more requests."""
        step = self.orders(index).step
        return "stopping" if step is not None and step.state == "ending" and phase == "ready" else phase

    def news(self, child: Child) -> list[Control]:
        """What a child has to hear."""
        if child is self._roster:
            return [self.local]
        orders = [self.orders(self._shards.index(child))] if child in self._shards else []
        return [self.members, *orders]

    async def see_to(self, child: Child, stop_s: float) -> None:
        """Tell a child what it has to hear, and end the process of a shard that is followed and not wanted."""
        for message in self.news(child):
            await child.tell(message)
        index, wanted = self._shards.index(child) if child in self._shards else -1, self.placement.wanted
        idle = index >= 0 and ((child.phase == "standby" and child.holder != "") or child.phase == "failed")
        if child.state is ChildState.SERVING:
            self._taking.pop(index, None)
        elif child.state is ChildState.STARTING and self._taking.get(index) is False:
            self._taking[index] = True
            await child.tell(TakeOver())
        elif wanted is not None and idle and index not in {*wanted, *self._taking}:
            await child.rest(stop_s)

    def join(self, roster: Child, shards: Sequence[Child], filled: Callable[[int], bool]) -> None:
        """The children that are to be heard. `filled`: whether a shard has files."""
        self._roster, self._shards = roster, shards
        roster.heard = self.heard
        for index, shard in enumerate(shards):
            shard.heard = partial(self.heard_from, index)
            if not filled(index):
                shard.unwant()

    def saw(self, child: Child) -> None:
        """A child has changed. Its next process is not known to follow, and the next roster gives nothing away."""
        if child is self._roster and child.state is not ChildState.SERVING and self.placement.step is not None:
            self.placement = replace(self.placement, step=None)
            self._changed()
        index = self._shards.index(child) if child in self._shards else -1
        # One that has begun to follow may not have said yet that it stands by.
        if child.phase not in ("open", "standby") and index in self.local.lags:
            lags = {shard: lag for shard, lag in self.local.lags.items() if shard != index}
            self.local = replace(self.local, lags=lags)
            self._reported()
        if child.phase == "elsewhere" and index < len(self.placement.holders):
            child.learn(self.placement.holders[index])

    def heard(self, message: Control) -> None:
        """A message of the roster."""
        if isinstance(message, Members):
            self.members = message
            self._changed()
        elif isinstance(message, Placement):
            self.placement = message
            for index, shard in enumerate(self._shards if message.wanted is not None else ()):
                if index in (message.wanted or ()):
                    shard.want()
                shard.held_by(message.holders[index])
            self._changed()

    def heard_from(self, index: int, message: Control) -> None:
        """A message of a shard."""
        if isinstance(message, Followed):
            self.local = replace(self.local, lags={**self.local.lags, index: message.lag_s})
            self._reported()
        elif isinstance(message, StepDone):
            self.local = replace(self.local, done=message)
            self._reported()

    def take_over(self) -> None:
        """Have the shards that have no process here started, to take them over."""
        for index, shard in enumerate(self._shards):
            if shard.phase == "elsewhere":
                self._taking[index] = False
                shard.want()

    def leave(self) -> None:
        """Have all shards given away."""
        self.local = replace(self.local, leaving=True)
        self._reported()

    @property
    def left(self) -> bool:
        """Whether that is done."""
        return self.local.leaving and all(each.phase in HELD_ELSEWHERE and each.holder for each in self._shards)
