"""A bucket with a key: a service and its commands go on with the key, and are refused without it, with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_backup import numbers, topics
from tests.e2e.test_roles import machine, stands_by
from tests.support.service import Service, until


@pytest.mark.parametrize("encrypt", ["false", "true"])
def test_a_bucket_with_a_key_is_used_by_those_who_have_it(tmp_path: Path, encrypt: str) -> None:
    (tmp_path / "bucket").mkdir()
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    bucket = f"file://{tmp_path / 'bucket'}"
    sealed = {"TOPICS_BUCKET": bucket, "TOPICS_BUCKET_KEY_FILE": str(key), "TOPICS_REPLICATION": "sync"}
    sealed["TOPICS_BUCKET_ENCRYPT"] = encrypt
    with Service(tmp_path, shards=1, **sealed) as service:
        body = {"records": [{"data": {"n": n, "of": "a secret"}, "tag": "t"} for n in range(20)]}
        assert service.request("POST", "/v0/topics/a", body)[0] in (200, 201)
        before = numbers(service, "a")
    stored = b"".join(each.read_bytes() for each in (tmp_path / "bucket").rglob("*") if each.is_file())
    assert (b"a secret" in stored) == (encrypt == "false")
    target = tmp_path / "elsewhere" / "data"
    target.parent.mkdir()
    refused = topics("restore", "--from", bucket, str(target), status=1)
    assert "set TOPICS_BUCKET_KEY_FILE" in refused.stdout + refused.stderr
    assert not target.exists()
    topics("replica", "verify", bucket, TOPICS_BUCKET_KEY_FILE=str(key))
    topics("replica", "status", bucket, TOPICS_BUCKET_KEY_FILE=str(key))
    topics("restore", "--from", bucket, str(target), TOPICS_BUCKET_KEY_FILE=str(key))
    with Service(target.parent, shards=1) as service:
        assert numbers(service, "a") == before
    without = Service(tmp_path, shards=1, TOPICS_BUCKET=bucket, TOPICS_REPLICATION="sync")
    without.start(wait=False)
    try:
        until(lambda: "set TOPICS_BUCKET_KEY_FILE" in without.log_text(), "the refusal", 30)
    finally:
        without.close()


def test_encryption_is_turned_on_at_a_restart_and_a_standby_follows(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    alike = {"TOPICS_BUCKET_KEY_FILE": str(key)}
    one, two = machine(tmp_path, "one", **alike), machine(tmp_path, "two", **alike, TOPICS_BUCKET_ENCRYPT="true")
    try:
        one.start()
        assert one.request("POST", "/v0/topics/a", {"records": [{"data": {"n": 1}}]})[0] in (200, 201)
        one.stop()
        one.environment["TOPICS_BUCKET_ENCRYPT"] = "true"
        one.start()
        assert one.request("POST", "/v0/topics/a", {"records": [{"data": {"n": 2, "of": "a secret"}}]})[0] == 200
        two.start(wait=False)
        until(lambda: stands_by(two), "a standby", 60)
        one.stop()
        two.wait_ready()
        assert numbers(two, "a") == [1, 2]
    finally:
        one.close()
        two.close()
    stored = b"".join(each.read_bytes() for each in (tmp_path / "bucket").rglob("*") if each.is_file())
    assert b"a secret" not in stored


def test_the_key_is_changed_with_the_prefix(tmp_path: Path) -> None:
    key, other, new = tmp_path / "key", tmp_path / "other", tmp_path / "new"
    key.write_text("k" * 64)
    other.write_text("o" * 64)
    new.mkdir()
    one = machine(tmp_path, "one", TOPICS_BUCKET_KEY_FILE=str(key), TOPICS_BUCKET_ENCRYPT="true")
    try:
        one.start()
        assert one.request("POST", "/v0/topics/a", {"records": [{"data": {"n": 1}}]})[0] in (200, 201)
        one.stop()
        one.environment |= {"TOPICS_BUCKET_KEY_FILE": str(other), "TOPICS_BUCKET": new.as_uri()}
        one.start()
        assert one.request("POST", "/v0/topics/a", {"records": [{"data": {"n": 2}}]})[0] == 200
        one.kill_group()
    finally:
        one.close()
    target = tmp_path / "elsewhere" / "data"
    target.parent.mkdir()
    topics("restore", "--from", new.as_uri(), str(target), TOPICS_BUCKET_KEY_FILE=str(other))
    with Service(target.parent, shards=None) as service:
        assert numbers(service, "a") == [1, 2]
