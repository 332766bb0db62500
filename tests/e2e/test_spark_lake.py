"""Claims about `topics-spark lake`, on a running service and with other readers of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import lake
from tests.support.lake import job
from tests.support.service import Service
from tests.support.spark import Spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    session = lake.session()
    yield session
    session.close()


def write(service: Service, topic: str, *values: Any, **more: Any) -> None:
    records = [{"data": value, "tag": f"t{n % 3}", "node": "n", "meta": {"n": n}} for n, value in enumerate(values)]
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": records, **more})
    assert status in (200, 201), answer


def held(spark: Spark, path: Path, columns: str = "topic, epoch, offset, value") -> list[list[Any]]:
    """Rows of a table, sorted."""
    found: list[list[Any]] = spark.run(f"""
        rows = spark.read.format("delta").load({str(path)!r}).selectExpr(*{columns.split(", ")!r})
        answer = sorted([list(row) for row in rows.collect()])
    """)
    return found


@pytest.mark.parametrize("way", ["path", "url"])
def test_each_run_adds_what_is_new_and_every_reader_finds_it(
    shared: Service, spark: Spark, tmp_path: Path, way: str
) -> None:
    place = ["--path", shared.data_dir] if way == "path" else ["--url", shared.url]
    run = ["lake", *place, "--subscribe-pattern", f"inc.{way}.*", "--to", tmp_path / "l", "--once"]
    expected = []
    for number in range(2):
        for topic in (f"inc.{way}:a", f"inc.{way}:{number}"):
            first = 1 + sum(name == topic for name, _ in expected)
            write(shared, topic, *[{"run": number, "n": n} for n in range(50)])
            expected += [(topic, seq) for seq in range(first, first + 50)]
        said = job(spark, *run)
        assert (said["records"], said["gaps"]) == (100, 0)
        assert [(topic, offset) for topic, _, offset, _ in held(spark, tmp_path / "l/events")] == sorted(expected)
    assert job(spark, *run)["records"] == 0
    if way == "path":
        found = [lake.rows(tmp_path / "l/events", engine) for engine in ("deltalake", "duckdb", "polars")]
        assert [(row[0], int(row[2])) for row in found[0]] == sorted(expected)
        assert found[0] == found[1] == found[2]
        assert found[0][0][4:8] == ["n", "t0", '{"run":0,"n":0}', '{"n":0}']
