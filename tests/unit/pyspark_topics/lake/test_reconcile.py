"""Claims about `reconcile`: what was deleted in the service goes from the lake, and nothing else does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.fs import DeltaStorageHandler

from pyspark_topics import plan
from pyspark_topics.client import Diff, Endpoint, parse_diff
from pyspark_topics.lake import local, reconcile
from pyspark_topics.lake.layout import ONE, PER_TOPIC, LakeError
from pyspark_topics.lake.local import Lake
from tests.support.scene import Scene
from tests.unit.pyspark_topics.lake.test_local import drain, gaps, put, rows, seen, writer


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "scene")
    for number in range(40):
        for topic in ("orders", "visits"):
            put(scene, topic, {"n": number}, f"customer-{number % 10}")
    scene.checkpoint()
    return scene


def reconciled(scene: Scene, to: Path, tags: tuple[str, ...] = (), **how: bool) -> dict[str, int]:
    source = local.source({"path": str(scene.path), "coldPath": str(scene.cold)}, reconcile.READ)
    return reconcile.run(Lake(to), source, tags, **{"dry_run": False, "vacuum": False, **how})


def delete(scene: Scene, topic: str, tag: str) -> None:
    scene.shard.call("delete_records", topic, {"match": ["tag", "Eq", tag]})
    scene.shard.shard.commits.sync_now()


@pytest.mark.parametrize("form", [ONE, PER_TOPIC])
def test_a_deleted_customer_is_in_no_file_and_nothing_else_is_missing(scene: Scene, tmp_path: Path, form: str) -> None:
    to = tmp_path / "lake"
    drain(writer(scene, to, form))
    for topic in ("orders", "visits"):
        delete(scene, topic, "customer-0")  # the first records of both
        delete(scene, topic, "customer-7")
    before = rows(to, form)
    assert reconciled(scene, to, dry_run=True, vacuum=True) == {"orders": 8, "visits": 8}
    assert rows(to, form) == before
    assert reconciled(scene, to, vacuum=True) == {"orders": 8, "visits": 8}
    assert seen(to, form) == scene.served()
    assert len(seen(to, form)) == 64
    files = [path for path in to.rglob("*") if path.is_file()]
    assert not [path for path in files if b"customer-7" in path.read_bytes()]
    tags = {tag for path in files if path.suffix == ".parquet" for tag in pq.read_table(path)["tag"].to_pylist()}
    assert tags == {f"customer-{number}" for number in (1, 2, 3, 4, 5, 6, 8, 9)}
    assert reconciled(scene, to) == {}
    assert drain(writer(scene, to, form)) == 0
    assert gaps(to) == []


def test_what_a_cap_took_stays_and_what_was_deleted_behind_it_goes(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    drain(writer(scene, to))
    scene.shard.call("configure", "orders", {"cap_records": 30})
    delete(scene, "orders", "customer-0")
    assert scene.served()[0][1] == 12
    scene.shard.call("delete_records", "visits", {"before_seq": 5})
    scene.shard.shard.commits.sync_now()
    assert reconciled(scene, to) == {"orders": 3, "visits": 4}
    kept = [row["offset"] for row in rows(to) if row["topic"] == "orders"]
    assert kept == [*range(1, 11), *(number for number in range(12, 41) if (number - 1) % 10)]


def test_what_age_took_since_the_last_checkpoint_stays_and_what_was_deleted_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "scene")
    monkeypatch.setattr(plan, "clock_ms", lambda: scene.shard.clock.ms)
    scene.shard.append("orders", *range(5), config={"ttl_ms": 60_000})
    scene.shard.clock.advance(40_000)
    for number in range(5):
        put(scene, "orders", number, f"customer-{number}")
    scene.checkpoint()
    to = tmp_path / "lake"
    drain(writer(scene, to))
    scene.shard.clock.advance(40_000)
    assert [record[1] for record in scene.served()] == [6, 7, 8, 9, 10]
    assert reconciled(scene, to) == {}
    delete(scene, "orders", "customer-2")
    assert reconciled(scene, to) == {"orders": 1}
    assert [row["offset"] for row in rows(to)] == [1, 2, 3, 4, 5, 6, 7, 9, 10]


def capped(scene: Scene) -> None:
    scene.shard.call("configure", "orders", {"cap_records": 5})


def aged(scene: Scene) -> None:
    scene.shard.call("configure", "orders", {"ttl_ms": 1000})
    scene.shard.clock.advance(5000)


def ended(scene: Scene) -> None:
    scene.shard.call("delete_topic", "orders")


def created_again(scene: Scene) -> None:
    scene.shard.call("delete_topic", "orders")
    scene.shard.append("orders", 1)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("happen", [capped, aged, ended, created_again])
def test_what_is_lost_while_the_records_are_read_stays(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happen: Callable[[Scene], None], stale: bool
) -> None:
    """A service answers each call as of now. Files are those of the first look (`stale`), and may be gone."""
    monkeypatch.setattr(plan, "clock_ms", lambda: scene.shard.clock.ms)
    to = tmp_path / "lake"
    drain(writer(scene, to))
    delete(scene, "visits", "customer-7")
    source = local.source(scene.options, reconcile.READ)
    partitions: Any = source.partitions

    def late(start: Any, end: Any) -> Any:
        monkeypatch.setattr(source, "partitions", partitions)
        happen(scene)
        scene.shard.shard.commits.sync_now()
        if stale:
            for number in range(3):  # files stay until the next checkpoint but one
                scene.shard.append("other", number)
                scene.checkpoint()
        else:
            source.look()
        return partitions(start, end)

    monkeypatch.setattr(source, "partitions", late)
    assert reconcile.run(Lake(to), source, (), dry_run=False, vacuum=False) == {"visits": 4}
    assert [row["offset"] for row in rows(to) if row["topic"] == "orders"] == [*range(1, 41)]


def test_rows_that_the_source_does_not_have_yet_stay(scene: Scene, tmp_path: Path) -> None:
    """A bucket lags; a backup is of an earlier time."""
    to = tmp_path / "lake"
    delete(scene, "orders", "customer-7")
    backup = shutil.copytree(scene.path, tmp_path / "backup" / scene.path.name)
    for number in range(5):
        put(scene, "orders", number, "late")
    scene.checkpoint()
    drain(writer(scene, to))
    delete(scene, "orders", "customer-8")
    source = local.source({"path": str(backup), "coldPath": str(scene.cold)}, reconcile.READ)
    assert reconcile.run(Lake(to), source, (), dry_run=False, vacuum=False) == {}
    assert len(rows(to)) == 81


class Asked:
    """The client of a source over the shard of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.shard = scene.shard

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic(self, name: str) -> Any:
        return self.shard.call("state", name)

    def topics(self) -> list[Any]:
        return [self.topic(name) for name in self.shard.shard.directory.visible]

    def diff(self, topic: str, from_seq: int, limit: int, *_: int, **__: bool) -> Diff:
        return parse_diff(topic, msgspec.json.encode(self.shard.diff(topic, from_seq, limit=limit)))


