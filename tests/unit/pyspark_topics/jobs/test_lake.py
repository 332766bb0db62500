"""Claims about what `topics-spark lake` refuses and says, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_topics.jobs import lake, lake_reconcile
from pyspark_topics.jobs.cli import parser
from pyspark_topics.lake import delta, formats, layout
from pyspark_topics.lake.history import Table
from pyspark_topics.lake.layout import About, LakeError, Mark
from pyspark_topics.offsets import Gap, Offsets, Position


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Caused by: java.io.IOException: No space left on device",
            "no space left on the device. Nothing of the batch",
        ),
        ("[DELTA_CONCURRENT_TRANSACTION] x", "another run wrote to the same table"),
        ("org.apache.iceberg.exceptions.CommitFailedException: x", "another run wrote to the same table"),
        ("io.delta.exceptions.ConcurrentAppendException: x", "another run wrote to the same table"),
    ],
)
def test_known_causes_are_a_sentence(text: str, said: str) -> None:
    found = lake.explained("/lake", RuntimeError(text))
    assert isinstance(found, LakeError)
    assert str(found).startswith(f"/lake: {said}")
    other = RuntimeError("else")
    assert lake.explained("/lake", other) is other


@pytest.mark.parametrize(("version", "artifact"), [("4.0.1", "_4.0_2.13"), ("4.1.0", "_4.1_2.13"), ("4.2.1", "_2.13")])
def test_each_spark_has_its_delta(version: str, artifact: str, tmp_path: Path) -> None:
    made = delta.settings(version, {"a": "b"}, tmp_path)
    assert made["spark.jars.packages"] == f"io.delta:delta-spark{artifact}:4.4.0"
    assert made["spark.jars.excludes"] == "io.unitycatalog:*,io.delta:delta-kernel-*"
    assert made["a"] == "b"


def test_a_spark_without_delta_is_told_which_one_is_needed_and_a_delta_of_ones_own_counts(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"needs Spark 4\.0, 4\.1 or 4\.2, this is 4\.3\.0: pip install"):
        delta.settings("4.3.0", {}, tmp_path)
    assert "spark.jars.packages" not in delta.settings("4.3.0", {"spark.jars": "/d.jar"}, tmp_path)
    (tmp_path / "delta-spark_2.13-5.0.0.jar").touch()
    assert "spark.jars.packages" not in delta.settings("4.3.0", {}, tmp_path)


@pytest.mark.parametrize(("version", "artifact"), [("4.0.1", "4.0_2.13:1.11.0"), ("4.1.4", "4.1_2.13:1.12.0")])
def test_each_spark_has_its_iceberg(version: str, artifact: str, tmp_path: Path) -> None:
    made = formats.settings("iceberg", version, {}, tmp_path)
    assert made["spark.jars.packages"] == f"org.apache.iceberg:iceberg-spark-runtime-{artifact}"
    with pytest.raises(LakeError, match=r"Iceberg needs Spark 4\.0 or 4\.1, this is 4\.2\.1: pip install"):
        formats.settings("iceberg", "4.2.1", {}, tmp_path)


def test_a_lake_of_the_other_format_is_refused() -> None:
    layout.same_format("/l", About(), "delta")
    with pytest.raises(LakeError, match="/l has Iceberg tables: take topics-spark lake --format iceberg"):
        layout.same_format("/l", About(tables="iceberg"), "delta")


def test_a_lake_is_not_fed_from_another_service() -> None:
    known = {"a": Position(50, 1), "b": Position(9, 1), "gone": Position(4, 1, gone=True)}
    lake.same_service("/lake", known, {"a": Position(60, 1), "b": Position(2, 1)})  # one was made again
    lake.same_service("/lake", known, {"c": Position(5, 1)})
    with pytest.raises(LakeError, match=r'/lake: its 2 topics \("a" first\) are other ones'):
        lake.same_service("/lake", known, {"a": Position(3, 1), "b": Position(9, 2)})


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("64M", 64 << 20), ("1g", 1 << 30), ("0", 0)])
def test_sizes_are_bytes_or_have_a_letter(text: str, size: int) -> None:
    assert parser().parse_args(["lake", "--path", "d", "--to", "l", "--compact-to", text]).compact_to == size


@pytest.mark.parametrize("wrong", [["--compact-to", "1T"], ["--max-records", "0"], ["--url", "http://x"], ["stop"]])
def test_wrong_options_end_with_what_is_wrong(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["lake", "--path", "d", "--to", "l", *wrong])
    assert ended.value.code == 2
    assert "topics-spark lake: error:" in capsys.readouterr().err


class Tables:
    """A sink of one table. `other` is what another run commits when this one does."""

    def __init__(self, mark: Mark, other: Mark | None = None) -> None:
        self.mark = mark
        self.other = other
        self.appends = 0

    def at(self, name: str) -> Table:
        return Table(self.mark.version, self.mark)

    def create(self, name: str) -> None: ...

    def append(self, rows: Any, name: str, mark: Mark) -> None:
        self.appends += 1
        self.mark = self.other or mark

    def appended(self, name: str) -> int:
        return 5


def batches(tables: Tables) -> lake.Batches:
    unused: Any = None
    store: Any = Gone()
    sink: Any = tables
    return lake.Batches(unused, store, About(), sink, unused, lake.Settings())


class Gone:
    """The source of topics of which one lost records, one was deleted, and one made again; also a store's root."""

    root = "/lake"

    def gaps(self, start: Offsets, end: Offsets) -> list[Gap]:
        assert start == {}
        return [Gap("capped", 1, 20, "cap"), Gap("gone", 1, 9, "deleted"), Gap("again", 1, 9, "recreated"), INNER]

    def earliest(self) -> Offsets:
        return {"capped": Position(15, 1), "again": Position(1, 2), "whole": Position(8, 1)}


INNER = Gap("whole", 5, 6, "source_trim")
ONE, TWO, OTHER = Mark(1, {"a": Position(5, 1)}), Mark(2, {"a": Position(9, 1)}), Mark(2, {"a": Position(7, 1)})


def test_a_batch_is_appended_once() -> None:
    tables = Tables(ONE)
    made = batches(tables)
    assert made._append(None, "events", TWO)
    assert not made._append(None, "events", TWO)
    assert (tables.appends, made.records) == (1, 5)


@pytest.mark.parametrize("tables", [Tables(OTHER), Tables(ONE, OTHER), Tables(Mark(3, TWO.positions))])
def test_a_version_of_another_run_is_not_taken_for_the_batch(tables: Tables) -> None:
    with pytest.raises(LakeError, match="another run wrote to the same table"):
        batches(tables)._append(None, "events", TWO)


def test_what_a_service_does_not_cover_is_not_taken_for_deleted() -> None:
    source: Any = Gone()
    end = {topic: Position(10, 1) for topic in ("gone", "again", "whole")} | {"capped": Position(40, 1)}
    assert lake_reconcile.floors(source, end) == {"gone": 10, "again": 10, "whole": 1, "capped": 15}
