"""What a shard has in a bucket: parts and manifests that are damaged, missing or made up."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from pyspark_topics import bucket as buckets
from pyspark_topics import plan
from pyspark_topics.errors import CorruptFile
from tests.support.bucket_scene import BucketScene
from tests.unit.pyspark_topics.test_bucket import flip, grown, values


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketScene:
    made = BucketScene(tmp_path)
    monkeypatch.setattr(plan, "clock_ms", lambda: made.shard.clock.ms)
    monkeypatch.setattr(buckets, "PATIENCE", 0.0)
    return made


def test_a_fence_has_no_records_and_ends_nothing(scene: BucketScene) -> None:
    grown(scene)
    scene.shard.shard.close()
    (scene.shard.path / "bucket.json").unlink()  # as after a restore
    scene.shard = scene.shard.restarted()
    assert scene.object("log/").stat().st_size == 96
    assert scene.read() == scene.served()
    scene.shard.append("t", 63)
    assert scene.read() == scene.served()


@pytest.mark.parametrize("at", [20, 40, 90, 96, 200, -1])
def test_a_damaged_part_is_named_and_may_be_left_out(scene: BucketScene, at: int) -> None:
    grown(scene)
    path = sorted((scene.bucket / "shard-00" / "log").iterdir())[-2]
    flip(path, min(at, path.stat().st_size - 40) if at > 0 else -30)
    with pytest.raises(CorruptFile, match=f"{path}.*topics replica verify"):
        values(scene)
    assert [n for n in values(scene, failOnDataLoss="false") if n != 61] == [*range(61), 62]


def test_a_part_that_is_cut_or_missing_is_named(scene: BucketScene) -> None:
    grown(scene)
    path = sorted((scene.bucket / "shard-00" / "log").iterdir())[-2]
    raw = path.read_bytes()
    path.write_bytes(raw[:-8])
    with pytest.raises(CorruptFile, match=f"{path}: {len(raw) - 8} bytes, but the header is of part"):
        values(scene)
    path.unlink()
    with pytest.raises(CorruptFile, match=f"{path}: it is missing"):
        values(scene)
    assert values(scene, failOnDataLoss="false") == [*range(61), 62]


def test_a_part_that_a_manifest_needs_is_missing_also_at_the_end(scene: BucketScene) -> None:
    grown(scene)
    scene.checkpoint()
    path = scene.object("log/")
    path.unlink()
    with pytest.raises(CorruptFile, match=f"{path}: it is missing"):
        values(scene)


def test_a_damaged_or_missing_chunk_is_named(scene: BucketScene) -> None:
    grown(scene)
    (extent,) = scene.plan()[0].file.extents
    path = scene.bucket / extent.name
    raw = path.read_bytes()
    flip(path, extent.offset + 100)
    with pytest.raises(CorruptFile, match=rf"{path}, byte {extent.offset}.*the segment is damaged; `topics replica"):
        values(scene)
    path.write_bytes(raw[: extent.offset + 100])
    with pytest.raises(CorruptFile, match=f"{path}: it is too short"):
        values(scene)
    path.unlink()
    with pytest.raises(CorruptFile, match=f"{path.name}|took its place"):
        values(scene)


def test_a_damaged_manifest_is_passed_over_and_none_left_is_an_error(
    scene: BucketScene, caplog: pytest.LogCaptureFixture
) -> None:
    grown(scene)
    older, newest = sorted((scene.bucket / "shard-00" / "manifests").iterdir())
    flip(newest, 40)
    with caplog.at_level(logging.WARNING, "pyspark_topics"):
        assert values(scene) == list(range(63))
    assert f"{newest.name}: it is damaged" in caplog.text
    flip(older, 40)
    with pytest.raises(CorruptFile, match=r"no manifest can be read: .*topics replica verify"):
        values(scene)


@pytest.mark.parametrize(
    "bent",
    [
        lambda head, files: head["streams"][0].__setitem__(0, "../../../etc"),
        lambda head, files: head["streams"][0].__setitem__(1, 1 << 62),  # a plan of 2^40 chunks
        lambda head, files: head["streams"][0].__setitem__(1, -1),
        lambda head, files: head["streams"][0].pop(),
        lambda head, files: head.__setitem__("streams", []),
        lambda head, files: head.__setitem__("part", head["part"] + 1),
        lambda head, files: head.__setitem__("first_part", -1),
        lambda head, files: [each.__setitem__(1, 9) for each in files],
        lambda head, files: [each.__setitem__(1, -1) for each in files],
        lambda head, files: [each.__setitem__(2, 1 << 62) for each in files],
        lambda head, files: [each.__setitem__(3, 1 << 62) for each in files],
        lambda head, files: [each.__setitem__(3, -1) for each in files],
        lambda head, files: [each.__setitem__(3, "x") for each in files],
        lambda head, files: [each.__setitem__(3, 1.5) for each in files],
        lambda head, files: files.append([]),
    ],
)
def test_a_manifest_that_somebody_made_up_is_damage(scene: BucketScene, bent: Callable[[Any, Any], Any]) -> None:
    """Its checksum fits: each program that may write to the bucket can make one."""
    grown(scene)
    for path in (scene.bucket / "shard-00" / "manifests").iterdir():
        raw = path.read_bytes()
        size = int.from_bytes(raw[8:16], "little")
        head, files = json.loads(raw[24 : 24 + size]), json.loads(raw[24 + size :])
        bent(head, files)
        body = (start := json.dumps(head).encode()) + json.dumps(files).encode()
        check = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
        path.write_bytes(raw[:8] + len(start).to_bytes(8, "little") + check + body)
    with pytest.raises(CorruptFile, match="no manifest can be read"):
        values(scene)


def test_without_a_manifest_the_log_has_to_reach_back_to_its_begin(scene: BucketScene) -> None:
    grown(scene)
    shutil.rmtree(scene.bucket / "shard-00" / "manifests")
    assert values(scene) == list(range(63))
    first = min((scene.bucket / "shard-00" / "log").iterdir())
    first.unlink()
    with pytest.raises(CorruptFile, match=r"there is no manifest, and the log begins with shard-00/log/0*2; `topics"):
        values(scene)
