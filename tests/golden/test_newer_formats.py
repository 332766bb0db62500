"""Data of a newer release: this one, then the older, refuses each kind of file with a sentence, and changes none.

A newer format is golden data with another number where the format has its version.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from proto.format.frame import CHECKSUM, HEADER, Header, Kind
from tests.golden.make import KEY, ask
from tests.support.releases import RELEASES, topics
from tests.support.service import Service, until

pytestmark = pytest.mark.slow
GOLDEN = RELEASES[-1]
USE = "use the release that wrote it"


def numbered(path: Path, at: int, number: int) -> None:
    """Write a version."""
    raw = bytearray(path.read_bytes())
    raw[at] = number
    path.write_bytes(raw)


def member(path: Path, name: str, value: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


def contents(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def last_frame(path: Path) -> int:
    """The offset of the last frame of a log file."""
    raw, offset = path.read_bytes(), 0
    while offset + Header(raw, offset).length < len(raw):
        offset += Header(raw, offset).length
    return offset


def logs(data: Path) -> Iterator[Path]:
    return (sorted(each.glob("wal/*.log"))[-1] for each in sorted(data.glob("shard-*")))


def changed_frame(data: Path, at: int, number: int) -> None:
    """Change a byte in the last frame of a log that ends with a batch, and its checksum: a writer did so."""
    path = next(log for log in logs(data) if Header(log.read_bytes(), last_frame(log)).kind == Kind.BATCH)
    raw, start = bytearray(path.read_bytes()), last_frame(path)
    end = start + HEADER.size + Header(raw, start).body_len
    raw[start + at] = number
    CHECKSUM.pack_into(raw, end, xxhash.xxh3_64_intdigest(raw[start:end]))
    path.write_bytes(raw)


def newest(data: Path, pattern: str) -> Path:
    return sorted(data.glob(pattern))[-1]


DATA: dict[str, tuple[Callable[[Path], None], str]] = {
    "manifest": (
        lambda data: member(data / "manifest.json", "format", 2),
        rf"manifest\.json has format 2, this release knows 1: {USE}",
    ),
    "catalog": (
        lambda data: numbered(newest(data, "shard-00/catalog-*"), 4, 3),
        rf"catalog-\d+\.cbor: catalog format version 3, this release reads up to version 2: {USE}",
    ),
    "log": (
        lambda data: numbered(next(log for log in logs(data) if log.stat().st_size), 4, 2),
        rf"wal-\d+\.log, offset 0: frame format version 2, this release reads version 1: {USE}",
    ),
    "kind of a frame": (
        lambda data: changed_frame(data, 5, 99),
        rf"frame \d+ of the log is of kind 99, which this release does not know: {USE}",
    ),
    "part of a batch": (
        lambda data: changed_frame(data, 6, 8),
        rf"offset \d+: frame flags 0b1000, this release knows 0b111: {USE}",
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_data_directory_is_refused_and_kept(kind: str, tmp_path: Path) -> None:
    change, sentence = DATA[kind]
    service = Service(tmp_path, shards=None)
    shutil.copytree(GOLDEN / "data", service.data_dir)
    change(service.data_dir)
    before = contents(service.data_dir)
    try:
        service.start(wait=False)
        until(lambda: re.search(sentence, service.log_text()), f"the sentence, in{service.log_tail()}")
        assert not service.is_ready()
    finally:
        service.close()
    after = contents(service.data_dir)
    assert {name: after[name] for name in before} == before


def test_a_segment_sets_its_topic_apart_and_nothing_else(tmp_path: Path) -> None:
    service = Service(tmp_path, shards=None)
    shutil.copytree(GOLDEN / "data", service.data_dir)
    segment = next(path for path in sorted(service.data_dir.rglob("seg-*.data")) if b'"xxxx"' in path.read_bytes())
    whole = segment.read_bytes()
    numbered(segment, 4, 2)
    question = {"from_seq": 0, "limit": 10}
    with service:
        status, _ = service.request("POST", "/v0/topics/capped/diff", question)
        assert status == 503
        assert ask(service, "GET", "topics/capped")["quarantined"]["reason"] == "damaged"
        assert f"frame format version 2, this release reads version 1: {USE}" in service.log_text()
        ask(service, "POST", "topics/plain/diff", question)
        service.stop()
        segment.write_bytes(whole)
        service.start()
        assert len(ask(service, "POST", "topics/capped/diff", question)["records"]) == 3


def test_a_backup_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "backup", tmp_path / "backups")
    member(newest(tmp_path, "backups/*/backup.json"), "format", 2)
    said = topics("restore", tmp_path / "backups", tmp_path / "data", status=1)
    assert f"backup.json has format 2, this release knows 1: {USE}" in said
    assert not (tmp_path / "data").exists()


BUCKET: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "service": (
        "bucket",
        lambda bucket: member(bucket / "service.json", "format", 2),
        f"service.json has format 2, this release knows 1: {USE}",
    ),
    "part": (
        "bucket",
        lambda bucket: numbered(newest(bucket, "shard-00/log/*"), 4, 2),
        "format version 2, use the release that wrote it",
    ),
    "seal": (
        "sealed",
        lambda bucket: numbered(bucket / "service.json", (bucket / "service.json").stat().st_size - 76, 3),
        f"service.json: seal version 3, this release knows 1 and 2: {USE}",
    ),
}


@pytest.mark.parametrize("kind", BUCKET)
def test_a_bucket_is_refused(kind: str, tmp_path: Path) -> None:
    of, change, sentence = BUCKET[kind]
    shutil.copytree(GOLDEN / of, tmp_path / "bucket")
    change(tmp_path / "bucket")
    before = contents(tmp_path / "bucket")
    (tmp_path / "key").write_text(KEY)
    key = {} if of == "bucket" else {"TOPICS_BUCKET_KEY_FILE": str(tmp_path / "key")}
    said = topics("restore", "--from", (tmp_path / "bucket").as_uri(), tmp_path / "data", status=1, **key)
    assert sentence in said
    assert not (tmp_path / "data").exists()
    assert contents(tmp_path / "bucket") == before


def test_a_manifest_of_a_bucket_is_named_and_not_used(tmp_path: Path) -> None:
    """Everything is in the manifest before it and the parts after that, as long as retention has kept these."""
    shutil.copytree(GOLDEN / "bucket", tmp_path / "bucket")
    for path in (tmp_path / "bucket").glob("shard-00/manifests/*"):
        numbered(path, 4, 2)
    said = topics("replica", "verify", (tmp_path / "bucket").as_uri(), status=1)
    assert f"format version 2, this release reads version 1: {USE}" in said
