"""Retention of a bucket: what the window needs stays."""

from __future__ import annotations

import pytest

from shardd.replication import checkpoint_copies, parts
from shardd.replication.names import ShardNames
from tests.support.bucket import MemoryStore
from tests.support.shipped import SMALL, Shipped, contents, restored

NAMES = ShardNames(0)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_PAUSE", 0.0)


@pytest.fixture
def shard() -> Shipped:
    return Shipped(MemoryStore(), **SMALL).attach()


def test_retention_keeps_fences_and_what_the_window_needs(shard: Shipped) -> None:
    fence = NAMES.part(4)
    for round_ in range(4):
        for number in range(30):
            shard.append("a", "x" * 200, number)
        shard.sync()
        shard.ship()
        if round_ == 1:
            shard = shard.again().attach()
            assert parts.decode(shard.store.objects[fence], 4)[0].kind == parts.FENCE
        shard.shard.checkpoint_now()
        shard.copy()
        shard.clock.advance(1000)
    shard.clock.advance(shard.limits.bucket_retain_ms + 2 * 86_400_000)
    shard.append("a", 1)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.copy()
    before = set(shard.store.objects)
    shard.copies.retain()
    gone = before - set(shard.store.objects)
    assert NAMES.part(2) in gone
    assert NAMES.part(1) in shard.store.objects
    assert fence in shard.store.objects
    assert any(name.startswith(NAMES.checkpoints) for name in gone) or shard.figures().manifests_total
    assert contents(restored(shard)) == contents(shard)
    before = set(shard.store.objects)
    shard.copies.retain()
    assert set(shard.store.objects) == before
