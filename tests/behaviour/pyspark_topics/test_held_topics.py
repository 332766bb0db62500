"""A topic that the server could not read holds back its last frames: a read raises rather than leaving them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_topics.columns import EVERYTHING
from pyspark_topics.datasource import Reader
from pyspark_topics.errors import CorruptFile
from shardd.storage.disk import RealDisk
from tests.support.harness import Harness


def read(path: Path, **options: str) -> list[str]:
    reader = Reader({"path": str(path), **options}, EVERYTHING)
    parts = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row["topic"] for batch in parts for row in batch.to_pylist()]


def test_a_topic_with_held_frames_is_refused_and_others_are_read(tmp_path: Path) -> None:
    shard = Harness(RealDisk(), path=tmp_path / "shard-00")
    shard.append("bad", 1, config={"durability": "fsync"})
    shard.append("good", 2)
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    shard.append("bad", "in the log")
    shard.shard.commits.sync_now()
    path = next((shard.path / "topics").glob("*1/*.data"))
    whole = path.read_bytes()
    path.unlink()
    again = shard.restarted()
    again.shard.checkpoint_now()
    path.write_bytes(whole)
    assert read(shard.path, subscribe="good") == ["good"]
    with pytest.raises(CorruptFile, match='"bad" could not be read by the server'):
        read(shard.path)
    assert again.restarted().everything("bad")[-1]["data"] == "in the log"
