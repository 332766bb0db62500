"""Claims about taking records through a cursor while the machine or the process dies at any call to the disk."""

from __future__ import annotations

from typing import Literal

import pytest

from proto.ipc.message import Reply
from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import Harness

Survival = Literal["process", "drop", "tear"]


class Run:
    """Appends and takes in groups of three, with checkpoints in between. Stores what was acknowledged."""

    def __init__(self, disk: FaultDisk) -> None:
        self.disk = disk
        self.appended = 0
        self.acked = 0
        self.taken: list[int] = []
        self.asked = 0

    def go(self) -> None:
        shard = Harness(self.disk)
        shard.call("configure", "t", {"durability": "fsync"})
        shard.reply("log_create", "events", partitions=3)
        for round_ in range(4):
            self.appended += 3
            shard.append("t", *range(self.appended - 3, self.appended))
            self.acked = self.appended
            idents = [shard.send("take", "t", cursor="w") for _ in range(2)]
            self.asked += 2
            shard.shard.flush()
            shard.shard.commits.sync_now()
            for ident in idents:
                reply = shard.replies[ident]
                assert isinstance(reply, Reply)
                assert reply.extra is not None
                self.taken.append(reply.extra.seq)
            if round_ % 2:
                shard.shard.checkpoint_now()


def calls() -> int:
    disk = FaultDisk()
    Run(disk).go()
    return len(disk.calls)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_nothing_that_was_handed_out_comes_again_and_nothing_else_is_missing(survival: Survival) -> None:
    total = calls()
    assert total > 40
    for crash_at in range(total):
        run = Run(FaultDisk())
        run.disk.crash_at = crash_at
        try:
            run.go()
        except Crash:
            pass
        shard = Harness(run.disk.after_crash(survival, crash_at))
        if not run.acked:
            continue
        assert shard.call("log_find", "events") == {"partitions": 3}
        rest: list[int] = []
        while (reply := shard.reply("take", "t", cursor="w")).extra is not None:
            rest.append(reply.extra.seq)
        handed_out = run.taken + rest
        assert len(handed_out) == len(set(handed_out)), (crash_at, "handed out twice")
        assert rest == sorted(rest)
        lost = set(range(1, run.acked + 1)) - set(handed_out)
        assert len(lost) <= run.asked - len(run.taken), (crash_at, lost, "lost without having been asked for")
