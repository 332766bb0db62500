"""How much a write adds under the cap over all topics: topics that evict count what they evict."""

from __future__ import annotations

import random
from typing import Any

import pytest

from proto.model.limits import RECORD_OVERHEAD
from tests.support.harness import Harness

RECORD_SIZE = 17
ONE = {"records": [{"data": 1}]}
LARGE = 1 << 30


def refused(shard: Harness, topic: str, body: Any, cap: int) -> bool:
    shard.hold(size=cap)
    error = shard.reply("append", topic, body).error
    assert error is None or (error.detail or {})["limit"] == "max_total_bytes"
    return error is not None


def records(*sizes: int) -> dict[str, Any]:
    """A write of records with these sizes in all, which are at least 18."""
    return {"records": [{"data": "x" * (size - RECORD_OVERHEAD - 2)} for size in sizes]}


@pytest.mark.parametrize("config", [{"cap_records": 10}, {"cap_bytes": 10 * RECORD_SIZE + 5}])
def test_a_topic_that_evicts_a_record_for_each_new_one_is_never_refused(config: dict[str, Any]) -> None:
    shard = Harness(max_total_bytes=LARGE)
    shard.call("configure", "ring", config)
    cap = 10 * RECORD_SIZE
    for _ in range(25):
        assert not refused(shard, "ring", ONE, cap)
    assert shard.call("state", "ring")["bytes"] == cap
    assert refused(shard, "other", ONE, cap)


def test_a_larger_record_than_those_that_are_evicted_needs_the_difference() -> None:
    shard = Harness(max_total_bytes=LARGE)
    shard.call("configure", "ring", {"cap_records": 2})
    shard.call("append", "ring", records(20, 40))
    assert refused(shard, "ring", records(50), 89)
    assert not refused(shard, "ring", records(50), 90)
    assert not refused(shard, "ring", records(20), 0), "a total that does not grow is not refused"


def test_a_write_that_evicts_records_of_its_own_counts_what_stays() -> None:
    shard = Harness(max_total_bytes=LARGE)
    shard.call("configure", "ring", {"cap_records": 2})
    assert refused(shard, "ring", records(100, 100, 30, 31), 60)
    assert not refused(shard, "ring", records(100, 100, 30, 31), 61)
    shard.call("configure", "bytes", {"cap_bytes": 70})
    assert not refused(shard, "bytes", records(100, 100, 30, 31), 61 + 61)
    assert refused(shard, "bytes", records(100), 61 + 99), "the newest record stays, also if it is larger than the cap"


def test_a_write_that_may_fit_waits_for_what_is_staged_before_it() -> None:
    """With deletions staged it is not known what will be evicted."""
    shard = Harness(max_total_bytes=LARGE)
    shard.call("configure", "ring", {"cap_records": 2, "durability": "fsync"})
    shard.call("append", "ring", records(20, 40))
    shard.hold(size=60)
    shard.send("delete_records", "ring", {"match": ["tag", "Eq", "none"]})
    ident = shard.send("append", "ring", records(20))
    shard.shard.flush()
    assert ident not in shard.replies
    shard.settle()
    assert getattr(shard.replies[ident], "error", 1) is None


def test_a_deletion_that_is_staged_before_a_write_may_keep_what_the_write_would_evict() -> None:
    shard = Harness(max_total_bytes=100)
    shard.call("configure", "ring", {"cap_records": 2, "durability": "fsync"})
    shard.call("append", "ring", records(79))
    shard.call("append", "ring", {"records": [{**records(20)["records"][0], "tag": "t"}]})
    shard.send("delete_records", "ring", {"match": ["tag", "Eq", "t"]})
    assert refused(shard, "ring", records(80), 100)
    shard.shard.commits.sync_now()
    assert refused(shard, "ring", records(80), 100)
    assert not refused(shard, "ring", records(20), 100)


