"""Segments and their indexes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
)

from pyspark_topics import plan
from pyspark_topics.lake import local
from shardd.offline.salvage import salvage
from shardd.storage.disk import RealDisk
from tests.behaviour.pyspark_topics.test_pruning import key, read, seqs
from tests.support.scene import Scene, records


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Two topics of 500 records, in segments of 100 in batches of 20, a second between batches, and some in the log."""
    scene = Scene(tmp_path_factory.mktemp("grown"), segment_max_events=100, cold_dir="")
    for n in range(0, 500, 20):
        for topic in ("a", "b"):
            records = [{"data": n + i, "tag": f"t{n // 100}.{i % 3}", "node": f"n{i % 2}"} for i in range(20)]
            scene.shard.call("append", topic, {"records": records})
        scene.shard.clock.advance(1000)
        if n % 100 == 80 and n < 480:
            scene.checkpoint()
    return scene


def test_a_range_of_times_skips_batches_by_the_index(grown: Scene) -> None:
    everything, _, all_batches = read(grown)
    times = sorted({row["timestamp"] for row in everything})
    first, last = times[7], times[9]
    rows, _, batches = read(grown, GreaterThanOrEqual(("timestamp",), first), LessThan(("timestamp",), last))
    wanted = {key(row) for row in everything if first <= row["timestamp"] < last}
    got = {key(row) for row in rows}
    assert wanted <= got <= {key(row) for row in everything if first <= row["timestamp"] <= last}
    assert batches <= 6 < all_batches
    ms = [int(time.timestamp() * 1000) for time in (first, last)]
    rows, _, batches = read(grown, startingTimestamp=str(ms[0]), endingTimestamp=str(ms[1]))
    assert {key(row) for row in rows} == wanted
    assert batches <= 4


def test_an_index_that_is_missing_or_damaged_is_done_without(tmp_path: Path) -> None:
    scene = Scene(tmp_path, segment_max_events=100, cold_dir="")
    for _ in range(10):
        scene.shard.append("a", *range(10))
        scene.shard.clock.advance(1000)
    scene.checkpoint()
    expected = scene.read()
    (index,) = scene.path.rglob("*.idx")
    raw = index.read_bytes()
    for damage in (None, b"", raw[:-1], raw[:5] + bytes([raw[5] ^ 1]) + raw[6:], raw[64:], bytes(len(raw))):
        index.unlink(missing_ok=True)
        if damage is not None:
            index.write_bytes(damage)
        assert scene.read() == expected
        rows, _, _ = read(scene, GreaterThan(("offset",), 95))
        assert [seq for _, seq in seqs(rows)][-5:] == [96, 97, 98, 99, 100]


def test_a_salvaged_topic_is_read_though_its_frames_have_its_earlier_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are those that `topics reshard` copies."""
    scene = Scene(tmp_path, cold_dir="")
    monkeypatch.setattr(plan, "clock_ms", lambda: scene.shard.clock.ms)
    for _ in range(5):
        scene.shard.append("a", *range(20), config={"ttl_ms": 60_000})
        scene.shard.clock.advance(1000)
        scene.checkpoint()
    scene.shard.shard.close()
    pieces = scene.plan()
    damaged = sorted(scene.path.rglob("*.data"))[2]
    raw = bytearray(damaged.read_bytes())
    raw[100] ^= 1
    damaged.write_bytes(raw)
    (found,) = salvage(RealDisk(), scene.path, scene.shard.clock, scene.shard.limits, "a")
    assert found["lost"] == [[41, 60]]
    seqs = [record[1] for record in scene.read()]
    assert seqs == [*range(1, 41), *range(61, 101)]
    assert records(pieces) == scene.read(), "a task that was planned before finds them, too"
    scene.shard.clock.advance(56_000)
    source = local.source({"path": str(scene.path)})
    assert [gap[1:] for gap in source.gaps({}, source.latest())] == [(1, 20, "ttl"), (41, 60, "mixed")]
