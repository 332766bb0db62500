"""Bar 8: a bad network and restarts in order. Event streams, WebSockets and long polls pass a proxy that cuts, delays
and trickles; now and then the service is stopped with SIGTERM and started again. Writers reach it directly.

The checker joins what a stream got over all its connections: the pieces are one piece of each log, records are repeated
only after the id with which a stream resumed, holes are those of tombstones. Cuts are no faults in the history, so they
excuse nothing. Two promises are the bar's own:

    caught-up     is not before what any client had seen when the stream was opened (`early_claims`)
    no loss       after the last fault each stream gets to the head of each topic, from where it was
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random

from tests.history.bar import BACK_S, Bar, claim
from tests.history.clients import Crowd, Mixed, Poller, SocketWatcher, Watcher
from tests.history.recording import Client, Recording
from tests.history.streams import Followed
from tests.support.bad_network import BadNetwork
from tests.support.service import Service
from topics_history import format as f

SHARE = 0.03
"""Of the pieces that pass the proxy, those that meet a fault."""
ORDERLY = 0
"""The exit status of a service that was asked to end."""


class BadNetworks(Bar):
    fault = "other"

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._network: BadNetwork | None = None
        self._watchers: list[Watcher] = []
        self._claims = 0

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        self._network = BadNetwork(service, Random(f"{self.seed} network"), SHARE, self.scale)
        self._network.start()
        kinds: list[type[Crowd]] = [Mixed, Watcher, SocketWatcher, Poller]
        crowd = [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]
        for each in crowd:
            if not isinstance(each, Mixed):
                each.client.port = self._network.port
        self._watchers = [each for each in crowd if isinstance(each, Watcher)]
        for each in self._watchers:  # few records in a frame: more frames between a reconnect and the head
            each.stream.limit = each.rng.choice((2, 20, 1000))
        for each in self._watchers[:1]:  # caught-up frames of strong streams are not checked
            each.stream.consistency = "eventual"
        return crowd

    def strike(self, service: Service) -> tuple[str, float]:
        status = service.stop()
        assert status == ORDERLY, f"a service that was asked to end did so with status {status}"
        lifted = time.monotonic()
        service.start()
        return "all", lifted

    def finish(self, client: Client, path: Path) -> None:
        assert self._network is not None
        self._network.close()
        super().finish(client, path)
        for each in self._watchers:
            each.client.port = None
        all_catch_up(client, self._watchers)

    def judge(self, path: Path) -> None:
        strong = {each.name for each in self._watchers if each.stream.consistency == "strong"}
        self._claims, found = early_claims(path, strong)
        claim(not found, "EarlyCaughtUp", f"{found[:5]}")
        assert self._claims, "the history has no caught-up frame that is checked"

    def happened(self, recording: Recording) -> dict[str, int]:
        assert self._network is not None
        again = sum(each.stream.opened - 1 for each in self._watchers if each.stream.opened)
        checked = sum(each.stream.caught_up for each in self._watchers if each.stream.consistency != "strong")
        return self._network.counts | {"streams opened again": again, "caught-up frames checked": checked}

    def figures(self) -> str:
        assert self._network is not None
        met = ", ".join(f"{count} {fault}" for fault, count in self._network.counts.items())
        opened = sum(each.stream.opened for each in self._watchers)
        return f"network: {met}; {opened} streams opened, {self._claims} of their caught-up checked"


def all_catch_up(client: Client, watchers: Sequence[Watcher]) -> None:
    """Have each stream get to the head of each topic, as `client` sees it. Raises `Violation`."""
    heads = {}
    for topic in watchers[0].stream.positions if watchers else ():
        told = client.state(topic)
        assert told is not None, f"{topic} has no state in the end"
        heads[topic] = told.head_seq
    for each in watchers:
        catch_up(each.stream, heads)
        each.client.close()


def catch_up(stream: Followed, heads: dict[str, int]) -> None:
    """Follow a stream until its client has everything. Raises `Violation` if it brings nothing for too long."""
    moved, deadline = -1, 0.0

    def ended() -> bool:
        nonlocal moved, deadline
        now = sum(stream.positions.values())
        if now > moved:
            moved, deadline = now, time.monotonic() + BACK_S
        there = all(stream.positions[topic] >= head for topic, head in heads.items())
        return there or time.monotonic() > deadline

    while not ended():
        stream.follow(ended)
    behind = {topic: head for topic, head in heads.items() if stream.positions[topic] < head}
    claim(not behind, "StreamStuck", f"{stream.client.name} is at {stream.positions}, and does not get to {behind}")


def early_claims(path: Path, strong: Collection[str]) -> tuple[int, list[str]]:
    """How many caught-up frames came after a client had seen a head, and those whose head is before one that was seen
    before their stream was opened. Streams of `strong` show less than other readers see, so they are left out."""
    claims, found = 0, []
    ends: dict[str, list[int]] = {}
    heads: dict[str, list[int]] = {}
    """Of each topic: when a head was shown that was higher than all before it, and that head."""
    with path.open("rb") as file:
        for line in f.Reader(file):
            result = getattr(line, "result", None)
            if result is None:
                continue
            if isinstance(line, f.Frame):
                if line.args.stream in strong or result.kind != "caught_up":
                    continue
                at = bisect_left(ends.get(line.topic, []), line.start_ns)
                known = heads[line.topic][at - 1] if at else 0
                claims += known > 0
                if result.to_seq < known:
                    found.append(f"{line.args.stream}, {line.topic}: caught up at {result.to_seq}, {known} was there")
            elif isinstance(line, f.Append | f.Read | f.GetState) and result.head_seq is not None:
                shown = heads.setdefault(line.topic, [])
                if not shown or result.head_seq > shown[-1]:
                    shown.append(result.head_seq)
                    ends.setdefault(line.topic, []).append(line.end_ns)
    return claims, found
