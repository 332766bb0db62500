"""The Spark reader against a bucket that the shard's own shipping makes, while it ships, removes, and is damaged."""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from pyspark_topics import bucket as buckets
from pyspark_topics import plan
from pyspark_topics.bucket import Bucket
from pyspark_topics.columns import EVERYTHING as SCHEMA
from pyspark_topics.datasource import Reader
from pyspark_topics.directory import places
from pyspark_topics.errors import BucketError, CorruptFile, NotADataDirectory, UnknownFormat
from pyspark_topics.logfile import LogFile
from pyspark_topics.options import BadOption, Topics
from pyspark_topics.replica import ReplicaSnapshot
from pyspark_topics.storage import Kept
from shardd.replication import parts
from shardd.storage.disk import RealDisk
from tests.support.bucket_scene import BucketScene, BucketShard
from tests.support.harness import Harness
from tests.support.scene import Chance, records


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketScene:
    made = BucketScene(tmp_path)
    monkeypatch.setattr(plan, "clock_ms", lambda: made.shard.clock.ms)
    monkeypatch.setattr(buckets, "PATIENCE", 0.0)
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int | None]]:
    """The calls to the store: name, offset and size of what was read."""
    found: list[tuple[str, int, int | None]] = []
    real = Bucket.get

    def get(self: Bucket, name: str, offset: int = 0, size: int | None = None) -> bytes:
        found.append((name, offset, size))
        return real(self, name, offset, size)

    monkeypatch.setattr(Bucket, "get", get)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects and folders that the store was asked for."""
    found: list[str] = []
    real = Bucket._patiently

    def patiently(self: Bucket, name: str, call: Any) -> Any:
        found.append(name)
        return real(self, name, call)

    monkeypatch.setattr(Bucket, "_patiently", patiently)
    return found


def values(scene: BucketScene, **options: str) -> list[Any]:
    """The values that a new process reads."""
    buckets._kept, buckets._near = Kept(1 << 30), Kept(1 << 30)
    buckets._opened_last, buckets._seals = Kept(1 << 30), Kept(1 << 30)
    reader = Reader({**scene.options, **options}, SCHEMA)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return [json.loads(row["value"]) for row in sorted(rows, key=lambda row: (row["topic"], row["offset"]))]


def grown(scene: BucketScene) -> None:
    """Two checkpoints, and parts behind them."""
    for number in range(0, 60, 20):
        scene.shard.append("t", *range(number, number + 20), config={"cap_records": 1000} if not number else {})
        if number < 40:
            scene.checkpoint()
    for number in range(60, 63):
        scene.shard.append("t", number)
        scene.settle()


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(raw)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 30))])
def test_whatever_happened_the_bucket_has_what_the_shard_serves(tmp_path: Path, seed: int) -> None:
    scene = BucketScene(tmp_path)
    chance = Chance(scene, seed)
    for step in range(160):
        chance.step()
        if step % 8 == 7:
            assert scene.read() == scene.served(), f"seed {seed}, step {step}"
    assert any(piece.first == 0 for piece in scene.plan())


def test_a_bucket_that_is_sealed_with_a_key_is_read_without_it(tmp_path: Path) -> None:
    scene = BucketScene(tmp_path, key=b"k" * 32)
    chance = Chance(scene, 7)
    for step in range(80):
        chance.step()
        if step % 8 == 7:
            assert scene.read() == scene.served(), f"step {step}"
    assert any(piece.first == 0 for piece in scene.plan())
    assert all(raw.read_bytes()[-80:-76] == b"TPCS" for raw in scene.bucket.rglob("*") if raw.is_file())


def test_a_read_goes_on_when_retention_has_removed_what_it_was_to_read(scene: BucketScene) -> None:
    grown(scene)
    before, pieces = scene.served(), scene.plan()
    planned = {extent.name for piece in pieces for extent in piece.file.extents}
    for number in range(12):
        scene.shard.append("t", *range(number, number + 20))
        scene.shard.call("delete_records", "t", {"match": "nothing"})
        scene.shard.clock.advance(86_400_000)
        scene.checkpoint()
        scene.shard.copies.retain()
    gone = {name for name in planned if not (scene.bucket / name).exists()}
    assert any("/log/" in name for name in gone)
    assert records(pieces) == before


def test_an_end_has_no_records_and_ends_nothing(scene: BucketScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that a holder creates last when it gives its term up."""
    grown(scene)
    scene.settle()
    scene.shard.role.end()
    name = scene.object("log/")
    assert parts.decode(name.read_bytes(), int(name.name))[0].kind == parts.END
    with monkeypatch.context() as ended:
        ended.setattr(scene, "settle", lambda: None)  # nothing can be shipped
        assert scene.read() == scene.served()
    scene.shard.shard.close()
    scene.shard = scene.shard.restarted()
    scene.shard.append("t", 63)
    assert scene.read() == scene.served()


