"""Claims about the lake without Spark: each record of the service is a row, once, wherever the process dies."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_topics import plan
from pyspark_topics.lake import layout, local
from pyspark_topics.lake.layout import EVENTS, GAPS, ONE, PER_TOPIC, About, LakeError
from pyspark_topics.lake.local import Settings, Writer
from tests.support.scene import Chance, Scene

SMALL = Settings(max_records=7, compact_to=0)


class Died(BaseException):
    """The process ends here."""


class Dying:
    """Dies at the n-th step."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.steps: list[str] = []

    def __call__(self, name: str) -> None:
        self.steps.append(name)
        self.left -= 1
        if self.left < 0:
            raise Died(name)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "scene")


def writer(
    scene: Scene, to: Path, form: str = ONE, settings: Settings = SMALL, step: Any = lambda name: None
) -> Writer:
    source = local.source({"path": str(scene.path), "coldPath": str(scene.cold)})
    return Writer(local.begin(to, About(form), source), source, settings, step)


def drain(made: Writer) -> int:
    count = 0
    while done := made.batch():
        count += done.records
    made.finish()
    return count


def rows(to: Path, form: str = ONE) -> list[dict[str, Any]]:
    tables = [to / EVENTS] if form == ONE else sorted((to / "topics").iterdir())
    return sorted(
        (row for table in tables for row in DeltaTable(table).to_pyarrow_table().to_pylist()),
        key=lambda row: (row["topic"], row["epoch"], row["offset"]),
    )


def seen(to: Path, form: str = ONE) -> list[tuple[Any, ...]]:
    """The rows as `Scene.served` has them."""
    return [
        (
            row["topic"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            json.loads(row["value"]),
            row["tag"],
            row["node"],
            row["meta"] and json.loads(row["meta"]),
        )
        for row in rows(to, form)
    ]


def gaps(to: Path) -> list[tuple[str, int, int | None, str]]:
    if not (to / GAPS).exists():
        return []
    table = DeltaTable(to / GAPS).to_pyarrow_table()
    return sorted((row["topic"], row["first"], row["last"], row["cause"]) for row in table.to_pylist())


def put(scene: Scene, topic: str, data: Any, tag: str) -> None:
    scene.shard.call("append", topic, {"records": [{"data": data, "tag": tag}]})


def fill(scene: Scene) -> None:
    for number in range(12):
        put(scene, "orders", {"n": number}, f"c{number % 3}")
        scene.shard.append("returns", {"n": number})
    scene.checkpoint()
    scene.shard.append("orders", {"late": True})


@pytest.mark.parametrize("form", [ONE, PER_TOPIC])
def test_every_record_is_a_row_once_wherever_the_process_dies(scene: Scene, tmp_path: Path, form: str) -> None:
    fill(scene)
    to = tmp_path / "lake"
    steps = 0
    while True:
        dying = Dying(steps)
        try:
            drain(writer(scene, to, form, step=dying))
            break
        except Died:
            steps += 1
            assert len(rows(to, form) if list(to.glob("*/*/_delta_log")) or (to / EVENTS).exists() else []) <= 25
    assert {"positions", "read", "rows"} <= set(dying.steps)
    assert seen(to, form) == scene.served()
    assert drain(writer(scene, to, form)) == 0
    assert gaps(to) == []


@pytest.mark.parametrize("form", [ONE, PER_TOPIC])
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_rows_and_gaps_together_are_all_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, seed: int
) -> None:
    """What was lost or deleted before it was read is no row; all else is one, for ever."""
    scene = Scene(tmp_path / "scene")
    monkeypatch.setattr(plan, "clock_ms", lambda: scene.shard.clock.ms)
    chance = Chance(scene, seed)
    rng = random.Random(seed)
    to = tmp_path / "lake"
    everything: dict[tuple[str, int, int], Any] = {}
    many = Settings(max_records=100, compact_to=0)
    for _ in range(3):
        for _ in range(30):
            chance.step()
        scene.shard.shard.commits.sync_now()
        served = scene.served()
        try:
            drain(writer(scene, to, form, many, Dying(rng.randrange(12))))
        except Died:
            drain(writer(scene, to, form))
        found = {(row["topic"], row["epoch"], row["offset"]): row["value"] for row in rows(to, form)}
        assert everything.items() <= found.items(), f"seed {seed}"
        everything = found
        there = {(record[0], record[1]) for record in seen(to, form)}
        assert {record[:2] for record in served} <= there, f"seed {seed}"
    keys = [(row["topic"], row["epoch"], row["offset"]) for row in rows(to, form)]
    assert len(keys) == len(set(keys))
    table = DeltaTable(to / GAPS).to_pyarrow_table().to_pylist() if (to / GAPS).exists() else []
    for gap in table:
        inside = [key for key in keys if key[:2] == (gap["topic"], gap["epoch"]) and key[2] >= gap["first"]]
        if gap["last"] is not None:
            inside = [key for key in inside if key[2] <= gap["last"]]
        assert not inside, f"seed {seed}: {gap} has rows {inside}"


