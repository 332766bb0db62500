"""ZeroMQ under trio: no message is lost and no read hangs, whichever task sends at whatever time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import structlog
import trio
import zmq

from proto.ipc.message import NO_STATUS, Cancel, Message, Packet, Reply, Request, Status
from proto.ipc.operations import StateGet
from proto.ipc.transport import MAX_PACKET, MAX_TICK, PACKET_BYTES, Group, MessageSocket
from tests.support.packed import pack


def messages_of(group: Group) -> list[Message]:
    return [message for _, packet in group for message in packet.messages]


class Pair:
    """A router and a dealer, and what the router has received."""

    def __init__(self, path: Path) -> None:
        endpoint = f"ipc://{path}/s"
        self.router = MessageSocket.router(endpoint)
        self.dealer = MessageSocket.dealer(endpoint)
        self.packets: list[Packet] = []
        self._changed = trio.Event()

    @property
    def got(self) -> list[int]:
        return [message.id for packet in self.packets for message in packet.messages]

    def take_in(self, group: Group) -> None:
        self.packets += [packet for _, packet in group]
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():
                await self._changed.wait()

    def close(self) -> None:
        self.router.close()
        self.dealer.close()


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[Pair]:
    made = Pair(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.router.read, made.take_in)
        yield made
        nursery.cancel_scope.cancel()
    made.close()


async def test_thousands_in_flight_from_many_tasks_are_all_answered(short_path: Path) -> None:
    """The descriptor is edge-triggered, and sends from other tasks consume its edges. Without a check of EVENTS after
    each send, this hangs."""
    endpoint = f"ipc://{short_path}/s"
    router = MessageSocket.router(endpoint)
    dealer = MessageSocket.dealer(endpoint)
    waiting: dict[int, trio.Event] = {}
    numbers = count()
    to_answer: trio.MemorySendChannel[tuple[bytes, Message]]
    to_answer, answers = trio.open_memory_channel[tuple[bytes, Message]](100_000)

    def got_request(group: Group) -> None:
        assert 0 < len(messages_of(group)) <= MAX_TICK
        for peer, packet in group:
            for message in packet.messages:
                to_answer.send_nowait((peer, message))

    def got_reply(group: Group) -> None:
        for message in messages_of(group):
            waiting.pop(message.id).set()

    async def answer() -> None:
        async for peer, message in answers:  # not the task that reads
            router.send(Reply(message.id), peer)

    async def ask(rounds: int) -> None:
        for _ in range(rounds):
            ident = next(numbers)
            event = waiting[ident] = trio.Event()
            dealer.send(Request(ident, StateGet(), "t"))
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


async def test_messages_come_in_order_in_groups_that_are_bounded(short_path: Path) -> None:
    sizes: list[int] = []
    async with pair(short_path) as there:
        take_in = there.take_in

        def look(group: Group) -> None:
            sizes.append(len(messages_of(group)))
            take_in(group)

        there.take_in = look  # type: ignore[method-assign]
        for number in range(5000):
            there.dealer.send(Cancel(number))
        await there.until(lambda: len(there.got) == 5000)
    assert there.got == list(range(5000))
    assert all(len(packet.messages) <= MAX_PACKET for packet in there.packets)
    assert max(sizes, default=0) <= MAX_TICK


async def test_what_a_turn_sends_leaves_as_one_packet(short_path: Path) -> None:
    async with pair(short_path) as there, trio.open_nursery() as nursery:
        for number in range(10):
            there.dealer.send(Request(number, StateGet(), "t", b"x" * (number * 1000)))
        nursery.start_soon(trio.lowlevel.checkpoint)
        await there.until(lambda: len(there.got) == 10)
        (packet,) = there.packets
        assert [len(message.body) for message in packet.messages] == [number * 1000 for number in range(10)]


async def test_a_packet_with_large_bodies_leaves_before_the_end_of_the_turn(short_path: Path) -> None:
    async with pair(short_path) as there:
        for number in range(5):
            there.dealer.send(Request(number, StateGet(), "t", bytes(PACKET_BYTES // 2)))
        await there.until(lambda: len(there.got) == 5)
        assert [len(packet.messages) for packet in there.packets] == [2, 2, 1]


async def test_every_packet_has_the_status_of_when_it_leaves(short_path: Path) -> None:
    async with pair(short_path) as there:
        there.dealer.status = lambda: Status(len(there.got), 7)
        there.dealer.send(Cancel(1))
        await there.until(lambda: bool(there.got))
        there.dealer.send(Cancel(2))
        await there.until(lambda: len(there.got) == 2)
        assert [packet.status for packet in there.packets] == [Status(0, 7), Status(1, 7)]


async def test_sending_to_nobody_neither_blocks_nor_fails(short_path: Path) -> None:
    router = MessageSocket.router(f"ipc://{short_path}/s")
    router.send(Reply(1), b"nobody")
    dealer = MessageSocket.dealer(f"ipc://{short_path}/nowhere")
    for number in range(5000):
        dealer.send(Request(number, StateGet(), "t", b"x" * 100))
    await trio.lowlevel.checkpoint()
    dealer.close()
    router.close()


# -- a queued message always leaves, wherever it is sent from


async def _timer(send: Callable[[], None]) -> None:
    with trio.move_on_after(0.01):
        await trio.sleep_forever()
    send()


async def _thread(send: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(send))


async def _entry_queue(send: Callable[[], None]) -> None:
    trio.lowlevel.current_trio_token().run_sync_soon(send)


async def _abort(send: Callable[[], None]) -> None:
    def abort(_: object) -> trio.lowlevel.Abort:
        send()
        return trio.lowlevel.Abort.SUCCEEDED

    with trio.move_on_after(0.01):  # the deadline's expiry calls it, outside of all tasks
        await trio.lowlevel.wait_task_rescheduled(abort)


async def _cleanup(send: Callable[[], None]) -> None:
    async with trio.open_nursery() as nursery:

        async def hold() -> None:
            try:
                await trio.sleep_forever()
            finally:
                send()

        nursery.start_soon(hold)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def _system_task(send: Callable[[], None]) -> None:
    async def run() -> None:
        send()

    trio.lowlevel.spawn_system_task(run)


WAYS = [_timer, _thread, _entry_queue, _abort, _cleanup, _system_task]


@pytest.mark.parametrize("way", WAYS)
async def test_a_message_leaves_from_wherever_it_is_sent(short_path: Path, way: Callable[..., object]) -> None:
    async with pair(short_path) as there:
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(way, lambda: there.dealer.send(Cancel(7)))
            await there.until(lambda: there.got == [7])


class Steps(trio.abc.Instrument):
    """Notes each step of a task."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._order.append("task")


