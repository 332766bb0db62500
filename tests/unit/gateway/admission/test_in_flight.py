"""What a gateway that ends waits for: requests in flight, then clients that have not closed their connections yet."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.admission.in_flight import Flight


async def test_it_waits_for_the_connections_that_close_now_and_for_no_later_ones(autojump_clock: MockClock) -> None:
    flight = Flight()
    flight.drain()
    done = trio.Event()

    async def wait() -> None:
        await flight.landed()
        await flight.closed()
        done.set()

    async with trio.open_nursery() as nursery:
        with flight.closes("one"):
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            later = flight.closes("later")
            later.__enter__()
            await wait_all_tasks_blocked()
            assert not done.is_set()
        await done.wait()
        later.__exit__(None, None, None)
