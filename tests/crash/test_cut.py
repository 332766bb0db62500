"""Claims about cuts at a seq or a time: exactly the records up to it stay, and no seq ever names two records."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proto.model.errors import TopicsError
from proto.model.limits import Limits
from shardd.offline.rewind import Cuts, cut
from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import SHARD, FakeClock, Harness
from tests.support.routed import Net

LIMITS: dict[str, Any] = {"segment_max_events": 10, "cache_bytes": 0}
NAMES = ("a", "b", "c")
Content = dict[str, list[dict[str, Any]]]


def filled(seed: int, steps: int = 60, **limits: Any) -> Harness:
    """A shard with topics of all kinds, written at known times."""
    rng = random.Random(seed)
    shard = Harness(**{**LIMITS, **limits})
    for name in NAMES:
        config = rng.choice([{}, {"cap_records": 25}, {"durability": "fsync"}, {"ttl_ms": 20_000}])
        shard.call("configure", name, config)
    for step in range(steps):
        name = rng.choice(NAMES)
        what = rng.random()
        if what < 0.7:
            records = [{"data": [step, i], "tag": rng.choice("xyz")} for i in range(rng.choice([1, 1, 3, 30]))]
            shard.call("append", name, {"records": records, "idempotency_key": f"k{step}"})
        elif what < 0.8:
            shard.call("delete_records", name, {"match": rng.choice("xyz")})
        elif what < 0.85:
            shard.call("delete_records", name, {"before_seq": rng.randrange(40)})
        else:
            shard.shard.checkpoint_now()
        shard.clock.advance(rng.choice([0, 1, 400]))
    shard.shard.commits.sync_now()
    return shard


def content(shard: Harness) -> Content:
    return {name: shard.everything(name) for name in shard.shard.directory.visible}


SEEDS = [*range(40), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(40, 600))]
TRIES = [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 60))]


def disk_of(shard: Harness) -> FaultDisk:
    assert isinstance(shard.disk, FaultDisk)
    return shard.disk


def test_a_damaged_topic_is_refused_before_anything_is_cut() -> None:
    shard = Harness(**LIMITS)
    for name in NAMES:
        shard.append(name, *range(5))
    shard.shard.checkpoint_now()
    shard.shard.close()
    disk = disk_of(shard)
    disk.remove(next(path for path in sorted(disk.names) if path.suffix == ".data"))
    before = {path: bytes(node.data) for path, node in disk.names.items()}
    with pytest.raises(RecoveryError, match='topic "a" is damaged'):
        list(cut(disk, [SHARD], shard.clock, shard.limits, Cuts(until_ms=0)))
    assert {path: bytes(node.data) for path, node in disk.names.items()} == before


def heads(shard: Harness) -> dict[str, int]:
    return {name: topic.records.head_seq for name, topic in shard.shard.directory.visible.items()}


def carry_out(shard: Harness, disk: FaultDisk, cuts: Cuts) -> dict[str, dict[str, Any]]:
    """Cut the shard's topics on a disk. Returns the results by topic."""
    return {found["topic"]: found for found in cut(disk, [SHARD], shard.clock, shard.limits, cuts)}


def expected(before: Content, cuts: Cuts) -> Content:
    """The model: a filter over all records."""

    def kept(name: str, record: dict[str, Any]) -> bool:
        if name in cuts.seqs:
            return bool(record["$seq"] <= cuts.seqs[name])
        ms = cuts.times.get(name, cuts.until_ms)
        return ms is None or bool(record["$ts"] <= ms)

    return {name: [record for record in records if kept(name, record)] for name, records in before.items()}