async def test_a_reply_leaves_before_any_task_goes_on(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/s"
    router, dealer = MessageSocket.router(endpoint), MessageSocket.dealer(endpoint)
    order: list[str] = []
    handled = trio.Event()

    def answer(group: Group) -> None:
        for peer, packet in group:
            router.send(Reply(packet.messages[0].id), peer)
        order.append("handled")
        handled.set()

    flush = router.flush

    def seen() -> bool:
        order.append("flushed")
        return flush()

    router.flush = seen  # type: ignore[method-assign]
    trio.lowlevel.add_instrument(Steps(order))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.read, answer)
            dealer.send(Cancel(1))
            await handled.wait()
            nursery.cancel_scope.cancel()
    assert order[order.index("handled") + 1] == "flushed"
    router.close()
    dealer.close()


@pytest.mark.parametrize("in_a_finally", [False, True])
def test_what_the_last_step_of_a_run_sends_leaves(short_path: Path, in_a_finally: bool) -> None:
    endpoint = f"ipc://{short_path}/s"
    peer = zmq.Context.instance().socket(zmq.ROUTER)
    peer.bind(endpoint)
    kept: list[MessageSocket] = []

    async def main() -> None:
        kept.append(MessageSocket.dealer(endpoint))
        try:
            if in_a_finally:
                with trio.move_on_after(0):
                    await trio.sleep_forever()
        finally:
            kept[0].send(Cancel(9))

    trio.run(main)
    assert peer.poll(30_000)
    assert peer.recv_multipart()[1:] == pack([Cancel(9)])
    kept[0].close()
    peer.close(linger=0)


