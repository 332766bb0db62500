"""Claims about Spark reading the bucket of a service, in a directory and through S3, also when the machine is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_bucket import SMALL, metric
from tests.e2e.test_spark import STREAM, write
from tests.support.bucket import S3Server
from tests.support.service import Service, until
from tests.support.spark import Spark, SparkError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def spark(s3: S3Server) -> Iterator[Spark]:
    """A session whose processes have the credentials of the store in their environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        session = Spark()
    yield session
    session.close()


@pytest.fixture(params=["file", "s3"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """A service with a bucket of its own, TOPICS_BUCKET of its environment."""
    (tmp_path / "bucket").mkdir()
    server: S3Server = request.getfixturevalue("s3")
    bucket = {"TOPICS_BUCKET": f"file://{tmp_path / 'bucket'}"}
    if request.param == "s3":
        bucket = {"TOPICS_BUCKET": f"{server.url}/{tmp_path.name}", **server.environment}
    with Service(tmp_path, **SMALL, **bucket) as running:
        yield running


def url(service: Service) -> str:
    return service.environment["TOPICS_BUCKET"]


def shipped(service: Service) -> None:
    until(lambda: metric(service, "topics_replica_lag_bytes") == 0, "an end of the lag")


def test_the_bucket_is_enough_when_the_machine_is_gone(service: Service, spark: Spark, s3: S3Server) -> None:
    query = (
        "select topic, count(*) n, count(distinct offset) seqs, max(offset) last, "
        "sum(cast(get_json_object(cast(value as string), '$.n') as int)) total "
        "from topics group by topic order by topic"
    )
    written = 0
    while metric(service, "topics_replica_checkpoints_total") < 3 or written < 2000:
        for topic in ("a", "b"):
            write(service, topic, *[{"data": {"n": written + n, "pad": "x" * 50}, "tag": "t"} for n in range(100)])
        written += 100
    service.request("POST", "/v0/topics/b/delete", {"before_seq": 11})
    write(service, "a", {"data": {"n": 0}})
    shipped(service)
    total = written * (written - 1) // 2
    expected = [
        {"topic": "a", "n": written + 1, "seqs": written + 1, "last": written + 1, "total": total},
        {"topic": "b", "n": written - 10, "seqs": written - 10, "last": written, "total": total - 45},
    ]
    assert spark.query(url(service), query) == expected
    service.kill_group()
    shutil.rmtree(service.data_dir)
    assert spark.query(url(service), query) == expected
    assert spark.query(url(service), query, subscribe="b", minPartitions="4") == expected[1:]
    if url(service).startswith("s3:"):
        at = url(service).replace("s3://", "s3://test:test@")
        at += f"?endpoint_override={s3.endpoint.removeprefix('http://')}&scheme=http&region=us-east-1"
        assert spark.query(at, query) == expected


def test_a_stream_goes_on_from_its_checkpoint_and_is_told_what_it_lost(
    service: Service, spark: Spark, tmp_path: Path
) -> None:
    code = STREAM.format(path=url(service), work=str(tmp_path))
    options = {"subscribePattern": "s.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}

    def go() -> Any:
        shipped(service)
        return spark.run(
            code
            + f"query = run('', {options!r}, availableNow=True)\n"
            + "query.awaitTermination()\n"
            + "answer = sink()\n"
        )

    write(service, "s1", *[{"data": n} for n in range(100)])
    assert go() == [["s1", n + 1, str(n)] for n in range(100)]
    service.kill_group()
    service.start()
    write(service, "s1", *[{"data": n} for n in range(100, 120)])
    write(service, "s2", *[{"data": n} for n in range(30)])
    expected = [["s1", n + 1, str(n)] for n in range(120)] + [["s2", n + 1, str(n)] for n in range(30)]
    assert go() == expected
    status, answer = service.request("PUT", "/v0/topics/s2", {"cap_records": 10})
    assert status == 200, answer
    write(service, "s2", *[{"data": n} for n in range(30, 60)])
    with pytest.raises(SparkError, match=r'topic "s2": seq 31 to 50 \(cap\).*failOnDataLoss'):
        go()


def test_a_prefix_without_a_service_is_refused_with_the_reason(spark: Spark, s3: S3Server) -> None:
    for place in (f"{s3.url}/nothing", "s3://no-such-bucket/topics"):
        with pytest.raises(SparkError, match=f"{place} holds no service: there is no service.json, or no such bucket"):
            spark.query(place, "select * from topics")


def test_an_encrypted_bucket_is_read_with_its_key_and_refused_without(tmp_path: Path, spark: Spark) -> None:
    (tmp_path / "bucket").mkdir()
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    bucket = {"TOPICS_BUCKET": f"file://{tmp_path / 'bucket'}", "TOPICS_BUCKET_KEY_FILE": str(key)}
    query = "select count(*) n, sum(cast(get_json_object(cast(value as string), '$.n') as int)) total from topics"
    with Service(tmp_path, **SMALL, **bucket, TOPICS_BUCKET_ENCRYPT="true") as running:
        written = 0
        while metric(running, "topics_replica_checkpoints_total") < 1 or written < 1000:
            write(running, "a", *[{"data": {"n": written + n, "pad": "x" * 50}} for n in range(100)])
            written += 100
        shipped(running)
        expected = [{"n": written, "total": written * (written - 1) // 2}]
        assert spark.query(url(running), query, bucketKeyFile=str(key)) == expected
        with pytest.raises(SparkError, match=r"service.json: it is encrypted: .*bucketKeyFile"):
            spark.query(url(running), query)
