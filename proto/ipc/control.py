"""Control messages between the supervisor and a child, over a socket pair that the child inherits.

On the wire: u32 little-endian length, then a map in MessagePack with the name of the message as `type`. A socket pair
is used rather than ZeroMQ, because end-of-file reports the death of the peer exactly and at once.

    supervisor → shard      Start(...), Shards([...]) and Askers({...}) at every change, TakeOver()*, Stop(); with other
                            machines Members({...}) and Orders(...) at every change
    supervisor → roster     Start(...), Shards([...]) and Local(...) at every change, Stop()
    supervisor → gateway    Start(...), Shards([...]) at every change, Keys([...]) and AuditLog() at every reload,
                            Retire(), Drain(), Stop()
    roster → supervisor,    Members({...}) at every change; passed on to shards and gateways
    supervisor → both       Ping()*, answered by Pong() from the child's event loop: the loop is not blocked
    between a gateway and   FiguresWanted(...), answered by OtherFigures(...)
    the supervisor          (`proto.ipc.gateway_figures`)
    gateway → supervisor    Suspected(...), passed on to the other gateways, if there are several
    shard → supervisor      Progress(...)*, Ready(), Failed(...); with other machines Followed(...), StepDone(...)
    roster → supervisor     Ready(), Members({...}) and Placement(...) at every change, Failed(...)
    gateway → supervisor    Ready(), Complete(), KeysTaken(...) for each Keys, Drained(), Failed(...)

`Failed` announces an exit that a restart alone does not repair (corrupt file, unknown format). The supervisor shows
the message and restarts the shard after a long pause. The shard is in phase `failed` until a restart succeeds. After
any other exit the supervisor restarts the child at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import reduce
from math import inf
from operator import or_

import msgspec
from msgspec import Struct

from proto.errors import ProtoError
from proto.ipc.figures import ShardFigures
from proto.ipc.gateway_figures import GatewayFigures
from proto.model.keys import Key
from proto.model.limits import Limits

LENGTH = struct.Struct("<I")
MAX_CONTROL_BYTES = 16 << 20
CONTROL_FD_VARIABLE = "TOPICS_CONTROL_FD"
"""Environment variable with the number of the inherited descriptor that is the child's control socket."""
EXIT_PERMANENT = 3
"""Exit status of a child that sent `Failed`."""
EXIT_DEPOSED = 4
"""Exit status of a shard that another machine holds now, or is to hold. It is started again at once, as a standby."""

PHASES = ("down", "standby", "open", "replay", "derive", "ready", "stopping", "failed", "elsewhere")
HELD_ELSEWHERE = frozenset({"standby", "elsewhere"})
"""Phases in which another machine holds the shard, or none does. In `elsewhere` no process here follows it."""


class Control(Struct, frozen=True, tag=True):
    """A control message."""


class ShardState(Struct, frozen=True):
    """State of one shard, as the supervisor publishes it to the gateway and the other shards.

    `endpoint` is different for every incarnation, so that messages queued for a dead process never reach its successor.
    """

    index: int
    phase: str = "down"
    endpoint: str = ""
    incarnation: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    hangs: int = 0
    """How often the supervisor killed the shard because it did not answer."""
    deaths: int = 0
    """How often the shard died without being asked to end, and not because another machine holds it."""
    holder: str = ""
    """In a phase of `HELD_ELSEWHERE`, the address of the machine that holds the shard, if one is known to."""
    term: int = 0
    """The term of this machine, if it holds the shard, see docs/design/replication.md."""
    damage: str = ""
    """In phase `standby`, what is damaged in the bucket."""
    in_hand: list[list[int]] = []
    """Until the shard serves again: what its last process died over, see `proto.ipc.in_hand`."""
    holder_at: str = ""
    """In a phase of `HELD_ELSEWHERE`, the endpoint at which the holder hears other machines; "" if it hears none."""
    holder_key: str = ""
    """The public key of the holder's process at that endpoint."""

    @property
    def progress(self) -> float:
        """Completed fraction of the boot, 0.0–1.0."""
        if self.phase == "ready":
            return 1.0
        return min(self.done_bytes / self.total_bytes, 1.0) if self.total_bytes else 0.0


