"""A topic as its files tell it: which records it has, and where it ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shardd.offline.rewind import Cuts, cut
from shardd.storage.disk import RealDisk
from tests.support.scene import Chance, Scene


def test_a_topic_created_while_the_catalog_was_made_is_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.shard.append("a", 1)
    scene.shard.shard.commits.sync_now()
    scene.shard.send("configure", "new", {})
    scene.shard.shard.flush()
    scene.checkpoint(synced=False)
    scene.shard.shard.commits.sync_now()
    scene.shard.append("new", 2)
    assert [record[0] for record in scene.read()] == ["a", "new"]


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_jobs_that_are_done_are_not_read(tmp_path: Path, checkpoints: int) -> None:
    scene = Scene(tmp_path)
    scene.shard.call("configure", "q", {"type": "queue", "leases_durable": True})
    for _ in range(10):
        scene.shard.append("q", *range(7))
    claimed = scene.shard.call("claim", "q", {"node": "w", "max": 40})["claimed"]
    for _ in range(checkpoints):
        scene.checkpoint()
    scene.shard.call("ack", "q", {"node": "w", "seqs": [job["$seq"] for job in claimed if job["$seq"] % 3]})
    scene.shard.shard.commits.sync_now()
    assert [record[1] for record in scene.read()] == [r["$seq"] for r in scene.shard.everything("q")]
    assert len(scene.read()) == 70 - 27
    scene.checkpoint()
    assert len(scene.read()) == 70 - 27


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_topics_that_were_cut_end_where_the_shard_says(seed: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene")
    chance = Chance(scene, seed)
    for _ in range(300):
        chance.step()
    scene.shard.shard.close()
    before = scene.served(scene.shard.restarted())
    assert before
    moment = random.Random(seed).choice(before)[2]
    shard = scene.shard
    for _ in cut(RealDisk(), [shard.path], shard.clock, shard.limits, Cuts(until_ms=moment)):
        pass
    assert scene.read() == [record for record in before if record[2] <= moment]
    assert scene.read() == scene.served(shard.restarted())
