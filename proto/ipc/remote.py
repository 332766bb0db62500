"""Sockets between machines: ZeroMQ over TCP, encrypted and authenticated by CURVE.

A shard has a `RemoteRouter` beside its ipc socket, and an asker on another machine has a `RemoteDealer`. Packets and
windows are those of `proto.ipc.transport`.

**Keys.** A router has a key pair of its own, made at each start: what was sent to a dead process cannot be read by its
successor on the same port. An asker has the key pair of its machine, made at each start of that machine. A router hears
the machines of its allow list, which may change while it runs:

    handshake      ZeroMQ asks for each connection whether its key may connect (ZAP). The router answers while it is
                   read; before that, handshakes wait, and end after `LOST_S`
    each packet    the key of its connection is still allowed, and the name of the asker is one of that key's machine

All else is dropped unread. An asker that sends what is no packet is heard no more. A router has a context of its own,
that is, an I/O thread: handshakes and floods delay no other socket of the process.

**A lost link.** A dealer never connects twice. Its link is lost when the connection cannot be made or ends, or when
nothing has arrived for `LOST_S`: ZeroMQ exchanges heartbeats. `lost` returns then, and the asker makes another dealer,
whose name has a higher number (`proto.ipc.askers`). An asker that gives a link up says `NoMore`, so the shard need not
find out.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

import trio
import zmq
from msgspec import Struct
from zmq.utils import z85

from proto.ipc.askers import machine_of
from proto.ipc.message import NoMore, Packing, Status
from proto.ipc.transport import Group, MessageSocket
from proto.process import waiting

LOST_S = 3.0
"""A connection without a sign of life for this long is lost, and so is one that is not made by then."""
MOST_WAITING = 4096
"""Packets that wait to be sent to an asker that does not read; later ones are lost."""
MOST_UNREAD = 256
"""Packets of an asker that are read ahead; TCP holds it back then."""
FRAME_BYTES = 4 << 20
"""What a frame of a packet has at most besides the body of a request."""
_LAST_MS = 1000
"""For so long an asker's last message may take to leave."""
_HANDSHAKES = 16
"""Questions of ZeroMQ that are answered in one turn."""
_OF_KEY = "User-Id"
_NOW = int(zmq.DONTWAIT)
(_OVER,) = Packing().frames(Status(over=True))


class RemoteError(OSError):
    """An address that cannot be used. The message says which, why and, for one of this machine, what to do."""


