"""The log read for what exists: deletions, and topics that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.format import frame as wire
from pyspark_topics.errors import CorruptFile
from tests.behaviour.pyspark_topics.test_reader import Shard, read, values


def test_deleted_records_are_left_out(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"a", b"b", b"c"], deleted=bytes([0, wire.DELETED, 7]))
    shard.write(1, 4, [b"d"])
    assert values(shard.root) == [b"a", b"c", b"d"]


def test_a_deleted_topic_is_gone_and_its_successor_is_not(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.create(1, "t")
    shard.write(1, 1, [b"old"])
    shard.rotate()
    shard.delete(1, "t")
    shard.create(2, "t")
    shard.write(2, 1, [b"new"])
    assert [(row["topic"], row["value"]) for row in read(shard.root)] == [("t", b"new")]


def test_records_of_a_topic_that_was_never_created_are_an_error(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.write(9, 1, [b"whose?"])
    with pytest.raises(CorruptFile, match=r"byte 0.*: .* topic id 9"):
        read(shard.root)
