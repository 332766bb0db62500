"""Claims about `make soak`: a short run has samples of everything, and its clients use every feature; an overload is
judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history import overload, samples
from tests.history.overload import Overloaded
from tests.history.soak import soak
from tests.history.steady import ENVIRONMENT
from tests.support.pulse import Beat
from tests.support.service import Service

SOAK_S = 8.0
ANSWERS = {
    "200": {"count": 900, "p50": 20.0, "p99": 800.0, "most": 1200.0},
    "429": {"count": 100, "p50": 2.0, "p99": 30.0, "most": 90.0},
}
KEPT = {"sent": 1000, "not_sent": 0, "broken": 0, "rushed": 0, "unanswered": 0, "answers": ANSWERS}


def test_a_short_soak_samples_everything_and_an_overload_keeps_its_bounds(tmp_path: Path) -> None:
    with Service(tmp_path, TOPICS_WAL_QUEUE_MAX="2", **ENVIRONMENT) as service:
        found = soak(service, tmp_path, SOAK_S, 1, 7, every_s=0.5)
        loaded = overload.run(service, tmp_path, 2, many=100)
    names = set(found.series)
    for process in ("gateway", "shard-00", "shard-01", "supervisor"):
        assert {f"{process}, MB", f"{process}, descriptors", f"{process}, threads"} <= names
    assert {"disk, MB", "appends p99, ms", "health p99, ms", *samples.GAUGES} <= names
    assert found.judged.keys() == names
    kinds = {what.partition(" ")[0] for what, count in found.counts.items() if what.endswith(" ok") and count}
    assert {"Append", "Read", "Frame", "Claim", "Ack", "CursorPut", "topics", "routers"} <= kinds
    # Times are the machine's, and other tests run on it: the rest has to be right.
    assert not [each for each in loaded.broken() if "took" not in each]
    assert "429" in loaded.arrivals["answers"]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, ""),
        ({"unanswered": 1}, "had no answer"),
        ({"broken": 1}, "under way"),
        ({"rushed": 1}, "Retry-After"),
        ({"answers": {**ANSWERS, "500": ANSWERS["200"]}}, "statuses"),
        ({"answers": {"429": ANSWERS["429"]}}, "was accepted"),
        ({"answers": {**ANSWERS, "503": {**ANSWERS["429"], "p99": 2000.0}}}, "refusals took"),
    ],
)
def test_each_bound_of_an_overload_is_judged(change: dict[str, object], broken: str) -> None:
    found = Overloaded(100.0, 1.0, {**KEPT, **change}, [Beat(1, 20, 0.1, 200)], 0.5).broken()
    assert bool(found) == bool(broken)
    assert all(broken in each for each in found)


def test_slow_health_and_a_long_recovery_break_bounds() -> None:
    slow = Overloaded(100.0, 1.0, KEPT, [Beat(1, 150, 0.1, 200)], 6.0)
    assert len(slow.broken()) == 2
    busy = Overloaded(100.0, 1.0, KEPT, [Beat(1, 150, 30, 200)], 0.5)
    assert not busy.broken(), "the machine is busy"


def test_samples_are_read_back_by_name(tmp_path: Path) -> None:
    (tmp_path / "s").write_text('{"at_s": 1, "disk, MB": 2}\n{"at_s": 2, "disk, MB": 3, "gateway, MB": 40}\n')
    assert samples.read(tmp_path / "s") == {"disk, MB": [(1, 2), (2, 3)], "gateway, MB": [(2, 40)]}
