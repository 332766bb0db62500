"""What the offline commands print when files are damaged, and their exit status."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from proto.model.limits import Limits
from shardd.offline.__main__ import main
from shardd.offline.reshard import MANIFEST, shard_name
from shardd.storage.disk import RealDisk
from shardd.storage.errors import SegmentError
from tests.support.harness import Harness


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def _run(command: str, data: Path, monkeypatch: pytest.MonkeyPatch, **job: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["shardd.offline", command, str(data)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"limits": msgspec.to_builtins(Limits()), **job})))
    return main()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped directory of one shard, with one damaged segment."""
    shard = Harness(RealDisk(), path=tmp_path / shard_name(0))
    shard.append("orders", *range(20))
    shard.shard.checkpoint_now()
    shard.shard.close()
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 1, "shards": 1, "created_ms": 5}))
    (segment,) = tmp_path.rglob("*.data")
    content = bytearray(segment.read_bytes())
    content[90] ^= 1
    segment.write_bytes(content)
    return tmp_path


def test_a_reshard_that_meets_damage_says_in_one_sentence_where_and_what_to_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("reshard", data, monkeypatch, shards=2) == 1
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    said = json.loads(line)
    assert said["kind"] == "error"
    assert 'topic "orders" is damaged' in said["message"]
    assert ".data, offset" in said["message"]
    assert said["message"].endswith("salvage it first")
    assert not printed.err


def test_damage_that_no_topic_is_known_for_is_a_sentence_too(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(*args: Any) -> None:
        raise SegmentError("seg-1.data, offset 0: the checksum is wrong")

    monkeypatch.setattr("shardd.offline.offline_routers.Routers.derive", damaged)
    assert _run("reshard", data, monkeypatch, shards=2) == 1
    message = json.loads(capsys.readouterr().out)["message"]
    assert (
        message
        == "seg-1.data, offset 0: the checksum is wrong: if `topics verify` names a damaged topic, salvage it first"
    )