class Machine(Struct, frozen=True):
    """A machine that the service has, or had."""

    name: str
    """Which its data directory keeps."""
    node: int
    """Its number, which it keeps for ever, and no other machine ever gets."""
    address: str = ""
    """Where clients reach it; "" if it is no member now."""


class Cluster(Struct, frozen=True):
    """What a process needs to hear other machines, and to be heard. See `proto.ipc.remote`."""

    machine: str
    """Begins the names of this machine's askers: `m` and a nonce of its supervisor."""
    public: str
    """The key pair of its askers."""
    secret: str
    listen: str = ""
    """Shard: the address to hear other machines on, host:port."""
    at: str = ""
    """Shard: under which host they find it: `tcp://host`."""
    members: dict[str, str] = {}
    """As in `Members`."""
    member: str = ""
    """The name of this machine, as in `Machine`."""
    place: str = ""
    """The running system and the directory in it."""
    rank: float = inf
    """As in `Orders`."""
    known: list[Machine] = []
    """As in `Members`."""

    def __repr__(self) -> str:
        return f"Cluster({self.machine}, {self.public})"


class Start(Control, frozen=True):
    """First message to a child: its whole configuration. With `keys=None` the gateway requires no key."""

    role: str
    limits: Limits
    index: int = 0
    shards: int = 1
    data_dir: str = ""
    created_ms: int = 0
    """When the data directory was created: identifies the service in a bucket."""
    address: str = ""
    """Where clients reach this machine, for the standbys of other machines to say."""
    endpoint: str = ""
    listen_fd: int = -1
    walrus_fds: list[int] = []
    rog_fds: list[int] = []
    states: list[ShardState] = []
    incarnation: int = 0
    askers: dict[str, int] = {}
    """As in `Askers`."""
    keys: list[Key] | None = None
    probe_auth: bool = False
    request_log: bool = False
    hosts: list[str] = []
    """Names accepted in a request's Host header when no key is required, besides those of this machine."""
    audit_fd: int = -1
    """Descriptor of the audit log, open for appending."""
    audit_fds: int = -1
    """Descriptor of a socket that a new one of these comes through, before `AuditLog`."""
    in_hand_fd: int = -1
    """Descriptor of the memory of `proto.ipc.in_hand`."""
    cors_origins: list[str] = []
    """Origins of other sites whose pages may use the service (CORS)."""
    gateways: int = 1
    """How many gateways divide memory and connections."""
    others_serve: bool = False
    """Gateway: accept connections once all shards are reached, because others serve them until then."""
    page_fd: int = -1
    """Descriptor of the memory of `proto.ipc.gateway_page`, -1 where there is one gateway."""
    places: list[int] = []
    """As in `Keys`."""
    cluster: Cluster | None = None
    """None if no other machine is to be heard or asked."""


class Keys(Control, frozen=True):
    """Gateway: replace the set of known keys by these. `places` are those of `proto.ipc.gateway_page`, if there are
    several gateways."""

    keys: list[Key]
    places: list[int] = []
    number: int = 0
    """Counts the reloads of the supervisor."""


class KeysTaken(Control, frozen=True):
    """Gateway: every request from now on is judged by the keys of this reload."""

    number: int


class AuditLog(Control, frozen=True):
    """Gateway: take the newer descriptor of the audit log from `Start.audit_fds`."""


class Shards(Control, frozen=True):
    states: list[ShardState]


class Askers(Control, frozen=True):
    """Shard: the first incarnation of each gateway and shard that may still live, by name. See `proto.ipc.askers`."""

    first: dict[str, int]


class Progress(Control, frozen=True):
    """Shard: what is new of its `ShardState`. A `term` of 0 leaves it as it was."""

    phase: str
    done_bytes: int
    total_bytes: int
    holder: str = ""
    term: int = 0
    damage: str = ""
    holder_at: str = ""
    holder_key: str = ""
    holder_term: int = 0
    """As in `Holder`."""


class Members(Control, frozen=True):
    """Roster, shard and gateway: the machines whose askers are heard, by public key."""

    machines: dict[str, str]
    known: list[Machine] = []
    """All that the service has, or had."""


class Step(Struct, frozen=True):
    """A step of a hand-over, see `shardd.roster.handover`."""

    shard: int
    term: int
    """The term that is given away."""
    move: int
    """Number of the move."""
    state: str
    """What the shard is to do: `saving`, `refusing` or `ending`."""


