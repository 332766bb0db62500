"""A bucket with a key: a service and its commands go on with the key, and are refused without it, with a sentence."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_backup import numbers, topics
from tests.support.service import Service, until


def test_a_bucket_with_a_key_is_used_by_those_who_have_it(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    bucket = f"file://{tmp_path / 'bucket'}"
    sealed = {"TOPICS_BUCKET": bucket, "TOPICS_BUCKET_KEY_FILE": str(key), "TOPICS_REPLICATION": "sync"}
    with Service(tmp_path, shards=1, **sealed) as service:
        body = {"records": [{"data": {"n": n}, "tag": "t"} for n in range(20)]}
        assert service.request("POST", "/v0/topics/a", body)[0] in (200, 201)
        before = numbers(service, "a")
    target = tmp_path / "elsewhere" / "data"
    target.parent.mkdir()
    refused = topics("restore", "--from", bucket, str(target), status=1)
    assert "set TOPICS_BUCKET_KEY_FILE" in refused.stdout + refused.stderr
    assert not target.exists()
    topics("replica", "verify", bucket, TOPICS_BUCKET_KEY_FILE=str(key))
    topics("restore", "--from", bucket, str(target), TOPICS_BUCKET_KEY_FILE=str(key))
    with Service(target.parent, shards=1) as service:
        assert numbers(service, "a") == before
    without = Service(tmp_path, shards=1, TOPICS_BUCKET=bucket, TOPICS_REPLICATION="sync")
    without.start(wait=False)
    try:
        until(lambda: "set TOPICS_BUCKET_KEY_FILE" in without.log_text(), "the refusal", 30)
    finally:
        without.close()
