"""`make soak MINUTES=30`: a steady load of all features, and whether anything grows. Then an overload.

The samples, an image of them (if matplotlib is installed) and the verdict stay in a directory of their own. Ends with 1
if the load was not steady, a series grows or cannot be judged, something happened that never does (`samples.NEVER`), a
process was replaced, a request had an answer that the API does not have, or the overload broke a bound.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.history import growth, overload, samples
from tests.history.bar import ROUTER
from tests.history.growth import Judged
from tests.history.steady import ENVIRONMENT, STEADY, Unrecorded, crowd
from tests.support.looped import Looped
from tests.support.pulse import Pulse
from tests.support.service import Service, until

SAMPLE_EVERY_S = 10.0
SEEN = 0.9
"""The share of the samples that each series is in, at least."""
SILENT_S = 60.0
"""The longest time without a success, of a kind of request and of a client."""
NOT_OK, FEW = 0.001, 5
"""The share of the requests of a kind that may not succeed, and how many may in any case."""


@dataclass(frozen=True, slots=True)
class Soaked:
    series: samples.Series
    judged: dict[str, Judged]
    counts: dict[str, int]
    """Requests by kind and outcome."""
    silences_s: dict[str, float]
    """The longest time without a success, by kind of request and by client."""
    pids: dict[str, set[int]]
    """Of each process of the service, by name."""

    def broken(self) -> list[str]:
        """Why the service did not pass, or the soak shows nothing."""
        most = max(map(len, self.series.values()), default=0)
        found = [f"{name} grows by {each.rise:.1f}" for name, each in self.judged.items() if each.verdict == "grows"]
        for name in sorted(samples.expected(self.pids)):
            taken = len(self.series.get(name, ()))
            if not taken or taken < SEEN * most:
                found.append(f"{name} is in {taken} of {most} samples")
            elif self.judged[name].verdict == "too short":
                found.append(f"{name} has too few samples")
        for name in samples.NEVER:
            if worst := max((value for _, value in self.series.get(name, ())), default=0.0):
                found.append(f"{name} was {worst:g}")
        found += [f"{name} was replaced" for name, pids in self.pids.items() if len(pids) != 1]
        found += [f"{name}: no success for {each:.0f} s" for name, each in self.silences_s.items() if each > SILENT_S]
        return found + self._not_ok()

    def _not_ok(self) -> list[str]:
        requests, failed = Counter[str](), Counter[str]()
        for what, count in self.counts.items():
            kind, _, outcome = what.rpartition(" ")
            requests[kind] += count
            failed[kind] += count if outcome in ("failed", "unknown") else 0
        return [
            f"{count} of {requests[kind]} {kind} did not succeed"
            for kind, count in failed.items()
            if count > max(FEW, NOT_OK * requests[kind])
        ]


def begin(service: Service) -> None:
    """Create the topics and the router."""
    for topic, config in STEADY.items():
        assert service.request("PUT", f"/v0/topics/{topic}", config)[0] in (200, 201), topic
    router = {"source": ROUTER.source, "dest": ROUTER.dest, "guarantee": "exactly_once"}
    assert service.request("PUT", "/v0/routers/p", router)[0] in (200, 201)


def soak(
    service: Service, directory: Path, seconds: float, seed: int, clients: int, every_s: float = SAMPLE_EVERY_S
) -> Soaked:
    """Load the service for so long, and judge the samples. Raises what a client or the sampler raises."""
    begin(service)
    latencies = samples.Latencies()
    recording = Unrecorded(latencies)
    pulse = Pulse(directory / "pulse", service.port)
    path = directory / "samples.jsonl"
    sampler = samples.Sampler(service, pulse, latencies, path, every_s)
    loaded = crowd(service, recording, clients, seed)
    threads: list[Looped] = [sampler, *loaded]
    ends = time.monotonic() + seconds
    try:
        until(pulse.news, "a pulse")
        for each in threads:
            each.start()
        until(
            lambda: time.monotonic() > ends or any(each.failure for each in threads),
            "the end of the soak",
            seconds + 60,
        )
        silences_s = recording.silences_s(each.name for each in loaded)
    finally:
        for each in threads:
            each.stopping.set()
        pulse.stop()
    for each in threads:
        each.finish()
    series = samples.read(path)
    return Soaked(series, growth.all_judged(series), dict(recording.counts), silences_s, sampler.pids)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="the overload takes a fifth of that, five at most")
    parser.add_argument("--seed", type=int, default=0, help="0: a random one")
    parser.add_argument("--clients", type=int, default=14)
    options = parser.parse_args()
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 32)
    directory = Path(tempfile.mkdtemp(prefix="topics-soak-"))
    seconds = 60 * options.minutes
    print(f"{options.minutes:g} minutes, seed {seed}, {options.clients} clients, in {directory}", flush=True)
    with Service(directory, **ENVIRONMENT) as service:
        found = soak(service, directory, seconds, seed, options.clients, min(SAMPLE_EVERY_S, seconds / 60))
        print("\n".join(told(found)), flush=True)
        try:
            samples.draw(found.series, directory / "samples.png")
            print(f"drawn in {directory / 'samples.png'}")
        except ModuleNotFoundError as error:
            print(f"not drawn: {error}")
        loaded = overload.run(service, directory, min(seconds / 5, 300.0))
    print(loaded)
    broken = [*found.broken(), *loaded.broken()]
    print("\n".join(f"BROKEN: {each}" for each in broken) or "everything is flat, and the overload kept its bounds")
    return int(bool(broken))


def told(found: Soaked) -> list[str]:
    """A line for each series, and the requests."""
    rows = [
        f"{name:32} {each.verdict:>9}  {each.level:12.1f}  {each.rise:+10.2f}" for name, each in found.judged.items()
    ]
    counts = ", ".join(f"{count} {what}" for what, count in sorted(found.counts.items()))
    return [f"{'series':32} {'verdict':>9}  {'median':>12}  {'rise':>10}", *rows, f"requests: {counts}"]


if __name__ == "__main__":
    sys.exit(main())
