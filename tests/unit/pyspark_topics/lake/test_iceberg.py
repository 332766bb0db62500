"""Which Iceberg goes with which Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_topics.lake import formats
from pyspark_topics.lake.layout import LakeError


@pytest.mark.parametrize(("version", "artifact"), [("4.0.1", "4.0_2.13:1.11.0"), ("4.1.4", "4.1_2.13:1.12.0")])
def test_each_spark_has_its_iceberg(version: str, artifact: str, tmp_path: Path) -> None:
    made = formats.settings("iceberg", version, {}, tmp_path)
    assert made["spark.jars.packages"] == f"org.apache.iceberg:iceberg-spark-runtime-{artifact}"
    with pytest.raises(LakeError, match=r"Iceberg needs Spark 4\.0 or 4\.1, this is 4\.2\.1: pip install"):
        formats.settings("iceberg", "4.2.1", {}, tmp_path)
