"""Shipping: what is synced reaches the bucket once and in order, and makes the same topics elsewhere."""

from __future__ import annotations

import random

import pytest

from shardd.offline.rewind import Cuts, cut
from shardd.offline.verify import verify
from shardd.replication import checkpoint_copies, parts, shipper
from shardd.replication.attach import Mismatch
from shardd.replication.browse import Damaged
from shardd.replication.checkpoint_copies import Stopped
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.store import Exists, Refused, StoreError, Throttled, UnknownOutcome, Unreachable
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD
from tests.support.shipped import SMALL, Deposed, Shipped, contents, restored

NAMES = ShardNames(0)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_PAUSE", 0.0)


@pytest.fixture
def shard() -> Shipped:
    return Shipped(MemoryStore(), **SMALL).attach()


def logged(store: MemoryStore) -> list[parts.Part]:
    """The parts with frames. Fences are between them."""
    names = sorted(name for name in store.objects if name.startswith(NAMES.log))
    every = [parts.decode(store.objects[name], at)[0] for at, name in enumerate(names, 1)]
    return [each for each in every if each.has_frames]


def sound(of: Shipped, disk: FaultDisk) -> None:
    report = verify(disk, SHARD, of.clock, of.limits)
    assert report.problems == []
    assert report.notes == []


def test_what_is_synced_is_shipped_and_makes_the_same_topics(shard: Shipped) -> None:
    for number in range(5):
        shard.append("a", {"n": number}, "zwei")
        shard.append("b", number, tag="t")
    shard.sync()
    assert shard.ship() == 1
    shard.append("a", "last")
    shard.sync()
    shard.ship()
    found = logged(shard.store)
    assert [(each.first_no, each.last_no) for each in found] == [(1, found[0].last_no), (found[0].last_no + 1, 13)]
    assert found[0].nonce.hex() == shard.role.newest.nonce
    other = restored(shard)
    assert contents(other) == contents(shard)


def test_what_is_not_synced_is_not_shipped(shard: Shipped) -> None:
    shard.append("a", 1)  # creating the topic waits for a sync
    shard.sync()
    shard.ship()
    shard.append("a", 2)
    assert shard.shard.log.dirty
    assert shard.ship() == 0
    shard.sync()
    assert shard.ship() == 1


def test_an_idle_shard_asks_the_store_nothing(shard: Shipped) -> None:
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    before = len(shard.store.calls)
    shard.sync()
    assert shard.ship() == 0
    assert len(shard.store.calls) == before


@pytest.mark.parametrize("error", [UnknownOutcome, Throttled, Unreachable, Refused])
def test_a_part_is_created_once_whatever_the_answers_were(shard: Shipped, error: type[StoreError]) -> None:
    failures = iter([error("no answer")] * 3)
    shard.store.fault = lambda operation, name: next(failures, None) if operation == "create" else None
    shard.append("a", 1)
    shard.sync()
    assert shard.ship() == 1
    assert len(logged(shard.store)) == 1
    assert shard.shipped_no == shard.shard.log.synced_no
    assert shard.figures().failures_total == (1 if error is UnknownOutcome else 3)
    assert contents(restored(shard)) == contents(shard)


def test_a_large_log_becomes_parts_of_bounded_size(shard: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "PART_BYTES", 2000)
    for number in range(20):
        shard.append("a", "x" * 300, number)
    shard.append("a", "y" * 5000)  # a frame that is larger than a part
    shard.sync()
    assert shard.ship() >= 5
    sizes = [each.length for each in logged(shard.store)]
    assert sorted(sizes)[-2] <= 2000 < max(sizes)
    assert contents(restored(shard)) == contents(shard)


def test_a_second_process_on_a_copy_of_the_directory_deposes_one_of_the_two(shard: Shipped) -> None:
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    assert isinstance(shard.disk, FaultDisk)
    other = shard.again(shard.disk.after_crash("process")).attach()
    other.append("a", "of the other")
    other.sync()
    other.ship()
    shard.append("a", "of the first")
    shard.sync()
    with pytest.raises(Deposed, match="another machine has taken the shard over"):
        shard.ship()
    assert shard.figures().lag_bytes > 0
    assert contents(restored(other)) == contents(other)