def test_a_socket_that_is_made_without_trio_sends_at_once(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/s"
    peer = zmq.Context.instance().socket(zmq.ROUTER)
    peer.bind(endpoint)
    dealer = MessageSocket.dealer(endpoint)
    dealer.send(Cancel(9))
    assert peer.poll(30_000)
    dealer.close()
    peer.close(linger=0)


async def test_a_packet_that_cannot_be_sent_keeps_none_of_the_others_back(short_path: Path) -> None:
    def fail() -> Status:
        raise RuntimeError("no status")

    async with pair(short_path) as there:
        with structlog.testing.capture_logs() as lines:
            there.router.status = fail
            there.router.send(Reply(1), b"nobody")
            there.dealer.send(Cancel(1))
            await there.until(lambda: there.got == [1])
            there.dealer.send(Cancel(2))
            await there.until(lambda: there.got == [1, 2])
        assert [line["event"] for line in lines] == ["messages_not_sent"]
        there.router.status = lambda: NO_STATUS


# -- what arrives


async def test_a_packet_that_cannot_be_read_takes_none_of_the_others_with_it(short_path: Path) -> None:
    async with pair(short_path) as there:
        stranger = zmq.Context.instance().socket(zmq.DEALER)
        stranger.connect(there.router.endpoint)
        with structlog.testing.capture_logs() as lines:
            stranger.send_multipart([b"garbage", b"and more", b"of it"])
            stranger.send_multipart(pack([Cancel(1)]))
            there.dealer.send(Cancel(2))
            await there.until(lambda: sorted(there.got) == [1, 2])
        assert [line["event"] for line in lines] == ["message_refused"]
        stranger.close(linger=0)


async def test_the_reader_is_woken_by_a_flush_that_consumes_its_edge(short_path: Path) -> None:
    """Steps of the module's docstring, in order. The message is there before the reader's process sends, and the
    descriptor does not tell of it any more."""
    async with pair(short_path) as there:
        await trio.testing.wait_all_tasks_blocked()
        stranger = zmq.Context.instance().socket(zmq.DEALER)
        stranger.connect(there.router.endpoint)
        stranger.send_multipart(pack([Cancel(1)]))
        raw = there.router._socket
        with trio.fail_after(60):
            while not raw.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # blocks the reader, and consumes the edge
                pass
            there.router.send(Reply(5), b"nobody")
            await there.until(lambda: there.got == [1])
        stranger.close(linger=0)


async def test_an_owner_drives_a_socket_without_a_task(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/s"
    router, dealer = MessageSocket.router(endpoint), MessageSocket.dealer(endpoint)
    stirred: list[int] = []
    router.on_input = lambda: stirred.append(1)
    for number in range(2 * MAX_TICK):
        dealer.send(Cancel(number))
    assert not dealer.flush()
    got: list[int] = []
    with trio.fail_after(60):
        while len(got) < 2 * MAX_TICK:
            if not router.flush():
                await trio.lowlevel.wait_readable(router.descriptor)
            got += [message.id for message in messages_of(router.take())]
        assert got == list(range(2 * MAX_TICK))
        dealer.send(Cancel(1))
        dealer.flush()
        while not router._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            pass
        router.send(Reply(5), b"nobody")
        await trio.lowlevel.checkpoint()
        assert stirred
        assert router.flush()
        assert [message.id for message in messages_of(router.take())] == [1]
    router.close()
    dealer.close()


async def test_a_router_hears_the_first_dealer_of_a_name_only(tmp_path: Path) -> None:
    """The second one stays unheard when the first has gone, too: what it sent belongs to no asker."""
    endpoint = f"ipc://{tmp_path}/s"
    router, first, other = (
        MessageSocket.router(endpoint),
        MessageSocket.dealer(endpoint, "g0.1"),
        MessageSocket.dealer(endpoint, "g0.2"),
    )
    got: list[tuple[bytes, int]] = []

    def take(group: Group) -> None:
        got.extend((peer, message.id) for peer, packet in group for message in packet.messages)

    async def until(number: int) -> None:
        with trio.fail_after(60):
            while number not in [each for _, each in got]:
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.read, take)
        first.send(Cancel(1))
        await until(1)
        second = MessageSocket.dealer(endpoint, "g0.1")
        for number in range(100, 110):
            second.send(Cancel(number))
            second.flush()
        first.send(Cancel(2))
        other.send(Cancel(3))
        await until(2)
        await until(3)
        first.close()
        for number in range(110, 120):
            second.send(Cancel(number))
            second.flush()
            other.send(Cancel(number + 100))
            await until(number + 100)
        nursery.cancel_scope.cancel()
    assert [each for each in got if each[0] != b"g0.2"] == [(b"g0.1", 1), (b"g0.1", 2)]
    for socket in (router, second, other):
        socket.close()


async def test_the_status_leaves_without_a_message(tmp_path: Path) -> None:
    async with pair(tmp_path) as there:
        there.dealer.status = lambda: Status(window=7)
        there.dealer.tell_status(b"")
        await there.until(lambda: len(there.packets) == 1)
        there.dealer.tell_status(b"")
        there.dealer.send(Cancel(1))
        await there.until(lambda: len(there.packets) == 2)
        assert [(len(each.messages), each.status.window) for each in there.packets] == [(0, 7), (1, 7)]