def test_what_expires_before_a_write_has_committed_makes_no_room_for_others() -> None:
    shard = Harness(max_total_bytes=100)
    shard.call("configure", "ring", {"cap_records": 2, "ttl_ms": 1000, "durability": "fsync"})
    shard.call("append", "ring", records(50, 50))
    shard.hold(size=100)
    ident = shard.send("append", "ring", records(50))  # evicts as much as it brings
    shard.clock.advance(2000)
    shard.shard.directory.expire(shard.clock.now_ms())
    assert shard.shard.directory.totals.bytes == 0
    other = shard.send("append", "other", records(60))
    shard.shard.allowance.tick(shard.shard.monotonic())
    assert other not in shard.replies, "it has no room, and may get some"
    shard.settle()
    assert getattr(shard.replies[ident], "error", 1) is None
    assert getattr(shard.replies[other], "error", None) is not None
    assert refused(shard, "other", records(60), 100)
    assert not refused(shard, "other", records(50), 100)


CONFIGS: dict[str, dict[str, Any]] = {
    "log": {},
    "fifo": {"discard": "reject", "cap_records": 9},
    "r1": {"cap_records": 3},
    "r2": {"cap_bytes": 150},
    "r3": {"cap_records": 5, "cap_bytes": 200, "ttl_ms": 500},
    "r4": {"cap_records": 2, "ttl_ms": 300},
}


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cap = self.rng.randint(200, 700)
        self.shard = Harness(max_total_bytes=self.cap)
        self.shard.hold(size=self.cap)
        for name, config in CONFIGS.items():
            self.shard.call("configure", name, {"durability": self.rng.choice(["fsync", "disk"]), **config})

    @property
    def total(self) -> int:
        return self.shard.shard.directory.totals.bytes

    def name(self) -> str:
        return self.rng.choice(list(CONFIGS))

    def write(self) -> None:
        sizes = [self.rng.randint(20, 80) for _ in range(self.rng.choice([1, 1, 2, 4, 7]))]
        rows = [{**each, "tag": f"t{self.rng.randrange(3)}"} for each in records(*sizes)["records"]]
        self.shard.send("append", self.name(), {"records": rows})

    def quiet_write(self) -> None:
        """With nothing staged, a write is refused exactly if the total would grow past the cap."""
        self.sync()
        name, sizes = self.name(), [self.rng.randint(20, 80) for _ in range(self.rng.randint(1, 7))]
        held = [
            RECORD_OVERHEAD + len(each["data"]) + 2 + len(each.get("$tag", "")) for each in self.shard.everything(name)
        ]
        config = self.shard.call("state", name)["config"]
        if config["discard"] == "reject" and len(held) + len(sizes) > config["cap_records"]:
            return
        after = held + sizes
        while (
            config["discard"] == "old"
            and len(after) > 1
            and (
                (config["cap_records"] and len(after) > config["cap_records"])
                or (config["cap_bytes"] and sum(after) > config["cap_bytes"])
            )
        ):
            after.pop(0)
        grows = sum(after) - sum(held)
        total = self.total
        assert refused(self.shard, name, records(*sizes), self.cap) == (grows > 0 and total + grows > self.cap)
        self.shard.shard.commits.sync_now()
        assert self.shard.shard.staging.promises.booked == 0

    def delete(self) -> None:
        topic = self.shard.shard.directory.visible[self.name()]
        what = self.rng.choice(
            [{"match": ["tag", "Eq", f"t{self.rng.randrange(3)}"]}, {"before_seq": topic.records.floor + 1}]
        )
        self.shard.send("delete_records", topic.name, what)

    def configure(self) -> None:
        self.shard.send("configure", self.rng.choice(["r1", "r3"]), {"cap_records": self.rng.randint(1, 6)})

    def flush(self) -> None:
        self.shard.shard.flush()

    def sync(self) -> None:
        self.shard.shard.flush()
        self.shard.settle()
        while self.shard.shard.allowance.unsettled:
            self.shard.settle()

    def wait(self) -> None:
        self.shard.clock.advance(100)
        self.shard.shard.directory.expire(self.shard.clock.now_ms())

    def checkpoint(self) -> None:
        self.sync()
        self.shard.shard.checkpoint_now()


STEPS = (
    [World.write] * 12 + [World.quiet_write] * 2 + [World.delete] * 2 + [World.flush] * 3 + [World.sync] * 2
    + [World.wait] * 2 + [World.configure] + [World.checkpoint]
)  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_the_cap_holds_and_refuses_only_what_would_pass_it(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.rng.choice(STEPS)(world)
        assert world.total <= world.cap