def test_a_part_of_the_process_before_that_arrives_late_is_not_taken(shard: Shipped) -> None:
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    shard.append("a", 2)
    shard.sync()
    after = shard.again().attach()
    with pytest.raises(Deposed):
        shard.ship()  # on its way when the process was killed: it meets the fence of the next one
    after.append("a", 3)
    after.sync()
    assert after.ship() == 1
    assert after.shipped_no == after.shard.log.synced_no
    assert contents(restored(after)) == contents(after)
    assert [each.nonce.hex() == after.role.newest.nonce for each in logged(shard.store)] == [False, True]


def test_a_name_that_a_store_refuses_without_an_object_is_tried_again(shard: Shipped) -> None:
    answers = iter([Exists("409 of a concurrent request")])
    shard.store.fault = lambda operation, name: next(answers, None) if operation == "create" else None
    shard.append("a", 1)
    shard.sync()
    assert shard.ship() == 1


def test_a_process_that_died_at_any_call_leaves_a_log_that_its_successor_continues() -> None:
    for at in range(1, 60):
        store = MemoryStore()
        first = Shipped(store, **SMALL)
        begun = len(store.calls)

        class Dead(BaseException):
            pass

        def fault(operation: str, name: str, at: int = at, store: MemoryStore = store, begun: int = begun) -> None:
            if len(store.calls) - begun == at:
                raise Dead

        store.fault = fault
        try:
            first.attach()
            for number in range(3):
                first.append("a", number)
                first.sync()
                first.ship()
            first.shard.checkpoint_now()
            first.copy()
            first.append("a", "more")
            first.sync()
            first.ship()
            died = False
        except Dead:
            died = True
        store.fault = lambda operation, name: None
        second = first.again().attach()
        second.append("b", at)
        second.sync()
        second.ship()
        assert contents(restored(second)) == contents(second)
        if not died:
            return
    raise AssertionError("there are more calls than were tried")


def test_the_log_is_kept_until_it_is_shipped_and_trimmed_then(shard: Shipped) -> None:
    def files() -> list[str]:
        return shard.disk.list(SHARD / "wal")

    for round_ in range(4):
        for number in range(30):
            shard.append("a", "x" * 200, number, round_)
        shard.sync()
        shard.shard.checkpoint_now()
    kept = files()
    assert kept[0] == "wal-00000000000000000001.log"
    assert len(kept) > 4
    assert not shard.shard.checkpoints.inventory.garbage
    shard.ship()
    assert shard.shard.checkpoints.inventory.garbage  # so a checkpoint follows although nothing is logged
    shard.shard.checkpoint_now()
    assert len(files()) < len(kept) / 2
    assert contents(restored(shard)) == contents(shard)


@pytest.mark.parametrize("seed", range(12))
def test_random_work_is_restored_from_any_state_of_the_bucket(seed: int) -> None:
    rng = random.Random(seed)
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for step in range(80):
        topic = rng.choice("abc")
        match rng.randrange(12):
            case 0 | 1 if topic in shard.shard.directory.visible:
                shard.call("delete_records", topic, {"match": ["tag", "Eq", f"t{rng.randrange(3)}"]})
            case 2 if topic in shard.shard.directory.visible:
                shard.call("delete_records", topic, {"before_seq": rng.randrange(1, 30)})
            case 3 if topic in shard.shard.directory.visible and rng.random() < 0.3:
                shard.call("delete_topic", topic)
            case 4 | 5:
                shard.shard.checkpoint_now()
            case 6 if shard.disk.list(SHARD) != ["wal"]:
                try:
                    shard.copy()
                except AssertionError:
                    pass  # there is no catalog yet
            case 7:
                shard.ship()
            case 8 if rng.random() < 0.3:
                assert isinstance(shard.disk, FaultDisk)
                shard.sync()
                shard = shard.again(shard.disk.after_crash(rng.choice(("process", "drop")))).attach()
            case _:
                shard.append(topic, *range(step, step + rng.randrange(1, 8)), tag=f"t{rng.randrange(3)}")
        shard.clock.advance(rng.randrange(1000))
    shard.sync()
    shard.ship()
    other = restored(shard)
    assert contents(other) == contents(shard)
    assert isinstance(other.disk, FaultDisk)
    sound(shard, other.disk)


