"""The role: the protocol carried out on a store and the files of a shard, with a clock that the test moves."""

from __future__ import annotations

import math
import threading
from errno import EIO
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from proto.format.buffer import Buffer
from proto.ipc.control import ShardState
from proto.model.replication import Replication
from shardd.replication import folding, manifests, parts, role
from shardd.replication.attach import Mismatch
from shardd.replication.messages import Answer, Apply, Restore
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.read_ahead import MOST
from shardd.replication.states import ReplicaState
from shardd.replication.store import Refused, Unreachable
from shardd.roster.roster import READY_S
from shardd.storage import catalog
from shardd.storage.disk import RealDisk
from tests.support.harness import FakeClock, Harness
from tests.support.roles import TIMING, Machine, Pair
from tests.support.shipped import SMALL

NAMES = ShardNames(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)
    monkeypatch.setattr(role, "RETRY_S", 0.005)
    monkeypatch.setattr(role, "ALONE_AFTER_S", 0.05)


async def test_a_first_start_holds_the_shard_behind_a_fence_of_its_own(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 1, 2)
        assert pair.kinds() == [(1, parts.FENCE), (1, parts.FRAMES)]
        await pair.until(one.role.serving)  # its first renewal may be answered later than the part
        pair.time.now += TIMING.silence + 0.1
        assert not one.role.serving()
        nursery.cancel_scope.cancel()


async def test_a_restart_takes_its_own_term_over_at_once(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 1)
        one.stop()
        one.start()
        await one.open()
        await one.write("a", 2)
        assert one.contents() == {"a": [1, 2]}
        assert [term for term, kind in pair.kinds() if kind == parts.FENCE] == [1, 2]
        nursery.cancel_scope.cancel()


async def test_a_standby_follows_and_takes_over_after_the_time_to_live(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 1)
        two = pair.machine("two")
        await one.write("a", 2)
        await pair.until(lambda: two.local.last_no == one.role.position.frame_no)
        assert two.role.holder
        assert two.role.holder.shown == "http://one"
        assert not two.role.held.is_set()
        one.stop()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [1, 2]}
        await two.write("a", 3)
        assert pair.kinds()[-1] == (2, parts.FRAMES)
        nursery.cancel_scope.cancel()


