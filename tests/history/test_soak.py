"""Claims about `make soak`: a short run has samples of everything, and its clients use every feature; an overload is
judged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.history import growth, overload, samples
from tests.history.overload import Overloaded
from tests.history.soak import Soaked, soak
from tests.history.steady import ENVIRONMENT, KINDS, Unrecorded
from tests.support.pulse import Beat
from tests.support.service import Service

SOAK_S = 8.0
RARE = {"watch", "lines of a watch", "Nack", "Extend", "ready", "metrics", "cursors", "routers"}
"""What so short a soak may lack."""
ANSWERS = {
    "200": {"count": 900, "p50": 20.0, "p99": 800.0, "most": 1200.0},
    "429": {"count": 100, "p50": 2.0, "p99": 30.0, "most": 90.0},
}
KEPT = {"sent": 1000, "not_sent": 5, "broken": 0, "rushed": 0, "unanswered": 0, "answers": ANSWERS}


def test_a_short_soak_samples_everything_and_an_overload_keeps_its_bounds(tmp_path: Path) -> None:
    with Service(tmp_path, TOPICS_WAL_QUEUE_MAX="2", **ENVIRONMENT) as service:
        found = soak(service, tmp_path, SOAK_S, 1, 7, every_s=0.5)
        loaded = overload.run(service, tmp_path, 2, many=100)
    names = set(found.series)
    kinds = {"gateway" if name.startswith("gateway-") else name for name in found.pids}
    assert {"gateway", "shard-00", "shard-01", "supervisor"} <= kinds
    assert samples.expected(found.pids) <= names
    assert found.judged.keys() == names
    assert {kind for kind in KINDS if not found.counts.get(f"{kind} ok")} <= RARE
    # Times are the machine's, and other tests run on it: the rest has to be right. Sixteen samples are no verdict, and
    # a queue of two writes refuses some of a steady load.
    assert not [each for each in found.broken() if "too few" not in each and "did not succeed" not in each]
    assert not [each for each in loaded.broken() if "took" not in each and "accepted" not in each]
    assert "429" in loaded.arrivals["answers"]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, ""),
        ({"unanswered": 1}, "had no answer"),
        ({"broken": 1}, "under way"),
        ({"rushed": 1}, "Retry-After"),
        ({"answers": {**ANSWERS, "500": ANSWERS["200"]}}, "statuses"),
        ({"answers": {"429": ANSWERS["429"]}}, "0 requests a second were accepted"),
        ({"answers": {**ANSWERS, "200": {**ANSWERS["200"], "count": 24}}}, "24 requests a second were accepted"),
        ({"answers": {"200": ANSWERS["200"]}, "not_sent": 0}, "no overload"),
        ({"answers": {**ANSWERS, "503": {**ANSWERS["429"], "p99": 2000.0}}}, "refusals took"),
    ],
)
def test_each_bound_of_an_overload_is_judged(change: dict[str, object], broken: str) -> None:
    found = Overloaded(100.0, 1.0, {**KEPT, **change}, [Beat(1, 20, 0.1, 200)], 0.5, {}).broken()
    assert bool(found) == bool(broken)
    assert all(broken in each for each in found)


def test_slow_health_and_a_long_recovery_break_bounds() -> None:
    slow = Overloaded(100.0, 1.0, KEPT, [Beat(1, 150, 0.1, 200)], 6.0, {})
    assert len(slow.broken()) == 2
    busy = Overloaded(100.0, 1.0, KEPT, [Beat(1, 150, 30, 200)], 0.5, {})
    assert not busy.broken(), "the machine is busy"


def test_health_without_an_answer_and_descriptors_that_stay_break_bounds() -> None:
    silent = Overloaded(100.0, 1.0, KEPT, [Beat(1, 20, 0.1, 200), Beat(2, 10_000, 0.1, 0)], 0.5, {"gateway": 4})
    assert [each[:20] for each in silent.broken()] == ["health had no answer"]
    (left,) = Overloaded(100.0, 1.0, KEPT, [Beat(1, 20, 0.1, 200)], 0.5, {"gateway": 90}).broken()
    assert "descriptors" in left


NAMES = ("gateway", "shard-00")


def soaked(**change: Any) -> Soaked:
    series = {
        name: [(10.0 * n, float(name not in samples.NEVER)) for n in range(60)] for name in samples.expected(NAMES)
    }
    series |= change.pop("series", {})
    whole = {
        "counts": {"Append ok": 9000, "Append failed": 5, "topics absent": 700, "topics ok": 900},
        "silences_s": {"Append": 2.0, "c1": 3.0},
        "pids": {name: {number} for number, name in enumerate(NAMES)},
    }
    return Soaked(series, growth.all_judged(series), **whole | change)


def test_a_steady_soak_passes() -> None:
    assert soaked().broken() == []


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"series": {"gateway, MB": [(10.0 * n, 60.0 + n) for n in range(60)]}}, "gateway, MB grows"),
        ({"series": {"topics_cursors": []}}, "topics_cursors is in 0 of 60"),
        ({"series": {"health p99, ms": [(10.0 * n, 1.0) for n in range(50)]}}, "health p99, ms is in 50 of 60"),
        ({"series": {samples.SILENT: [(10.0 * n, float(n == 7)) for n in range(60)]}}, "silent beats was 1"),
        ({"series": {"topics_internal_errors_total": [(10.0 * n, 1.0) for n in range(60)]}}, "errors_total was 1"),
        ({"counts": {"Append ok": 9000, "Append failed": 4, "Append unknown": 6}}, "10 of 9010 Append"),
        ({"counts": {"Frame unknown": 600}}, "600 of 600 Frame"),
        ({"silences_s": {"Frame": 90.0}}, "Frame: no success for 90 s"),
        ({"pids": {"gateway": {1, 9}, "shard-00": {2}}}, "gateway was replaced"),
    ],
)
def test_each_reason_not_to_pass_a_soak_is_found(change: dict[str, Any], broken: str) -> None:
    (told,) = soaked(**change).broken()
    assert broken in told


def test_a_soak_without_enough_samples_shows_nothing() -> None:
    short = {name: [(float(n), 0.0) for n in range(10)] for name in samples.expected(NAMES)}
    assert all("too few samples" in each for each in soaked(series=short).broken())
    assert len(soaked(series=short).broken()) == len(short)
    assert len(soaked(series=dict.fromkeys(short, ())).broken()) == len(short)


def test_a_silence_lasts_until_the_next_success_or_until_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    recording = Unrecorded(samples.Latencies())
    for at, kind, outcome in ((5, "Read", "ok"), (12, "Read", "failed"), (20, "Read", "ok"), (90, "Open", "ok")):
        now[0] = at
        recording.count(kind, outcome, "c1")
    found = recording.silences_s(["c1", "c2"])
    assert (found["Read"], found["c1"], found["c2"], found["Frame"]) == (70, 70, 90, 90)
    assert "Open" not in found


def test_each_series_is_in_one_panel_of_the_image() -> None:
    for name in samples.expected(NAMES):
        assert sum(belongs(name) for belongs in samples.PANELS.values()) == 1, name


def test_what_a_service_removes_while_its_files_are_measured_does_not_end_a_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_bytes(bytes(10_000))
    (tmp_path / "topic").mkdir()
    (tmp_path / "topic" / "segment").write_bytes(bytes(10_000))
    look = os.lstat

    def last_look(path: Path) -> os.stat_result:
        found = look(path)
        if path.name == "topic":
            (path / "segment").unlink()
            path.rmdir()
        return found

    monkeypatch.setattr(os, "lstat", last_look)
    assert 10_000 <= samples._used_bytes(tmp_path) < 20_000


def test_a_sampler_that_fails_is_no_short_soak(tmp_path: Path) -> None:
    class Gone:
        def status(self) -> dict[str, Any]:
            return {"children": {"gateway": {}}}

    sampler = samples.Sampler(Gone(), None, samples.Latencies(), tmp_path / "s", 0.0)  # type: ignore[arg-type]
    sampler.start()
    sampler.join()
    with pytest.raises(KeyError, match="pid"):
        sampler.finish()


def test_samples_are_read_back_by_name(tmp_path: Path) -> None:
    (tmp_path / "s").write_text('{"at_s": 1, "disk, MB": 2}\n{"at_s": 2, "disk, MB": 3, "gateway, MB": 40}\n')
    assert samples.read(tmp_path / "s") == {"disk, MB": [(1, 2), (2, 3)], "gateway, MB": [(2, 40)]}