# A bucket that does not belong to the directory


def test_the_bucket_of_another_service_or_shard_count_is_refused(shard: Shipped) -> None:
    service = shard.store.objects[SERVICE]
    shard.store.objects[SERVICE] = service.replace(b"1600000000000", b"1600000000001")
    with pytest.raises(Mismatch, match=r"holds another service.*restore --from"):
        shard.again().attach()
    shard.store.objects[SERVICE] = service.replace(b'"shards":1', b'"shards":2')
    with pytest.raises(Mismatch, match="has TOPICS_SHARDS=2, the data directory TOPICS_SHARDS="):
        shard.again().attach()
    shard.store.objects[SERVICE] = b"{"
    with pytest.raises(Mismatch, match="is damaged"):
        shard.again().attach()


def test_a_store_that_ignores_conditions_is_refused_at_the_first_start() -> None:
    store = MemoryStore()
    store.conditional = False
    with pytest.raises(StoreError, match="ignores conditional writes") as refused:
        Shipped(store, **SMALL).attach()
    assert refused.value.lasting


def test_a_directory_older_than_the_bucket_is_brought_up_to_it(shard: Shipped) -> None:
    assert isinstance(shard.disk, FaultDisk)
    shard.append("a", 1)
    shard.sync()
    older = shard.disk.after_crash("process")
    shard.append("a", 2)
    shard.sync()
    shard.ship()
    again = shard.again(older).attach()
    assert contents(again) == contents(shard)
    shard.append("a", "of the replaced one")
    shard.sync()
    with pytest.raises(Deposed):
        shard.ship()


def test_a_directory_that_went_another_way_is_set_aside_and_made_again(shard: Shipped) -> None:
    assert isinstance(shard.disk, FaultDisk)
    shard.append("a", 1)
    shard.sync()
    other = shard.again(shard.disk.after_crash("process"))
    shard.append("a", 2)
    shard.sync()
    shard.ship()
    other.append("a", 3)
    other.append("a", 4)
    other.sync()
    other.attach()
    assert contents(other) == contents(shard)
    (aside,) = [name for name in other.disk.list(SHARD) if name.startswith("aside-")]
    assert other.disk.list(SHARD / aside / "wal")


def test_parts_that_were_deleted_by_hand_are_noticed_and_cost_a_holder_nothing(
    shard: Shipped, capsys: pytest.CaptureFixture[str]
) -> None:
    shard.append("a", 1)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.copy()
    shard.append("a", "in no part yet")
    shard.sync()
    del shard.store.objects[NAMES.part(2)]
    again = shard.again().attach()
    assert "parts_missing" in capsys.readouterr().out
    again.ship()
    assert contents(again) == contents(shard)
    assert [name for name in again.disk.list(SHARD) if name.startswith("aside-")] == []
    assert contents(restored(again)) == contents(shard)


def test_a_restored_directory_goes_on_in_the_same_bucket(shard: Shipped) -> None:
    for number in range(10):
        shard.append("a", number)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.copy()
    shard.append("a", "tail")
    shard.sync()
    shard.ship()
    other = restored(shard)
    again = shard.again(other.disk).attach()
    again.append("a", "goes on")
    again.sync()
    again.ship()
    assert contents(restored(again)) == contents(again)
    again.shard.checkpoint_now()
    again.copy()
    assert contents(restored(again)) == contents(again)
    shard.append("a", "of the old machine")
    shard.sync()
    with pytest.raises(Deposed):
        shard.ship()


