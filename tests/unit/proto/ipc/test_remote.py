"""A router hears the machines that it allows, and no other; what a peer sends harms that peer only."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import structlog
import trio
import zmq

from proto.ipc import remote
from proto.ipc.message import Cancel, Packet, Reply, Status
from proto.ipc.remote import KeyPair, RemoteDealer, RemoteError, RemoteRouter
from proto.ipc.transport import Group
from tests.support.packed import pack

PATIENCE_S = 60
LOCAL = "127.0.0.1:0"
MOST = 1 << 20
OURS = KeyPair.new()


class Ends:
    """A router, and the askers that it hears."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.keys = KeyPair.new()
        self.router = RemoteRouter(LOCAL, self.keys, MOST)
        self.router.allow({OURS.public: "mA"})
        self.got: list[tuple[bytes, int]] = []
        self.dealers: list[RemoteDealer] = []

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.router.port}"

    def take(self, group: Group) -> None:
        self.got += [(peer, message.id) for peer, packet in group for message in packet.messages]

    async def dealer(
        self, name: str = "mA.g0.1", keys: KeyPair = OURS, server_key: str = "", endpoint: str = ""
    ) -> RemoteDealer:
        made = RemoteDealer(endpoint or self.endpoint, name, keys, server_key or self.keys.public)
        self.dealers.append(made)
        await made.connect()
        return made

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what it looks at has no event
                await trio.sleep(0.001)

    async def heard(self, dealer: RemoteDealer, number: int) -> None:
        """Return when the router has heard of a dealer."""
        dealer.send(Cancel(number))
        await self.until(lambda: number in [each for _, each in self.got])


@asynccontextmanager
async def ends(*, reads: bool = True) -> AsyncIterator[Ends]:
    async with trio.open_nursery() as nursery:
        made = Ends(nursery)
        try:
            if reads:
                nursery.start_soon(made.router.read, made.take)
            yield made
        finally:
            nursery.cancel_scope.cancel()
    for each in made.dealers:
        each.close()
    made.router.close()


async def lost(dealer: RemoteDealer) -> None:
    with trio.fail_after(PATIENCE_S):
        await dealer.lost()


async def test_messages_go_both_ways_between_an_allowed_machine_and_a_router() -> None:
    async with ends() as there:
        dealer = await there.dealer()
        back: list[Packet] = []
        there.nursery.start_soon(dealer.read, lambda group: back.extend(packet for _, packet in group))
        await there.heard(dealer, 7)
        assert there.got == [(b"mA.g0.1", 7)]
        there.router.send(Reply(7, b"x" * 100_000), b"mA.g0.1")
        await there.until(lambda: back)
        assert [message.id for packet in back for message in packet.messages] == [7]


STRANGERS = {
    "another key": {"keys": KeyPair.new()},
    "the key of another router": {"server_key": KeyPair.new().public},
}


@pytest.mark.parametrize("how", STRANGERS)
async def test_a_stranger_is_unheard_and_its_link_lost(how: str) -> None:
    async with ends() as there:
        stranger = await there.dealer("mA.g0.9", **STRANGERS[how])  # type: ignore[arg-type]
        stranger.send(Cancel(1))
        await lost(stranger)
        await there.heard(await there.dealer(), 2)
        assert there.got == [(b"mA.g0.1", 2)]


async def test_a_peer_without_curve_is_unheard() -> None:
    async with ends() as there:
        with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
            plain.setsockopt(zmq.LINGER, 0)
            plain.connect(there.endpoint)
            plain.send_multipart(pack([Cancel(1)]))
            await there.heard(await there.dealer(), 2)
        assert there.got == [(b"mA.g0.1", 2)]


GREETINGS = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "noise": bytes(range(256)) * 40,
    "another version": b"\xff" + bytes(8) + b"\x7f\x01",
    "a huge frame": b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15 + 32) + b"\x06" + b"\x7f" * 8,
}


