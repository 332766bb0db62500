"""Kinds of paths: a data directory, one shard, a backup or several, a cold tier, or a list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_topics.columns import EVERYTHING
from pyspark_topics.datasource import Reader
from pyspark_topics.errors import NotADataDirectory
from pyspark_topics.options import BadOption
from supervisor.backup.backup import backup
from tests.support.scene import Scene

Key = tuple[str, int, bytes]


def read(*paths: Path, **options: str) -> list[Key]:
    reader = Reader({"path": json.dumps([*map(str, paths)]), **options}, EVERYTHING)
    return sorted(
        (row["topic"], row["offset"], row["value"])
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """One shard with segments in the hot and the cold tier, and some records in the log alone."""
    made = Scene(tmp_path / "data")
    (tmp_path / "data" / "manifest.json").write_text(json.dumps({"format": 1, "shards": 1, "created_ms": 0}))
    for number in range(100):
        made.shard.append("a", number)
        if number % 20 == 19:
            made.checkpoint()
    made.shard.append("b", "in the log")
    made.shard.shard.commits.sync_now()
    assert list(made.cold.rglob("*.data"))
    return made


def everything(scene: Scene) -> list[Key]:
    return sorted((r[0], r[1], json.dumps(r[3]).encode()) for r in scene.served())


def test_a_data_directory_or_one_shard_with_its_cold_tier(scene: Scene) -> None:
    expected = everything(scene)
    assert read(scene.path.parent, coldPath=str(scene.cold)) == expected
    assert read(scene.path, coldPath=str(scene.cold)) == expected
    assert read(scene.path.parent, scene.cold) == expected
    assert read(scene.cold, scene.path) == expected


def test_a_backup_or_the_newest_of_several(scene: Scene, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    first = [*backup(scene.path.parent, scene.cold, target)][-1]["path"]
    before = everything(scene)
    scene.shard.append("a", "later")
    scene.shard.shard.commits.sync_now()
    second = [*backup(scene.path.parent, scene.cold, target)][-1]["path"]
    (target / "29990101T000000.000Z.tmp").mkdir()
    (target / "29990101T000000.000Z.tmp" / "backup.json").write_text("{}")
    assert read(Path(first)) == before
    assert read(Path(second)) == read(target) == everything(scene) != before


def test_a_cold_tier_alone_has_ids_for_names(scene: Scene) -> None:
    rows = read(scene.cold)
    assert {topic for topic, _, _ in rows} == {f"{1:016x}"}
    hot = {(seq, value) for topic, seq, value in everything(scene) if topic == "a"}
    assert rows
    assert {(seq, value) for _, seq, value in rows} < hot


def test_a_directory_of_one_of_several_machines_that_lacks_a_shard_is_refused(scene: Scene) -> None:
    (scene.path.parent / "machine.json").write_text('{"machine": "one"}')
    assert read(scene.path.parent, coldPath=str(scene.cold)) == everything(scene)
    (scene.path / "wal").rename(scene.path / "aside-1")
    with pytest.raises(NotADataDirectory, match="shard-00"):
        read(scene.path.parent, coldPath=str(scene.cold))


def test_what_is_nothing_of_the_kind_is_refused(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory, match="nor a backup"):
        read(tmp_path)
    with pytest.raises(NotADataDirectory, match="neither a data directory"):
        read(tmp_path / "nothing")
    with pytest.raises(BadOption, match="give one for each"):
        read(scene.path, coldPath='["/x", "/y"]')