@pytest.mark.parametrize("window", [reconcile.WINDOW, 7])
@pytest.mark.parametrize("url", [False, True])
def test_what_was_lost_between_records_stays_and_what_was_deleted_around_it_goes(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: bool, window: int
) -> None:
    """`topics salvage` leaves such losses, and the rows may be all that is left of the records."""
    monkeypatch.setattr(reconcile, "WINDOW", window)
    to = tmp_path / "lake"
    drain(writer(scene, to))
    salvaged = Scene(tmp_path / "salvaged")
    for topic in ("orders", "visits"):
        salvaged.shard.append(topic, *range(9))
        put(salvaged, topic, 9, "gone")
    found = salvaged.shard.shard.directory.find("orders")
    found.records.leave_out(16, "mixed")
    found.position.used(26)
    put(salvaged, "orders", 26, "gone")
    salvaged.shard.append("orders", *range(13))
    salvaged.shard.append("visits", *range(30))
    salvaged.shard.call("delete_records", "orders", {"before_seq": 4})
    delete(salvaged, "orders", "gone")
    salvaged.checkpoint()
    monkeypatch.setattr(Endpoint, "client", lambda _: Asked(salvaged))
    monkeypatch.setattr(Endpoint, "reach", lambda _: None)
    source = local.source({"url": "http://127.0.0.1:9"} if url else salvaged.options, reconcile.READ)
    assert reconcile.run(Lake(to), source, (), dry_run=False, vacuum=False) == {"orders": 5}
    left = [row["offset"] for row in rows(to) if row["topic"] == "orders"]
    assert left == [*range(4, 10), *range(11, 27), *range(28, 41)]


