"""ZeroMQ under trio: no message is lost and no read hangs, whichever task sends at whatever time."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import trio

from proto.ipc.transport import MAX_TICK, MessageSocket


async def test_thousands_in_flight_from_many_tasks_are_all_answered(tmp_path: Path) -> None:
    """The descriptor is edge-triggered, and sends from other tasks consume its edges. Without a check of EVENTS after
    each send, this hangs."""
    endpoint = f"ipc://{tmp_path}/s"
    router = MessageSocket.router(endpoint)
    dealer = MessageSocket.dealer(endpoint)
    waiting: dict[bytes, trio.Event] = {}
    numbers = count()
    to_answer: trio.MemorySendChannel[list[bytes]]
    to_answer, answers = trio.open_memory_channel[list[bytes]](100_000)

    def got_request(group: list[list[bytes]]) -> None:
        assert 0 < len(group) <= MAX_TICK
        for message in group:
            to_answer.send_nowait(message)

    def got_reply(group: list[list[bytes]]) -> None:
        for (ident,) in group:
            waiting.pop(ident).set()

    async def answer() -> None:
        async for message in answers:  # not the task that reads
            router.send(message)

    async def ask(rounds: int) -> None:
        for _ in range(rounds):
            ident = b"%d" % next(numbers)
            event = waiting[ident] = trio.Event()
            dealer.send([ident])
            await event.wait()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.read, got_request)
            nursery.start_soon(dealer.read, got_reply)
            for _ in range(3):
                nursery.start_soon(answer)
            async with trio.open_nursery() as askers:
                for _ in range(64):
                    askers.start_soon(ask, 100)
            nursery.cancel_scope.cancel()
    assert not waiting
    assert next(numbers) == 6400
    router.close()
    dealer.close()


async def test_a_group_comes_in_order(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    router = MessageSocket.router(endpoint)
    dealer = MessageSocket.dealer(endpoint)
    seen: list[int] = []
    done = trio.Event()

    def handle(group: list[list[bytes]]) -> None:
        seen.extend(int(message[1]) for message in group)
        if len(seen) == 1000:
            done.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.read, handle)
            for i in range(1000):
                dealer.send([b"%d" % i])
            await done.wait()
            nursery.cancel_scope.cancel()
    assert seen == list(range(1000))
    router.close()
    dealer.close()


async def test_sending_to_nobody_neither_blocks_nor_fails(tmp_path: Path) -> None:
    router = MessageSocket.router(f"ipc://{tmp_path}/s")
    router.send([b"nobody", b"x"])
    dealer = MessageSocket.dealer(f"ipc://{tmp_path}/nowhere")
    for _ in range(5000):
        dealer.send([b"x" * 100])
    dealer.close()
    router.close()