@pytest.mark.parametrize("how", GREETINGS)
async def test_a_wrong_greeting_harms_no_other_link(how: str) -> None:
    async with ends() as there:
        dealer = await there.dealer()
        await there.heard(dealer, 1)
        with socket.create_connection(("127.0.0.1", there.router.port)) as raw:
            raw.sendall(GREETINGS[how])
            await there.heard(dealer, 2)
            await there.heard(await there.dealer("mA.g1.1"), 3)
        assert [number for _, number in there.got] == [1, 2, 3]


async def test_a_name_of_another_machine_is_unheard() -> None:
    theirs = KeyPair.new()
    async with ends() as there:
        there.router.allow({OURS.public: "mA", theirs.public: "mB"})
        for name in ("mA.g0.1", "g0.1", "mBB.g0.1", "m", ""):
            liar = await there.dealer(name, theirs)
            liar.send(Cancel(1))
            liar.flush()
        honest = await there.dealer("mB.g0.1", theirs)
        await there.heard(honest, 2)
        assert there.got == [(b"mB.g0.1", 2)]


async def test_a_revoked_key_is_unheard_at_once_on_the_link_that_it_has() -> None:
    theirs = KeyPair.new()
    async with ends() as there:
        dealer = await there.dealer()
        await there.heard(dealer, 1)
        there.router.allow({theirs.public: "mB"})
        dealer.send(Cancel(2))
        dealer.flush()
        assert there.router.forget_lost(60) == [b"mA.g0.1"]
        other = await there.dealer("mB.g0.1", theirs)
        await there.heard(other, 3)
        again = await there.dealer("mA.g0.2")
        await lost(again)
        assert [number for _, number in there.got] == [1, 3]


async def test_a_machine_that_is_allowed_while_the_router_runs_is_heard() -> None:
    theirs = KeyPair.new()
    async with ends() as there:
        early = await there.dealer("mB.g0.1", theirs)
        await lost(early)
        there.router.allow({theirs.public: "mB"})
        await there.heard(await there.dealer("mB.g0.2", theirs), 1)


async def test_a_successor_on_the_port_gets_nothing_that_was_queued_for_its_predecessor() -> None:
    async with ends(reads=False) as there:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.router.read, there.take)
            dealer = await there.dealer()
            await there.heard(dealer, 1)
            nursery.cancel_scope.cancel()
        port = there.router.port
        there.router.close()
        for number in range(2, 50):
            dealer.send(Cancel(number))
        successor = there.router = RemoteRouter(f"127.0.0.1:{port}", KeyPair.new(), MOST)
        successor.allow({OURS.public: "mA"})
        there.nursery.start_soon(successor.read, there.take)
        await lost(dealer)
        dealer.send(Cancel(50))
        stale = await there.dealer("mA.g0.2")  # it was told of the predecessor
        stale.send(Cancel(51))
        await lost(stale)
        await there.heard(await there.dealer("mA.g0.3", server_key=successor._keys.public), 60)
        assert [number for _, number in there.got] == [1, 60]


async def test_handshakes_wait_until_the_router_is_read() -> None:
    async with ends(reads=False) as there:
        dealer = await there.dealer()
        dealer.send(Cancel(1))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not there.router._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN
        there.nursery.start_soon(there.router.read, there.take)
        await there.until(lambda: there.got)


async def test_an_address_where_nothing_listens_is_lost_at_once() -> None:
    async with ends() as there:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with trio.fail_after(remote.LOST_S * 0.9):
                await (await there.dealer(endpoint=f"tcp://127.0.0.1:{port}")).lost()


async def test_a_peer_that_is_mute_is_lost_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOST_S", 0.3)
    async with ends() as there:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            await lost(await there.dealer(endpoint=f"tcp://127.0.0.1:{mute.getsockname()[1]}"))


