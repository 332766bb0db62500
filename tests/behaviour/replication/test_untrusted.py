"""What a bucket says is not trusted: names that lead elsewhere and numbers that fit nothing are damage."""

from __future__ import annotations

import pytest

from shardd.replication import manifests
from shardd.replication.manifests import File, Head
from shardd.replication.names import ShardNames
from tests.support.bucket import MemoryStore
from tests.support.shipped import SMALL, Shipped

NAMES = ShardNames(0)


@pytest.fixture
def shard() -> Shipped:
    made = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(30):
        made.append("a", "x" * 100, number)
    made.sync()
    made.shard.checkpoint_now()
    made.copy()
    return made


def newest(of: Shipped) -> tuple[str, Head, list[File]]:
    name = NAMES.manifest(manifests.numbers(of.store, NAMES)[-1])
    return name, *manifests.decode(of.store.objects[name])


PATHS = [
    "../../escaped",
    "/escaped",
    "topics/../../../escaped",
    "cold/../../escaped",
    "topics/0000000000000001/../../../../escaped",
    "bucket.json",
    "wal/wal-00000000000000000001.log",
    "topics/0000000000000001/seg-00000000000000000001.data\n",
    "topics/0000000000000001/seg-00000000000000000001.data\0",
    "topics/000000000000000A/seg-00000000000000000001.data",
    "topics/٠000000000000001/seg-00000000000000000001.data",
    "",
    ".",
]
