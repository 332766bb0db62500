"""Claims about a real standalone cluster with separate executors: reading, streaming, writing and the jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.spark import Spark
from tests.support.spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.long]
COUNT = 2000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        session = Spark(**cluster.settings())
        yield session
        session.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    with Service(directory, TOPICS_CHECKPOINT_INTERVAL_MS="200", TOPICS_SEGMENT_MAX_EVENTS="500") as running:
        for topic in ("orders", "returns"):
            records = [{"data": {"n": n}, "tag": f"t{n % 7}"} for n in range(COUNT)]
            running.request("POST", f"/v0/topics/{topic}", {"records": records})
        yield running


def job(spark: Spark, *arguments: str) -> dict[str, Any]:
    said: dict[str, Any] = spark.run(f"""
        from pyspark_topics.jobs.cli import parser
        given = parser().parse_args({list(arguments)!r})
        answer = given.run(spark, given)
    """)
    return said


def values(service: Service, topic: str) -> list[Any]:
    found: list[Any] = []
    position = 0
    while True:
        _, answer = service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": position, "limit": 1000})
        found += [record["data"] for record in answer["records"]]
        position = answer["next_from_seq"]
        if answer["caught_up"]:
            return found


def test_both_workers_work(spark: Spark) -> None:
    places = spark.run("""
        import os, time
        def where(_):
            time.sleep(0.2)
            return os.getcwd()
        answer = []
        for _ in range(50):
            answer = spark.sparkContext.parallelize(range(8), 8).map(where).distinct().collect()
            if len(answer) == 2:
                break
    """)
    assert {Path(place).parts[-3] for place in places} == {"work0", "work1"}


@pytest.mark.parametrize("way", ["path", "url"])
def test_it_reads(service: Service, spark: Spark, way: str) -> None:
    option = ("path", str(service.data_dir)) if way == "path" else ("url", service.url)
    found = spark.run(f"""
        frame = spark.read.format("topics").option(*{option!r}).option("subscribe", "orders,returns").load()
        frame.createOrReplaceTempView("t")
        query = "sum(get_json_object(cast(value as string), '$.n')) total from t group by topic order by topic"
        answer = [list(row) for row in spark.sql("select topic, count(*) n, max(offset) last, " + query).collect()]
    """)
    assert found == [[topic, COUNT, COUNT, COUNT * (COUNT - 1) / 2] for topic in ("orders", "returns")]


@pytest.mark.parametrize("way", ["path", "url"])
def test_it_streams_and_writes(service: Service, spark: Spark, tmp_path: Path, way: str) -> None:
    option = ("path", str(service.data_dir)) if way == "path" else ("url", service.url)
    sink = f"sink:{way}"
    for _ in range(2):
        spark.run(f"""
            stream = spark.readStream.format("topics").option(*{option!r}).option("subscribe", "orders,returns")
            stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1500").load()
            stream = stream.selectExpr("value", "concat(topic, '/', offset) tag")
            stream = stream.writeStream.format("topics").option("url", {service.url!r}).option("topic", {sink!r})
            stream = stream.option("checkpointLocation", {str(tmp_path)!r}).trigger(availableNow=True)
            stream.start().awaitTermination()
        """)
    found = values(service, sink)
    assert sorted(value["n"] for value in found) == sorted([*range(COUNT), *range(COUNT)])


def test_the_jobs_run_there(service: Service, spark: Spark, tmp_path: Path) -> None:
    place = ["--path", str(service.data_dir), "--subscribe", "orders,returns"]
    assert job(spark, "archive", *place, "--to", str(tmp_path / "a"))["records"] == 2 * COUNT
    assert job(spark, "archive", *place, "--to", str(tmp_path / "a"))["records"] == 0
    replay = ["replay", "--from", str(tmp_path / "a"), "--url", service.url, "--prefix", "copy:"]
    assert job(spark, *replay)["records"] == 2 * COUNT
    for topic in ("orders", "returns"):
        assert values(service, f"copy:{topic}") == values(service, topic)
    report = job(spark, "report", *place, "--by", "topic,tag", "--svg", str(tmp_path / "report.svg"))
    assert report == {"groups": 14, "records": 2 * COUNT}
    said = job(spark, "audit", "--path", str(service.data_dir))
    assert said["clean"], json.dumps(said)
