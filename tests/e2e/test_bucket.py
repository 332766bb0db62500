"""A service that ships to a bucket: killed under load, restored elsewhere, with its bucket away, and misconfigured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_backup import everything, topics
from tests.support.bucket import S3Server
from tests.support.service import Service, until

SMALL = {
    "TOPICS_CHECKPOINT_BYTES": "300000",
    "TOPICS_CHECKPOINT_INTERVAL_MS": "1000",
    "TOPICS_SEGMENT_MAX_EVENTS": "500",
    "TOPICS_WAL_SEGMENT_BYTES": "200000",
    "TOPICS_SHIP_INTERVAL_MS": "300",
}
SLACK_S = 3.0
"""What a loaded machine may add to the interval."""
TOPICS = ("a", "b", "c")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a service with an empty bucket, and of commands that read it."""
    if request.param == "file":
        (tmp_path / "bucket").mkdir()
        return {"TOPICS_BUCKET": f"file://{tmp_path / 'bucket'}"}
    server: S3Server = request.getfixturevalue("s3")
    return {"TOPICS_BUCKET": f"{server.url}/{tmp_path.name}", **server.environment}


class Noting(threading.Thread):
    """Writes numbers to a topic, and notes when each was acknowledged, until the service is gone or `enough` is set."""

    def __init__(self, service: Service, topic: str, durability: str) -> None:
        super().__init__()
        self._service = service
        self.topic = topic
        self._durability = durability
        self.acked: list[tuple[float, int]] = []
        self.enough = threading.Event()

    def run(self) -> None:
        number = 0
        self._service.request("PUT", f"/v0/topics/{self.topic}", {"durability": self._durability})
        while not self.enough.is_set():
            body = {"records": [{"data": {"n": number + 1 + i, "pad": "x" * 50}, "tag": "t"} for i in range(10)]}
            try:
                status, _ = self._service.request("POST", f"/v0/topics/{self.topic}", body)
            except OSError:
                return
            if status not in (200, 201):
                return
            number += 10
            self.acked.append((time.monotonic(), number))


@contextmanager
def writing(service: Service) -> Iterator[list[Noting]]:
    writers = [Noting(service, topic, "fsync" if topic == "a" else "disk") for topic in TOPICS]
    for each in writers:
        each.start()
    try:
        yield writers
    finally:
        for each in writers:
            each.enough.set()
        for each in writers:
            each.join(20)


def metric(service: Service, name: str) -> float:
    return float(sum(each["value"] for each in metrics(service)[name]))


def metrics(service: Service) -> Any:
    connection = service.connect()
    try:
        connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def restored(tmp_path: Path, bucket: dict[str, str], *more: str) -> Path:
    data = tmp_path / "elsewhere" / "data"
    shutil.rmtree(data.parent, ignore_errors=True)
    data.parent.mkdir()
    environment = {name: value for name, value in bucket.items() if name != "TOPICS_BUCKET"}
    topics("restore", "--from", bucket["TOPICS_BUCKET"], str(data), *more, **environment)
    topics("verify", "--data-dir", str(data))
    return data


def test_after_a_kill_under_load_nothing_older_than_the_interval_is_missing(
    tmp_path: Path, bucket: dict[str, str]
) -> None:
    with Service(tmp_path, **SMALL, **bucket) as service, writing(service) as writers:
        until(lambda: metric(service, "topics_replica_checkpoints_total") >= 2, "copied checkpoints")
        seen = len(writers[0].acked)
        until(lambda: len(writers[0].acked) > seen + 20, "writes behind them")
        time_s = time.monotonic() + SLACK_S + 0.3
        until(lambda: time.monotonic() > time_s, "writes that are older than the interval")
        killed_at = time.monotonic()
        service.kill_group()
    shutil.rmtree(service.data_dir)
    topics("replica", "verify", **bucket)
    data = restored(tmp_path, bucket)
    with Service(data.parent, **SMALL) as again:
        for writer in writers:
            there = [record["data"]["n"] for record in everything(again, writer.topic)]
            assert there == list(range(1, len(there) + 1))
            old = [number for at, number in writer.acked if at < killed_at - 0.3 - SLACK_S]
            assert old
            assert len(there) >= old[-1]
            _, answer = again.request("POST", f"/v0/topics/{writer.topic}", {"records": [{"data": "goes on"}]})
            assert (
                answer["first_seq"] > writer.acked[-1][1] + 10
            )  # no seq that a reader may have seen names two records