def test_a_loss_is_told_once_with_its_range(scene: Scene, tmp_path: Path) -> None:
    scene.shard.call("configure", "orders", {"cap_records": 5})
    scene.shard.append("orders", *range(3))
    to = tmp_path / "lake"
    drain(writer(scene, to))
    scene.shard.append("orders", *range(20))
    for step in range(6):
        try:
            drain(writer(scene, to, settings=Settings(compact_to=0), step=Dying(step)))
        except Died:
            continue
    drain(writer(scene, to))
    assert gaps(to) == [("orders", 4, 18, "cap")]
    assert [row["offset"] for row in rows(to)] == [1, 2, 3, 19, 20, 21, 22, 23]


def after_reading(monkeypatch: pytest.MonkeyPatch, happen: Callable[[pa.Table], pa.Table]) -> None:
    """Have something happen to the rows of the next batch once they were read."""
    read = local.read

    def once(*range: Any) -> pa.Table:
        monkeypatch.setattr(local, "read", read)
        return happen(read(*range))

    monkeypatch.setattr(local, "read", once)


def test_what_a_cap_takes_after_it_was_read_is_no_gap(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capped(rows: pa.Table) -> pa.Table:
        scene.shard.call("configure", "orders", {"cap_records": 2})
        scene.shard.shard.commits.sync_now()
        return rows

    scene.shard.append("orders", *range(5))
    to = tmp_path / "lake"
    after_reading(monkeypatch, capped)
    assert drain(writer(scene, to)) == 5
    assert gaps(to) == []
    scene.shard.call("delete_topic", "orders")
    drain(writer(scene, to))
    assert gaps(to) == [("orders", 6, None, "deleted")]


@pytest.mark.parametrize(("read", "lost"), [(5, []), (2, [("orders", 3, 5, "deleted")])])
def test_a_topic_that_is_deleted_after_it_was_read_has_lost_what_was_not(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, lost: list[Any]
) -> None:
    def deleted(rows: pa.Table) -> pa.Table:
        scene.shard.call("delete_topic", "orders")
        scene.shard.shard.commits.sync_now()
        return rows.slice(0, read)

    scene.shard.append("orders", *range(5))
    to = tmp_path / "lake"
    after_reading(monkeypatch, deleted)
    done = writer(scene, to).batch()
    assert done is not None
    assert (done.records, done.gaps) == (read, len(lost))
    assert gaps(to) == lost
    drain(writer(scene, to))
    assert gaps(to) == [*lost, ("orders", 6, None, "deleted")]


def test_a_topic_that_is_created_again_has_rows_of_both(scene: Scene, tmp_path: Path) -> None:
    scene.shard.append("orders", 1, 2)
    to = tmp_path / "lake"
    drain(writer(scene, to))
    scene.shard.call("delete_topic", "orders")
    scene.shard.append("orders", 3)
    drain(writer(scene, to))
    assert [(row["offset"], row["value"]) for row in rows(to)] == [(1, "1"), (2, "2"), (1, "3")]
    assert len({row["epoch"] for row in rows(to)}) == 2
    assert gaps(to) == [("orders", 3, None, "recreated")]


def test_a_source_that_lags_behind_the_lake_is_refused_until_it_has_caught_up(scene: Scene, tmp_path: Path) -> None:
    """Its topics would be read again from their first records."""
    to = tmp_path / "lake"
    scene.shard.append("orders", *range(5))
    scene.shard.append("visits", *range(5))
    scene.shard.shard.commits.sync_now()
    backup = shutil.copytree(scene.path, tmp_path / "backup" / scene.path.name)
    made = writer(scene, to)
    drain(made)
    scene.shard.append("orders", *range(5))
    scene.shard.shard.commits.sync_now()
    drain(made)
    source = local.source({"path": str(backup), "coldPath": str(scene.cold)})
    behind = Writer(local.begin(to, About(ONE), source), source, SMALL)
    with pytest.raises(LakeError, match=r'topic "orders" ends at offset 5 in this source, before the lake does \(10\)'):
        drain(behind)
    shutil.rmtree(backup)
    shutil.copytree(scene.path, backup)
    assert drain(behind) == 0
    assert len(rows(to)) == 15
    assert gaps(to) == []


def test_a_batch_holds_no_more_than_its_limits(scene: Scene, tmp_path: Path) -> None:
    for number in range(40):
        scene.shard.append("orders", "x" * 1000 + str(number))
    made = writer(scene, tmp_path / "lake", settings=Settings(max_bytes=8000, compact_to=0))
    counts = []
    while done := made.batch():
        counts.append(done.records)
    assert sum(counts) == 40
    assert max(counts) <= 9


def test_small_files_are_joined_and_old_ones_removed(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    made = writer(scene, to, settings=Settings(compact_to=1 << 20, vacuum_after=0))
    for number in range(layout.COMPACT_EVERY):
        scene.shard.append("orders", number)
        made.batch()
    assert len(DeltaTable(to / EVENTS).file_uris()) == 1
    scene.shard.append("orders", "last")
    drain(made)
    assert len([*to.glob("events/*/*/*.parquet")]) == len(DeltaTable(to / EVENTS).file_uris())
    assert drain(writer(scene, to)) == 0
    assert seen(to) == scene.served()


def test_rows_of_another_writer_are_refused_and_maintenance_of_one_is_not(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    fill(scene)
    drain(writer(scene, to))
    DeltaTable(to / EVENTS).optimize.compact()
    scene.shard.append("orders", "more")
    assert drain(writer(scene, to)) == 1
    write_deltalake(to / EVENTS, DeltaTable(to / EVENTS).to_pyarrow_table().slice(0, 1), mode="append")
    with pytest.raises(LakeError, match="was not made by this lake"):
        drain(writer(scene, to))


def test_a_version_that_another_run_wrote_is_not_written_again(scene: Scene, tmp_path: Path) -> None:
    """Two machines share the disk: their locks do not see each other."""
    fill(scene)
    to = tmp_path / "lake"
    first = writer(scene, to)

    def between(name: str) -> None:
        if name == "rows":
            other = writer(scene, to)
            other._lake.locked = first._lake.locked.__class__  # type: ignore[method-assign, assignment]
            other._add(*planned(other))

    def planned(made: Writer) -> Any:
        at = made._lake.position()
        start = at.positions or made._source.earliest()
        end = made._limited(start, made._source.latest())
        return local.Mark(at.version + 1, end), start, at.positions

    first._step = between
    with pytest.raises(LakeError, match="another run of this lake"):
        first._add(*planned(first))
    drain(writer(scene, to))
    assert seen(to) == scene.served()


def test_a_lake_of_another_service_or_form_is_refused(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    fill(scene)
    drain(writer(scene, to))
    with pytest.raises(LakeError, match="has one table: run it without --table-per-topic"):
        writer(scene, to, PER_TOPIC)
    other = Scene(tmp_path / "other")
    other.shard.append("returns", 1)
    fill(other)
    with pytest.raises(LakeError, match="of another service"):
        drain(writer(other, to))
    (tmp_path / "taken" / EVENTS).mkdir(parents=True)
    with pytest.raises(LakeError, match="this is not a lake"):
        writer(scene, tmp_path / "taken")
    assert seen(to) == scene.served()


def test_the_log_of_a_table_has_no_text_of_its_rows(scene: Scene, tmp_path: Path) -> None:
    put(scene, "orders", {"name": "Ada"}, "customer-7")
    to = tmp_path / "lake"
    drain(writer(scene, to))
    logs = b"".join(path.read_bytes() for path in to.glob("*/_delta_log/*"))
    assert b'numRecords\\":1' in logs
    assert b"Ada" not in logs
    assert b"customer-7" not in logs
    assert pa.types.is_string(DeltaTable(to / EVENTS).to_pyarrow_table()["value"].type)
    assert pc.all(pc.is_valid(DeltaTable(to / EVENTS).to_pyarrow_table()["date"])).as_py()