class KeyPair(Struct, frozen=True):
    """Of CURVE, in Z85: 40 characters each."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


def _prepare(made: Any, keys: KeyPair, address: str) -> None:
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    made.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    made.setsockopt(zmq.HANDSHAKE_IVL, int(LOST_S * 1000))
    # Whether something has arrived is looked at each third of the time, and counts for the other two.
    made.setsockopt(zmq.HEARTBEAT_IVL, int(LOST_S * 1000 / 3))
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(LOST_S * 2000 / 3))
    made.setsockopt(zmq.IPV6, int("[" in address))


class RemoteRouter(MessageSocket):
    """The answering side. It listens from its making on, and hears the machines that were allowed when it is read."""

    def __init__(self, address: str, keys: KeyPair, most_bytes: int) -> None:
        """`address` is host:port, port 0 for any. A request has `most_bytes` at most. Raises `RemoteError`."""
        self._keys = keys
        self._address = address
        self._most_bytes = most_bytes
        self._context = zmq.Context()
        self._allowed: dict[str, str] = {}
        self._refused: dict[bytes, int] = {}
        """The askers that have sent what is no packet: the highest number of each name. Earlier links are gone."""
        self._heard: dict[bytes, float] = {}
        """When each asker was heard last, in monotonic seconds."""
        self._asks: Any = self._context.socket(zmq.REP)
        self._asks.bind("inproc://zeromq.zap.01")
        try:
            super().__init__(zmq.ROUTER, f"tcp://{address}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise RemoteError(
                f"cannot listen on {address}: {error.strerror}: stop the process that uses it, or choose another "
                "TOPICS_CLUSTER_LISTEN"
            ) from None
        bound: str = self._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.key = keys.public
        self.port = int(bound.rpartition(":")[2])
        fast: Any = super(zmq.Socket, self._socket)
        self._receive_frame: Callable[..., Any] = partial(fast.recv, copy=False)

    def _made(self, kind: int) -> Any:
        made: Any = self._context.socket(kind)
        _prepare(made, self._keys, self._address)
        made.setsockopt(zmq.CURVE_SERVER, 1)
        made.setsockopt(zmq.ZAP_DOMAIN, b"shard")
        made.setsockopt(zmq.SNDHWM, MOST_WAITING)
        made.setsockopt(zmq.RCVHWM, MOST_UNREAD)
        made.setsockopt(zmq.MAXMSGSIZE, self._most_bytes + FRAME_BYTES)
        return made

    def allow(self, machines: Mapping[str, str]) -> None:
        """Hear these machines from now on, and no other: their names, by public key."""
        self._allowed = dict(machines)

    async def read(self, handle: Callable[[Group], object]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.serve, int(self._asks.getsockopt(zmq.FD)), self._answer)
            await super().read(handle)

    def _answer(self) -> bool:
        """Tell ZeroMQ which keys may connect. Returns True if it may have more questions."""
        for _ in range(_HANDSHAKES):
            try:
                version, ident, _, _, _, mechanism, *credentials = self._asks.recv_multipart(_NOW)
            except zmq.Again:
                return False
            key = z85.encode(credentials[0]) if mechanism == b"CURVE" else b""
            status = b"200" if key.decode() in self._allowed else b"400"
            self._asks.send_multipart((version, ident, status, b"", key, b""))
        return True

    def _receive_frames(self) -> list[bytes]:
        """Receive a message. One that does not count becomes one of no peer, without a packet."""
        first = self._receive_frame(_NOW)
        frames: list[bytes] = [bytes(first)]
        while self._get(zmq.RCVMORE):
            frames.append(self._receive(_NOW))
        peer = frames[0]
        machine = self._allowed.get(str(first.get(_OF_KEY)))
        if machine is None or machine_of(peer) != machine or (self._refused and self._refuses(peer)):
            return [b""]
        self._heard[peer] = time.monotonic()
        return frames

    def _refuse(self, peer: bytes, reason: str) -> None:
        if peer:
            super()._refuse(peer, reason)
            name, _, number = peer.rpartition(b".")
            self._refused[name] = max(int(number), self._refused.get(name, 0))
            self.tell_over(peer)

    def _refuses(self, peer: bytes) -> bool:
        name, _, number = peer.rpartition(b".")
        return int(number) <= self._refused.get(name, -1)

    def tell_over(self, peer: bytes) -> None:
        """Tell an asker that its link counts as lost: it makes another one."""
        self._transmit(peer, int(zmq.DONTWAIT | zmq.SNDMORE))
        self._transmit(_OVER, _NOW)
        if not self._planned:
            self._plan()  # to look for input of which the descriptor does not tell any more

    def silent(self, for_s: float) -> set[bytes]:
        """The askers that have sent nothing for `for_s` seconds."""
        before = time.monotonic() - for_s
        return {peer for peer, heard in self._heard.items() if heard <= before}

    def forget_lost(self, for_s: float) -> list[bytes]:
        """The askers that are heard no more, or have sent nothing for `for_s` seconds. They are forgotten."""
        before = time.monotonic() - for_s
        names = set(self._allowed.values())
        lost = [
            peer
            for peer, heard in self._heard.items()
            if heard <= before or self._refuses(peer) or machine_of(peer) not in names
        ]
        for peer in lost:
            del self._heard[peer]
        return lost

    def close(self) -> None:
        super().close()
        self._asks.close(linger=0)
        self._context.term()


@cache
def _dealers() -> zmq.Context[Any]:
    """The context of all dealers of this process, which have an I/O thread of their own."""
    return zmq.Context()


class RemoteDealer(MessageSocket):
    """The asking side. It is connected once, by `connect`. What is sent after it was lost is lost, too."""

    def __init__(self, endpoint: str, name: str, keys: KeyPair, server_key: str) -> None:
        """`endpoint` is `tcp://host:port`, `server_key` the public key of the process that listens there."""
        self._keys = keys
        self._server_key = server_key
        super().__init__(zmq.DEALER, endpoint, name)
        self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)

    def _made(self, kind: int) -> Any:
        made: Any = _dealers().socket(kind)
        _prepare(made, self._keys, "")
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        made.setsockopt(zmq.RECONNECT_IVL, -1)
        made.setsockopt(zmq.CONNECT_TIMEOUT, int(LOST_S * 1000))
        return made

    def _attach(self, kind: int, endpoint: str) -> None:
        """Later: `connect`."""

    async def connect(self) -> None:
        """Begin to connect. Raises OSError if the name of the host is not known, or what was given is no address or no
        key: it comes from another machine."""
        # ZeroMQ would look a name up in its I/O thread, where that holds up all other links.
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        try:
            if not 0 < int(port) < 65536:  # ZeroMQ would not say that it cannot connect
                raise ValueError("no port")
            found = await trio.socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            address = str(found[0][4][0])
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, self._server_key.encode())
            self._socket.setsockopt(zmq.IPV6, int(":" in address))
            self._socket.connect(f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}")
        except (ValueError, zmq.ZMQError) as error:
            raise RemoteError(f"{self.endpoint} cannot be connected to: {error}") from None

    async def lost(self) -> None:
        """Return when the connection cannot be made, or has ended."""
        while not self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            await trio.lowlevel.wait_readable(int(self._monitor.getsockopt(zmq.FD)))

    def _send_packet(self, peer: bytes, queue: Any) -> None:
        with suppress(zmq.Again):  # it is lost
            super()._send_packet(peer, queue)

    def close(self) -> None:
        """What waits is not sent any more; that nothing follows is."""
        self._queues.clear()
        self.send(NoMore())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self.flush()
        self._socket.close(linger=_LAST_MS)