def test_parts_that_retention_removes_while_they_are_looked_for_are_in_a_newer_manifest(
    scene: BucketScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(scene)
    real = ReplicaSnapshot.logs
    calls: list[int] = []

    def logs(self: ReplicaSnapshot, fail: bool) -> list[LogFile]:
        calls.append(self.number)
        if len(calls) == 1:
            (scene.bucket / f"shard-00/log/{self.manifest.first_part:020d}").unlink()
            (scene.bucket / f"shard-00/manifests/{self.number:020d}").unlink()
            scene.checkpoint()
        return real(self, fail)

    monkeypatch.setattr(ReplicaSnapshot, "logs", logs)
    assert scene.read() == scene.served()
    assert len(calls) == 2


def test_behind_a_hole_in_the_log_reading_waits_for_the_next_manifest(
    scene: BucketScene, caplog: pytest.LogCaptureFixture
) -> None:
    grown(scene)
    known = scene.served()
    scene.shard.shard.close()
    alone = Harness(RealDisk(), scene.shard.clock, scene.path, **msgspec.structs.asdict(scene.shard.limits))
    for number in range(6):
        alone.append("t", *(f"{number}{each}" + "x" * 100 for each in range(50)))
        alone.shard.commits.sync_now()
        alone.shard.checkpoint_now()
    alone.shard.close()
    scene.shard = scene.shard.restarted()
    scene.shard.append("t", "behind")
    with caplog.at_level(logging.WARNING, "pyspark_topics"):
        assert scene.read() == known
    assert "should follow; read up to there" in caplog.text
    scene.checkpoint()
    assert scene.read() == scene.served()
    assert len(scene.served()) == len(known) + 301


def test_only_shards_and_ranges_that_are_wanted_are_read(
    tmp_path: Path, asked: list[tuple[str, int, int | None]]
) -> None:
    scene = BucketScene(tmp_path / "two", segment_max_events=100_000, wal_segment_bytes=64 << 20)
    for number in range(8):
        scene.shard.append("t", *(f"{number}{each}" + "x" * 1000 for each in range(1000)))
    scene.checkpoint()
    asked.clear()
    assert len(values(scene, startingOffsets='{"t": 1500}', endingOffsets='{"t": 1510}')) == 10
    read = sum(size for name, _, size in asked if size and "/checkpoints/" in name)
    assert 1_000_000 < read < 3_000_000
    service = json.loads((scene.bucket / "service.json").read_text())
    (scene.bucket / "service.json").write_text(json.dumps(service | {"shards": 8}))
    asked.clear()
    assert not plan.survey(places([str(scene.bucket)]), Topics(frozenset({"s3"}))).pieces
    assert len({name.partition("/")[0] for name, *_ in asked}) == 2  # service.json, and one shard


def test_small_files_that_lie_side_by_side_are_read_together(scene: BucketScene, opened: list[str]) -> None:
    for number in range(150):
        scene.shard.append(f"t{number:03}", 1, 2, 3)
    scene.checkpoint()
    pieces = scene.plan()
    assert len(pieces) == 150
    opened.clear()
    assert records(pieces) == scene.served()
    assert len(opened) == 1


def test_what_caps_leave_is_found_without_reading_segments_again(tmp_path: Path, opened: list[str]) -> None:
    scene = BucketScene(tmp_path / "large", segment_max_events=2000, wal_segment_bytes=64 << 20)
    for number in range(4):
        for tag in ("a", "b"):
            records_ = [{"data": f"{number}{each}" + "x" * 1000, "tag": tag} for each in range(600)]
            scene.shard.call(
                "append", "t", {"records": records_, "config": {"cap_records": 3000} if not number else {}}
            )
    scene.checkpoint()

    def asked_again() -> list[str]:
        scene.settle()
        opened.clear()
        scene.plan()
        return [name for name in opened if "/checkpoints/" in name]

    scene.shard.append("t", "more")
    assert scene.read() == scene.served()
    assert not asked_again()
    scene.shard.call("delete_records", "t", {"match": "a"})
    scene.checkpoint()  # its catalog has the flags, the files do not yet
    scene.shard.append("t", *range(1500))
    assert scene.read() == scene.served()
    assert not asked_again()


def test_a_stream_that_waits_reads_nothing_twice(scene: BucketScene, opened: list[str]) -> None:
    grown(scene)
    scene.read()
    opened.clear()
    scene.plan()
    assert len(opened) <= 2 + buckets.AHEAD
    assert not [name for name in opened if "/log/" in name and (scene.bucket / name).exists()]


def test_a_service_whose_first_checkpoint_is_on_its_way_is_to_be_waited_for(scene: BucketScene, tmp_path: Path) -> None:
    path = tmp_path / "older"
    alone = Harness(RealDisk(), scene.shard.clock, path, **msgspec.structs.asdict(scene.shard.limits))
    for _ in range(6):
        alone.append("t", *("x" * 100 for _ in range(50)))
        alone.shard.commits.sync_now()
        alone.shard.checkpoint_now()
    alone.shard.close()
    shutil.rmtree(scene.bucket / "shard-00")
    given = msgspec.structs.asdict(scene.shard.limits)
    scene.shard = BucketShard(scene.shard.store, RealDisk(), clock=scene.shard.clock, path=path, **given)
    scene.shard.attach()
    scene.path = path
    scene.shard.append("t", "more")
    scene.settle()
    with pytest.raises(CorruptFile, match=r"not copied a checkpoint yet, .*; try again when `topics replica status`"):
        values(scene)
    scene.checkpoint()
    assert len(values(scene)) == 301


def test_another_format_is_refused(scene: BucketScene) -> None:
    grown(scene)
    manifest, log = scene.object("manifests/"), scene.object("log/")
    good = {path: path.read_bytes() for path in (manifest, log, scene.bucket / "service.json")}
    for path, at in ((manifest, 4), (log, 4)):
        raw = bytearray(good[path])
        raw[at] = 2
        if path is log:
            raw[88:96] = parts.CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw[:88]))
        path.write_bytes(raw)
        with pytest.raises(UnknownFormat, match=rf"{path}: .*version 2.*update pyspark_topics"):
            values(scene, failOnDataLoss="false")
        path.write_bytes(good[path])
    service = scene.bucket / "service.json"
    service.write_text(json.dumps(json.loads(good[service]) | {"format": 2}))
    with pytest.raises(NotADataDirectory, match=r"service.json: format 2, known here: 1; update"):
        values(scene)
    service.write_text("{")
    with pytest.raises(NotADataDirectory, match=r"service.json is damaged"):
        values(scene)