def test_a_tag_goes_whatever_the_service_still_has_of_it(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    drain(writer(scene, to))
    scene.shard.call("delete_topic", "visits")
    scene.shard.shard.commits.sync_now()
    assert reconciled(scene, to, ("customer-3",)) == {"orders": 4, "visits": 4}
    assert reconciled(scene, to, ("customer-3", "customer-4*")) == {"orders": 4, "visits": 4}
    assert {row["tag"] for row in rows(to)} == {f"customer-{number}" for number in (0, 1, 2, 5, 6, 7, 8, 9)}


def test_rows_of_a_topic_that_was_created_again_stay(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    drain(writer(scene, to))
    scene.shard.call("delete_topic", "visits")
    scene.shard.append("visits", 1)
    scene.shard.shard.commits.sync_now()
    assert reconciled(scene, to) == {}
    assert len(rows(to)) == 80


def test_windows_and_deletions_of_many_runs_add_up(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "WINDOW", 7)
    monkeypatch.setattr(reconcile, "RUNS", 2)
    to = tmp_path / "lake"
    drain(writer(scene, to))
    for number in (1, 2, 5, 9):
        delete(scene, "orders", f"customer-{number}")
    assert reconciled(scene, to) == {"orders": 16}
    assert seen(to) == scene.served()


def test_threads_of_pyarrow_run_no_python(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that needs the interpreter when the command has ended already ends it with SIGABRT. The file system of
    `deltalake` is in Python."""
    to = tmp_path / "lake"
    scene.shard.call("append", "shop:a.b", {"records": [{"data": n, "tag": "%41 ä"} for n in range(20)]})
    scene.shard.call("configure", "shop:a.b", {"cap_records": 10})
    scene.shard.shard.commits.sync_now()
    monkeypatch.setattr(DeltaStorageHandler, "from_table", None)
    for _ in range(2):  # the second run looks at the gaps of the first one
        drain(writer(scene, to))
        scene.shard.call("append", "shop:a.b", {"records": [{"data": n, "tag": "b"} for n in range(20)]})
        scene.shard.shard.commits.sync_now()
    assert reconciled(scene, to, ("%41 ä",)) == {"shop:a.b": 10}
    monkeypatch.undo()
    assert [gap[1:3] for gap in gaps(to)] == [(21, 27), (28, 30)]


def test_another_service_deletes_nothing(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    drain(writer(scene, to))
    other = Scene(tmp_path / "other")
    other.shard.append("first", 1)
    other.shard.append("second", 1)
    other.shard.append("visits", 1)
    other.shard.append("orders", 1)
    with pytest.raises(LakeError, match="of another service"):
        reconciled(other, to)
    assert len(rows(to)) == 80


@pytest.mark.parametrize(
    ("offsets", "runs"),
    [([], []), ([3], [(3, 3)]), ([1, 2, 3, 7, 9, 10], [(1, 3), (7, 7), (9, 10)]), ([1, 3], [(1, 1), (3, 3)])],
)
def test_offsets_are_joined_to_runs(offsets: list[int], runs: list[Any]) -> None:
    assert reconcile.runs(pa.array(offsets, pa.int64())) == runs
