"""Claims about `topics-spark lake`, on a running service and with other readers of the tables."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_bucket import metric
from tests.e2e.test_salvaged_topics import SMALL, topics
from tests.support import lake
from tests.support.doc_blocks import blocks, run
from tests.support.lake import job
from tests.support.programs import leave_out
from tests.support.service import Service, until
from tests.support.spark import Spark, SparkError
from tests.support.volume import Volume, VolumeError, volume

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a bucket."""
    (bucket := tmp_path_factory.mktemp("bucket")).mkdir(exist_ok=True)
    with Service(tmp_path_factory.mktemp("service"), TOPICS_BUCKET=f"file://{bucket}") as running:
        yield running


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume | None]:
    """A volume of 8 MiB that the session sees; None if this machine makes none."""
    try:
        with volume(tmp_path_factory.mktemp("small"), 8 << 20) as disk:
            yield disk
    except VolumeError:
        yield None


@pytest.fixture(scope="module")
def sessions(small: Volume | None) -> Iterator[Callable[[str], Spark]]:
    """Format of tables → a session that writes them."""
    made: dict[str, Spark] = {}

    def session(tables: str) -> Spark:
        if tables not in made:
            made[tables] = lake.session(tables, small.enter if small else ())
        return made[tables]

    yield session
    for each in made.values():
        each.close()


@pytest.fixture
def tables() -> str:
    """The format of a test's tables; parameters of a test take its place."""
    return "delta"


@pytest.fixture
def spark(sessions: Callable[[str], Spark], tables: str) -> Spark:
    return sessions(tables)


def write(service: Service, topic: str, *values: Any, **more: Any) -> None:
    records = [{"data": value, "tag": f"t{n % 3}", "node": "n", "meta": {"n": n}} for n, value in enumerate(values)]
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": records, **more})
    assert status in (200, 201), answer


def seqs(service: Service, topic: str) -> set[int]:
    """The seqs of a topic's records."""
    found: set[int] = set()
    cursor, caught_up = 0, False
    while not caught_up:
        status, answer = service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        assert status == 200, answer
        found |= {record["$seq"] for record in answer["records"]}
        cursor, caught_up = answer["next_from_seq"], answer["caught_up"]
    return found


def held(
    spark: Spark, path: Path, columns: str = "topic, epoch, offset, value", tables: str = "delta"
) -> list[list[Any]]:
    """Rows of a table, sorted."""
    found: list[list[Any]] = spark.run(f"""
        rows = spark.read.format({tables!r}).load({str(path)!r}).selectExpr(*{columns.split(", ")!r})
        answer = sorted([list(row) for row in rows.collect()])
    """)
    return found


DEATH = """
from pyspark_topics.lake.{tables} import {sink}

def dying(self, frame, name, mark, whole={sink}.append):
    if {moment!r} == "after":
        whole(self, frame, name, mark)
    {sink}.append = whole
    raise RuntimeError("died {moment}")

{sink}.append = dying
"""
"""Code for a session: the next commit of rows fails once, before or after it was made."""


@pytest.mark.parametrize(
    ("way", "tables"),
    [
        ("path", "delta"),
        ("path", "iceberg"),
        pytest.param("url", "delta", marks=pytest.mark.long),
        pytest.param("bucket", "iceberg", marks=pytest.mark.long),
    ],
)
def test_each_run_adds_what_is_new_and_every_reader_finds_it(
    shared: Service, spark: Spark, tmp_path: Path, way: str, tables: str
) -> None:
    place = {"path": shared.data_dir, "url": shared.url, "bucket": shared.environment["TOPICS_BUCKET"]}[way]
    option = "--url" if way == "url" else "--path"
    run = ["lake", option, place, "--subscribe-pattern", f"inc.{way}.{tables}.*", "--to", tmp_path / "l", "--once"]
    run += ["--format", tables]
    expected = []
    for number in range(2):
        for topic in (f"inc.{way}.{tables}:a", f"inc.{way}.{tables}:{number}"):
            first = 1 + sum(name == topic for name, _ in expected)
            write(shared, topic, *[{"run": number, "n": n} for n in range(50)])
            expected += [(topic, seq) for seq in range(first, first + 50)]
        until(lambda: metric(shared, "topics_replica_lag_bytes") == 0, "an end of the lag", 60)
        said = job(spark, *run)
        assert (said["records"], said["gaps"]) == (100, 0)
        assert [(topic, offset) for topic, _, offset, _ in held(spark, tmp_path / "l/events", tables=tables)] == sorted(
            expected
        )
    assert job(spark, *run)["records"] == 0
    found = lake.rows(tmp_path / "l/events", tables)
    assert [(row[0], int(row[2])) for row in found] == sorted(expected)
    assert found[0][4:8] == ["n", "t0", '{"run": 0, "n": 0}', '{"n": 0}']