class StepDone(Control, frozen=True):
    """Shard: it has done a step."""

    move: int
    event: str
    """`saved`, `shipped` or `ended`."""


class Followed(Control, frozen=True):
    """Shard in phase `standby`: by how many seconds it is behind the log of its holder."""

    lag_s: float


class Holder(Struct, frozen=True):
    """The machine that holds a shard, as in `ShardState`, and its term; 0 if none is known to hold it."""

    holder: str = ""
    at: str = ""
    key: str = ""
    term: int = 0


class Placement(Control, frozen=True):
    """Roster: what it has decided. Before the first one, no shard is to be claimed."""

    ranks: list[float]
    """By shard, as in `Orders`."""
    step: Step | None = None
    """The step of a hand-over that is to be done; None takes back what was refused."""
    refused: bool = False
    """Another machine runs on a copy of this data directory: this one is to end."""
    wanted: list[int] | None = None
    """The shards that are to have a process on this machine; None leaves it as it is."""
    holders: list[Holder] = []
    """By shard."""
    moving: list[int] = []
    """The shards that are moved between machines, or are to be next."""


class Orders(Control, frozen=True):
    """Shard: what the roster has decided about it."""

    rank: float
    """How many machines are to claim the shard before this one; infinite if it is not to claim it."""
    step: Step | None = None
    """As in `Placement`, if it is this shard's."""
    moving: bool = False
    """Whether the shard is moved, or is to be next: the log's end, and the next term, are looked for often."""


class Local(Control, frozen=True):
    """Roster: what the shards of this machine have reported, and what an operator asks for."""

    lags: dict[int, float]
    """By shard that is followed, as in `Followed`."""
    done: StepDone | None = None
    """The last step that was done."""
    leaving: bool = False


class Ready(Control, frozen=True): ...


class Complete(Control, frozen=True):
    """Gateway: every shard serves and has answered the gateway, except those in phase `failed`; at least one serves.
    Sent once per gateway process."""


class Drain(Control, frozen=True):
    """Gateway: refuse new work, finish what is in flight, answer `Drained`."""


class Retire(Control, frozen=True):
    """Gateway: others serve new clients from now on. Accept no connection, serve what comes on those that are open, end
    each after its response, answer `Drained`."""


class Drained(Control, frozen=True): ...


class Stop(Control, frozen=True):
    """Shard: sync, close, exit 0. Gateway: exit 0."""


class TakeOver(Control, frozen=True):
    """Shard: take the shard over, whichever machine holds it."""


class Ping(Control, frozen=True): ...


class Pong(Control, frozen=True):
    figures: GatewayFigures | None = None
    """Of a gateway."""


class FiguresWanted(Control, frozen=True):
    """Gateway: what it counts itself, and a question for the others. `number` counts its questions."""

    number: int
    figures: GatewayFigures
    shards: dict[int, ShardFigures] = {}
    """What shards have answered to a scrape, without rows."""
    missing: list[int] = []
    """The shards that have not answered to it."""


class OtherFigures(Control, frozen=True):
    """Supervisor: the answer to the gateway's last question, of that `number`."""

    number: int
    figures: GatewayFigures
    shards: dict[int, ShardFigures] = {}
    """What each of the missing shards has answered last, to any gateway."""
    counted: dict[str, float] = {}
    """What all shards have counted, see `ShardFigures.counters`."""


class Suspected(Control, frozen=True):
    """Gateway: a process of a shard died over requests of another gateway, see `proto.ipc.suspects`. Supervisor: over
    requests of this one."""

    shard: int
    incarnation: int
    prints: list[str]


class Failed(Control, frozen=True):
    message: str


REPORTS = (Pong, KeysTaken, FiguresWanted, Suspected, Members, Placement, Followed, StepDone)
"""Messages of a child that concern others."""
_decode: Callable[[bytes], Control] = msgspec.msgpack.Decoder(reduce(or_, Control.__subclasses__())).decode


class ControlError(ProtoError):
    """Bytes on a control socket that are not a control message."""


def encode(message: Control) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(payload)) + payload


class Decoder:
    """Incremental decoder: collects bytes and returns whole messages. `feed` raises `ControlError`."""

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
                messages.append(_decode(payload))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
                raise ControlError(f"not a control message: {error!r}") from error
        return messages
