"""Claims about the package as a user installs it, alone, with each minor version of Spark: batch, filters, streams.

    pytest -m long tests/e2e/test_spark_versions.py

makes an environment for each below that of the tests, once. TOPICS_SPARK_PYTHON names the Python of an existing
environment with pyspark, to be used in place of the oldest.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.spark import ROOT, Spark, SparkError

pytestmark = [pytest.mark.spark, pytest.mark.long]

VERSIONS = OLDEST, *_, NEWEST = "4.0", "4.1", "4.2", "4"
CODE = """
import os, pyspark, pyspark_topics
version = pyspark.__version__
place = pyspark_topics.__file__
def stream(options):
    frame = spark.readStream.format("topics").options(**options).load({path!r})
    query = (
        frame.selectExpr("topic", "offset", "cast(value as string) value")
        .writeStream.format("parquet").option("checkpointLocation", {work!r} + "/checkpoint")
        .trigger(availableNow=True).start({work!r} + "/sink")
    )
    query.awaitTermination()
    rows = spark.read.parquet({work!r} + "/sink").orderBy("topic", "offset").collect()
    return [[p.numInputRows for p in query.recentProgress], [[r.topic, r.offset, r.value] for r in rows]]
"""


def environment(version: str) -> str:
    """The Python of an environment with this version of pyspark, made if it is not there."""
    home = Path(sys.prefix) / "spark" / version
    home.mkdir(parents=True, exist_ok=True)
    python, whole = home / "env" / "bin" / "python", home / "whole"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists() or version == NEWEST:
            subprocess.run([sys.executable, "-m", "venv", str(home / "env")], check=True)
            packages = [f"pyspark=={version}.*", "pyarrow>=18", "xxhash"]
            subprocess.run([*pip(str(python)), "--upgrade", *packages], check=True)
            whole.touch()
    return str(python)


def pip(python: str) -> list[str]:
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    given = os.environ.get("TOPICS_SPARK_PYTHON") if request.param == OLDEST else None
    made = given or environment(request.param)
    target = tmp_path_factory.mktemp("package")
    package = str(ROOT / "packages" / "pyspark-topics")
    subprocess.run([*pip(made), "--target", str(target), "--no-deps", package], check=True)
    return f"{made}:{target}"


@pytest.fixture(scope="module")
def spark(python: str) -> Iterator[Spark]:
    made, _, package = python.partition(":")
    session = Spark(python=made, root=Path(package))
    yield session
    session.close()


@pytest.fixture(scope="module")
def loaded(shared: Service) -> Service:
    records = [{"data": n, "tag": f"t{n % 3}", "node": f"n{n % 2}", "meta": {"n": n}} for n in range(300)]
    for topic in ("s1", "s2", "s3"):
        status, answer = shared.request("POST", f"/v0/topics/{topic}", {"records": records})
        assert status in (200, 201), answer
    return shared


def test_the_package_is_the_installed_one_and_reads(spark: Spark, python: str, loaded: Service, tmp_path: Path) -> None:
    version, place = spark.run(CODE.format(path="", work="") + "answer = [version, place]")
    assert place.startswith(python.partition(":")[2])
    print(f"Spark {version}")  # noqa: T201 - which version the newest of a minor version was
    rows = spark.query(
        loaded.data_dir,
        "select topic, count(*) n, sum(cast(cast(value as string) as int)) total, min(timestampType) kind, "
        "count(headers) headers, sum(size(headers)) members from topics where tag = 't1' group by topic order by topic",
        subscribe="s1,s2",
        includeHeaders="true",
    )
    one = {"n": 100, "total": sum(range(1, 300, 3)), "kind": 1, "headers": 100, "members": 100}
    assert rows == [{"topic": topic, **one} for topic in ("s1", "s2")]
    with pytest.raises(SparkError, match="did you mean subscribePattern"):
        spark.query(loaded.data_dir, "select * from topics", subscribePatern="s.*")


def test_filters_are_right_whether_pushed_down_or_not(spark: Spark, loaded: Service) -> None:
    query = "select count(*) n from topics where {}"
    filters = ["topic = 's2' and offset > 290", "tag like 't2%' and node = 'n1'", "timestamp > timestamp'2000-01-01'"]
    found = []
    for enabled in ("false", "true"):
        spark.run(f"spark.conf.set('spark.sql.python.filterPushdown.enabled', '{enabled}')")
        found.append([spark.query(loaded.data_dir, query.format(one), subscribe="s1,s2,s3")[0]["n"] for one in filters])
    assert found[0] == found[1] == [10, 150, 900]


def test_a_stream_goes_on_from_its_checkpoint(spark: Spark, loaded: Service, tmp_path: Path) -> None:
    code = CODE.format(path=str(loaded.data_dir), work=str(tmp_path))
    version = spark.run(code + "answer = version")
    topic = f"late{version.replace('.', '')}"

    def go() -> Any:
        options = {"subscribePattern": f"s[12]|{topic}", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
        return spark.run(code + f"answer = stream({options!r})")

    sizes, rows = go()
    assert rows == [[topic, n + 1, str(n)] for topic in ("s1", "s2") for n in range(300)]
    # Only from 4.2 on does Spark tell the source where a stream stands.
    admits = tuple(map(int, version.split(".")[:2])) >= (4, 2)
    assert max(sizes) == (200 if admits else 600)
    status, answer = loaded.request("POST", f"/v0/topics/{topic}", {"records": [{"data": "x"}]})
    assert status in (200, 201), answer
    _, more = go()
    assert sorted(more) == sorted([*rows, [topic, 1, '"x"']])


def test_it_writes_streams_through_a_service_and_runs_the_jobs(spark: Spark, loaded: Service, tmp_path: Path) -> None:
    said = spark.run(f"""
        from pyspark_topics.jobs.cli import parser
        import pyspark
        name = "w" + pyspark.__version__
        service, work, data = {{"url": {loaded.url!r}}}, {str(tmp_path)!r}, {str(loaded.data_dir)!r}
        rows = spark.range(0, 2500, 1, 2).selectExpr("to_json(struct(id)) value", "string(id) key")
        rows.write.format("topics").options(**service, topic=name).mode("append").save()
        for _ in range(2):
            stream = spark.readStream.format("topics").options(**service, subscribe=name, startingOffsets="earliest")
            sink = stream.load().writeStream.format("topics").options(**service, topic=name + ".copy")
            sink = sink.option("checkpointLocation", work + "/copy").trigger(availableNow=True)
            sink.start().awaitTermination()
        def job(*arguments):
            given = parser().parse_args(arguments)
            return given.run(spark, given)
        archived = job("archive", "--path", data, "--subscribe", name, "--to", work + "/a")
        job("replay", "--from", work + "/a", "--url", service["url"], "--into", name + ".again")
        clean = job("audit", "--path", data)["clean"]
        answer = [name, archived["records"], clean]
    """)
    assert said[1:] == [2500, True]
    for topic in (said[0], f"{said[0]}.copy", f"{said[0]}.again"):
        _, state = loaded.request("GET", f"/v0/topics/{topic}")
        assert (topic, state["head_seq"]) == (topic, 2500)
