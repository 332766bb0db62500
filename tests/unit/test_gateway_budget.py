"""Claims about the bound on request bodies in memory."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.budget import FREE_BYTES, Budget
from proto.errors import ErrorCode, TopicsError

SIZE = FREE_BYTES + 1


async def test_small_bodies_never_wait() -> None:
    budget = Budget(SIZE)
    assert await budget.reserve(SIZE) == SIZE
    assert await budget.reserve(FREE_BYTES) == 0


async def test_reservations_are_served_in_order_as_bytes_come_free() -> None:
    budget = Budget(3 * SIZE)
    order: list[int] = []

    async def reserve(number: int, size: int) -> None:
        await budget.reserve(size)
        order.append(number)

    first = await budget.reserve(2 * SIZE)
    async with trio.open_nursery() as nursery:
        for number, size in enumerate((2 * SIZE, SIZE, SIZE)):
            nursery.start_soon(reserve, number, size)
            await wait_all_tasks_blocked()
        assert order == []
        assert budget.shrink(first, SIZE) == SIZE
        await wait_all_tasks_blocked()
        assert order == [0]
        budget.release(SIZE)
        await wait_all_tasks_blocked()
        assert order == [0, 1]
        budget.release(SIZE)
    assert order == [0, 1, 2]
    assert budget.used == 3 * SIZE


async def test_one_larger_than_everything_is_served_alone() -> None:
    budget = Budget(SIZE)
    assert await budget.reserve(10 * SIZE) == SIZE


async def test_patience_ends_with_429(autojump_clock: MockClock) -> None:
    budget = Budget(SIZE, patience_ms=1000)
    await budget.reserve(SIZE)
    with pytest.raises(TopicsError) as caught:
        await budget.reserve(SIZE)
    assert caught.value.code is ErrorCode.THROTTLED
    budget.release(SIZE)
    assert budget.used == 0


async def test_who_is_cancelled_while_waiting_holds_nothing() -> None:
    budget = Budget(SIZE)
    await budget.reserve(SIZE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.reserve, SIZE)
        await wait_all_tasks_blocked()
        # Admitted and cancelled in the same instant.
        budget.release(SIZE)
        nursery.cancel_scope.cancel()
    assert budget.used in (0, SIZE)
    budget.release(budget.used)
    assert await budget.reserve(SIZE) == SIZE
