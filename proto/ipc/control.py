"""Control messages between the supervisor and a child, over a socket pair the child inherits.

On the wire: u32 little-endian length, then a CBOR array `[name, map]`. A socket pair rather than ZeroMQ, because
end-of-file on it is exact and immediate knowledge that the other side is gone.

    supervisor → shard      Start(...), Shards([...]) at every change, Stop()
    supervisor → gateway    Start(...), Shards([...]) at every change, Keys([...]) when they were read anew, Drain()
    supervisor → both       Ping()*, answered by Pong() from the child's event loop: it is alive and not stuck
    shard → supervisor      Progress(...)*, Ready(), Failed(...)
    gateway → supervisor    Ready(), Complete(), Drained(), Failed(...)

`Failed` announces an exit that a restart cannot mend by itself (corrupt file, unknown format): the supervisor shows
the message and starts the shard again after a long pause. Any other exit is an accident, and the child is started
again at once. A shard that has not got further than that is in phase `failed` between its starts.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass, field
from typing import Any

import cbor2

LENGTH = struct.Struct("<I")
MAX_CONTROL_BYTES = 16 << 20
CONTROL_FD_VARIABLE = "TOPICS_CONTROL_FD"
"""The environment variable that tells a child which inherited descriptor is its control socket."""
EXIT_PERMANENT = 3
"""Exit status of a child that said `Failed`."""

PHASES = ("down", "open", "replay", "derive", "ready", "stopping", "failed")


@dataclass(frozen=True, slots=True)
class ShardState:
    """What the gateway and the other shards may know of one shard. `endpoint` is new for every incarnation, so that
    messages queued for a dead process can never reach its successor."""

    index: int
    phase: str = "down"
    endpoint: str = ""
    incarnation: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    hangs: int = 0
    """How often it was killed because it did not answer."""

    @property
    def progress(self) -> float:
        """Share of the boot that is done, 0.0–1.0."""
        if self.phase == "ready":
            return 1.0
        return min(self.done_bytes / self.total_bytes, 1.0) if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """First message to a child: everything it needs to know. `limits` are the fields of `proto.model.limits.Limits`,
    `keys` the maps of `proto.model.keys.Key`; without `keys` nobody is asked for one."""

    role: str
    limits: dict[str, Any]
    index: int = 0
    shards: int = 1
    data_dir: str = ""
    endpoint: str = ""
    listen_fd: int = -1
    walrus_fds: list[int] = field(default_factory=list)
    rog_fds: list[int] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] | None = None
    probe_auth: bool = False
    request_log: bool = False
    hosts: list[str] = field(default_factory=list)
    """Names that a request may give as its Host when nobody is asked for a key, besides those of this machine."""
    cors_origins: list[str] = field(default_factory=list)
    """Origins of other sites whose pages may use the service."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Gateway: from now on these keys are known and no others."""

    keys: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Shards:
    states: list[dict[str, Any]]

    @classmethod
    def of(cls, states: list[ShardState]) -> Shards:
        return cls([asdict(s) for s in states])

    def parsed(self) -> list[ShardState]:
        return [ShardState(**s) for s in self.states]


@dataclass(frozen=True, slots=True)
class Progress:
    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    pass


@dataclass(frozen=True, slots=True)
class Complete:
    """Gateway: every shard serves and has answered it, but those in phase `failed`; at least one does. Once in its
    life."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Gateway: refuse new work, finish what is in flight, answer `Drained`."""


@dataclass(frozen=True, slots=True)
class Drained:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    """Shard: sync, close, exit 0. Gateway: exit 0."""


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Pong:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    message: str


Control = Start | Keys | Shards | Progress | Ready | Complete | Drain | Drained | Stop | Ping | Pong | Failed
_TYPES: dict[str, type[Any]] = {
    t.__name__: t for t in (Start, Keys, Shards, Progress, Ready, Complete, Drain, Drained, Stop, Ping, Pong, Failed)
}


class ControlError(Exception):
    """Bytes on a control socket that are no control message."""


def encode(message: Control) -> bytes:
    payload = cbor2.dumps([type(message).__name__, asdict(message)])
    return LENGTH.pack(len(payload)) + payload


class Decoder:
    """Collects bytes, gives back whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Control]:
        self._buffer += data
        messages: list[Control] = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > MAX_CONTROL_BYTES:
                raise ControlError(f"control message of {length} bytes")
            end = LENGTH.size + length
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            try:
                name, fields = cbor2.loads(payload)
                messages.append(_TYPES[name](**fields))
            except (cbor2.CBORDecodeError, KeyError, TypeError, ValueError) as error:
                raise ControlError(f"not a control message: {error!r}") from error
        return messages
