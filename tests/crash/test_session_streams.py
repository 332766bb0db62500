"""Claims about the streams of a session while the machine or the process dies at any call to the disk."""

from __future__ import annotations

from typing import Literal

import pytest

from proto.ipc.message import Reply
from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import Harness

Survival = Literal["process", "drop", "tear"]
WID = "wid_" + "a" * 22
OWNER = b"k"


class Run:
    """Streams follow each other, each with two moves, the second of which ends it. Checkpoints come in between. Stores
    what was answered, and what was sent."""

    def __init__(self, disk: FaultDisk) -> None:
        self.disk = disk
        self.made = False
        self.numbers = [0]
        self.sent = 0
        self.saved = 0

    def go(self) -> None:
        shard = Harness(self.disk)
        shard.reply("session_make", WID, {"t": [1, 0, 0]}, owner=OWNER, options={})
        self.made = True
        for round_ in range(8):
            number, position = taken(shard)
            assert number > self.numbers[-1]
            assert position == self.saved
            self.numbers.append(number)
            for over in (False, True):
                self.sent += 1
                assert move(shard, number, self.sent, over=over) == ()
                self.saved = self.sent
            if round_ % 2:
                shard.shard.checkpoint_now()


def taken(shard: Harness) -> tuple[int, int]:
    """The number of a stream that begins, and its position."""
    reply = shard.reply("session_take", WID, owner=OWNER)
    assert isinstance(reply, Reply)
    assert reply.extra is not None
    return reply.extra.stream, reply.extra.topics["t"][1]


def move(shard: Harness, number: int, seq: int, *, over: bool) -> tuple[str, ...]:
    reply = shard.reply("session_move", "", {WID: [0, {"t": [1, seq, 0]}, number, over]})
    assert reply.extra is not None
    refused: tuple[str, ...] = reply.extra.superseded
    return refused


def calls() -> int:
    disk = FaultDisk()
    Run(disk).go()
    return len(disk.calls)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_no_number_is_drawn_twice_and_no_position_is_ahead(survival: Survival) -> None:
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
        if not run.made or shard.reply("session_open", WID, owner=OWNER).error is not None:
            assert survival != "process" or not run.made, crash_at
            continue
        number, position = taken(shard)
        assert position <= run.sent, crash_at
        if survival == "process":
            assert number > run.numbers[-1], crash_at
            assert position >= run.saved, crash_at
            if run.numbers[-1]:
                assert move(shard, run.numbers[-1], run.sent + 9, over=True) == (WID,), crash_at
            assert move(shard, number, position, over=True) == ()
            assert taken(shard) == (number + 1, position), crash_at
