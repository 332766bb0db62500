"""Claims about what `topics-spark lake` refuses and says, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_topics.jobs import lake
from pyspark_topics.jobs.cli import parser
from pyspark_topics.lake import delta
from pyspark_topics.lake.layout import LakeError
from pyspark_topics.offsets import Position


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Caused by: java.io.IOException: No space left on device",
            "no space left on the device. Nothing of the batch",
        ),
        ("[DELTA_CONCURRENT_TRANSACTION] x", "another run wrote to the same table"),
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
    assert made["a"] == "b"


def test_a_spark_without_delta_is_told_which_one_is_needed_and_a_delta_of_ones_own_counts(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"needs Spark 4\.0, 4\.1 or 4\.2, this is 4\.3\.0: pip install"):
        delta.settings("4.3.0", {}, tmp_path)
    assert "spark.jars.packages" not in delta.settings("4.3.0", {"spark.jars": "/d.jar"}, tmp_path)
    (tmp_path / "delta-spark_2.13-5.0.0.jar").touch()
    assert "spark.jars.packages" not in delta.settings("4.3.0", {}, tmp_path)


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