def test_after_an_orderly_stop_the_copy_is_equal_and_goes_on_in_the_bucket(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    bucket = {"TOPICS_BUCKET": f"file://{tmp_path / 'bucket'}"}
    with Service(tmp_path, shards=1, **SMALL, **bucket) as service:
        with writing(service):
            until(lambda: metric(service, "topics_replica_checkpoints_total") >= 2, "copied checkpoints")
        service.request("POST", "/v0/topics/b/delete", {"before_seq": 15})
        service.request("POST", "/v0/topics/c", {"records": [{"data": 1.50, "meta": {"a": [1, "ü"]}, "node": "n"}]})
        _, answer = service.request("POST", "/v0/topics/a/diff", {"from_seq": 50, "limit": 1})
        moment = answer["records"][0]["$ts"]
        there = {topic: everything(service, topic) for topic in TOPICS}
        service.stop()
    data = restored(tmp_path, bucket)
    with Service(data.parent, shards=1, **SMALL, **bucket) as again:
        assert {topic: everything(again, topic) for topic in TOPICS} == there
        again.request("POST", "/v0/topics/a", {"records": [{"data": "goes on"}]})
        until(lambda: metric(again, "topics_replica_checkpoints_total") >= 1, "a copied checkpoint")
        again.stop()
    # The machine before follows the one that writes to the bucket, which has ended its term: so it takes over.
    with Service(tmp_path, shards=1, **SMALL, **bucket) as before:
        assert [each["data"] for each in everything(before, "a")][-1] == "goes on"
        before.stop()
    data = restored(tmp_path, bucket, "--until", str(moment))
    with Service(data.parent, shards=1, **SMALL) as earlier:
        assert everything(earlier, "a") == [each for each in there["a"] if each["$ts"] <= moment]


def test_a_bucket_that_is_away_stops_nothing_and_gets_everything_later(tmp_path: Path, s3: S3Server) -> None:
    bucket = {"TOPICS_BUCKET": f"{s3.url}/away", **s3.environment}
    with Service(tmp_path, shards=1, **SMALL, **bucket) as service:
        with writing(service) as writers:
            until(lambda: metric(service, "topics_replica_parts_total") >= 2, "parts")
            s3.signal(signal.SIGSTOP)
            try:
                seen = [len(each.acked) for each in writers]
                until(lambda: metric(service, "topics_replica_lag_seconds") > 2, "lag")
                assert metric(service, "topics_replica_lag_bytes") > 0
                assert all(len(each.acked) > before for each, before in zip(writers, seen, strict=True))
            finally:
                s3.signal(signal.SIGCONT)
        until(lambda: metric(service, "topics_replica_lag_bytes") == 0, "an end of the lag")
        there = {topic: everything(service, topic) for topic in TOPICS}
        assert {each["labels"]["role"] for each in metrics(service)["topics_replica_role"]} == {"holder"}
        service.kill_group()
    data = restored(tmp_path, bucket)
    with Service(data.parent, shards=1) as again:
        assert {topic: everything(again, topic) for topic in TOPICS} == there


def refusal(service: Service, status: int = 3) -> str:
    """The log of a service that does not start."""
    service.start(wait=False)
    try:
        assert service.wait_exit() == status
    finally:
        service.close()
    return service.log_text()


class _Forbidden(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(403)
        self.send_header("content-length", "0")
        self.end_headers()

    do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_first_start_with_a_bucket_that_cannot_be_used_says_why(tmp_path: Path, s3: S3Server) -> None:
    missing = {**s3.environment, "TOPICS_BUCKET": "s3://no-such-bucket/topics"}
    assert "the bucket does not exist; create it" in refusal(Service(tmp_path, shards=1, **missing), 1)
    missing = {"TOPICS_BUCKET": f"file://{tmp_path}/nowhere"}
    assert "the directory does not exist" in refusal(Service(tmp_path, shards=1, **missing), 1)
    assert "must be s3://" in refusal(Service(tmp_path, shards=1, TOPICS_BUCKET="http://example"), 2)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidden) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        refused = {**s3.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}"}
        text = refusal(Service(tmp_path, shards=1, **refused, TOPICS_BUCKET=s3.url), 1)
        server.shutdown()
        thread.join()
    assert "the store refused the credentials" in text


def test_a_prefix_of_another_service_is_refused_and_a_bucket_that_went_away_is_not(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    bucket = {"TOPICS_BUCKET": f"file://{tmp_path}/bucket"}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with Service(tmp_path / "other", shards=1) as other:
        other.request("POST", "/v0/topics/a", {"records": [{"data": 1}]})
        other.stop()
    with Service(tmp_path / "one", shards=1, **bucket) as one:
        one.request("POST", "/v0/topics/a", {"records": [{"data": 1}]})
        one.stop()
        assert "holds another service" in refusal(Service(tmp_path / "other", shards=1, **bucket))
        (tmp_path / "bucket").rename(tmp_path / "away")
        one.start()
        status, _ = one.request("POST", "/v0/topics/a", {"records": [{"data": 2}]})
        assert status == 200
        assert metric(one, "topics_replica_failures_total") > 0
        (tmp_path / "away").rename(tmp_path / "bucket")
        until(lambda: metric(one, "topics_replica_parts_total") >= 1, "parts")
        shown: dict[str, Any] = json.loads(topics("status", "--json", TOPICS_URL=one.url).stdout)
        assert [each["role"] for each in shown["replica"]] == ["holder"]


def test_a_bucket_that_is_a_directory_is_for_its_user_only(tmp_path: Path) -> None:
    place = tmp_path / "bucket"
    place.mkdir(mode=0o755)
    before = os.umask(0o002)
    try:
        with Service(tmp_path, shards=1, TOPICS_BUCKET=f"file://{place}", **SMALL) as service:
            assert service.request("POST", "/v0/topics/a", {"records": [{"data": 1}]})[0] == 201
            until(lambda: [each for each in place.rglob("*") if each.is_file()], "objects")
    finally:
        os.umask(before)
    for each in (*place.rglob("*"), *service.data_dir.rglob("*"), service.data_dir):
        assert each.stat().st_mode & 0o077 == 0, each
