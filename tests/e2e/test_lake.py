"""Claims about `topics lake`: its rows are those of a live service, over kills; faults are sentences."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from pyspark_topics.client import Unavailable
from pyspark_topics.lake import local
from pyspark_topics.lake.layout import About
from supervisor.backup.backup import backup
from supervisor.cli.main import app
from tests.e2e.test_bucket import metric
from tests.support.programs import leave_out
from tests.support.service import Service, until
from tests.support.volume import VolumeError, volume

ROOT = Path(__file__).parents[2]
KILLS = 3
TOPICS = ("orders", "visits", "small")


def command(*arguments: object, enter: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return subprocess.Popen(
        [*enter, sys.executable, "-m", "topics_server", "lake", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lake(*arguments: object, status: int = 0, enter: tuple[str, ...] = ()) -> tuple[str, str]:
    """Run the command to its end; return its output and its errors."""
    with command(*arguments, enter=enter) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == status, output + errors
    return output, errors


def refused(*arguments: object, status: int = 1) -> str:
    """The sentence with which the command ends, in this process."""
    done = CliRunner().invoke(app, ["lake", *map(str, arguments)])
    assert done.exit_code == status, done.output
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def served(service: Service, topics: tuple[str, ...] = TOPICS) -> dict[tuple[str, int], Any]:
    found = {}
    for topic in topics:
        at, caught_up = 0, False
        while not caught_up:
            asked = {"from_seq": at, "limit": 1000, "include_tags": True}
            status, answer = service.request("POST", f"/v0/topics/{topic}/diff", asked)
            assert status == 200
            found.update({(topic, r["$seq"]): (r["data"], r.get("$tag")) for r in answer["records"]})
            at, caught_up = answer["next_from_seq"], answer["caught_up"]
    return found


def rows(to: Path) -> dict[tuple[str, int], Any]:
    table = DeltaTable(to / "events").to_pyarrow_table().to_pylist()
    found = {(row["topic"], row["offset"]): (json.loads(row["value"]), row["tag"]) for row in table}
    assert len(found) == len(table)
    return found


def write(service: Service, rng: random.Random, count: int) -> None:
    for _ in range(count):
        topic = rng.choice(TOPICS)
        records = [{"data": {"n": rng.random()}, "tag": f"c{rng.randrange(5)}"} for _ in range(rng.randrange(1, 40))]
        assert service.request("POST", f"/v0/topics/{topic}", {"records": records})[0] in (200, 201)


def test_rows_are_the_services_over_kills_and_every_reader_has_them(
    new_service: Callable[..., Service], tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    service = new_service(TOPICS_CHECKPOINT_INTERVAL_MS="500", TOPICS_WAL_SEGMENT_BYTES="65536").start()
    write(service, rng, 20)
    to = tmp_path / "lake"
    ended = threading.Event()

    def load() -> None:
        mine = random.Random(seed + 1)
        while not ended.is_set():
            write(service, mine, 5)

    writing = threading.Thread(target=load)
    writing.start()
    try:
        for _ in range(KILLS):
            before = len(list(to.glob("events/_delta_log/*.json")))
            with command("--to", to, "--path", service.data_dir, "--every", "1ms") as process:
                until(lambda before=before: len(list(to.glob("events/_delta_log/*.json"))) > before, "a commit", 60)  # type: ignore[misc]
                try:
                    process.wait(rng.random() / 2)
                except subprocess.TimeoutExpired:
                    process.kill()
    finally:
        ended.set()
        writing.join()
    lake("--to", to, "--path", service.data_dir, "--once")
    expected = served(service)
    assert rows(to) == expected, f"seed {seed}"
    assert json.loads(lake("--to", to, "--path", service.data_dir, "--once", "--json")[0] or "[]") == []
    _every_reader_has(to, expected)


def _every_reader_has(to: Path, expected: dict[tuple[str, int], Any]) -> None:
    dataset = DeltaTable(to / "events").to_pyarrow_dataset()
    total = sum(offset for _, offset in expected)
    by_duckdb = duckdb.from_arrow(dataset).aggregate('count(*), sum("offset")').fetchall()
    assert by_duckdb == [(len(expected), total)]
    by_polars = polars.scan_delta(str(to / "events")).select(polars.len(), polars.col("offset").sum()).collect()
    assert by_polars.row(0) == (len(expected), total)
    frame: pandas.DataFrame = DeltaTable(to / "events").to_pandas()
    assert (len(frame), frame["offset"].sum()) == (len(expected), total)


def test_a_running_lake_follows_the_service_and_ends_by_sigterm(service: Service, tmp_path: Path) -> None:
    rng = random.Random(1)
    to = tmp_path / "lake"
    write(service, rng, 10)
    with command("--to", to, "--url", service.url, "--every", "10ms") as process:
        # The folder of the log is there before its first commit is.
        until(lambda: DeltaTable.is_deltatable(str(to / "events")), "the table", 60)
        until(lambda: rows(to) == served(service), "the first rows", 60)
        write(service, rng, 10)
        until(lambda: rows(to) == served(service), "the other rows", 60)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert output.startswith("version 1: ")


def test_a_deleted_customer_is_gone_after_reconcile(service: Service, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    write(service, random.Random(2), 20)
    lake("--to", to, "--path", service.data_dir, "--once")
    before = rows(to)
    for topic in TOPICS:
        assert service.request("POST", f"/v0/topics/{topic}/delete", {"match": "c3"})[0] == 200
    both = ["--to", to, "--path", service.data_dir]
    assert "rows to delete" in lake("reconcile", *both, "--dry-run")[0]
    assert rows(to) == before
    said = json.loads(lake("reconcile", *both, "--vacuum", "--json")[0])
    assert rows(to) == served(service) == {key: row for key, row in before.items() if row[1] != "c3"}
    assert sum(said["rows"].values()) == len(before) - len(rows(to))
    assert lake("reconcile", *both)[0] == "no rows deleted\n"


def test_a_backup_makes_a_table_for_each_topic(service: Service, tmp_path: Path) -> None:
    write(service, random.Random(3), 10)
    for _ in backup(service.data_dir, None, tmp_path / "backups"):
        pass
    to = tmp_path / "lake"
    lake("--to", to, "--path", tmp_path / "backups", "--once", "--table-per-topic")
    for topic in TOPICS:
        found = DeltaTable(to / "topics" / topic).to_pyarrow_table()
        assert sorted(found["offset"].to_pylist()) == sorted(seq for name, seq in served(service) if name == topic)
        assert pc.unique(found["topic"]).to_pylist() == [topic]


def test_a_bucket_is_enough_when_the_machine_is_gone(new_service: Callable[..., Service], tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    service = new_service(TOPICS_BUCKET=f"file://{tmp_path / 'bucket'}").start()
    write(service, random.Random(6), 10)
    until(lambda: metric(service, "topics_replica_lag_bytes") == 0, "an end of the lag", 60)
    expected = served(service)
    service.kill_group()
    shutil.rmtree(service.data_dir)
    to = tmp_path / "lake"
    lake("--to", to, "--path", f"file://{tmp_path / 'bucket'}", "--once")
    assert rows(to) == expected


def test_a_writer_goes_on_when_a_service_that_went_away_is_back(service: Service, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    write(service, random.Random(7), 10)
    source = local.source({"url": service.url, "retryTimeoutMs": "500"})
    writer = local.Writer(local.begin(to, About(), source), source, local.Settings(max_records=10))
    first = writer.batch()
    assert first is not None
    expected = served(service)
    service.kill_group()
    with pytest.raises(Unavailable, match="given up after"):
        writer.batch()
    assert 0 < len(rows(to)) == first.records < len(expected)
    service.start()
    while writer.batch():
        pass
    assert rows(to) == expected


def test_faults_are_sentences_and_leave_the_lake_as_it_was(service: Service, tmp_path: Path) -> None:
    to, data = tmp_path / "lake", service.data_dir
    assert "--to is missing" in refused(status=2)
    assert "writes to a directory" in refused("--to", "s3://bucket/lake", status=2)
    assert "--once ends" in refused("--to", to, "--once", "--every", "5", status=2)
    assert "both name a source" in refused("--to", to, "--path", data, "--url", service.url, status=2)
    assert "does not exist" in refused("--to", to, "--path", data, "--topic", "no-such", "--once", status=2)
    assert "neither a data directory" in refused("--to", to, "--path", tmp_path / "none", "--once")
    assert "this is not a lake" in refused("reconcile", "--to", to, "--path", data)
    assert not (to / "events").exists()
    write(service, random.Random(4), 5)
    lake("--to", to, "--path", data, "--once")
    before = rows(to)
    assert "without --table-per-topic" in refused("--to", to, "--path", data, "--once", "--table-per-topic")
    service.stop()
    assert "given up after" in refused("--to", to, "--url", service.url, "--once", status=3)
    assert lake("--to", to, "--path", data, "--once")[0] == ""  # files need no service
    write_deltalake(to / "events", DeltaTable(to / "events").to_pyarrow_table().slice(0, 1), mode="append")
    assert "was not made by this lake" in refused("--to", to, "--path", data, "--once")
    DeltaTable(to / "events").restore(1)
    assert rows(to) == before


def test_a_full_disk_is_a_sentence_and_the_next_run_goes_on(service: Service, tmp_path: Path) -> None:
    try:
        with volume(tmp_path / "small", 4 << 20) as small:
            to = small.inside / "lake"
            service.request("POST", "/v0/topics/orders", {"records": [{"data": 1}]})
            run = ("--to", to, "--path", service.data_dir, "--topic", "orders", "--once")
            lake(*run, enter=tuple(small.enter))
            noise = random.Random(5)
            records = [{"data": noise.randbytes(500).hex()} for _ in range(500)]
            service.request("POST", "/v0/topics/orders", {"records": records})
            small.fill(leave=64 << 10)
            assert "no space left" in lake(*run, status=1, enter=tuple(small.enter))[1]
            small.relieve()
            lake(*run, enter=tuple(small.enter))
            shutil.copytree(small.outside / "lake", tmp_path / "copy")
            found = DeltaTable(tmp_path / "copy" / "events").to_pyarrow_table()
            assert sorted(found["offset"].to_pylist()) == [*range(1, 502)]
    except VolumeError as error:
        leave_out(f"the right to mount a file system ({error})")
