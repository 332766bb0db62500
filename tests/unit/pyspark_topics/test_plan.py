"""Plans of reads: how many tasks there are, and of what size."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    In,
    StringStartsWith,
)

from pyspark_topics import bucket as buckets
from pyspark_topics import plan
from pyspark_topics.columns import EVERYTHING
from pyspark_topics.datasource import Reader
from pyspark_topics.directory import Shard
from pyspark_topics.errors import CorruptFile
from pyspark_topics.storage import Kept, LocalFile
from shardd.offline.reshard import Reshard
from shardd.storage.disk import RealDisk
from tests.behaviour.pyspark_topics.test_pruning import seqs
from tests.support.bucket_scene import BucketScene
from tests.support.harness import Harness
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


def test_topics_that_a_filter_leaves_out_are_not_even_planned(grown: Scene) -> None:
    for condition in (EqualTo(("topic",), "b"), In(("topic",), ("b", "x")), StringStartsWith(("topic",), "b")):
        reader = Reader({"path": str(grown.path)}, EVERYTHING)
        reader.pushFilters([condition])
        pieces = [piece for part in reader.partitions() for piece in part.value]
        named = {wanted.name for piece in pieces for wanted in piece.rows.values()}
        assert named == {"b"}


@pytest.mark.parametrize("least", [1, 7, 40])
def test_files_are_cut_until_there_are_enough_tasks(grown: Scene, least: int) -> None:
    reader = Reader({"path": str(grown.path), "minPartitions": str(least)}, EVERYTHING)
    parts = reader.partitions()
    assert len(parts) >= least
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert seqs(rows) == [(topic, seq) for topic in "ab" for seq in range(1, 501)]


def test_tasks_are_few_and_of_about_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stay in order, whole, in one task each, and with their shard."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    mib = 1 << 20
    shards = [Shard(number, Path(f"shard-{number:02}")) for number in range(2)]
    sizes = [[2 * mib] * 270, [2 * mib, 60 * mib, 3 * mib, 64 * mib, 1]]
    pieces = [
        plan.Piece(shard, LocalFile(f"{shard.path}/{n}"), size, {}, 0)
        for shard, own in zip(shards, sizes, strict=True)
        for n, size in enumerate(own)
    ]
    found = plan.tasks(pieces)
    assert [piece for part in found for piece in part] == pieces
    assert all(len({piece.shard for piece in part}) == 1 for part in found)
    even = [sum(piece.end for piece in part) for part in found if part[0].shard == shards[0]]
    assert max(even) <= plan.TASK_BYTES
    assert max(even) - min(even) <= 2 * mib
    assert len(found) <= len(even) + 3
    # Few bytes are read by one task, not by one per file.
    assert len(plan.tasks(pieces[:3])) == 1


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("remains", [False, True])
def test_a_task_on_a_machine_without_the_directory_fails(tmp_path: Path, checkpoint: bool, remains: bool) -> None:
    """It was planned elsewhere: its rows exist. An empty folder may be where the disk should be mounted."""
    scene = Scene(tmp_path, cold_dir="")
    scene.shard.append("a", *range(20))
    scene.shard.shard.commits.sync_now()
    if checkpoint:
        scene.checkpoint()
    pieces = scene.plan()
    scene.path.rename(tmp_path / "elsewhere")
    if remains:
        scene.path.mkdir()
    for piece in pieces:
        with pytest.raises(CorruptFile, match="shard-00: the shard is not there"):
            records([piece])


def test_a_task_that_finds_an_earlier_catalog_fails(tmp_path: Path) -> None:
    scene = Scene(tmp_path, cold_dir="")
    for number in range(2):
        scene.shard.append("a", number)
        scene.checkpoint()
    pieces = scene.plan()
    max(scene.path.glob("catalog-*.cbor")).unlink()
    Path(pieces[-1].path).unlink()
    with pytest.raises(CorruptFile, match="is as it was before the read was planned"):
        records(pieces)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_task_fails_when_the_objects_of_its_shard_are_gone(
    tmp_path: Path, checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = BucketScene(tmp_path)
    scene.shard.append("a", *range(20))
    if checkpoint:
        scene.checkpoint()
    pieces = scene.plan()
    (scene.bucket / "shard-00").rename(tmp_path / "elsewhere")
    for cache in ("_kept", "_near"):
        monkeypatch.setattr(buckets, cache, Kept(1 << 30))  # the task is in another process
    with pytest.raises(CorruptFile, match="shard-00: the shard is not there"):
        records(pieces)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_task_that_was_planned_before_a_reshard_fails(tmp_path: Path, checkpoint: bool, whole: bool) -> None:
    """Also if a file has the name of the planned one, or its topic is in the same shard as before."""
    scene = Scene(tmp_path, cold_dir="")
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "shards": 1}))
    for topic in ("a", "b", "c"):
        scene.shard.append(topic, *range(20))
    scene.shard.shard.commits.sync_now()
    if checkpoint:
        scene.checkpoint()
    if whole:
        scene.options["path"] = str(tmp_path)
    pieces = scene.plan()
    scene.shard.shard.close()
    limits = msgspec.structs.asdict(scene.shard.limits)
    assert Reshard(RealDisk(), tmp_path, scene.shard.clock, scene.shard.limits).run(2) == 2
    scene.shard = Harness(RealDisk(), scene.shard.clock, scene.path, **limits)
    for number in range(3):
        scene.shard.append("d", number)
        scene.checkpoint()
    scene.shard.append("d", 4)
    scene.shard.shard.commits.sync_now()
    assert Path(pieces[0].path).exists() is not checkpoint
    for piece in pieces:
        with pytest.raises(CorruptFile, match="spread over another number of shards when"):
            records([piece])
