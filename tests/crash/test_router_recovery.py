"""Claims about routers and stops: a seq that was visible always names the same record, and no record is left out.

Source and destination are in different shards ("a" and "b") or in the same one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from proto.ipc.message import Reply
from proto.model.errors import TopicsError
from proto.model.names import shard_of
from proto.model.router import RouterConfig, as_map
from shardd.offline.verify import verify
from tests.support.fault_disk import FaultDisk, Survival
from tests.support.harness import SHARD, FakeClock
from tests.support.routed import Net

SHARDS = [1, 2]


def name_in(shard: int, stem: str, shards: int) -> str:
    """A topic name that belongs to this shard."""
    return next(name for n in range(100) if shard_of(name := f"{stem}{n}", shards) == shard)


def names(shards: int) -> tuple[str, str]:
    return name_in(0, "source", shards), name_in(shards - 1, "dest", shards)


def write(net: Net, topic: str, *data: Any, **fields: Any) -> None:
    net.of(topic).append(topic, *data, **fields)


def tagged(net: Net, topic: str, *records: tuple[Any, str]) -> None:
    net.of(topic).call("append", topic, {"records": [{"data": d, "tag": t} for d, t in records]})


@pytest.fixture(params=SHARDS, ids=["one-shard", "two-shards"])
def net(request: pytest.FixtureRequest) -> Net:
    return Net(request.param)


def ends(net: Net) -> tuple[str, str]:
    return names(len(net.shards))


def test_copies_are_made_again_with_the_same_seqs(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    for n in range(40):
        write(net, a, n, n + 0.5)
        if n % 3 == 0:
            net.settle()
        if n % 7 == 0:
            write(net, b, f"direct {n}")
    net.settle()
    seen = net.seen(b)
    assert len(seen) == 86
    net.crash()
    assert net.seen(b) == seen
    net.settle()
    assert net.seen(b) == seen
    write(net, a, "later")
    net.settle()
    assert net.seen(b) == seen | {87: "later"}


def test_a_copy_is_no_frame_and_a_write_after_copies_costs_one(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    frames = lambda: sum(h.shard.log.statistics().frames_total for h in net.shards)  # noqa: E731
    before = frames()
    for n in range(10):
        write(net, a, n)
        net.settle()
    assert frames() == before + 10
    write(net, b, "direct")
    assert frames() == before + 12
    write(net, b, "direct")
    assert frames() == before + 13


def test_only_what_is_on_the_device_is_forwarded(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1)
    assert not net.step(b)
    net.sync()
    assert net.step(b)
    assert net.data(b) == [1]


def test_what_the_machine_forgot_was_never_forwarded(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1)
    net.settle()
    write(net, a, "forgotten")
    net.step(b)
    if len(net.shards) > 1:  # a checkpoint of the source would store the record
        net.of(b).shard.checkpoint_now()
    net.crash(survival="drop")
    write(net, a, 2)
    net.settle()
    assert net.data(a) == net.data(b) == [1, 2]


def test_the_destination_alone_dies_and_comes_back(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1, 2)
    net.settle()
    write(net, b, "x")
    write(net, a, 3)
    net.settle()
    seen = net.seen(b)
    net.crash([len(net.shards) - 1])
    assert net.seen(b) == seen == {1: 1, 2: 2, 3: "x", 4: 3}


def test_another_source_keeps_what_the_first_one_brought(net: Net) -> None:
    """This holds also if the first source is deleted at once, while its copies are in no checkpoint."""
    a, b = ends(net)
    other = name_in(0, "other", len(net.shards))
    net.router("r", a, b)
    write(net, a, 1, 2)
    net.settle()
    net.of(other).call("configure", other)
    write(net, other, "before")
    config = as_map(RouterConfig(other, b))
    place = net.of(other).call("router_source", other)
    ident = net.of(b).send("router_put", b, router="r", config=config, **place)
    write(net, a, "too late")
    assert not net.step(b)  # on hold until the copies are saved
    net.of(b).shard.flush()
    if net.of(b).shard.control.due:
        net.of(b).shard.checkpoint_now()
    net.sync()
    answer = net.of(b).replies[ident]
    assert isinstance(answer, Reply)
    assert answer.error is None
    assert msgspec.json.decode(answer.body)["created"] is False
    net.of(a).call("delete_topic", a)
    write(net, other, 3)
    net.settle()
    seen = net.seen(b)
    assert seen == {1: 1, 2: 2, 3: 3}
    net.crash()
    net.settle()
    assert net.seen(b) == seen
    assert "tombstone" not in net.of(b).diff(b) or net.of(b).diff(b)["tombstone"] is None


@pytest.mark.parametrize("survival", ["process", "drop"])
def test_a_change_of_the_source_that_is_interrupted_leaves_the_router_as_it_was(net: Net, survival: Survival) -> None:
    a, b = ends(net)
    other = name_in(0, "other", len(net.shards))
    net.router("r", a, b)
    write(net, a, 1)
    net.settle()
    net.of(other).call("configure", other)
    place = net.of(other).call("router_source", other)
    net.of(b).send("router_put", b, router="r", config=as_map(RouterConfig(other, b)), **place)
    net.crash(survival=survival)
    write(net, a, 2)
    write(net, other, "not yet")
    net.settle()
    assert net.data(b) == [1, 2]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_deletions_caps_and_configurations_meet_the_same_records_again(net: Net, checkpoint: bool) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    tagged(net, a, (1, "x"), (2, "y"), (3, "x"))
    net.settle()
    if checkpoint:
        net.of(b).shard.checkpoint_now()
    net.of(b).call("delete_records", b, {"match": "x", "before_seq": 3})
    tagged(net, a, (4, "x"), (5, "y"))
    net.settle()
    net.of(b).call("configure", b, {"cap_records": 3})
    write(net, b, "direct")
    assert net.seen(b) == {4: 4, 5: 5, 6: "direct"}
    net.crash()
    assert net.seen(b) == {4: 4, 5: 5, 6: "direct"}
    assert net.of(b).diff(b)["tombstone"]["reason"] == "cap"


def test_a_deletion_behind_copies_that_needs_a_damaged_file_is_the_trouble_of_its_topic_alone(net: Net) -> None:
    """A deletion by tag reads the tags of all records before it. It waits for the copies, so replay does not do it."""
    net = Net(len(net.shards), cache_bytes=0)
    a, b = ends(net)
    other = name_in(len(net.shards) - 1, "other", len(net.shards))
    write(net, other, "unharmed")
    tagged(net, b, (1, "x"), (2, "y"))
    net.router("r", a, b)
    net.sync()
    net.of(b).shard.checkpoint_now()
    tagged(net, a, (3, "x"), (4, "y"))
    net.settle()
    net.of(b).call("delete_records", b, {"match": "x"})
    write(net, b, "direct")
    net.sync()
    seen = net.seen(b)
    assert seen == {2: 2, 4: 4, 5: "direct"}
    ident = net.topic(b).id

    def spoil() -> FaultDisk:
        """Bend a byte of the segment, or make it right again."""
        disk = net.of(b).disk
        assert isinstance(disk, FaultDisk)
        disk.names[min(path for path in disk.names if path.match(f"{ident:016x}/*.data"))].data[70] ^= 1
        return disk

    disk = spoil()
    for _ in range(3):
        net.crash()
        error = net.of(b).reply("diff", b, b"{}").error
        assert error is not None
        assert (error.detail or {})["reason"] == "damaged"
        assert net.data(other) == ["unharmed"]
        assert net.data(a) == [3, 4]
        net.sync()
        net.of(b).shard.checkpoint_now()
    assert verify(disk.after_crash("process"), SHARD, FakeClock(), net.of(b).limits).problems
    spoil()
    net.crash()
    assert net.seen(b) == seen
    write(net, a, "later")
    net.settle()
    assert net.seen(b) == seen | {6: "later"}
    net.crash()
    assert net.seen(b) == seen | {6: "later"}


def test_idempotency_keys_and_cursors_behind_copies_come_back(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1, 2, 3)
    net.settle()
    first = net.of(b).append(b, "direct", idempotency_key="k")
    net.of(b).call("cursor_put", b, {"seq": 4}, cursor="c")
    net.crash()
    again = net.of(b).append(b, "direct", idempotency_key="k")
    assert again["deduped"] is True
    assert again["seqs"] == first["seqs"] == [4]
    assert net.of(b).call("cursor_get", b, cursor="c")["seq"] == 4


def test_what_the_source_lost_meanwhile_is_told_and_moves_nothing(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, *range(1, 11))
    net.settle()
    write(net, b, "direct")
    write(net, a, 11, 12)
    net.settle()
    seen = net.seen(b)
    net.of(a).call("configure", a, {"cap_records": 4})
    net.crash()
    assert net.seen(b) == {seq: seen[seq] for seq in (9, 10, 11, 12, 13)}
    answer = net.of(b).diff(b)
    assert answer["tombstone"]["reason"] == "source_trim"
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 8)


def test_a_gap_between_records_is_told_where_it_is(net: Net) -> None:
    a, b = ends(net)
    net.of(b).call("configure", b, {"cap_records": 3, "discard": "reject"})
    net.router("r", a, b)
    write(net, a, 1, 2, 3, 4, 5, 6)
    net.settle()
    assert net.data(b) == [1, 2, 3]
    net.of(a).call("configure", a, {"cap_records": 1})
    net.of(b).call("configure", b, {"cap_records": 9})
    net.settle()
    net.of(b).shard.checkpoint_now()
    for _ in range(3):
        assert net.seen(b) == {1: 1, 2: 2, 3: 3, 6: 6}
        first = net.of(b).diff(b, 1)
        assert [r["$seq"] for r in first["records"]] == [2, 3]
        assert (first["next_from_seq"], first["caught_up"], first["tombstone"]) == (3, False, None)
        second = net.of(b).diff(b, 3)
        assert second["tombstone"]["reason"] == "source_trim"
        assert (second["tombstone"]["gap_from"], second["tombstone"]["gap_to"]) == (4, 5)
        assert [r["$seq"] for r in second["records"]] == [6]
        assert net.of(b).diff(b, 4)["tombstone"]["gap_from"] == 5
        assert net.of(b).diff(b, 5)["tombstone"] is None
        net.crash()
        for harness in net.shards:
            harness.shard.checkpoint_now()


def test_jobs_on_both_sides_of_a_gap_are_claimed(net: Net) -> None:
    a, b = ends(net)
    net.of(b).call("configure", b, {"type": "queue", "cap_records": 3, "discard": "reject"})
    net.router("r", a, b)
    write(net, a, 1, 2, 3, 4, 5, 6)
    net.settle()
    net.of(a).call("configure", a, {"cap_records": 1})
    net.of(b).call("configure", b, {"cap_records": 9})
    net.settle()
    peeked = net.of(b).call("peek_jobs", b, {"max": 10})
    assert [job["$seq"] for job in peeked["jobs"]] == [1, 2, 3, 6]
    claimed = net.of(b).call("claim", b, {"node": "w", "max": 10})
    assert [job["$seq"] for job in claimed["claimed"]] == [1, 2, 3, 6]
    assert net.of(b).call("stats", per_topic=10, cursors=10)


def test_deleted_records_of_the_source_leave_silent_holes_that_keep_the_seqs(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    tagged(net, a, *((n, "x" if n % 2 else "y") for n in range(1, 7)))
    net.settle()
    seen = net.seen(b)
    net.of(a).call("delete_records", a, {"match": "x"})
    net.crash()
    # The source still has y. Deleted records cannot be copied again, and no seq names another record.
    assert net.seen(b) == {seq: data for seq, data in seen.items() if data % 2 == 0}
    assert net.of(b).diff(b)["tombstone"] is None


def test_a_filtered_lane_whose_source_lost_records_names_none_of_them_anew(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b, filter=["tag", "Glob", "x*"])
    tagged(net, a, *((n, "x" if n % 3 else "y") for n in range(1, 13)))
    net.settle()
    write(net, b, "direct")
    tagged(net, a, (13, "x1"), (14, "x2"))
    net.settle()
    seen = net.seen(b)
    assert seen == {1: 1, 2: 2, 3: 4, 4: 5, 5: 7, 6: 8, 7: 10, 8: 11, 9: "direct", 10: 13, 11: 14}
    net.of(a).call("delete_records", a, {"before_seq": 6})
    for _ in range(2):
        net.crash()
        net.settle()
        now = net.seen(b)
        assert all(now[seq] == seen[seq] for seq in now if seq in seen)
        assert now[9] == "direct"
        assert set(now.values()) == {7, 8, 10, 11, 13, 14, "direct"}
        assert min(seq for seq, data in now.items() if data == 7) > 11
        seen |= now


def test_what_was_forwarded_stays_when_its_source_is_deleted(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1, 2, 3)
    net.settle()
    hold = net.of(b).send("router_hold", source=a)
    net.of(b).shard.flush()
    assert hold not in net.of(b).replies, "held before the copies are saved"
    net.of(b).shard.checkpoint_now()
    assert hold in net.of(b).replies
    net.of(a).call("delete_topic", a)
    assert net.of(b).call("router_delete", b, router="r")["deleted"] is True
    net.crash()
    assert net.data(b) == [1, 2, 3]


def test_a_deleted_router_has_saved_its_copies(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1, 2, 3)
    net.settle()
    deletion = net.of(b).send("router_delete", b, router="r")
    net.of(b).shard.flush()
    assert deletion not in net.of(b).replies
    net.of(b).shard.checkpoint_now()
    net.sync()
    assert deletion in net.of(b).replies
    net.of(a).call("delete_topic", a)
    net.crash()
    assert net.data(b) == [1, 2, 3]
    assert net.of(b).call("router_graph")["routers"] == []


@pytest.mark.parametrize("change", ["deletion", "another source", "deleted source"])
@pytest.mark.parametrize("before", ["nothing", "unsaved copies", "a checkpoint that has begun"])
def test_copies_that_wait_for_a_sync_are_saved_before_their_router_goes(net: Net, change: str, before: str) -> None:
    """They stand behind a change of their topic, and no checkpoint has them before that one is synced."""
    a, b = ends(net)
    other = name_in(0, "other", len(net.shards))
    there, copies = net.of(b), [1]
    net.of(other).call("configure", other)
    there.call("configure", b, {"durability": "fsync"})
    net.router("r", a, b)
    if before != "nothing":
        write(net, a, 0)
        net.settle()
        copies.insert(0, 0)
    write(net, a, 1)
    net.sync()
    there.send("append", b, {"records": [{"data": "fsynced"}]})
    there.shard.flush()
    assert net.step(b)
    begun = there.shard.control.begin() if before == "a checkpoint that has begun" else None
    if change == "deletion":
        ident = there.send("router_delete", b, router="r")
    elif change == "another source":
        config = as_map(RouterConfig(other, b))
        ident = there.send("router_put", b, router="r", config=config, epoch=net.topic(other).epoch, head=0)
    else:
        ident = there.send("router_hold", source=a)
    there.shard.flush()
    if begun is not None:
        there.shard.checkpoints.writer.write(begun)
        there.shard.control.end(begun)
    assert not there.shard.control.due, "a checkpoint would lack the copies"
    there.shard.checkpoint_now()
    assert ident not in there.replies
    calls: list[bool] = []
    there.shard.control.wanted = lambda: calls.append(there.shard.control.due)
    there.shard.commits.sync_now()
    assert calls == [True], "nothing else may come that looks at the copies"
    there.shard.checkpoint_now()
    net.sync()
    answer = there.replies[ident]
    assert isinstance(answer, Reply)
    assert answer.error is None
    net.of(a).call("delete_topic", a)
    net.crash()
    assert net.data(b) == [*copies[:-1], "fsynced", 1]


def test_copies_that_are_undone_hold_up_no_deletion_of_their_router(net: Net) -> None:
    a, b = ends(net)
    there = net.of(b)
    there.call("configure", b, {"durability": "fsync"})
    net.router("r", a, b)
    write(net, a, 1)
    net.sync()
    there.send("append", b, {"records": [{"data": "fsynced"}]})
    there.shard.flush()
    assert net.step(b)
    deletion = there.send("router_delete", b, router="r")
    assert isinstance(there.disk, FaultDisk)
    there.disk.fail["sync"] = OSError(5, "input/output error")
    there.shard.commits.sync_now()
    del there.disk.fail["sync"]
    assert net.data(b) == []
    there.shard.flush()
    assert there.shard.control.due
    there.shard.checkpoint_now()
    there.shard.commits.sync_now()
    answer = there.replies[deletion]
    assert isinstance(answer, Reply)
    assert answer.error is not None, "the shard is read-only"
    lane = net.topic(b).lane
    assert lane is not None
    assert not lane.held
    net.crash()
    net.settle()
    assert net.data(b)[-1] == 1


def test_a_deletion_is_answered_when_its_router_is_listed_no_more(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    there = net.of(b)
    there.shard.routing.drop(there.shard.directory.visible[b])  # the source vanished, and this is not synced yet
    deletion = there.send("router_delete", b, router="r")
    there.shard.flush()
    assert deletion not in there.replies
    net.sync()
    assert deletion in there.replies
    assert there.call("router_graph")["routers"] == []


def test_a_source_that_vanished_takes_its_routers_and_only_unsaved_copies(net: Net) -> None:
    a, b = ends(net)
    net.router("r", a, b)
    write(net, a, 1)
    net.settle()
    net.of(b).shard.checkpoint_now()
    write(net, a, 2)
    net.settle()
    write(net, b, "direct")
    net.of(a).call("delete_topic", a)
    net.crash()
    assert net.seen(b) == {1: 1, 3: "direct"}
    assert net.of(b).diff(b, 1)["tombstone"]["reason"] == "source_trim"


def test_changes_of_routers_are_met_at_the_same_place_again(net: Net) -> None:
    a, b = ends(net)
    net.router("one", a, b)
    tagged(net, a, (1, "x"), (2, "y"))
    net.settle()
    net.router("two", a, b, filter="x", preserve_tag=False)
    tagged(net, a, (3, "x"), (4, "y"))
    net.settle()
    net.router("one", a, b, preserve_tag=False)
    tagged(net, a, (5, "x"))
    net.settle()
    everything = lambda: [(r["$seq"], r["data"], r.get("$tag")) for r in net.of(b).everything(b)]  # noqa: E731
    seen = everything()
    assert seen == [
        (1, 1, "x"),
        (2, 2, "y"),
        (3, 3, "x"),
        (4, 3, None),
        (5, 4, "y"),
        (6, 5, None),
        (7, 5, None),
    ]
    net.crash()
    assert everything() == seen
    for harness in net.shards:
        harness.shard.checkpoint_now()
    net.crash()
    assert everything() == seen
    page = net.of(b).reply("router_list", page_size=10)
    assert b'"router":"one"' in page.body
    assert [r.forwarded for r in net.of(b).shard.routing.routers().values()] == [5, 2]


def test_a_failed_sync_takes_copies_back_with_the_write_before_them(net: Net) -> None:
    a, b = ends(net)
    net.of(b).call("configure", b, {"durability": "fsync"})
    net.router("r", a, b)
    write(net, a, 1)
    net.sync()
    shard = net.of(b)
    ident = shard.send("append", b, {"records": [{"data": "fsynced"}]})
    shard.shard.flush()
    net.step(b)
    assert net.topic(b).records.head_seq == 0, "visible before the write in front of it"
    assert isinstance(shard.disk, FaultDisk)
    shard.disk.fail["sync"] = OSError(5, "Input/output error")
    shard.disk.fail["create"] = OSError(28, "No space left on device")
    shard.shard.commits.sync_now()
    shard.disk.fail.clear()
    assert ident in shard.replies
    lane = net.topic(b).lane
    assert lane is not None
    assert (net.topic(b).position.next_seq, lane.cursor, lane.unpinned) == (1, 0, False)


# Chains, trees and cycles


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("dead", ["all", "first", "last"])
def test_a_chain_comes_back_in_its_order(shards: int, dead: str) -> None:
    net = Net(shards)
    topics = [name_in(n % shards, f"t{n}-", shards) for n in range(12)]
    for source, dest in pairwise(topics):
        net.router(f"{source}->{dest}", source, dest)
    for n in range(10):
        write(net, topics[0], n)
        write(net, topics[n], f"direct {n}")
        net.settle()
    seen = {topic: net.seen(topic) for topic in topics}
    assert len(seen[topics[-1]]) == 20
    net.crash({"all": None, "first": [0], "last": [shards - 1]}[dead])
    assert {topic: net.seen(topic) for topic in topics} == seen


@pytest.mark.parametrize("shards", [1, 2])
def test_an_allowed_cycle_ends_after_eight_hops_and_comes_back(shards: int) -> None:
    net = Net(shards)
    a, b = names(shards)
    net.router("there", a, b)
    net.router("back", b, a, allow_cycle=True)
    for n in range(3):
        write(net, a, f"a{n}")
        write(net, b, f"b{n}")
        net.settle()
    seen = net.seen(a), net.seen(b)
    # A record of `a` comes back until it has made eight hops.
    assert sum(data == "a0" for data in (*seen[0].values(), *seen[1].values())) == 9 + 1
    net.crash()
    net.settle()
    assert (net.seen(a), net.seen(b)) == seen
    write(net, b, "more")
    net.crash()
    net.settle()
    assert seen[1].items() <= net.seen(b).items()


class World:
    """Random requests to random topics, and random deaths. Stores every seq that was ever visible."""

    def __init__(self, seed: int, *, losses: bool) -> None:
        self.rng = random.Random(seed)
        shards = self.rng.choice((1, 2, 3))
        self.net = Net(shards, checkpoint_bytes=1 << 20)
        self.losses = losses
        self.topics = [f"t{n}" for n in range(6)]
        self.edges: dict[str, str] = {}
        self.known: dict[str, dict[int, Any]] = {topic: {} for topic in self.topics}
        self.number = 0
        self.cyclic = self.rng.random() < 0.3
        self.direct: dict[str, set[int]] = {topic: set() for topic in self.topics}
        for topic in self.topics:
            durability = self.rng.choice(("disk", "disk", "fsync", "memory"))
            self.net.of(topic).call("configure", topic, {"durability": durability})
        for dest in self.topics[1:]:
            source = self.rng.choice(self.topics[: self.topics.index(dest)])
            self.edges[dest] = source
            self.router(dest)
        if self.cyclic:
            self.edges[self.topics[0]] = self.topics[-1]
            self.net.router("closing", self.topics[-1], self.topics[0], allow_cycle=True)

    def router(self, dest: str) -> None:
        if dest == self.topics[0]:
            return
        name = self.rng.choice(("r", "r", "s")) if self.net.topic(dest).lane else "r"
        if self.cyclic:
            name = "r"  # two routers would make 2^8 copies of each record
        fields: dict[str, Any] = {"guarantee": self.rng.choice(("at_least_once", "exactly_once"))}
        if self.rng.random() < 0.3 and name == "s":
            fields["filter"] = ["tag", "Glob", "x*"]
        if self.rng.random() < 0.3:
            fields["allow_cycle"] = True
        self.net.router(f"{name}-{dest}", self.edges[dest], dest, **fields)

    def act(self) -> None:
        net, rng = self.net, self.rng
        topic = rng.choice(self.topics)
        kind = rng.random()
        if kind < 0.4:
            records = []
            for _ in range(rng.randint(1, 4)):
                self.number += 1
                self.direct[topic].add(self.number)
                records.append({"data": self.number, "tag": rng.choice(("x1", "x2", "y"))})
            net.of(topic).call("append", topic, {"records": records})
        elif kind < 0.75 and topic in self.edges:
            if rng.random() < 0.7:
                net.sync()
            net.step(topic, rng.choice((None, None, net.topic(self.edges[topic]).records.head_seq - 1)))
        elif kind < 0.80:
            net.settle()
        elif kind < 0.85:
            rng.choice(net.shards).shard.checkpoint_now()
        elif kind < 0.88 and topic in self.edges:
            self.router(topic)
        elif kind < 0.93 and self.losses:
            head = net.topic(topic).records.head_seq
            body = rng.choice(({"match": "x1"}, {"before_seq": max(head - 3, 0)}, {"match": "y", "before_seq": head}))
            net.of(topic).call("delete_records", topic, body)
        elif kind < 0.95 and self.losses:
            net.of(topic).call("configure", topic, {"cap_records": rng.choice((0, 3, 8))})
        elif kind < 0.98:
            self.look()
            net.crash(rng.choice((None, [rng.randrange(len(net.shards))])))
            self.look()
        else:
            self.look()

    def look(self) -> None:
        for topic in self.topics:
            now = self.net.seen(topic)
            known = self.known[topic]
            for seq, data in now.items():
                assert known.setdefault(seq, data) == data, f"{topic}: seq {seq} was {known[seq]}, is {data}"
            if not self.losses:
                assert now.keys() == known.keys(), f"{topic}: {sorted(known.keys() - now.keys())} vanished"


def worlds(losses: bool, count: int) -> Callable[..., Any]:
    return pytest.mark.parametrize("seed", [f"{losses}-{n}" for n in range(count)])


@worlds(False, 25)
def test_without_losses_every_record_that_was_seen_stays_where_it_was(seed: str) -> None:
    world = World(hash_of(seed), losses=False)
    for _ in range(120):
        world.act()
    world.net.settle()
    world.look()
    world.net.crash()
    world.look()
    for dest, source in [] if world.cyclic else world.edges.items():
        lane = world.net.topic(dest).lane
        assert lane is not None
        # The first router of each topic forwards all records once, the second some of them again.
        forwarded = [data for data in world.net.data(dest) if data in set(world.net.data(source))]
        assert set(forwarded) == set(world.net.data(source))
        if len(lane.routers) == 1:
            assert [data for data in forwarded if data not in world.direct[dest]] == world.net.data(source)


@worlds(True, 25)
def test_with_losses_no_seq_ever_names_another_record(seed: str) -> None:
    world = World(hash_of(seed), losses=True)
    for _ in range(150):
        try:
            world.act()
        except TopicsError as error:
            raise AssertionError(f"refused: {error}") from error
    world.net.settle()
    world.look()
    for dest, source in world.edges.items():
        lane = world.net.topic(dest).lane
        assert lane is not None
        assert lane.cursor == world.net.topic(source).records.head_seq


def hash_of(seed: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(seed))
