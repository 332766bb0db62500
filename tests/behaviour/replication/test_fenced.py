"""A fence of another process in the place of the next part: nothing more is shipped or acknowledged for it."""

from __future__ import annotations

import pytest

from shardd.replication import parts
from shardd.replication.names import ShardNames
from tests.support.bucket import MemoryStore
from tests.support.shipped import SMALL, Deposed, Shipped


def test_a_fence_of_another_process_deposes_although_it_contradicts_no_frame() -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    shipped_no = shard.shipped_no
    fence = ShardNames(0).part(3)
    shard.store.objects[fence] = parts.encode(parts.Part(3, parts.FENCE, 1, b"o" * 16, shipped_no + 1, shipped_no))
    shard.append("a", 2)
    shard.sync()
    with pytest.raises(Deposed):
        shard.ship()
    assert shard.shipped_no == shipped_no
    assert max(name for name in shard.store.objects if "/log/" in name) == fence
