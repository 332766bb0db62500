"""Join: the data directory of a standby is made for the service in the bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.backup.join import JoinError, join
from supervisor.config.settings import Settings
from supervisor.process.datadir import Manifest


def settings(bucket: Path, shards: int | None) -> Settings:
    return Settings(bucket=bucket.as_uri(), shards=shards, replication="sync")


def test_the_first_machine_makes_the_service_and_the_second_one_joins_it(tmp_path: Path) -> None:
    first = join(settings(tmp_path, 3))
    assert first.shards == 3
    assert join(settings(tmp_path, None)) == first == Manifest(3, first.created_ms)
    with pytest.raises(JoinError, match="a service with 3 shards"):
        join(settings(tmp_path, 2))


def test_a_bucket_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="the directory does not exist"):
        join(settings(tmp_path / "missing", None))
