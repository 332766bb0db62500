"""The Spark reader of a bucket with a key: what others changed or made up is refused, what is encrypted is read."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_topics import bucket as buckets
from pyspark_topics import plan, seal
from pyspark_topics.bucket import Bucket
from pyspark_topics.columns import EVERYTHING
from pyspark_topics.datasource import Reader
from pyspark_topics.errors import CorruptFile, NotADataDirectory
from pyspark_topics.options import BadOption
from pyspark_topics.seal import Unsealed
from shardd.replication import seal as drawn
from shardd.replication.seal import Sealed
from shardd.replication.store import open_store
from tests.support.bucket_scene import BucketScene
from tests.support.scene import Chance
from tests.unit.pyspark_topics.test_bucket import flip, grown, values

KEY = b"k" * 32


@pytest.fixture(params=[False, True], ids=["in the clear", "encrypted"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketScene:
    made = BucketScene(tmp_path, key=KEY, encrypts=request.param)
    (tmp_path / "key").write_bytes(KEY + b"\n")
    made.options["bucketKeyFile"] = str(tmp_path / "key")
    monkeypatch.setattr(plan, "clock_ms", lambda: made.shard.clock.ms)
    monkeypatch.setattr(buckets, "PATIENCE", 0.0)
    return made


def test_both_drawings_of_a_seal_agree() -> None:
    assert (seal.SEAL.format, seal.SIZE, seal.MAGIC) == (drawn._SEAL.format, drawn.SIZE, drawn.MAGIC)
    assert (seal.CLEAR, seal.ENCRYPTED) == (drawn.CLEAR, drawn.ENCRYPTED)
    assert (seal.LEAST_KEY_BYTES, seal.NONE) == (drawn.LEAST_KEY_BYTES, drawn.NONE)


@pytest.mark.parametrize("encrypts", [False, True])
def test_whatever_happened_a_bucket_with_a_key_has_what_the_shard_serves(tmp_path: Path, encrypts: bool) -> None:
    scene = BucketScene(tmp_path, key=KEY, encrypts=encrypts)
    (tmp_path / "key").write_bytes(KEY)
    scene.options["bucketKeyFile"] = str(tmp_path / "key")
    chance = Chance(scene, 7)
    for step in range(80):
        chance.step()
        if step % 8 == 7:
            assert scene.read() == scene.served(), f"step {step}"
    assert any(piece.first == 0 for piece in scene.plan())


def test_the_key_may_be_in_the_environment(scene: BucketScene, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(scene)
    monkeypatch.setenv("TOPICS_BUCKET_KEY_FILE", scene.options.pop("bucketKeyFile"))
    assert values(scene) == list(range(63))


def test_pieces_that_go_to_executors_have_the_keys_file_and_not_the_key(scene: BucketScene) -> None:
    grown(scene)
    sent = pickle.dumps(Reader(scene.options, EVERYTHING).partitions())
    assert scene.options["bucketKeyFile"].encode() in sent
    assert KEY not in sent


def test_without_the_key_encrypted_objects_are_refused_with_a_sentence(scene: BucketScene) -> None:
    grown(scene)
    encrypted = scene.shard.store.encrypts  # type: ignore[attr-defined]
    del scene.options["bucketKeyFile"]
    if not encrypted:
        assert values(scene) == list(range(63))
        return
    service = scene.bucket / "service.json"
    with pytest.raises(NotADataDirectory, match=rf"{service}: it is encrypted: .*bucketKeyFile"):
        values(scene)
    service.write_bytes(service_in_the_clear(scene))
    with pytest.raises(NotADataDirectory, match=r"manifests/\d+: it is encrypted: .*bucketKeyFile"):
        values(scene)
    shutil.rmtree(scene.bucket / "shard-00" / "manifests")
    with pytest.raises(NotADataDirectory, match=r"log/\d+: it is encrypted: .*bucketKeyFile"):
        values(scene)


def service_in_the_clear(scene: BucketScene) -> bytes:
    return bytes(Sealed(open_store(scene.bucket.as_uri()), KEY).get("service.json"))


def test_what_is_damaged_or_made_up_is_refused_with_its_name(scene: BucketScene) -> None:
    grown(scene)
    (extent,) = scene.plan()[0].file.extents
    part = sorted((scene.bucket / "shard-00" / "log").iterdir())[-2]
    for path in (scene.bucket / "service.json", part, scene.bucket / extent.name):
        whole = path.read_bytes()
        other = scene.object("terms/").read_bytes()
        for changed in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-80], whole[:-1], b"", b"x" * len(whole), other):
            path.write_bytes(changed)
            with pytest.raises(Unsealed, match=f"{path}"):
                values(scene)
        path.write_bytes(whole)
    assert values(scene) == list(range(63))


def test_a_changed_part_may_be_left_out_as_a_damaged_one(scene: BucketScene) -> None:
    grown(scene)
    flip(sorted((scene.bucket / "shard-00" / "log").iterdir())[-2], 40)
    with pytest.raises(CorruptFile, match="its seal does not match"):
        values(scene)
    assert [n for n in values(scene, failOnDataLoss="false") if n != 61] == [*range(61), 62]


def test_another_part_of_the_same_service_does_not_fit_into_the_chain(scene: BucketScene, tmp_path: Path) -> None:
    grown(scene)
    path = sorted((scene.bucket / "shard-00" / "log").iterdir())[-2]
    name = f"shard-00/log/{path.name}"
    (tmp_path / "other").mkdir()
    other = Sealed(open_store((tmp_path / "other").as_uri()), KEY, scene.shard.store.encrypts)  # type: ignore[attr-defined]
    before = f"{name[:-20]}{int(name[-20:]) - 1:020d}"
    other.create(before, b"another one before it")
    other.create(name, scene.shard.store.get(name))
    path.write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(Unsealed, match="does not follow the part before it"):
        values(scene)


def test_a_key_that_is_not_this_buckets_or_none_is_refused(scene: BucketScene, tmp_path: Path) -> None:
    grown(scene)
    file = tmp_path / "other"
    with pytest.raises(BadOption, match=f"bucketKeyFile.*{file}.*No such file.*on driver and executors"):
        values(scene, bucketKeyFile=str(file))
    file.write_bytes(b"short")
    with pytest.raises(BadOption, match="has 5 bytes, 32 are needed"):
        values(scene, bucketKeyFile=str(file))
    file.write_bytes(b"o" * 32)
    with pytest.raises(Unsealed, match="sealed with another key than that of bucketKeyFile"):
        values(scene, bucketKeyFile=str(file))
    plain = BucketScene(tmp_path / "plain")
    with pytest.raises(Unsealed, match=r"has no seal.*leave bucketKeyFile out"):
        values(plain, bucketKeyFile=scene.options["bucketKeyFile"])


def test_without_the_library_an_encrypted_bucket_is_refused(
    scene: BucketScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(scene)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    if scene.shard.store.encrypts:  # type: ignore[attr-defined]
        with pytest.raises(NotADataDirectory, match="install the package cryptography on driver and executors"):
            values(scene)
    else:
        assert values(scene) == list(range(63))


def test_an_object_is_read_once_for_all_ranges_of_it(scene: BucketScene, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(scene)
    read: list[str] = []
    real = Bucket._read

    def noted(self: Bucket, name: str, *given: Any) -> bytes:
        read.append(name)
        return real(self, name, *given)

    monkeypatch.setattr(Bucket, "_read", noted)
    assert values(scene) == list(range(63))
    chunks = [name for name in read if "/checkpoints/" in name]
    assert chunks
    assert len(chunks) == len(set(chunks))
