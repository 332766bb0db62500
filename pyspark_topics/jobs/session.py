"""Spark session of a job: that of spark-submit, or a new one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def prepare(environment: dict[str, str]) -> None:
    """Set PYSPARK_PYTHON to this Python, whose environment has this package, and JAVA_HOME to a distribution's Java.

    Keeps variables that are set. Raises `FileNotFoundError` if there is no Java.
    """
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in environment and not shutil.which("java"):
        homes = sorted(java.parents[1] for java in Path("/usr/lib/jvm").glob("*/bin/java"))
        if not homes:
            raise FileNotFoundError(
                "Spark needs Java 17 or newer: install it (Debian: default-jre-headless), or set JAVA_HOME"
            )
        environment["JAVA_HOME"] = str(homes[-1])


def session(job: str, master: str = "", settings: Mapping[str, str] | None = None) -> Any:
    """A session for `job`. `master` as in `spark-submit --master`; "" means spark-submit's, else this machine."""
    prepare(os.environ)  # type: ignore[arg-type]  # it is a mapping of strings
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from pyspark_topics.datasource import DefaultSource

    conf = SparkConf().setAppName(f"topics-spark {job}")
    if master:
        conf.setMaster(master)
    conf.setIfMissing("spark.master", "local[*]")
    conf.setIfMissing("spark.ui.enabled", "false")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    conf.setIfMissing("spark.sql.python.filterPushdown.enabled", "true")
    for name, value in (settings or {}).items():
        conf.set(name, value)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("TOPICS_SPARK_LOG_LEVEL", "ERROR"))
    # Spark finds installed packages by itself, but not one that is only on sys.path.
    spark.dataSource.register(DefaultSource)
    return spark