async def test_a_packet_that_cannot_be_read_ends_the_link_of_its_sender_only() -> None:
    async with ends() as there:
        bent, other = await there.dealer(), await there.dealer("mA.g1.1")
        back: list[Status] = []
        there.nursery.start_soon(bent.read, lambda group: back.extend(packet.status for _, packet in group))
        await there.heard(bent, 1)
        with structlog.testing.capture_logs() as lines:
            for _ in range(1000):
                bent._socket.send_multipart([b"garbage", b"and more"])
            bent.send(Cancel(2))
            bent.flush()
            await there.until(lambda: back)
            await there.heard(other, 3)
        assert [line["event"] for line in lines] == ["message_refused"]
        assert all(status.over for status in back)
        assert there.got == [(b"mA.g0.1", 1), (b"mA.g1.1", 3)]
        assert there.router.forget_lost(60) == [b"mA.g0.1"]


async def test_a_refused_link_ends_those_before_it_and_no_later_one() -> None:
    async with ends() as there:
        first, second, later = [await there.dealer(f"mA.g0.{number}") for number in (1, 2, 3)]
        await there.heard(first, 1)
        await there.heard(second, 2)
        second._socket.send_multipart([b"garbage", b"and more"])
        await there.until(lambda: there.router._refused)
        first.send(Cancel(3))
        first.flush()
        assert there.router.forget_lost(60) == [b"mA.g0.1", b"mA.g0.2"]
        await there.heard(later, 4)
        await there.heard(await there.dealer("mA.g1.1"), 5)
        assert [number for _, number in there.got] == [1, 2, 4, 5]


async def test_of_the_refused_links_of_an_asker_only_the_last_is_remembered() -> None:
    async with ends() as there:
        for number in range(1, 101):
            there.router._refuse(b"mA.g0.%d" % number, "it is no packet")
        assert there.router._refused == {b"mA.g0": 100}


async def test_a_flood_holds_up_no_other_asker() -> None:
    async with ends() as there, trio.open_nursery() as nursery:
        flood, other = await there.dealer(), await there.dealer("mA.g1.1")
        await there.heard(flood, 1)

        async def run() -> None:
            while True:
                for _ in range(10_000):
                    flood.send(Cancel(0))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(run)
        await there.heard(other, 2)
        nursery.cancel_scope.cancel()


async def test_a_frame_that_is_too_large_ends_its_connection() -> None:
    async with ends() as there:
        dealer, other = await there.dealer(), await there.dealer("mA.g1.1")
        await there.heard(dealer, 1)
        dealer._socket.send(bytes(MOST + remote.FRAME_BYTES + 1))
        await lost(dealer)
        await there.heard(other, 2)


async def test_an_asker_that_was_silent_for_long_is_forgotten_and_told_so() -> None:
    async with ends() as there:
        dealer = await there.dealer()
        back: list[Status] = []
        there.nursery.start_soon(dealer.read, lambda group: back.extend(packet.status for _, packet in group))
        await there.heard(dealer, 1)
        assert there.router.forget_lost(60) == []
        assert there.router.forget_lost(0) == [b"mA.g0.1"]
        assert there.router.forget_lost(0) == []
        there.router.tell_over(b"mA.g0.1")
        await there.until(lambda: back)
        assert back[0].over


async def test_sending_to_a_lost_peer_neither_blocks_nor_fails() -> None:
    async with ends() as there:
        dealer = await there.dealer()
        await there.heard(dealer, 1)
        dealer._socket.disconnect(dealer._socket.getsockopt(zmq.LAST_ENDPOINT))
        with structlog.testing.capture_logs() as lines:
            for number in range(200):
                dealer.send(Cancel(number))
                there.router.send(Reply(number), b"mA.g0.77")
            await trio.testing.wait_all_tasks_blocked()
        assert not lines


async def test_a_port_that_is_taken_is_named() -> None:
    async with ends() as there:
        with pytest.raises(RemoteError, match="TOPICS_CLUSTER_LISTEN"):
            RemoteRouter(f"127.0.0.1:{there.router.port}", KeyPair.new(), MOST)


def test_no_secret_is_shown() -> None:
    assert OURS.secret not in repr(OURS)
