"""What a catalog says of a segment, instead of the segment."""

from __future__ import annotations

import random

import pytest

from shardd.offline.verify import verify
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness
from tests.support.many_topics import (
    inner,
    started,
)


@pytest.mark.parametrize("seed", range(6))
def test_what_the_catalog_knows_is_what_the_files_have(seed: int) -> None:
    rng = random.Random(seed)
    shard = Harness(FaultDisk(), segment_max_events=rng.choice((5, 1000)), cache_bytes=0)
    shard.append("t0", "x", config={"type": "queue"})
    for step in range(60):
        disk = shard.disk
        assert isinstance(disk, FaultDisk)
        name = f"t{rng.randrange(4)}"
        what = rng.randrange(8)
        if what == 0:
            shard.reply("configure", name, {"cap_records": rng.choice((0, 3, 9)), "cap_bytes": rng.choice((0, 200))})
        elif what == 1:
            shard.reply("delete_records", name, {"match": rng.choice("abc")})
        elif what == 2:
            head = shard.shard.directory.visible[name].records.head_seq if name in shard.shard.directory.visible else 0
            shard.reply("delete_records", name, {"before_seq": rng.randrange(head + 2)})
        elif what == 3:
            shard.shard.checkpoint_now()
        elif what == 4 and name != "t0":
            shard.reply("delete_topic", name)
        else:
            config = {"type": "queue"} if name == "t0" else {}
            records = [{"data": "x" * rng.randrange(9), "tag": rng.choice("abc")} for _ in range(rng.randrange(1, 9))]
            shard.reply("append", name, {"records": records, "config": config})
            if name == "t0" and rng.random() < 0.5:
                jobs = shard.call("claim", "t0", {"node": "w", "max": 3})["claimed"]
                shard.reply("ack", "t0", {"node": "w", "seqs": [job["$seq"] for job in jobs[1:]]})
        if step % 5 == 4:
            shard.shard.commits.sync_now()
            known = started(disk.after_crash("process"), shard, from_files=False)
            assert inner(known) == inner(started(disk.after_crash("process"), shard, from_files=True))
            report = verify(disk.after_crash("process"), shard.path, shard.clock, shard.limits)
            assert not report.problems
            if rng.random() < 0.5:
                shard = shard.restarted()
                for each in list(shard.shard.directory.visible):
                    shard.call("diff", each, b"{}")
                assert len(shard.shard.quarantine) == 0
