"""Claims about the verdict over samples: what grows is found, whatever noise it has, and what does not grow is flat."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from tests.history.growth import FEWEST, all_judged, judged

NOISE = Random(7)
SAMPLES = 180


def series(value: Callable[[int], float], count: int = SAMPLES, every_s: float = 10.0) -> list[tuple[float, float]]:
    return [(n * every_s, value(n)) for n in range(count)]


GROWING: dict[str, Callable[[int], float]] = {
    "a leak of 60 kB a sample": lambda n: 60 + 0.06 * n + NOISE.gauss(0, 1),
    "a leak below a saw of checkpoints": lambda n: 100 + 0.2 * n + 30 * (n % 12) / 12,
    "one more descriptor in ten samples": lambda n: 40 + n // 10,
    "a leak that has spikes": lambda n: 60 + 0.1 * n + (500 if n % 17 == 0 else 0),
    "a leak that begins late": lambda n: 60 + max(0, n - 130) + NOISE.gauss(0, 1),
    "a leak that gets slower": lambda n: 100 * math.sqrt(n),
}
FLAT: dict[str, Callable[[int], float]] = {
    "nothing changes": lambda n: 12.0,
    "noise": lambda n: 60 + NOISE.gauss(0, 5),
    "a saw of checkpoints": lambda n: 100 + 30 * (n % 12) / 12,
    "caches fill in the beginning": lambda n: 80 - 40 * math.exp(-n / 10),
    "one step, soon": lambda n: 60.0 if n < 20 else 90.0,
    "spikes": lambda n: 60 + (500 if n % 17 == 0 else 0),
    "it falls": lambda n: 200 - 0.5 * n,
    "it rises by less than matters": lambda n: 60 + 0.01 * n,
}
SEEDS = 40


def wandering(seed: int) -> list[tuple[float, float]]:
    """Noise that remembers: each sample is mostly the one before, as memory is."""
    rng, away = Random(seed), 0.0
    found = []
    for n in range(SAMPLES):
        away = 0.8 * away + rng.gauss(0, 3)
        found.append((n * 10.0, 60 + away))
    return found


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_is_found(name: str) -> None:
    found = judged(series(GROWING[name]), "MB")
    assert found.verdict == "grows"
    assert found.rise > 4


@pytest.mark.parametrize("name", FLAT)
def test_what_does_not_grow_is_flat(name: str) -> None:
    assert judged(series(FLAT[name]), "MB").verdict == "flat"


def test_noise_that_remembers_is_rarely_taken_for_growth_and_hides_none() -> None:
    assert sum(judged(wandering(seed), "MB").verdict == "grows" for seed in range(SEEDS)) <= SEEDS // 20
    leaks = [[(at, value + 0.2 * n) for n, (at, value) in enumerate(wandering(seed))] for seed in range(SEEDS)]
    assert sum(judged(leak, "MB").verdict == "grows" for leak in leaks) >= SEEDS - SEEDS // 20


def test_a_day_of_samples_is_joined_and_a_few_are_no_verdict() -> None:
    assert judged(series(lambda n: 60 + 0.001 * n, 8640), "MB").verdict == "grows"
    assert judged(series(float, FEWEST), "MB").verdict == "too short"
    assert judged([], "MB").verdict == "too short"


def test_the_unit_says_how_much_matters() -> None:
    found = all_judged({"p50, ms": series(lambda n: 2 + 0.06 * n), "gateway, MB": series(lambda n: 2 + 0.06 * n)})
    assert [each.verdict for each in found.values()] == ["grows", "grows"]
    assert all_judged({"p50, ms": series(lambda n: 2 + 0.035 * n)})["p50, ms"].verdict == "flat"
