"""Which Delta goes with which Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_topics.lake.delta import SESSION
from pyspark_topics.lake.layout import LakeError


@pytest.mark.parametrize(("version", "artifact"), [("4.0.1", "_4.0_2.13"), ("4.1.0", "_4.1_2.13"), ("4.2.1", "_2.13")])
def test_each_spark_has_its_delta(version: str, artifact: str, tmp_path: Path) -> None:
    made = SESSION.settings(version, {"a": "b"}, tmp_path)
    assert made["spark.jars.packages"] == f"io.delta:delta-spark{artifact}:4.4.0"
    assert made["spark.jars.excludes"] == "io.unitycatalog:*,io.delta:delta-kernel-*"
    assert made["a"] == "b"


def test_a_spark_without_delta_is_told_which_one_is_needed_and_a_delta_of_ones_own_counts(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"needs Spark 4\.0, 4\.1 or 4\.2, this is 4\.3\.0: pip install"):
        SESSION.settings("4.3.0", {}, tmp_path)
    assert "spark.jars.packages" not in SESSION.settings("4.3.0", {"spark.jars": "/d.jar"}, tmp_path)
    (tmp_path / "delta-spark_2.13-5.0.0.jar").touch()
    assert "spark.jars.packages" not in SESSION.settings("4.3.0", {}, tmp_path)
