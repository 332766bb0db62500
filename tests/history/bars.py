"""Bars: a real service, clients, faults, and the verdict over their history.

    1    no fault
    2    SIGKILL of the gateway, a shard, the supervisor or all of them, every 2 to 10 s
    3    power cuts, every 0.3 to 1.5 s
    5    SIGSTOP of the gateway, a shard or the supervisor, and SIGCONT after 0.1 to 60 s
    6    jobs: faults of 2 and 5, workers that hold jobs longer than their leases
    7    lost answers: a proxy between clients and service, kills, and requests that are repeated
    8    a proxy that cuts, delays and trickles streams and long polls, and restarts in order
    9    syncs and writes that fail, a full volume, a slow disk, and power cuts after failed syncs
    10   two machines with a bad bucket: kills, pauses beyond the time to live, ways to the bucket that are cut
    11   upgrades and downgrades between this release and the last one, in order
    12   steps of the wall clock of the service, an hour or a year ahead or back
    13   schedules of three machines: kills, pauses, cuts, joins and leaves, also two at a time

At the end the faults are lifted, the clients stop, the router copies what is left, and every topic is read from its
first seq. The history stays in the directory of the run. `tests.history.damage` has bar 4, which needs no service.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.history.answers import LostAnswers
from tests.history.bar import BACK_S, Bar, Kills, Pauses
from tests.history.clients import Crowd
from tests.history.clocks import Clocks
from tests.history.clusters import Clusters
from tests.history.cuts import PowerCuts
from tests.history.disks import BadDisks
from tests.history.jobs import Jobs
from tests.history.networks import BadNetworks
from tests.history.recording import Client, Recording
from tests.history.takeovers import Takeovers
from tests.history.upgrades import Upgrades
from tests.support.service import Service, until
from topics_history import format as f
from topics_history.checker import Report, check

BARS: dict[int, type[Bar]] = {
    1: Bar,
    2: Kills,
    3: PowerCuts,
    5: Pauses,
    6: Jobs,
    7: LostAnswers,
    8: BadNetworks,
    9: BadDisks,
    10: Takeovers,
    11: Upgrades,
    12: Clocks,
    13: Clusters,
}
CLIENTS = 8
BETWEEN = 50
"""Requests that are answered between two faults, at least: a busy machine is slow."""
ENVIRONMENT = {
    "TOPICS_RESTART_LIMIT": "1000",
    "TOPICS_CHECKPOINT_BYTES": "2000000",
    "TOPICS_SEGMENT_MAX_BYTES": "500000",
    "TOPICS_HANG_TIMEOUT_MS": "3000",
}


@dataclass(slots=True)
class Outcome:
    report: Report
    seconds: float
    slowest_s: float
    """The longest request that was answered with success, beyond the time that it asked to wait."""
    longest_back_s: float
    """From the longest fault, or its end if it was a pause, until the service was ready again."""
    figures: str
    """Those of this bar alone."""
    counts: Counter[str]
    """As `Bar.counts`."""


def run(
    directory: Path,
    number: int,
    seconds: float,
    seed: int,
    *,
    clients: int = CLIENTS,
    scale: float = 1.0,
    faults: int = 0,
    answers: int = 0,
    source: Path | None = None,
    **environment: str,
) -> Outcome:
    """Run a bar, and have its history checked. Faults come for so many seconds from the start of the clients on, or
    there are so many `faults` if there is a number. More follow until so many requests had `answers`, and until all
    that the bar is about has happened: a busy machine is slow. `source` has the packages of the service, if they are
    not those of this checkout; `environment` is added to the service's. Raises `Violation` if the history breaks no
    promise and the bar finds one that is broken, and other errors if the run does not get that far, for example if the
    service does not come back, or if it shows nothing."""
    bar = BARS[number](directory, seed, scale)
    path = directory / "history.jsonl"
    began = time.monotonic()
    environment = {**ENVIRONMENT, **bar.environment, **environment}
    if source is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, [environment.get("PYTHONPATH")])])
    with (
        closing(bar),
        closing(Recording(path, bar.topics, bar.routers)) as recording,
        bar.service(**environment) as service,
    ):
        bar.begin(service)
        crowd = bar.crowd(service, recording, clients)
        for each in crowd:
            each.start()
        ends = time.monotonic() + seconds

        def enough(struck: int) -> bool:
            if struck < faults if faults else time.monotonic() < ends:
                return False
            lacks = recording.answered < answers or missing(bar, recording, struck)
            return not lacks or time.monotonic() >= ends + BACK_S

        try:
            struck, longest_back_s = _faults(bar, service, recording, crowd, enough)
        finally:
            for each in crowd:
                each.stopping.set()
        for each in crowd:
            each.finish()
        service.wait_ready()
        client = Client(service, recording, "last", seed)
        bar.finish(client, path)
        client.close()
        lacking = missing(bar, recording, struck)
    report = check(path)
    report.unread = [topic for topic in report.unread or () if topic not in bar.not_read]
    if not report.counts:
        bar.judge(path)
        assert not lacking, f"the run shows nothing, because it had none of these: {', '.join(lacking)}"
    seconds, slowest_s = time.monotonic() - began, recording.slowest_ns / 1e9
    return Outcome(report, seconds, slowest_s, longest_back_s, bar.figures(), bar.counts)


def _faults(
    bar: Bar, service: Service, recording: Recording, crowd: list[Crowd], enough: Callable[[int], bool]
) -> tuple[int, float]:
    """Cause one fault after the other, until there were enough or a client has failed. Returns how many there were, and
    the most seconds until the service was ready again."""
    struck, longest_back_s, idle = 0, 0.0, threading.Event()
    while not enough(struck) and not any(each.failure for each in crowd):
        least = recording.answered + BETWEEN
        idle.wait(bar.rng.uniform(*bar.rest_s) * bar.scale)
        if bar.fault:
            _await_answers(recording, least, crowd)
            longest_back_s = max(longest_back_s, _fault(bar, service, recording))
            struck += 1
    return struck, longest_back_s


def missing(bar: Bar, recording: Recording, faults: int) -> list[str]:
    """What the bar is about and never happened."""
    happened = bar.happened(recording) | ({"faults": faults} if bar.fault else {})
    return [what for what, count in happened.items() if not count]


def _await_answers(recording: Recording, least: int, crowd: list[Crowd]) -> None:
    """Wait until so many requests had answers, or a client has failed: a fault that meets no request finds
    nothing."""
    until(
        lambda: recording.answered >= least or any(each.failure for each in crowd),
        f"{BETWEEN} answers between two faults",
        BACK_S,
    )


def _fault(bar: Bar, service: Service, recording: Recording) -> float:
    """One fault, from before it until the service is ready again; the seconds that this took after its end."""
    start_ns = time.monotonic_ns()
    victim, lifted = bar.strike(service)
    service.wait_ready(BACK_S)
    recording.write(f.Fault, "nemesis", start_ns, "ok", args=f.FaultArgs(bar.fault, victim))
    return time.monotonic() - lifted
