"""Claims about a disk that is nearly full: writes are refused before it is full, all other requests go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.api.health import ready
from gateway.shards.client import Shards
from proto.ipc.message import Status, unpack
from proto.model.errors import ErrorCode, TopicsError
from shardd.storage.disk import RealDisk
from shardd.storage.free_space import LOOK_INTERVAL, PER_RECORD
from tests.support.fault_disk import FaultDisk
from tests.support.harness import FakeClock, Harness
from tests.support.packed import pack
from tests.support.routed import Net

LEAST = 1000


class CountingDisk(FaultDisk):
    asked = 0

    def free(self, path: Path) -> int:
        self.asked += 1
        return super().free(path)


@pytest.fixture
def shard() -> Harness:
    found = Harness(CountingDisk(), min_free_bytes=LEAST)
    found.append("a", 1, 2, 3)
    found.call("configure", "volatile", {"durability": "ephemeral"})
    return found


def leave(shard: Harness, free: int) -> None:
    assert isinstance(shard.disk, FaultDisk)
    shard.disk.free_bytes = free
    shard.clock.advance(round(LOOK_INTERVAL * 1000) + 1)


@pytest.mark.parametrize(
    ("op", "body"),
    [("append", {"records": [{"data": 1}]}), ("configure", {"priority": 3})],
    ids=["append", "configure"],
)
@pytest.mark.parametrize("topic", ["a", "new"])
def test_what_fills_the_disk_is_refused(shard: Harness, op: str, body: Any, topic: str) -> None:
    leave(shard, LEAST - 1)
    with pytest.raises(TopicsError) as caught:
        shard.call(op, topic, body)
    assert caught.value.code is ErrorCode.THROTTLED
    assert caught.value.detail == {"limit": "disk_free", "min": LEAST, "free": LEAST - 1}
    assert caught.value.retry_after_ms
    assert "TOPICS_MIN_FREE_BYTES" in str(caught.value)
    assert [each["topic"] for each in shard.call("list", page_size=9)] == ["a", "volatile"]
    assert shard.call("stats")["disk"] == {"free_bytes": LEAST - 1, "refused_total": 1}


def test_reads_positions_deletions_and_what_is_not_logged_go_on(shard: Harness) -> None:
    leave(shard, 0)
    assert [each["data"] for each in shard.everything("a")] == [1, 2, 3]
    shard.call("cursor_put", "a", {"seq": 2}, cursor="c")
    shard.append("volatile", 1)
    shard.shard.checkpoint_now()
    shard.call("delete_topic", "a")
    assert [each["topic"] for each in shard.call("list", page_size=9)] == ["volatile"]


def test_writes_come_back_with_the_room(shard: Harness) -> None:
    leave(shard, LEAST - 1)
    with pytest.raises(TopicsError):
        shard.append("a", 4)
    leave(shard, LEAST)
    assert shard.append("a", 4)["first_seq"] == 4


def test_copies_wait_for_room_and_none_is_lost() -> None:
    net = Net(2, min_free_bytes=LEAST)
    for dest, fields in (("copy", {}), ("volatile", {"durability": "ephemeral"})):
        net.router(f"to-{dest}", "source", dest)
        net.of(dest).call("configure", dest, fields)
    net.of("source").append("source", 1)
    net.settle()
    net.of("source").append("source", 2, 3)
    for shard in net.shards:
        leave(shard, LEAST - 1)
    net.settle()
    assert net.data("copy") == [1]
    assert net.data("volatile") == [1, 2, 3], "an ephemeral topic takes no disk space"
    assert [shard.call("stats")["disk"]["refused_total"] for shard in net.shards] == [0, 0], "no write was refused"
    for shard in net.shards:
        leave(shard, LEAST)
    net.settle()
    assert net.data("copy") == [1, 2, 3]


def test_the_system_is_asked_now_and_then() -> None:
    shard = Harness(CountingDisk(), min_free_bytes=1 << 20)
    assert isinstance(shard.disk, CountingDisk)
    leave(shard, 1 << 20)
    shard.append("a", 0)
    before = shard.disk.asked
    for _ in range(100):
        shard.append("a", 0)
    assert shard.disk.asked == before, "100 ms are not over"
    leave(shard, 1 << 20)
    shard.append("a", 0)
    shard.append("a", 0)
    assert shard.disk.asked == before + 1


def test_what_is_taken_in_quickly_is_looked_at_earlier() -> None:
    """All shards together take at most half of TOPICS_MIN_FREE_BYTES before each of them has asked the system again."""
    shard = Harness(CountingDisk(), min_free_bytes=1 << 20)
    assert isinstance(shard.disk, CountingDisk)
    leave(shard, 1 << 20)
    shard.append("a", 0)
    before = shard.disk.asked
    shard.append("a", "x" * (1 << 18))
    shard.append("a", "x" * (1 << 18))
    assert shard.disk.asked == before + 1


def test_readiness_names_the_shards_whose_disk_is_full(shard: Harness) -> None:
    """The shards serve reads, deletions and acks, so the answer stays 200."""
    shards = Shards(2, 1000)
    shards._heard = list(map(shards.links.current, range(2)))
    for index in range(2):
        shards.states[index] = replace(shards.states[index], phase="ready")
    shards.serving = lambda index: True  # type: ignore[method-assign]
    assert b"disk_free" not in ready(shards, draining=False).body
    shards.disk_full[1] = unpack(pack([], Status(disk_full=True))).status.disk_full
    body = msgspec.json.decode(ready(shards, draining=False).body)
    assert body["status"] == "ready"
    assert body["detail"] == {"limit": "disk_free", "shards": [1]}


def test_the_row_of_a_key_needs_room_in_the_next_checkpoint(shard: Harness) -> None:
    shard.append("a", 1)  # the topic's files are counted with its first write
    room = []
    for key in (None, "k" * 100):
        before = shard.shard.space.needed
        shard.append("a", 1, idempotency_key=key)
        room.append(shard.shard.space.needed - before)
    assert room[1] - room[0] == 100 + PER_RECORD


def test_zero_asks_for_nothing() -> None:
    shard = Harness(FaultDisk(), FakeClock(), min_free_bytes=0)
    leave(shard, 0)
    shard.append("a", 1)


def test_a_real_disk_says_what_is_free(tmp_path: Path) -> None:
    assert RealDisk().free(tmp_path) > 0