@pytest.mark.parametrize("tables", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_what_a_service_deleted_is_deleted_from_every_file_and_nothing_else_is(
    shared: Service, spark: Spark, tmp_path: Path, tables: str
) -> None:
    first, second = (f"forget.{tables}:{each}" for each in "ab")
    place = ["--path", shared.data_dir, "--subscribe-pattern", f"forget.{tables}.*", "--to", tmp_path / "l"]
    place += ["--format", tables]
    for topic in (first, second):
        for who in ("secret-7", "other"):
            records = [{"data": {"who": who, "n": n}, "tag": who} for n in range(20)]
            assert shared.request("POST", f"/v0/topics/{topic}", {"records": records})[0] in (200, 201)
    job(spark, "lake", *place, "--once")
    shared.request("POST", f"/v0/topics/{first}/delete", {"match": "secret-7"})
    reconcile = ["lake", "reconcile", *place]
    assert job(spark, *reconcile, "--dry-run") == {"would_delete": 20, "topics": {first: 20}}
    assert len(held(spark, tmp_path / "l/events", tables=tables)) == 80
    assert job(spark, *reconcile) == {"deleted": 20, "topics": {first: 20}}
    kept = held(spark, tmp_path / "l/events", "topic, tag, offset", tables)
    assert kept == [
        [topic, "secret-7" if seq <= 20 else "other", seq]
        for topic, seqs in ((first, range(21, 41)), (second, [*range(21, 41), *range(1, 21)]))
        for seq in seqs
    ]
    # What is deleted already is not deleted again.
    assert job(spark, *reconcile, "--tag", "secret-7", "--vacuum")["topics"] == {second: 20}
    files = [path for path in (tmp_path / "l").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"secret-7" in path.read_bytes()] == []
    assert held(spark, tmp_path / "l/events", "topic, tag, offset", tables) == [
        row for row in kept if row[1] == "other"
    ]


def test_what_was_lost_between_records_stays_and_what_was_deleted_around_it_goes(spark: Spark, tmp_path: Path) -> None:
    """`topics salvage` leaves such losses, and the rows may be all that is left of the records."""
    with Service(tmp_path, shards=1, **SMALL) as service:

        def segments() -> list[Path]:
            return sorted(service.data_dir.glob("shard-00/topics/*1/*.data"))

        until(lambda: write(service, "bad", *["x" * 100] * 10) or segments()[2:], "three segments")
        place = ["--subscribe", "bad", "--to", tmp_path / "l"]
        job(spark, "lake", "--path", service.data_dir, *place, "--once")
        before = held(spark, tmp_path / "l/events", "offset, tag")
        written = seqs(service, "bad")
        assert service.stop() == 0
        with open(segments()[1], "r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 8)
        status, said = topics(service, "salvage", "bad")
        assert status == 0, said
        service.start()
        there = seqs(service, "bad")
        lost = written - there
        assert lost
        assert min(written) < min(lost) <= max(lost) < max(written)
        assert service.request("POST", "/v0/topics/bad/delete", {"match": "t1"})[0] == 200
        gone = there - seqs(service, "bad")
        for source in (["--path", service.data_dir], ["--url", service.url]):
            reconcile = ["lake", "reconcile", *source, *place]
            assert job(spark, *reconcile, "--dry-run") == {"would_delete": len(gone), "topics": {"bad": len(gone)}}
        job(spark, *reconcile)
        assert held(spark, tmp_path / "l/events", "offset, tag") == [row for row in before if row[0] not in gone]
        job(spark, *reconcile, "--tag", "t1")
        assert held(spark, tmp_path / "l/events", "offset, tag") == [row for row in before if row[1] != "t1"]


@pytest.mark.long
def test_a_table_for_each_topic_a_variant_and_a_lost_checkpoint(shared: Service, spark: Spark, tmp_path: Path) -> None:
    place = ["--path", shared.data_dir, "--subscribe-pattern", "per[.:].*", "--to", tmp_path / "l", "--once"]
    place += ["--table-per-topic", "--variant"]
    write(shared, "per:a", {"n": 1}, {"n": 2})
    write(shared, "per.b", 3)
    assert job(spark, "lake", *place)["records"] == 3
    shutil.rmtree(tmp_path / "l/_topics/checkpoint")
    write(shared, "per:a", {"n": 3})
    assert job(spark, "lake", *place)["records"] == 1
    assert sorted(path.name for path in (tmp_path / "l/topics").iterdir()) == ["per%2Eb", "per%3Aa"]
    found = held(spark, tmp_path / "l/topics/per%3Aa", "offset, variant_get(value_variant,'$.n','int')")
    assert found == [[1, 1], [2, 2], [3, 3]]


def test_losses_are_rows_of_gaps(shared: Service, spark: Spark, tmp_path: Path) -> None:
    run = ["lake", "--path", shared.data_dir, "--subscribe", "lossy", "--to", tmp_path / "l", "--once"]
    assert shared.request("PUT", "/v0/topics/lossy", {"cap_records": 10})[0] in (200, 201)
    write(shared, "lossy", *range(5))
    assert job(spark, *run) == {"version": 1, "records": 5, "gaps": 0}
    write(shared, "lossy", *range(5, 30))
    assert job(spark, *run) == {"version": 2, "records": 10, "gaps": 1}
    assert [row[2] for row in held(spark, tmp_path / "l/events")] == [*range(1, 6), *range(21, 31)]
    assert held(spark, tmp_path / "l/gaps", "topic, first, last, cause") == [["lossy", 6, 20, "cap"]]
    shared.request("DELETE", "/v0/topics/lossy")
    write(shared, "lossy", "again")
    assert job(spark, *run)["records"] == 1
    assert held(spark, tmp_path / "l/gaps", "first, last, cause")[1] == [31, None, "recreated"]


def test_faults_are_a_sentence_each(shared: Service, spark: Spark, tmp_path: Path) -> None:
    write(shared, "fault", 1)
    place = ["lake", "--path", shared.data_dir, "--subscribe", "fault", "--once", "--to"]
    run = [*place, tmp_path / "l"]
    job(spark, *run)
    with pytest.raises(SparkError, match="has one table: run it without --table-per-topic"):
        job(spark, *run, "--table-per-topic")
    with pytest.raises(SparkError, match="there is no lake"):
        job(spark, "lake", "reconcile", *place[1:], tmp_path / "none")
    with pytest.raises(SparkError, match=r"names the topic .nothing., which does not exist"):
        job(spark, "lake", "--path", shared.data_dir, "--subscribe", "nothing", "--once", "--to", tmp_path / "m")
    (tmp_path / "taken/events").mkdir(parents=True)
    with pytest.raises(SparkError, match="this is not a lake; take another --to"):
        job(spark, *place, tmp_path / "taken")
    assert not (tmp_path / "taken/_topics").exists()
    with pytest.raises(SparkError, match="has Delta tables: take topics-spark lake --format delta"):
        job(spark, *run, "--format", "iceberg")
    table = str(tmp_path / "l/events")
    spark.run(f"spark.read.format('delta').load({table!r}).write.format('delta').mode('append').save({table!r})")
    with pytest.raises(SparkError, match=r"commit 2 \(WRITE\) was not made by this lake"):
        job(spark, *run)


@pytest.mark.long
def test_members_become_columns_and_what_does_not_fit_is_rescued(shared: Service, spark: Spark, tmp_path: Path) -> None:
    place = ["lake", "--path", shared.data_dir, "--subscribe", "typed", "--once", "--to"]
    write(
        shared, "typed", {"n": 1, "at": "2026-01-02T03:04:05Z", "tag": "x"}, {"n": "one", "more": [1]}, 5, {"n": None}
    )
    run = [*place, tmp_path / "l", "--schema", "n bigint, at timestamp, tag string"]
    job(spark, *run)
    columns = "offset, n, string(at), data_tag, _rescued"
    expected = [[1, 1, "2026-01-02 03:04:05", "x", None], [2, None, None, None, '{"n":"one"}']]
    expected += [[3, None, None, None, None], [4, None, None, None, None]]
    assert held(spark, tmp_path / "l/events", columns) == expected
    with pytest.raises(SparkError, match="column n is bigint in this lake, and cannot become n string"):
        job(spark, *place, tmp_path / "l", "--schema", "n string")
    with pytest.raises(SparkError, match="neither a file nor columns"):
        job(spark, *place, tmp_path / "m", "--schema", "n bigger")
    assert not (tmp_path / "m").exists()
    write(shared, "typed", {"n": 2, "added": 1.5})
    job(spark, *run, "--infer")
    assert held(spark, tmp_path / "l/events", "offset, n, added")[-1] == [5, 2, 1.5]


@pytest.mark.long
def test_a_full_disk_leaves_a_table_that_the_next_run_goes_on_with(
    shared: Service, spark: Spark, small: Volume | None
) -> None:
    if small is None:
        leave_out("the right to mount a file system")
    to = small.inside / "l"
    run = ["lake", "--path", shared.data_dir, "--subscribe", "full", "--to", to, "--once"]
    write(shared, "full", 0)
    job(spark, *run)
    write(shared, "full", *[secrets.token_hex(1000) for _ in range(100)])
    small.fill(leave=40_000)
    with pytest.raises(SparkError, match="no space left on the device"):
        job(spark, *run)
    assert [row[2] for row in held(spark, to / "events")] == [1]
    small.relieve()
    job(spark, *run)
    assert [row[2] for row in held(spark, to / "events")] == [*range(1, 102)]


def test_a_service_that_goes_away_is_a_sentence_and_leaves_whole_batches(
    new_service: Callable[..., Service], spark: Spark, tmp_path: Path
) -> None:
    service, to = new_service().start(), tmp_path / "l"
    write(service, "away", *range(900))
    # `start` leaves the run to a thread of the session; `end` waits for its error.
    start = f"""
        import threading
        from pyspark_topics.jobs import lake
        from pyspark_topics.jobs.cli import _sentence
        from pyspark_topics.jobs.store import Store
        from pyspark_topics.lake.layout import LENIENT, About
        from pyspark_topics.sources import positions

        def run():
            options = {{"url": {service.url!r}, "retryTimeoutMs": "1000", **LENIENT}}
            settings = lake.Settings(every_s=0.1, max_records=100)
            try:
                lake.run(spark, positions(options), options, Store(spark, {str(to)!r}), About(), settings)
            except Exception as error:
                spark.lake_said = _sentence(error)

        spark.lake_run = threading.Thread(target=run)
        spark.lake_run.start()
    """
    spark.run(start)
    until(lambda: len(list(to.glob("events/_delta_log/*.json"))) > 2, "a batch", 300)
    service.kill_group()
    said = spark.run("spark.lake_run.join(); answer = spark.lake_said")
    assert f"{service.url}/v0/topics" in said
    assert "given up after" in said
    offsets = [row[2] for row in held(spark, to / "events")]
    assert offsets == [*range(1, len(offsets) + 1)]
    assert len(offsets) % 100 == 0
    service.start()
    job(spark, "lake", "--url", service.url, "--to", to, "--once")
    assert [row[2] for row in held(spark, to / "events")] == [*range(1, 901)]


@pytest.mark.parametrize("tables", ["delta", "iceberg"])
def test_a_batch_that_died_is_repeated_and_its_rows_are_there_once(
    shared: Service, spark: Spark, tmp_path: Path, tables: str
) -> None:
    """`test_spark_lake_kills.py` kills processes; here the batch dies at the two sides of its commit."""
    topic = f"dies.{tables}"
    run = ["lake", "--path", shared.data_dir, "--subscribe", topic, "--to", tmp_path / "l", "--once"]
    run += ["--format", tables]
    write(shared, topic, *range(5))
    for moment in ("before", "after"):
        spark.run(DEATH.format(moment=moment, tables=tables, sink=tables.capitalize()))
        with pytest.raises(SparkError, match=f"died {moment}"):
            job(spark, *run)
    write(shared, topic, *range(5, 8))
    assert job(spark, *run)["records"] == 3
    assert [row[2] for row in held(spark, tmp_path / "l/events", tables=tables)] == [*range(1, 9)]


def test_the_commands_of_the_page_lead_from_a_service_to_a_query(
    new_service: Callable[..., Service], sessions: Callable[[str], Spark], tmp_path: Path
) -> None:
    service = new_service().start()
    addresses = {"127.0.0.1:4000": f"127.0.0.1:{service.port}"}
    addresses |= {f"./{each}": str(tmp_path / each) for each in ("tables", "iceberg")}
    python = tmp_path / "lake/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    printed = [block for block in blocks("docs/lake.md") if not block.not_run]
    for block, tables in zip(printed, ("delta", "iceberg"), strict=True):
        for line in block.text.splitlines():
            if line.startswith("lake/bin/topics-spark "):
                for old, new in addresses.items():
                    line = line.replace(old, new)
                assert job(sessions(tables), *shlex.split(line)[1:])["records"] == 1
            else:
                said = run(replace(block, text=line), tmp_path, addresses)
        assert re.search(r"orders\W+1\b", said)


@pytest.mark.long
@pytest.mark.parametrize("tables", ["iceberg"])
def test_iceberg_has_columns_as_they_come_gaps_and_small_files_joined(
    shared: Service, spark: Spark, tmp_path: Path
) -> None:
    run = ["lake", "--format", "iceberg", "--path", shared.data_dir, "--subscribe", "ice", "--to", tmp_path / "l"]
    run += ["--once", "--table-per-topic", "--infer", "--variant", "--vacuum-after", "0"]
    assert shared.request("PUT", "/v0/topics/ice", {"cap_records": 10})[0] in (200, 201)
    for n in range(8):
        write(shared, "ice", {"n": n, "tag": "x"})
        assert job(spark, *run) == {"version": n + 1, "records": 1, "gaps": 0}
    assert len(list((tmp_path / "l").glob("topics/ice/data/*/*.parquet"))) == 1
    write(shared, "ice", *[{"n": n, "more": "m"} for n in range(8, 28)])
    assert job(spark, *run) == {"version": 9, "records": 10, "gaps": 1}
    columns = "offset, n, data_tag, more, variant_get(value_variant,'$.n','int')"
    expected = [[n + 1, n, "x", None, n] for n in range(8)] + [[n + 1, n, None, "m", n] for n in range(18, 28)]
    assert held(spark, tmp_path / "l/topics/ice", columns, "iceberg") == expected
    assert held(spark, tmp_path / "l/gaps", "topic, first, last, cause", "iceberg") == [["ice", 9, 18, "cap"]]


ICEBERG = """
tables = spark._jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration())
table = tables.load({table!r})
"""
"""Code for a session: a table by Iceberg's own interface."""


@pytest.mark.long
@pytest.mark.parametrize("tables", ["iceberg"])
def test_iceberg_tables_that_something_else_wrote_to_are_refused_until_they_are_rolled_back(
    shared: Service, spark: Spark, tmp_path: Path
) -> None:
    run = ["lake", "--format", "iceberg", "--path", shared.data_dir, "--subscribe", "foreign", "--once", "--to"]
    run += [tmp_path / "l"]
    write(shared, "foreign", 1)
    job(spark, *run)
    table = f"{tmp_path}/l/events"
    api = ICEBERG.format(table=table)
    ours = spark.run(api + "answer = table.currentSnapshot().snapshotId()")
    spark.run(f"spark.read.format('iceberg').load({table!r}).write.format('iceberg').mode('append').save({table!r})")
    write(shared, "foreign", 2)
    with pytest.raises(
        SparkError, match=rf"\(append\) was not made by this lake.*Roll the table back to snapshot {ours}"
    ):
        job(spark, *run)
    spark.run(api + f"table.manageSnapshots().rollbackTo({ours}).commit()")
    assert job(spark, *run)["records"] == 1
    assert [row[2] for row in held(spark, tmp_path / "l/events", tables="iceberg")] == [1, 2]
    spark.run(api + f"table.manageSnapshots().rollbackTo({ours}).commit()")
    with pytest.raises(SparkError, match="rolled back behind version 2 of the lake"):
        job(spark, *run)