def test_who_follows_a_restored_and_cut_service_takes_its_manifest(shard: Shipped) -> None:
    """What a restore cuts and reserves is in no frame: a machine that has only frames would contradict later ones."""
    for number in range(10):
        shard.append("a", number)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.copy()
    other = restored(shard)
    list(cut(other.disk, [SHARD], other.clock, other.limits, Cuts(seqs={"a": 5})))
    again = shard.again(other.disk).attach()
    assert again.copies.missing
    again.copy()
    again.append("a", "goes on")
    again.sync()
    again.ship()
    assert [record["data"] for record in again.everything("a")] == [0, 1, 2, 3, 4, "goes on"]
    before = shard.again().attach(by_hand=True)
    assert contents(before) == contents(again)
    assert contents(restored(before)) == contents(again)


def test_a_hole_in_the_log_is_passed_by_the_next_checkpoint(shard: Shipped) -> None:
    shard.append("a", 1)
    shard.sync()
    shard.ship()
    alone = shard.restarted()
    for round_ in range(4):
        for number in range(30):
            alone.append("a", "x" * 200, number, round_)
        alone.shard.commits.sync_now()
        alone.shard.checkpoint_now()
    again = shard.again().attach()
    assert again.copies.due
    again.ship()
    with pytest.raises(Damaged, match="ran without the bucket"):
        restored(again)
    again.copy()
    assert not again.copies.due
    assert contents(restored(again)) == contents(again)


def test_a_directory_that_had_trimmed_its_log_begins_with_a_checkpoint() -> None:
    shard = Shipped(MemoryStore(), **SMALL)
    alone = shard.restarted()
    for round_ in range(4):
        for number in range(30):
            alone.append("a", "x" * 200, number, round_)
        alone.shard.commits.sync_now()
        alone.shard.checkpoint_now()
    again = shard.again().attach()
    assert again.copies.due
    again.copy()
    assert contents(restored(again)) == contents(again)


def test_frames_given_up_by_a_failed_sync_are_never_shipped(shard: Shipped) -> None:
    assert isinstance(shard.disk, FaultDisk)
    shard.append("a", 1)
    shard.call("configure", "f", {"durability": "fsync"})
    shard.sync()
    shard.ship()
    shard.append("a", "acked before its sync")
    ident = shard.send("append", "f", {"records": [{"data": "given up"}]})
    shard.shard.flush()
    shard.disk.faults[len(shard.disk.calls)] = OSError(5, "the device failed")
    shard.shard.commits.sync_now()
    assert shard.replies[ident].error is not None  # type: ignore[union-attr]
    shard.append("a", "after it")
    shard.sync()
    shard.ship()
    other = restored(shard)
    assert contents(other) == contents(shard)
    assert "given up" not in str(contents(other))
    assert shard.figures().lag_bytes == 0


# Faults on the way


def test_a_stop_ends_the_attempts(shard: Shipped) -> None:
    def fault(operation: str, name: str) -> StoreError:
        shard.copies.stopping.set()
        return Unreachable("away")

    shard.append("a", 1)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.store.fault = fault
    with pytest.raises(Stopped):
        shard.copies.upload()
    shard.store.fault = lambda operation, name: None
    again = shard.again().attach()
    again.copy()
    assert contents(restored(again)) == contents(shard)


def test_a_directory_whose_log_is_trimmed_to_its_end_begins_with_a_checkpoint_in_the_bucket() -> None:
    shard = Shipped(MemoryStore(), **SMALL)
    alone = shard.restarted()
    alone.append("a", 1, 2, 3)
    alone.shard.commits.sync_now()
    for _ in range(3):
        alone.shard.log.rotate()
        alone.shard.checkpoint_now()
    again = shard.again().attach()
    again.ship()
    assert again.copies.due
    again.copy()
    assert contents(restored(again)) == contents(again)
