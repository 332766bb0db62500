"""Claims about shards with many topics: the work of a checkpoint and of a start is in proportion to the changes."""

from __future__ import annotations

import random

import pytest

from shardd.checkpoint import slices
from tests.support.many_topics import (
    check_restarts,
    shard_with,
    state,
)


@pytest.mark.parametrize("seed", range(4))
def test_what_happens_between_the_slices_is_in_the_catalog_or_in_the_log(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "LOOK", 8)
    monkeypatch.setattr(slices, "SLICE", 4)
    rng = random.Random(seed)
    shard = shard_with(12, segment_max_events=5, wal_segment_bytes=4096)

    def something() -> None:
        for _ in range(rng.randrange(4)):
            name = f"t{rng.randrange(16)}"
            what = rng.randrange(6)
            if what == 0:
                shard.reply("configure", name, {"cap_records": rng.choice((0, 1, 3, 50))})
            elif what == 1:
                shard.reply("delete_topic", name)
            elif what == 2:
                shard.reply("delete_records", name, {"match": "a"})
            elif what == 3:
                shard.reply("cursor_put", name, {"seq": 1, "force": True}, cursor="c")
            else:
                records = [{"data": rng.random(), "tag": rng.choice("ab")} for _ in range(rng.randrange(1, 5))]
                shard.reply("append", name, {"records": records, "idempotency_key": str(rng.random())})
        if rng.random() < 0.7:
            shard.shard.commits.sync_now()

    def check() -> None:
        shard.shard.commits.sync_now()
        check_restarts(shard, state(shard))

    for _ in range(2):
        something()
        planning = shard.shard.control.planning()
        while True:
            try:
                next(planning)
            except StopIteration as end:
                plan = end.value
                break
            something()
        something()
        shard.shard.checkpoints.writer.write(plan)
        check()
        for _ in shard.shard.control.ending(plan):
            something()
        check()
