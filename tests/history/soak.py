"""`make soak MINUTES=30`: a steady load of all features, and whether anything grows. Then an overload.

The samples, an image of them (if matplotlib is installed) and the verdict stay in a directory of their own. Ends with 1
if a series grows, a request had an answer that the API does not have, or the overload broke a bound.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.history import growth, overload, samples
from tests.history.bar import ROUTER
from tests.history.growth import Judged
from tests.history.steady import ENVIRONMENT, STEADY, Unrecorded, crowd
from tests.support.pulse import Pulse
from tests.support.service import Service, until

SAMPLE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Soaked:
    series: samples.Series
    judged: dict[str, Judged]
    counts: dict[str, int]
    """Requests by kind and outcome."""

    def growing(self) -> list[str]:
        return [name for name, each in self.judged.items() if each.verdict == "grows"]


def begin(service: Service) -> None:
    """Create the topics and the router."""
    for topic, config in STEADY.items():
        assert service.request("PUT", f"/v0/topics/{topic}", config)[0] in (200, 201), topic
    router = {"source": ROUTER.source, "dest": ROUTER.dest, "guarantee": "exactly_once"}
    assert service.request("PUT", "/v0/routers/p", router)[0] in (200, 201)


def soak(
    service: Service, directory: Path, seconds: float, seed: int, clients: int, every_s: float = SAMPLE_EVERY_S
) -> Soaked:
    """Load the service for so long, and judge the samples. Raises what a client raises."""
    begin(service)
    latencies = samples.Latencies()
    recording = Unrecorded(latencies)
    pulse = Pulse(directory / "pulse", service.port)
    path = directory / "samples.jsonl"
    sampler = samples.Sampler(service, pulse, latencies, path, every_s)
    loaded = crowd(service, recording, clients, seed)
    ends = time.monotonic() + seconds
    try:
        sampler.start()
        for each in loaded:
            each.start()
        until(
            lambda: time.monotonic() > ends or any(each.failure for each in loaded), "the end of the soak", seconds + 60
        )
    finally:
        for each in loaded:
            each.stopping.set()
        sampler.stop()
        pulse.stop()
    for each in loaded:
        each.finish()
    series = samples.read(path)
    return Soaked(series, growth.all_judged(series), dict(recording.counts))


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the steady load; the overload takes a fifth")
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
        loaded = overload.run(service, directory, seconds / 5)
    print(loaded)
    broken = [*found.growing(), *loaded.broken()]
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
