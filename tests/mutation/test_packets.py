"""Claims about packets and control messages between processes: bytes that are none are refused, and a value that a type
cannot hold fails its sender, never the messages of others in the same packet."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from random import Random
from typing import Any

import msgspec
import pytest

from proto.ipc import control
from proto.ipc.control import (
    Cluster,
    ControlError,
    Decoder,
    FiguresWanted,
    OtherFigures,
    Shards,
    ShardState,
    Start,
    encode,
)
from proto.ipc.figures import ReplicaFigures, ShardFigures, SyncHistogram, TopicRow
from proto.ipc.gateway_figures import GatewayFigures, ProtocolFigures
from proto.ipc.message import (
    INLINE_BYTES,
    Cancel,
    MessageError,
    NoMore,
    Packing,
    Parked,
    Reply,
    Request,
    Status,
    Taken,
    unpack,
)
from proto.ipc.operations import TABLE, Ping
from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key
from proto.model.limits import Limits
from tests.mutation import values
from tests.support.packed import pack

SEED = int(os.environ.get("TOPICS_TEST_SEED", "7"))
EDITS = 60
INTEGERS = (-(2**64), -(2**63) - 1, -(2**63), -1, 0, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400)
UNSIGNED = tuple(number for number in INTEGERS if number >= 0)
TEXTS = ("", "a", "\0", "é\U0010ffff", "\ud800", "a\udfffb", "x" * 70_000)
BYTES = (b"", b"\0\xff", b"x" * 70_000)
NUMBERS = (0.0, -0.0, 1e308, float("inf"), float("nan"))
DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]


def edges(kind: Any) -> Iterator[Any]:
    """Values around the ends of a type, whatever the type says of them."""
    info = msgspec.inspect.type_info(kind) if not isinstance(kind, msgspec.inspect.Type) else kind
    match info:
        case msgspec.inspect.IntType():
            yield from INTEGERS
        case msgspec.inspect.StrType():
            yield from TEXTS
        case msgspec.inspect.BytesType():
            yield from BYTES
        case msgspec.inspect.BoolType():
            yield from (True, False)
        case msgspec.inspect.NoneType():
            yield None
        case msgspec.inspect.FloatType():
            yield from NUMBERS
        case msgspec.inspect.UnionType():
            for each in info.types:
                yield from edges(each)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType() | msgspec.inspect.CollectionType():
            yield ()
            for value in edges(info.item_type):
                yield (value,)
        case msgspec.inspect.TupleType():
            for index, item in enumerate(info.item_types):
                for value in edges(item):
                    yield tuple(value if n == index else plain(each) for n, each in enumerate(info.item_types))
        case msgspec.inspect.DictType():
            yield {}
            for value in edges(info.key_type):
                yield {value: plain(info.value_type)}
            for value in edges(info.value_type):
                yield {plain(info.key_type): value}
        case msgspec.inspect.StructType() | msgspec.inspect.NamedTupleType():
            for field in info.fields:
                for value in edges(field.type):
                    yield info.cls(**{each.name: plain(each.type) for each in info.fields} | {field.name: value})
        case msgspec.inspect.AnyType():
            yield from (*INTEGERS, *TEXTS[:6], *NUMBERS[:4], None, [1], {"\ud800": 1}, {"a": 2**64}, DEEP)
        case _:
            raise AssertionError(f"{info} has no edges here")


def plain(kind: Any) -> Any:
    """A usual value of a type."""
    wanted = kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)
    match wanted:
        case msgspec.inspect.IntType() | msgspec.inspect.AnyType():
            return 1
        case msgspec.inspect.StrType():
            return "a"
        case msgspec.inspect.BytesType():
            return b"a"
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.FloatType():
            return 1.5
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.UnionType():
            return plain(wanted.types[0])
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType() | msgspec.inspect.CollectionType():
            return (plain(wanted.item_type),)
        case msgspec.inspect.TupleType():
            return tuple(map(plain, wanted.item_types))
        case msgspec.inspect.DictType():
            return {plain(wanted.key_type): plain(wanted.value_type)}
        case msgspec.inspect.StructType() | msgspec.inspect.NamedTupleType():
            return wanted.cls(**{each.name: plain(each.type) for each in wanted.fields})
        case _:
            raise AssertionError(f"{wanted} has no usual value here")


def variants(kind: type[msgspec.Struct]) -> Iterator[msgspec.Struct]:
    """Values of a Struct with one field at an edge, the others usual."""
    fields = msgspec.structs.fields(kind)
    usual = {field.name: plain(field.type) for field in fields}
    yield kind(**usual)
    for field in fields:
        for value in edges(field.type):
            yield kind(**{**usual, field.name: value})


KINDS = sorted(
    {each for row in TABLE for each in (row.request, row.answer) if each is not None}, key=lambda kind: kind.__name__
)


def carried(one: Any) -> bool:
    """Send a message between two others. Returns whether it arrived; the others do in any case."""
    packing = Packing()
    packing.add(Cancel(1))
    try:
        packing.add(one)
        added = True
    except (ValueError, OverflowError, TypeError, RecursionError, NotImplementedError):
        added = False  # UnicodeEncodeError is a ValueError
    packing.add(Parked(2))
    assert packing.count == 2 + added
    packet = unpack(packing.frames(Status()))
    ends = packet.messages[0], packet.messages[-1]
    assert ends == (Cancel(1), Parked(2))
    assert len(packet.messages) == packing.count
    return added


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_operation_or_answer_at_the_edges_of_its_types_arrives_or_fails_its_sender_alone(kind: Any) -> None:
    request = any(row.request is kind for row in TABLE)
    for number, one in enumerate(variants(kind)):
        sent: Any = Request(7, one, "topic", b"{}") if request else Reply(7, b"{}", extra=one)
        assert carried(sent) or number, f"{one!r} is usual and was not sent"


def test_requests_and_replies_at_the_edges_of_their_types_arrive_or_fail_their_senders_alone() -> None:
    usual = {"id": 1, "topic": "t", "body": b"{}", "traceparent": "", "deadline_ns": 0}
    for name, awkward in (("id", UNSIGNED), ("topic", TEXTS), ("body", BYTES), ("deadline_ns", UNSIGNED)):
        for value in awkward:
            carried(Request(**{**usual, name: value}, options=Ping()))
    for kind in (Cancel, Parked, Taken):
        for value in UNSIGNED if kind is Taken else INTEGERS:
            carried(kind(value))
    for figure in (*INTEGERS, *NUMBERS):
        carried(Reply(1, b"{}", performance={"a_ms": figure}))
        for detail in ({"a": figure}, {"a": [figure]}, {"\ud800": 1}, {"a": "\ud800"}, {"a": DEEP}):
            carried(Reply(1, error=TopicsError(ErrorCode.INTERNAL, "m", detail)))
        if isinstance(figure, int):
            carried(Reply(1, error=TopicsError(ErrorCode.INTERNAL, "m", retry_after_ms=figure)))
    for text in TEXTS:
        carried(Reply(1, error=TopicsError(ErrorCode.INTERNAL, text)))
    for body in (b"x" * INLINE_BYTES, b"x" * (INLINE_BYTES + 1)):
        assert carried(Reply(1, body))


@pytest.mark.parametrize("bent", [Request(-1, Ping()), Request(-(2**63), Ping()), Taken(-1)])
def test_a_negative_number_is_none_of_ours(bent: Request[Any] | Taken) -> None:
    with pytest.raises(MessageError):
        unpack(pack([bent]))


def packets() -> Iterator[list[bytes]]:
    """Real packets, as the gateway and a shard send them."""
    requests = [
        Request(number, kind(**{f.name: plain(f.type) for f in msgspec.structs.fields(kind)}), "t", b"{}")
        for number, kind in enumerate(row.request for row in TABLE)
    ]
    yield pack([*requests, Cancel(5), Taken(7), NoMore()])
    yield pack([requests[0], Request(1, Ping(), "t", b"x" * 9000)])
    error = TopicsError(ErrorCode.TOPIC_FULL, "m", {"a": [1]}, retry_after_ms=5)
    yield pack([Reply(1, b"{}", performance={"a": 1.5}), Reply(2, error=error), Parked(3)], Status(1, 2, 3))


def refused(frames: list[bytes]) -> None:
    try:
        packet = unpack(frames)
    except MessageError:
        return
    assert all(isinstance(each.id, int) for each in packet.messages)


def test_bytes_that_are_no_packet_are_refused_and_raise_nothing_else() -> None:
    random = Random(SEED)
    for frames in packets():
        assert len(unpack(frames).messages) >= 2
        for cut in values.cuts(frames[0]):
            refused([cut, *frames[1:]])
        for _ in range(EDITS * 20):
            refused([values.edited(frames[0], random, bytes(range(256))), *frames[1:]])
        for others in ([], [b""], [b"x"] * 3):
            refused([frames[0], *others])
        content = msgspec.msgpack.decode(frames[0])
        for at in values.places(content):
            for awkward in (-1, 2**63, 2**64 - 1, None, True, 1.5, "x", "\0", b"x", [], [[]], {}, {"a": 1}):
                refused([msgspec.msgpack.encode(values.put(content, at, awkward)), *frames[1:]])
    for raw in (b"", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1", b"\xdf\xff\xff\xff\xff"):
        refused([raw])
    refused([msgspec.msgpack.encode([3, [[1, ["diff"], "t", b""]], [], [2**63]]), b"x"])
    refused([msgspec.msgpack.encode([3, [[1, ["diff"], "t", b""]], [], [-1]]), b"x"])


ROG = ProtocolFigures("rog", 1, [("PUT", "ok", 2)])
GATEWAY = GatewayFigures(1, 0, [("append", 200, 3)], {"append": 1}, 2, 3, 4, [ROG])
SHARD = ShardFigures(
    topics_by_class={"fsync": 1},
    internal_errors={"append": 1},
    per_topic=[TopicRow("a", 3, 1, 2, 90)],
    replica=ReplicaFigures("leads", 1),
    fsync_us=SyncHistogram((1.0,), (2, 3), 4.5),
)


def controls() -> Iterator[bytes]:
    for kind in control.Control.__subclasses__():
        fields = {"role": "shard", "limits": Limits(), "keys": [], "states": [], "message": "m", "phase": "open"}
        fields |= {"done_bytes": 1, "total_bytes": 2, "first": {"g0": 1}}
        fields |= {"shard": 1, "incarnation": 2, "prints": ["p"]}
        fields |= {"number": 1, "figures": GATEWAY, "machines": {"key": "m1"}}
        fields |= {"move": 1, "event": "saved", "lag_s": 0.5, "ranks": [0.0, inf], "rank": 1.0, "lags": {1: 0.5}}
        fields |= {"step": control.Step(1, 2, 3, "saving"), "known": [control.Machine("one", 1)]}
        named = {name: value for name, value in fields.items() if name in kind.__struct_fields__}
        yield encode(kind(**named))
    yield encode(Shards([ShardState(0, "ready", "ipc://x", 1)]))
    cluster = Cluster("m1", "public", "secret", "127.0.0.1:0", "tcp://127.0.0.1", {"key": "m1"})
    yield encode(Start("shard", Limits(), cluster=cluster))
    keys = [Key(bytes(32))]
    yield encode(Start("gateway", Limits(max_claim=5), keys=keys, hosts=["a"]))
    yield encode(Start("gateway", Limits(), keys=keys, gateways=3, others_serve=True, page_fd=9, places=[0]))
    yield encode(control.Keys(keys, [-1], 2))
    yield encode(FiguresWanted(1, GATEWAY, {0: SHARD}, [1]))
    yield encode(OtherFigures(1, GATEWAY, {0: SHARD}))


def fed(raw: bytes) -> None:
    decoder = Decoder()
    try:
        decoder.feed(raw[:3])
        decoder.feed(raw[3:])
    except ControlError:
        pass


def test_bytes_that_are_no_control_message_are_refused_and_raise_nothing_else() -> None:
    random = Random(SEED)
    for raw in controls():
        assert len(Decoder().feed(raw)) == 1
        for cut in values.cuts(raw[4:]):
            fed(struct.pack("<I", len(cut)) + cut)
        for _ in range(EDITS * 4):
            bent = values.edited(raw[4:], random, bytes(range(256)))
            fed(struct.pack("<I", len(bent)) + bent)
            fed(values.edited(raw, random, bytes(range(256))))
        content = msgspec.msgpack.decode(raw[4:])
        for at in values.places(content):
            for awkward in (*values.EDGES, None, True, 1.5, "x", b"x", [], [[]], {}, {"a": 1}, {1: 2}):
                with suppress(OverflowError, UnicodeEncodeError):  # of values that MessagePack does not have
                    bent = msgspec.msgpack.encode(values.put(content, at, awkward))
                    fed(struct.pack("<I", len(bent)) + bent)
    odd = (
        b"\x91" * 100_000 + b"\x00",
        b"\xdd" + b"\xff" * 4,
        b"\xdf" + b"\xff" * 4,
        b"\xc6" + b"\xff" * 4,
        b"\xdb" + b"\xff" * 4,
        b"\xc1",
        b"\xd6\xff" + b"\0" * 4,
        b"\xc7\xff\x01",
    )
    named = b"\xa4type" + msgspec.msgpack.encode("Start")
    for inner in (*odd, b"\xcb" + b"\xff" * 8, b"\x82\xc0\xc0\xc0\xc0", b"\xa1\xff"):
        for bent in (inner, b"\x82" + named + b"\xa4role" + inner, b"\x82" + inner + named, b"\x81\xa4type" + inner):
            fed(struct.pack("<I", len(bent)) + bent)
