"""Claims about the makers of cursors while the machine or the process dies at any call to the disk."""

from __future__ import annotations

from typing import Literal

import pytest

from proto.model.errors import TopicsError
from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import Harness

Survival = Literal["process", "drop", "tear"]
ONE, TWO = b"one.....", b"two....."
CAP, SHARE = 8, 4


class Run:
    """Two keys make, move, delete and make again the cursors of a topic, with checkpoints in between."""

    def __init__(self, disk: FaultDisk) -> None:
        self.disk = disk
        self.made: dict[str, bytes] = {}
        """Maker of each cursor whose last change was acknowledged."""

    def go(self) -> None:
        shard = Harness(self.disk, max_cursors_per_topic=CAP)
        shard.call("configure", "t", {"durability": "fsync"})
        shard.append("t", 1, 2, 3)
        for round_ in range(3):
            for name, maker in (("a", ONE), ("b", TWO), (f"r{round_}", (ONE, TWO)[round_ % 2])):
                self.put(shard, name, maker, round_)
            if round_ % 2:
                shard.shard.checkpoint_now()
            gone, self.made = "b", {name: maker for name, maker in self.made.items() if name != "b"}
            shard.call("cursor_delete", "t", cursor=gone)
            self.put(shard, gone, ONE if round_ else TWO, 3)

    def put(self, shard: Harness, name: str, maker: bytes, seq: int) -> None:
        before = self.made.pop(name, maker)
        shard.call("cursor_put", "t", {"seq": seq}, cursor=name, maker=maker, most_made=SHARE)
        self.made[name] = before


def calls() -> int:
    disk = FaultDisk()
    Run(disk).go()
    return len(disk.calls)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_cursor_that_was_acknowledged_keeps_its_maker_and_no_key_gets_more_than_its_share(survival: Survival) -> None:
    total = calls()
    assert total > 40
    for crash_at in range(total):
        run = Run(FaultDisk())
        run.disk.crash_at = crash_at
        try:
            run.go()
        except Crash:
            pass
        shard = Harness(run.disk.after_crash(survival, crash_at), max_cursors_per_topic=CAP)
        if "t" not in shard.shard.directory.visible:
            assert not run.made
            continue
        found = {name: cursor.maker for name, cursor in shard.shard.directory.find("t").cursors.items()}
        assert found.items() >= run.made.items(), crash_at
        assert set(found.values()) <= {ONE, TWO}, crash_at
        for maker in (ONE, TWO):
            held, refused = list(found.values()).count(maker), 0
            for number in range(SHARE + 1):
                try:
                    asked = {"maker": maker, "most_made": SHARE}
                    shard.call("cursor_put", "t", {"seq": 0}, cursor=f"new {maker!r} {number}", **asked)
                except TopicsError:
                    refused += 1
            assert refused == held + 1, crash_at