def test_a_bucket_without_records_has_none(scene: BucketScene) -> None:
    assert values(scene) == []
    with pytest.raises(BadOption, match='subscribe names the topic "t", which does not exist'):
        values(scene, subscribe="t")


def test_what_is_no_bucket_of_a_service_is_refused_with_the_reason(scene: BucketScene, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotADataDirectory, match="neither a data directory"):
        values(scene, path=f"file://{tmp_path / 'empty'}")
    with pytest.raises(BadOption, match="coldPath goes with a data directory"):
        values(scene, coldPath=str(tmp_path))
    with pytest.raises(BadOption, match=r"hdfs://x/y.*or a bucket \(s3://"):
        values(scene, path="hdfs://x/y")
    with pytest.raises(BadOption, match=r"neither a local nor a mounted directory$"):
        values(scene, coldPath="s3://x/y")
    with pytest.raises(BucketError, match="not a URL that pyarrow"):
        values(scene, path="s3://bucket/prefix?colour=blue")
    with pytest.raises(BucketError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        values(scene, path="az://container/prefix")


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers every request with one status."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(request.param)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"s3://somebody:secret@bucket/prefix?endpoint_override=127.0.0.1:{server.server_port}&scheme=http"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("refusing", "why"),
    [(403, "refused the credentials.*environment variables on driver and executors"), (404, "holds no service")],
    indirect=["refusing"],
)
def test_a_store_that_refuses_is_told_without_its_credentials(scene: BucketScene, refusing: str, why: str) -> None:
    with pytest.raises((BucketError, NotADataDirectory), match=why) as failure:
        values(scene, path=f"{refusing}&region=us-east-1")
    assert re.search("s3://bucket/prefix", str(failure.value))
    assert "secret" not in str(failure.value)


def test_a_call_that_fails_for_a_moment_is_repeated(scene: BucketScene, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(scene)
    real, failures = buckets._opened, iter(range(3))

    def opened(url: str) -> Any:
        if next(failures, None) is not None:
            raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation")
        return real(url)

    monkeypatch.setattr(buckets, "_opened", opened)
    monkeypatch.setattr(buckets, "PAUSE", 0.0)
    with pytest.raises(BucketError, match=r"service.json: the store cannot be reached: .*NETWORK_CONNECTION"):
        values(scene)
    monkeypatch.setattr(buckets, "PATIENCE", 20.0)
    assert values(scene) == list(range(63))
