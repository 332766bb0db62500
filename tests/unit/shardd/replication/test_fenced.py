"""A fence of another process in the place of the next part: nothing more is shipped or acknowledged for it."""

from __future__ import annotations

import pytest

from shardd.replication import parts, shipping
from shardd.replication.names import ShardNames
from shardd.replication.shipping import Deposed
from tests.support.bucket import MemoryStore
from tests.support.shipped import SMALL, Shipped


def test_a_fence_of_another_process_deposes_although_it_contradicts_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "FIRST_PAUSE", 0.0)
    shard = Shipped(MemoryStore(), **SMALL).attach()
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    shipped_no = shard.shipping.shipped_no
    fence = ShardNames(0).part(2)
    shard.store.objects[fence] = parts.fence(2, 1, b"o" * 16, shipped_no + 1)
    shard.append("a", 2)
    shard.sync()
    with pytest.raises(Deposed):
        shard.ship()
    assert shard.shipping.shipped_no == shipped_no
    assert max(name for name in shard.store.objects if "/log/" in name) == fence