async def test_a_standby_hears_where_each_process_of_the_holder_is(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        two = pair.machine("two")
        await pair.until(lambda: two.role.holder)
        assert two.role.holder is not None
        assert (two.role.holder.endpoint, two.role.holder.key) == ("tcp://one:1", "key 1")
        news: list[str] = []
        two.role.changed = lambda: news.append(two.role.holder.key if two.role.holder else "")
        one.stop()
        one.start()
        await one.open()
        pair.time.now += TIMING.renewal
        await pair.until(lambda: news[-1:] == ["key 2"])
        nursery.cancel_scope.cancel()


async def replaced(pair: Pair) -> tuple[Machine, Machine]:
    """A holder that was replaced, with a record that its successor lacks, and that successor."""
    one = pair.machine("one")
    await one.open()
    await one.write("a", 1)
    two = pair.machine("two")
    await pair.until(lambda: two.role.holder)
    await two.take_over()
    await two.write("a", "of two")
    await one.write("a", "of one")
    return one, two


async def test_a_replaced_holder_is_over_and_its_differing_tail_is_set_aside(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one, two = await replaced(pair)
        assert "another machine" in one.role.reason
        assert not one.role.serving()
        one.stop()
        one.start()
        await pair.until(lambda: list(one.path.glob("aside-*")))
        await pair.until(lambda: one.local.last_no == two.role.position.frame_no)
        two.stop()
        await pair.silence()
        await one.open()
        assert one.contents() == {"a": [1, "of two"]}
        nursery.cancel_scope.cancel()


async def test_a_stop_during_a_restore_keeps_the_position_of_the_restored_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start would take them for frames of this machine alone, and set them aside."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one, _ = await replaced(pair)
        one.stop()
        one.start()
        carry, stopped = one.local.carry, threading.Event()

        def carried(request: Apply | Restore) -> Answer:
            answer = carry(request)
            if isinstance(request, Restore):
                trio.from_thread.run_sync(one.stop)
                stopped.set()
            return answer

        monkeypatch.setattr(one.local, "carry", carried)
        await pair.until(lambda: stopped.is_set() and not one.running)
        assert one.role.kept_no() == one.local.last_no
        nursery.cancel_scope.cancel()


async def test_a_drained_holder_is_replaced_without_a_wait(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        harness = await one.open()
        two = pair.machine("two")
        await pair.until(lambda: two.role.holder)
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        await one.shipper.drain()
        assert not one.role.reason
        pair.time.now += 0.001
        await two.open()
        assert two.contents() == {"a": [1]}
        assert pair.kinds()[-2:] == [(1, parts.END), (2, parts.FENCE)]
        nursery.cancel_scope.cancel()


async def test_a_shard_besides_shard_0_goes_with_it(tmp_path: Path) -> None:
    def led(phase: str, holder: str = "") -> list[ShardState]:
        return [ShardState(0, phase, holder=holder), ShardState(1)]

    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", 1)
        await one.open()  # there is no term yet
        two = pair.machine("two", 1)
        await pair.until(lambda: two.role.holder)
        one.stop()
        await pair.silence()
        assert not two.role.held.is_set()
        two.role.follow(led("replay"))
        await two.open()
        two.role.follow(led("down"))
        assert not two.role.over.is_set()
        two.role.follow(led("standby", "http://one"))
        with trio.fail_after(60):
            await two.role.over.wait()
        assert "shard 0 is held by http://one" in two.role.reason
        assert pair.kinds(ShardNames(1))[-1] == (2, parts.END), "the next holder need not wait"
        nursery.cancel_scope.cancel()


async def test_a_shard_besides_shard_0_forgets_its_word_when_that_one_has_gone(tmp_path: Path) -> None:
    """The shards of a machine that resumes notice one after the other that they were replaced. A shard that has started
    again may still have heard that shard 0 is held here."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", 1)
        await one.open()
        two = pair.machine("two", 1)
        for phase in ("down", "open"):
            two.role.follow([ShardState(0, "ready"), ShardState(1)])
            two.role.follow([ShardState(0, phase), ShardState(1)])
            await pair.until(lambda: two.role.holder)
            await pair.silence()
            assert not two.role.claimed.is_set()
        await pair.until(one.role.serving)  # the last step of time may be longer than its worker threads took to renew
        nursery.cancel_scope.cancel()


async def test_a_shard_besides_shard_0_that_answers_without_a_term_goes_at_once(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", 1, ASYNC)
        await one.open()
        pair.store.fault = lambda operation, name: Unreachable("away")
        one.role.follow([ShardState(0, "standby", holder="http://two"), ShardState(1)])
        assert one.role.over.is_set()
        nursery.cancel_scope.cancel()


async def test_a_shard_besides_shard_0_waits_for_it_also_if_its_own_term_has_ended(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", 1)
        harness = await one.open()
        two = pair.machine("two", 1)
        await pair.until(lambda: two.role.holder)
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        await one.shipper.drain()
        await pair.silence()
        assert not two.role.held.is_set()
        two.role.follow([ShardState(0, "replay"), ShardState(1)])
        await two.open()
        assert two.contents() == {"a": [1]}
        nursery.cancel_scope.cancel()


async def test_nothing_is_held_while_the_bucket_is_away(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        pair.store.fault = lambda operation, name: Unreachable("away")
        one = pair.machine("one")
        await pair.until(lambda: len(pair.store.calls) > 3)
        assert not one.role.held.is_set()
        pair.store.fault = lambda operation, name: None
        await one.open()
        nursery.cancel_scope.cancel()


async def test_a_lost_answer_ships_nothing_twice(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        create = pair.store.create
        answers = iter([Unreachable("reset"), Unreachable("reset")])

        def deaf(name: str, data: bytes) -> None:
            create(name, data)
            if "/log/" in name and (error := next(answers, None)):
                raise error

        pair.store.create = deaf  # type: ignore[method-assign,assignment]
        await one.write("a", 1)
        await one.write("a", 2)
        assert one.role.position.frame_no == one.harness.shard.log.synced_no  # type: ignore[union-attr]
        assert [kind for _, kind in pair.kinds()] == [parts.FENCE, *[parts.FRAMES] * (len(pair.kinds()) - 1)]
        nursery.cancel_scope.cancel()


async def test_a_directory_that_was_wiped_follows_from_the_begin(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        for number in range(20):
            await one.write("a", number)
        one.stop()
        again = pair.machine("again")
        await again.take_over()
        assert again.contents() == {"a": list(range(20))}
        nursery.cancel_scope.cancel()


async def test_the_bucket_of_another_service_is_refused(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        pair.store.objects[SERVICE] = b'{"format":1,"service":7,"shards":2}'
        one = pair.machine("one")
        await one.role.held.wait()
        assert isinstance(one.role.error, Mismatch)
        nursery.cancel_scope.cancel()


async def test_credentials_that_are_refused_at_a_start_end_it_with_the_reason(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        pair.store.fault = lambda operation, name: Refused("the store refused the credentials")
        one = pair.machine("one")
        with trio.fail_after(60):
            await one.role.held.wait()
        assert isinstance(one.role.error, Refused)
        nursery.cancel_scope.cancel()


# Where nothing waits for the bucket


ASYNC = Replication.ASYNC


async def test_a_silent_term_is_left_alone_until_an_operator_says_so(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=ASYNC)
        await one.open()
        await one.write("a", 1)
        two = pair.machine("two", replication=ASYNC)
        await pair.until(lambda: two.role.holder)
        one.stop()
        await pair.silence()
        assert not two.role.held.is_set()
        await two.take_over()
        assert two.contents() == {"a": [1]}
        assert two.local.mark.skips, "the machine before may have used seqs that are not in the bucket"
        nursery.cancel_scope.cancel()


async def test_a_drained_holder_leaves_no_seqs_in_doubt(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=ASYNC)
        harness = await one.open()
        two = pair.machine("two", replication=ASYNC)
        await pair.until(lambda: two.role.holder)
        harness.append("a", 1)
        harness.shard.commits.sync_now()
        await one.shipper.drain()
        pair.time.now += 0.001
        await two.open()
        assert two.contents() == {"a": [1]}
        assert not two.local.mark.skips
        nursery.cancel_scope.cancel()


async def test_a_machine_that_held_the_shard_opens_it_alone_and_ships_when_the_bucket_is_back(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=ASYNC)
        await one.open()
        await one.write("a", 1)
        one.stop()
        pair.store.fault = lambda operation, name: Unreachable("away")
        one.start()
        with trio.fail_after(60):
            await one.role.held.wait()
        assert not one.role.claimed.is_set()
        harness = Harness(RealDisk(), FakeClock(), one.path, **SMALL)
        harness.append("a", 2)
        harness.shard.commits.sync_now()
        pair.store.fault = lambda operation, name: None
        pair.time.now += TIMING.time_to_live
        with trio.fail_after(60):
            await one.role.claimed.wait()
        harness.shard.close()
        await one.open()
        two = pair.machine("two", replication=ASYNC)
        await pair.until(lambda: two.role.holder)
        await two.take_over()
        assert two.contents() == {"a": [1, 2]}
        nursery.cancel_scope.cancel()


async def test_a_machine_that_is_alone_and_was_replaced_ends_and_sets_its_tail_aside(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", replication=ASYNC)
        await one.open()
        await one.write("a", 1)
        one.stop()
        two = pair.machine("two", replication=ASYNC)
        await pair.until(lambda: two.role.holder)
        await two.take_over()
        await two.write("a", "of two")
        fault = pair.store.fault
        two.stop()
        pair.store.fault = lambda operation, name: Unreachable("away")
        one.start()
        with trio.fail_after(60):
            await one.role.held.wait()
        harness = Harness(RealDisk(), FakeClock(), one.path, **SMALL)
        harness.append("a", "of one, alone")
        harness.shard.commits.sync_now()
        pair.store.fault = fault
        pair.time.now += TIMING.time_to_live
        with trio.fail_after(60):
            await one.role.over.wait()
        assert "another machine" in one.role.reason
        await pair.until(lambda: not one.running)
        one.start()
        await pair.until(lambda: list(one.path.glob("aside-*")))
        await pair.until(lambda: one.role.holder)
        assert not one.role.held.is_set(), "it is a standby now, also if the bucket goes away again"
        one.stop()
        await pair.until(lambda: not one.running)
        pair.store.fault = lambda operation, name: Unreachable("away")
        one.start()
        await trio.sleep(4 * role.ALONE_AFTER_S)
        assert not one.role.held.is_set()
        nursery.cancel_scope.cancel()


async def test_a_candidate_that_died_before_it_held_the_shard_goes_on_at_once(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        pair.store.fault = lambda operation, name: Unreachable("away") if "/log/" in name else None
        one = pair.machine("one", replication=ASYNC)
        await pair.until(lambda: [name for name in pair.store.objects if "/terms/" in name])
        one.stop()
        pair.store.fault = lambda operation, name: None
        one.start()
        await one.open()
        assert not one.local.mark.skips
        nursery.cancel_scope.cancel()


async def test_a_candidate_that_died_while_it_waited_for_a_holders_silence_waits_again(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 1)
        two = pair.machine("two")
        two.role.take_over()
        await pair.until(lambda: NAMES.term(2) in pair.store.objects)
        two.stop()
        await pair.until(lambda: not two.running)
        two.start()
        await pair.until(lambda: two.role.holder)
        assert not two.local.previous
        assert not two.role.held.is_set()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": [1]}
        nursery.cancel_scope.cancel()


async def test_a_shard_does_not_follow_one_that_was_opened_without_a_term(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", 1, ASYNC)
        await one.open()
        two = pair.machine("two", 1, ASYNC)
        await pair.until(lambda: two.role.holder)
        two.role.follow([ShardState(0, "ready"), ShardState(1)])
        await pair.silence()
        assert not two.role.held.is_set()
        two.role.follow([ShardState(0, "ready", term=2), ShardState(1)])
        await two.open()
        nursery.cancel_scope.cancel()


# With a roster


async def test_each_shard_is_claimed_by_its_rank_and_follows_no_other_one(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one, two = (pair.machine(name, index=1, rank=math.inf) for name in ("one", "two"))
        await pair.until(lambda: one.role.replica and two.role.replica)
        elsewhere = ShardState(0, "standby", holder="http://other")
        for each in (one, two):
            each.role.follow([elsewhere, ShardState(1)])
        await pair.silence()
        assert not pair.kinds(ShardNames(1)), "no machine has a rank"
        one.role.ranked(1)
        two.role.ranked(0)
        pair.time.now += 0.1
        await pair.until(two.role.held.is_set)
        assert not one.role.held.is_set()
        nursery.cancel_scope.cancel()


async def test_a_restart_takes_its_own_term_over_without_a_rank(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", rank=0)
        await one.open()
        one.stop()
        one.rank = math.inf
        one.start()
        await one.open()
        nursery.cancel_scope.cancel()


async def test_a_machine_that_has_ended_its_term_does_not_claim_before_another_one(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", rank=0)
        await one.open()
        await one.write("a", 1)
        await one.shipper.drain()
        one.stop()
        one.rank = math.inf
        one.start()
        await pair.until(lambda: one.role.replica and one.role.replica.newest.seen)
        await pair.silence()
        assert not one.role.held.is_set()
        two = pair.machine("two", rank=0)
        await two.open()
        assert two.contents() == {"a": [1]}
        await pair.until(lambda: one.role.holder)
        nursery.cancel_scope.cancel()


async def test_a_shard_that_is_followed_says_by_how_much_it_is_behind(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", rank=0)
        await one.open()
        two = pair.machine("two", rank=1)
        assert two.role.lag_s == math.inf
        await pair.until(lambda: two.role.lag_s < 1)
        pair.time.now += 3
        await pair.until(lambda: two.role.lag_s < 1)
        nursery.cancel_scope.cancel()


async def test_a_shard_that_has_to_be_restored_is_far_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its holder would give it to a machine that needs hours to read it, and serves it only then."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", rank=0)
        await one.open()
        two = pair.machine("two", rank=1)
        await pair.until(lambda: two.role.lag_s < READY_S)
        await one.write("a", 1)
        await pair.until(lambda: two.local.last_no == one.role.position.frame_no)
        two.stop()
        await pair.until(lambda: not two.running)
        for number in range(2, 6):
            await one.write("a", number)
        end = one.role.position
        last, frame_no = end.part, end.frame_no
        head = manifests.Head(last, 1, one.role.newest.nonce, "of one", last + 1, frame_no, frame_no, 0, 1, [])
        pair.store.objects[NAMES.manifest(last)] = manifests.encode(head, [])
        for number in range(1, last + 1):  # as retention does
            del pair.store.objects[NAMES.part(number)]
        two.start()
        lags: list[float] = []
        carry, restores, restored = two.local.carry, threading.Event(), threading.Event()

        def slow(request: Apply | Restore) -> Answer:
            assert isinstance(request, Restore)
            restores.set()
            assert restored.wait(60)
            return carry(request)

        do = two.role._do
        monkeypatch.setattr(two.role, "_do", lambda outputs: (do(outputs), lags.append(two.role.lag_s)))
        monkeypatch.setattr(two.local, "carry", slow)
        await pair.until(restores.is_set)
        lag_s = two.role.lag_s
        restored.set()
        assert min(lags) >= READY_S
        assert READY_S <= lag_s < math.inf, "JSON has no infinite numbers"
        await pair.until(lambda: two.role.lag_s < READY_S)
        assert two.role.position == end
        nursery.cancel_scope.cancel()


async def test_a_standby_makes_its_log_short_when_it_has_read_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next holder replays what its log has since the last checkpoint, and no machine answers meanwhile."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", rank=0)
        await one.open()
        for number in range(20):
            await one.write("a", number)
        two = pair.machine("two", rank=1)
        await pair.until(lambda: two.role.lag_s < 1 and two.local.foldable > 1000)
        assert not two.role.folding.due
        two.stop()
        await pair.until(lambda: not two.running)
        monkeypatch.setattr(folding, "FOLD_BYTES", 1000)
        two.start()
        # Although nothing more is written.
        await pair.until(lambda: catalog.numbers(RealDisk(), two.path) and not two.local.foldable)
        for number in range(20, 40):
            await one.write("a", number)
        await pair.until(lambda: two.local.last_no == one.role.position.frame_no and not two.role.folding.due)
        one.stop()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": list(range(40))}
        nursery.cancel_scope.cancel()


async def test_a_standby_that_is_behind_reads_several_parts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it stays behind if a read takes as long as a write."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        for number in range(8):
            await one.write("a", number)
        together = dict.fromkeys(map(NAMES.part, range(2, 2 + MOST)), threading.Barrier(MOST))
        asked: list[str] = []
        get = pair.store.get

        def slow(name: str) -> Buffer:
            asked.append(name)
            if name in together:
                together[name].wait(30)  # raises if the others are not asked for meanwhile
            return get(name)

        monkeypatch.setattr(pair.store, "get", slow)
        two = pair.machine("two")
        await pair.until(lambda: two.local.last_no == one.role.position.frame_no)
        assert [asked.count(NAMES.part(number)) for number in range(1, one.role.position.part + 1)] == [1] * 9
        one.stop()
        await pair.silence()
        await two.open()
        assert two.contents() == {"a": list(range(8))}
        nursery.cancel_scope.cancel()


async def test_a_standby_that_finds_a_part_at_each_read_knows_that_it_keeps_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never reads the end of the log; else it would be given no shard while clients write."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 0)
        asked: set[str] = set()
        get = pair.store.get

        def soon(name: str) -> Buffer:
            if name.startswith(NAMES.log) and name not in pair.store.objects and name in asked:
                trio.from_thread.run(one.write, "a", len(asked))
            asked.add(name)
            return get(name)

        monkeypatch.setattr(pair.store, "get", soon)
        two = pair.machine("two")
        await pair.until(lambda: two.role.lag_s < 1 and one.role.position.part > 2)
        nursery.cancel_scope.cancel()


async def test_an_error_of_the_disk_while_the_process_is_ended_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        two = pair.machine("two")
        asked, ended = trio.Event(), threading.Event()

        def fails(request: Apply | Restore) -> NoReturn:
            trio.from_thread.run_sync(asked.set)
            ended.wait(60)
            raise OSError(EIO, "of the disk")

        monkeypatch.setattr(two.local, "carry", fails)
        await one.write("a", 0)
        await pair.until(asked.is_set)
        two.stop()
        ended.set()
        await pair.until(lambda: not two.running)
        assert isinstance(two.role.error, OSError)
        nursery.cancel_scope.cancel()


async def test_a_part_that_came_after_it_was_fetched_in_vain_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 0)
        asked: list[str] = []
        get = pair.store.get
        monkeypatch.setattr(pair.store, "get", lambda name: (asked.append(name), get(name))[1])
        two = pair.machine("two")
        await pair.until(lambda: two.role.lag_s == 0)
        await pair.until(lambda: asked.count(NAMES.part(6)) == 1)  # fetched since part 2 was read, and absent
        for number in range(1, 6):
            await one.write("a", number)
        await pair.until(lambda: two.local.last_no == one.role.position.frame_no)
        nursery.cancel_scope.cancel()


async def test_an_end_that_cannot_be_kept_ends_the_term_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process still has to tell its askers that the shard is given away."""
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        one = pair.machine("one", rank=0)
        await one.open()
        await one.write("a", 1)

        def fails() -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(one.local, "ended", fails)
        with trio.fail_after(60):
            await one.shipper.drain()
        assert one.role.replica is not None
        assert one.role.replica.state is ReplicaState.DRAINED
        nursery.cancel_scope.cancel()
