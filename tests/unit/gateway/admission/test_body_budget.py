"""Claims about the byte budget: how many bytes each owner may hold, and how they return."""

from __future__ import annotations

import gc
import threading

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.admission.body_budget import Budget, Hold, Kind, admits
from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key, Scope

ALICE, BOB, CAROL = (Key(name.encode() * 32, Scope.READ, ()) for name in "abc")


def held(budget: Budget, size: int, key: Key = ALICE, kind: Kind = Kind.BODY) -> Hold:
    hold = budget.hold(kind, key)
    assert hold.take(size)
    return hold


def test_one_alone_may_have_two_thirds_and_two_two_fifths_each() -> None:
    assert admits(300, 0, 0, 300)
    assert admits(300, 100, 100, 100)
    assert not admits(300, 100, 100, 101)
    assert admits(300, 100, 0, 200)
    assert admits(300, 200, 80, 40)
    assert not admits(300, 200, 80, 41)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 400)), max_size=100))
def test_no_more_than_the_total_is_admitted_and_a_newcomer_finds_room(wishes: list[tuple[int, int]]) -> None:
    total = 1000
    mine = dict.fromkeys(range(10), 0)
    for whose, size in wishes:
        used = sum(mine.values())
        if mine[whose] and admits(total, used, mine[whose], size):
            assert mine[whose] + size <= total * 2 // 3
            assert total - used - size >= (mine[whose] + size) / 2
            mine[whose] += size
        elif not mine[whose] and admits(total, used, 0, size):
            mine[whose] += size
        assert sum(mine.values()) <= total


async def test_twelve_large_bodies_of_one_key_do_not_delay_anothers() -> None:
    budget = Budget(256 << 20)
    heads = [budget.hold(Kind.BODY, ALICE) for _ in range(12)]
    async with trio.open_nursery() as nursery:
        for head in heads:
            nursery.start_soon(head.grow, 64 << 20)
        await wait_all_tasks_blocked()
        assert budget.waiting == 10
        with trio.fail_after(60):
            await budget.hold(Kind.BODY, BOB).grow(64 << 20)
        nursery.cancel_scope.cancel()


async def test_answers_that_are_not_read_do_not_keep_bodies_from_coming_in() -> None:
    budget = Budget(300)
    answers = [held(budget, 100, kind=Kind.ANSWER) for _ in range(2)]
    assert not budget.hold(Kind.ANSWER, ALICE).take(1)
    assert budget.hold(Kind.BODY, ALICE).take(100)
    del answers


async def test_who_holds_least_comes_first() -> None:
    budget = Budget(300)
    carol = held(budget, 100, CAROL)
    others = [held(budget, 60, BOB), held(budget, 40, ALICE)]
    order: list[str] = []

    async def ask(name: str, hold: Hold, size: int) -> None:
        await hold.grow(size)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, hold, size in (
            ("bob", budget.hold(Kind.BODY, BOB), 100),
            ("alice", budget.hold(Kind.BODY, ALICE), 60),
        ):
            nursery.start_soon(ask, name, hold, size)
            await wait_all_tasks_blocked()
        assert order == []
        carol.set(60)
        await wait_all_tasks_blocked()
        assert order == ["alice"]
        nursery.cancel_scope.cancel()
    assert sum(each.size for each in others) == 100


async def test_one_larger_than_everything_is_served_without_another_of_its_kind() -> None:
    budget = Budget(300)
    await budget.hold(Kind.BODY, ALICE).grow(10_000)
    hold = budget.hold(Kind.BODY, ALICE)
    await hold.grow(10_000)
    assert budget.used == hold.size == 200
    assert not budget.hold(Kind.BODY, ALICE).take(10_000)


async def test_patience_ends_with_429(autojump_clock: MockClock) -> None:
    budget = Budget(300, patience_ms=1000)
    first = held(budget, 200)
    with pytest.raises(TopicsError) as caught:
        await budget.hold(Kind.BODY, ALICE).grow(200)
    assert caught.value.code is ErrorCode.THROTTLED
    assert caught.value.retry_after_ms
    first.release()
    assert (budget.used, budget.waiting) == (0, 0)


async def test_a_large_one_that_has_waited_long_is_not_passed_by_small_ones_for_ever(autojump_clock: MockClock) -> None:
    budget = Budget(300, patience_ms=40_000)
    small = [held(budget, 100, CAROL), held(budget, 50, BOB)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.hold(Kind.BODY, ALICE).grow, 200)
        await wait_all_tasks_blocked()
        assert budget.hold(Kind.ANSWER, CAROL).take(10)
        await trio.sleep(11)
        assert not budget.hold(Kind.ANSWER, CAROL).take(10)
        small[0].release()
        await wait_all_tasks_blocked()
        assert budget.waiting == 0


async def test_bodies_that_each_hold_a_part_do_not_wait_for_ever(autojump_clock: MockClock) -> None:
    budget = Budget(300, patience_ms=10_000)
    done: list[int] = []

    async def receive(number: int) -> None:
        hold = budget.hold(Kind.BODY, ALICE)
        try:
            for size in (60, 90, 180):
                await hold.grow(size)
                await trio.sleep(0.1)
            assert budget.used <= 300 + 180
            done.append(number)
        finally:
            hold.release()

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(receive, number)
    assert sorted(done) == list(range(6))
    assert budget.used == 0


async def test_who_is_cancelled_while_waiting_holds_nothing() -> None:
    budget = Budget(300)
    first = held(budget, 200)

    async def wait() -> None:
        hold = budget.hold(Kind.BODY, ALICE)
        try:
            await hold.grow(200)
        finally:
            hold.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        # The waiter is admitted and cancelled in the same instant.
        first.release()
        nursery.cancel_scope.cancel()
    assert (budget.used, budget.waiting) == (0, 0)


async def test_what_nobody_refers_to_any_more_comes_back_whichever_thread_notices() -> None:
    budget = Budget(300)
    held(budget, 200)
    assert budget.used == 0
    kept = [held(budget, 200)]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    await trio.to_thread.run_sync(thread.join)
    gc.collect()
    held(budget, 10)
    assert budget.used == 0