def random_cuts(rng: random.Random, before: Content, head: dict[str, int]) -> Cuts:
    times = [record["$ts"] for records in before.values() for record in records] or [0]
    seqs = {name: rng.randrange(head[name] + 1) for name in NAMES if rng.random() < 0.3}
    single = {name: rng.choice(times) for name in NAMES if name not in seqs and rng.random() < 0.3}
    until = rng.choice([None, rng.choice(times), rng.choice(times) - 1, rng.choice(times) + 200, 0])
    return Cuts(seqs, single, until, rng.choice([0, 1, 1000]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stop", ["running", "stopped"])
@pytest.mark.parametrize("tiers", [{}, {"cold_dir": "/cold", "hot_retain_segments": 0}], ids=["hot", "cold"])
def test_a_cut_keeps_exactly_the_records_up_to_it(seed: int, tiers: dict[str, Any], stop: str) -> None:
    shard = filled(seed, **tiers)
    if stop == "stopped":
        shard.shard.close()
    disk = disk_of(shard).after_crash("process")
    before, head = content(shard.restarted(disk.after_crash("process"))), heads(shard)
    cuts = random_cuts(random.Random(seed + 1000), before, head)
    said = carry_out(shard, disk, cuts)
    found = shard.restarted(disk.after_crash("drop"))
    wanted = expected(before, cuts)
    assert content(found) == wanted
    assert set(said) == {name for name in NAMES if name in cuts.seqs or name in cuts.times or cuts.until_ms is not None}
    for name in said:
        assert said[name]["removed"] == len(before[name]) - len(wanted[name])
        assert found.append(name, "new")["first_seq"] == said[name]["next_seq"] == head[name] + cuts.reserve + 1
    for name in set(NAMES) - set(said):
        assert found.append(name, "new")["first_seq"] == head[name] + 1
    report = verify(found.disk, SHARD, shard.clock, shard.limits)
    assert report.problems == []
    found.shard.checkpoint_now()
    assert content(found.restarted()) == content(found)


@pytest.mark.parametrize("survival", ["process", "drop", "tear"])
def test_a_cut_that_died_anywhere_can_be_made_again(survival: Survival) -> None:
    shard = filled(7, 40)
    original = disk_of(shard).settled()
    before = content(shard.restarted(original.after_crash("process")))
    times = sorted(record["$ts"] for records in before.values() for record in records)
    cuts = Cuts({"a": heads(shard)["a"] // 2}, {}, times[len(times) // 2])
    wanted = expected(before, cuts)
    probe = original.after_crash("process")
    carry_out(shard, probe, cuts)
    assert len(probe.calls) > 30
    for crash_at in range(len(probe.calls)):
        disk = original.after_crash("process")
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            carry_out(shard, disk, cuts)
        after = disk.after_crash(survival, crash_at)
        carry_out(shard, after, cuts)
        assert content(shard.restarted(after.after_crash("drop"))) == wanted, f"crash before call {crash_at}"


def test_an_older_catalog_that_recovery_falls_back_to_has_the_cut_too() -> None:
    shard = filled(3)
    disk = disk_of(shard).after_crash("process")
    before = content(shard.restarted(disk.after_crash("process")))
    cuts = Cuts(until_ms=before["a"][len(before["a"]) // 2]["$ts"])
    carry_out(shard, disk, cuts)
    newest = max(path for path in disk.names if path.name.startswith("catalog"))
    disk.names[newest].data[30] ^= 1
    assert content(shard.restarted(disk)) == expected(before, cuts)


def test_files_of_which_nothing_is_left_are_removed() -> None:
    shard = Harness(**LIMITS)
    for _ in range(30):
        shard.append("a", *["x" * 1000] * 10)
        shard.shard.checkpoint_now()
    disk = disk_of(shard).after_crash("process")
    carry_out(shard, disk, Cuts({"a": 15}))
    assert sum(len(node.data) for node in disk.names.values()) < 30_000
    assert not any(path.parent.name == "wal" for path in disk.names)


def test_a_write_that_was_cut_may_be_written_again_and_one_that_was_kept_is_known() -> None:
    shard = Harness(**LIMITS)
    for key in "pqr":
        shard.append("a", 1, 2, 3, idempotency_key=key)
    carry_out(shard, disk_of(shard), Cuts({"a": 5}, reserve=0))
    found = shard.restarted()
    assert found.append("a", 1, 2, 3, idempotency_key="p")["deduped"]
    assert found.append("a", 1, 2, 3, idempotency_key="q")["first_seq"] == 10
    assert found.append("a", 1, 2, 3, idempotency_key="r")["first_seq"] == 13


def test_a_write_before_the_cut_is_known_also_if_its_records_are_deleted() -> None:
    shard = Harness(**LIMITS)
    shard.append("a", 1, idempotency_key="p")
    shard.append("a", 2, idempotency_key="q")
    moment = shard.clock.ms
    shard.clock.advance(10)
    shard.append("a", 3, idempotency_key="r")
    shard.call("delete_records", "a", {"before_seq": 4})
    carry_out(shard, disk_of(shard), Cuts(until_ms=moment, reserve=0))
    found = shard.restarted()
    assert found.append("a", 2, idempotency_key="q")["deduped"]
    assert not found.append("a", 3, idempotency_key="r")["deduped"]


def test_readers_that_were_behind_the_cut_go_on_with_what_comes_next_and_are_told_of_no_loss() -> None:
    shard = Harness(**LIMITS)
    shard.append("a", *range(10))
    shard.call("cursor_put", "a", {"seq": 8}, cursor="me")
    carry_out(shard, disk_of(shard), Cuts({"a": 5}, reserve=100))
    found = shard.restarted()
    found.append("a", "new")
    for from_seq in (5, 8, 10, 60, 110):
        answer = found.diff("a", from_seq)
        assert [(record["$seq"], record["data"]) for record in answer["records"]] == [(111, "new")]
        assert answer["tombstone"] is None
    assert found.call("cursor_get", "a", cursor="me")["seq"] == 8
    assert found.diff("a", 0)["head_seq"] == 111


def test_a_queue_forgets_the_jobs_that_were_cut_and_keeps_the_leases_of_others() -> None:
    shard = Harness(**LIMITS)
    shard.call("configure", "q", {"type": "queue", "leases_durable": True})
    shard.append("q", *range(6))
    tokens = [job["lease_id"] for job in shard.call("claim", "q", {"node": "w", "max": 4})["claimed"]]
    shard.call("ack", "q", {"node": "w", "seqs": [1], "lease_ids": tokens[:1]})
    carry_out(shard, disk_of(shard), Cuts({"q": 3}))
    found = shard.restarted()
    assert found.call("state", "q")["queue"] == {
        "ready": 0,
        "in_flight": 2,
        "delayed": 0,
        "dead_lettering": 0,
        "dead_lettered": 0,
    }
    assert found.call("ack", "q", {"node": "w", "seqs": [2, 3], "lease_ids": tokens[1:3]})["acked"] == 2


def test_a_letter_that_was_cut_is_taken_when_it_comes_again() -> None:
    """The source, cut at the same time, still has the record and sends it again."""
    shard = Harness(**LIMITS)
    letter = {"stamped": True, "jobs": False, "letters": [b"s" * 24, [7]]}
    shard.append("dlq", "of before")
    shard.call("append", "dlq", {"records": [{"data": "job"}]}, **letter)
    assert shard.call("append", "dlq", {"records": [{"data": "job"}]}, **letter) == {"known": [7]}
    carry_out(shard, disk_of(shard), Cuts({"dlq": 1}))
    found = shard.restarted()
    found.call("append", "dlq", {"records": [{"data": "job"}]}, **letter)
    assert [record["data"] for record in found.everything("dlq")] == ["of before", "job"]
    assert found.call("append", "dlq", {"records": [{"data": "job"}]}, **letter) == {"known": [7]}


def test_jobs_that_were_held_back_keep_their_time_and_those_that_were_cut_are_gone() -> None:
    shard = Harness(**LIMITS)
    shard.call("configure", "q", {"type": "queue"})
    for delay in (0, 5000, 5000):
        shard.call("append", "q", {"records": [{"data": delay, "delay_ms": delay}]})
    carry_out(shard, disk_of(shard), Cuts({"q": 2}))
    found = shard.restarted()
    assert [job["$seq"] for job in found.call("claim", "q", {"node": "w", "max": 5})["claimed"]] == [1]
    found.clock.advance(5001)
    assert [job["$seq"] for job in found.call("claim", "q", {"node": "w", "max": 5})["claimed"]] == [2]


def test_an_ephemeral_topic_is_empty_and_goes_on_above_its_head() -> None:
    shard = Harness(**LIMITS)
    shard.call("configure", "e", {"durability": "ephemeral"})
    head = shard.append("e", *range(10))["last_seq"]
    carry_out(shard, disk_of(shard), Cuts(until_ms=shard.clock.ms))
    found = shard.restarted()
    assert found.everything("e") == []
    assert found.append("e", 1)["first_seq"] > head


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (Cuts({"nobody": 3}), 'no topic "nobody"'),
        (Cuts(times={"nobody": 3}), 'no topic "nobody"'),
        (Cuts({"a": 11}), "ends at seq 10"),
    ],
)
def test_a_cut_that_cannot_be_made_changes_nothing(cuts: Cuts, said: str) -> None:
    shard = Harness(**LIMITS)
    shard.append("a", *range(10))
    before = content(shard)
    with pytest.raises(RecoveryError, match=said):
        carry_out(shard, disk_of(shard), cuts)
    assert content(shard.restarted()) == before


class TestRouters:
    """Source and destination, in one shard or in two, are cut at the same time."""

    @staticmethod
    def cut(net: Net, cuts: Cuts) -> None:
        """One data directory with all shards of a net."""
        whole = FaultDisk()
        paths = [Path(f"/data/shard-{index:02d}") for index in range(len(net.shards))]
        for path, harness in zip(paths, net.shards, strict=True):
            harness.shard.commits.sync_now()
            found = disk_of(harness).after_crash("process")
            whole.names |= {path / name.relative_to(SHARD): node for name, node in found.names.items()}
            whole.dirs |= {path / each.relative_to(SHARD) for each in found.dirs if each.is_relative_to(SHARD)}
        for _ in cut(whole, paths, net.clock, Limits(**net.limits), cuts):
            pass
        for index, path in enumerate(paths):
            disk = FaultDisk()
            disk.names = {SHARD / n.relative_to(path): node for n, node in whole.names.items() if path in n.parents}
            disk.dirs = {SHARD / each.relative_to(path) for each in whole.dirs if each.is_relative_to(path)}
            net.shards[index] = Harness(disk, net.clock, **net.limits)
        net.restore()
        net.settle()

    @pytest.mark.parametrize("shards", [1, 2])
    @pytest.mark.parametrize("fields", [{}, {"filter": ["tag", "Eq", "x"]}, {"guarantee": "exactly_once"}])
    @pytest.mark.parametrize("saved", [False, True])
    @pytest.mark.parametrize("seed", TRIES)
    def test_every_record_that_the_source_keeps_has_one_copy(
        self, shards: int, fields: dict[str, Any], saved: bool, seed: int
    ) -> None:
        rng = random.Random(seed)
        net = Net(shards, **LIMITS)
        net.router("r", "source", "dest", **fields)
        moments = []
        for n in range(30):
            net.of("source").call("append", "source", {"records": [{"data": n, "tag": rng.choice("xy")}]})
            net.clock.advance(10)
            if rng.random() < 0.3:  # so copies are made some time after their records
                net.settle()
            if rng.random() < 0.1:
                net.of("dest").shard.checkpoint_now()
            moments.append(net.clock.ms)
        net.settle()
        if saved:
            for harness in net.shards:
                harness.shard.checkpoint_now()
        seen = net.seen("dest")
        self.cut(net, Cuts(until_ms=rng.choice(moments)))
        source = net.of("source").everything("source")
        assert 0 < len(source) <= 30
        wanted = [r["data"] for r in source if "filter" not in fields or r["$tag"] == "x"]
        assert net.data("dest") == wanted
        for seq, data in net.seen("dest").items():
            assert seen.get(seq, data) == data
        net.of("source").call("append", "source", {"records": [{"data": "later", "tag": "x"}]})
        net.settle()
        assert net.data("dest") == [*wanted, "later"]

    def test_copies_are_told_from_direct_writes(self) -> None:
        net = Net(1, **LIMITS)
        net.router("r", "source", "dest")
        for n in range(10):
            net.of("source").append("source", n)
            net.clock.advance(10)
            net.settle()
        moment = net.clock.ms
        for n in range(10, 20):
            net.of("source").append("source", n)
            net.clock.advance(10)
            net.settle()
            net.of("dest").append("dest", f"direct {n}")
        net.of("dest").shard.checkpoint_now()
        self.cut(net, Cuts(times={"dest": moment}))
        assert net.data("dest") == list(range(20))

    @pytest.mark.parametrize("shards", [1, 2])
    def test_copies_that_only_the_log_tells_of_are_made_again_first(self, shards: int) -> None:
        net = Net(shards, **LIMITS)
        net.router("r", "source", "dest")
        net.router("s", "dest", "last")
        for n in range(5):
            net.of("source").append("source", n)
            net.settle()
            net.clock.advance(10)
            net.of("dest").append("dest", f"direct {n}")
            net.settle()
            net.clock.advance(10)
        moment = net.clock.ms - 5
        net.of("dest").append("dest", "direct, after")
        net.settle()
        seen = net.seen("dest")
        net.clock.advance(10)
        self.cut(net, Cuts(until_ms=moment))
        wanted = [data for seq, data in sorted(seen.items()) if data != "direct, after"]
        assert sorted(map(str, net.data("dest"))) == sorted(map(str, wanted))
        assert sorted(map(str, net.data("last"))) == sorted(map(str, wanted))
        for seq, data in net.seen("dest").items():
            assert seen.get(seq, data) == data

    @pytest.mark.parametrize("fields", [{}, {"filter": ["tag", "Eq", "x"]}])
    def test_consumers_of_copies_are_told_of_no_loss(self, fields: dict[str, Any]) -> None:
        net = Net(2, **LIMITS)
        net.router("r", "source", "dest", **fields)
        for n in range(10):
            net.of("source").call("append", "source", {"records": [{"data": n, "tag": "x"}]})
            net.clock.advance(10)
        moment = net.clock.ms - 45
        net.settle()
        self.cut(net, Cuts(until_ms=moment))
        net.crash()
        net.settle()
        cursor, found = 0, []
        while True:
            answer = net.of("dest").diff("dest", cursor)
            assert answer["tombstone"] is None
            found += [record["data"] for record in answer["records"]]
            cursor = answer["next_from_seq"]
            if answer["caught_up"]:
                break
        assert found == list(range(6))


@pytest.mark.parametrize("make", [lambda shard: shard.call("delete_topic", "a"), lambda shard: None])
def test_a_cut_that_finds_nothing_to_remove_still_reserves(make: Callable[[Harness], Any]) -> None:
    shard = Harness(clock=FakeClock(), **LIMITS)
    shard.append("a", 1)
    make(shard)
    shard.append("a", 1)
    head = heads(shard)["a"]
    carry_out(shard, disk_of(shard), Cuts(until_ms=shard.clock.ms, reserve=50))
    found = shard.restarted()
    assert len(found.everything("a")) == head
    assert found.append("a", 2)["first_seq"] == head + 51
    with pytest.raises(TopicsError):
        found.diff("nobody")
