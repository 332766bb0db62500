"""Claims about frames with a map: every kind has its Struct, which writes the released bytes and reads older ones."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from proto.format.frame import Frame, Header, Kind, encode_map
from proto.format.map_body import MapBody
from shardd import frames
from shardd.frames import FORMS, SHARD_FORMS, ShardFrame, TopicFrame, shard_frame, topic_frame
from shardd.recovery.replay import replay
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage.wal import Rescued
from shardd.topic.directory import Directory
from tests.support.harness import Harness

ROOT = Path(__file__).parents[3]
UNKNOWN: Any = max(Kind) + 1
CONFIG = {"type": "log", "ttl_ms": 0}
LANE = {"source": "s", "epoch": 2, "cursor": 5, "version": 1, "stopped": False, "routers": []}
SESSION = {"wid": "w", "owner": b"o", "options": {}, "topics": {"t": [1, 2, 3]}, "generation": 0}
BYTES: list[tuple[MapBody, dict[str, Any]]] = [
    (frames.TopicCreated("t", 3, CONFIG), {"name": "t", "epoch": 3, "config": CONFIG}),
    (
        frames.TopicCreated("t", 3, CONFIG, 65_536, "boot"),
        {"name": "t", "epoch": 3, "config": CONFIG, "ceiling": 65_536, "boot": "boot"},
    ),
    (
        frames.TopicConfigured(CONFIG, 9, 4, 2, -1),
        {"config": CONFIG, "now": 9, "next_seq": 4, "floor": 2, "lost": -1},
    ),
    (frames.TopicDeleted("t"), {"name": "t"}),
    (
        frames.RecordsDeleted(4, ("Eq", b"x"), 9, 7),
        {"before": 4, "match": ["Eq", b"x"], "bound": 9, "now": 7},
    ),
    (
        frames.RecordsDeleted(None, None, 9, 7, [1, 2], 2),
        {"before": None, "match": None, "bound": 9, "now": 7, "seqs": [1, 2], "dead_lettered": 2},
    ),
    (frames.Ceiling(9, "", 4), {"seq": 9, "boot": "", "next_seq": 4}),
    (frames.Floor(9, 4), {"floor": 9, "now": 4}),
    (frames.CursorMoved("c", 4, 9, False), {"name": "c", "seq": 4, "ts": 9, "force": False}),
    (
        frames.CursorMoved("c", 4, 9, False, b"12345678"),
        {"name": "c", "seq": 4, "ts": 9, "force": False, "maker": b"12345678"},
    ),
    (frames.CursorDeleted("c"), {"name": "c", "seq": None}),
    (frames.Leases(rows=[[1, 2, 3, "n", 4, 5]]), {"rows": [[1, 2, 3, "n", 4, 5]]}),
    (frames.Leases(forget=True), {"forget": True}),
    (frames.Leases(letters=[[1, "t", 2]]), {"letters": [[1, "t", 2]]}),
    (frames.Leases(called_back=[1]), {"called_back": [1]}),
    (
        frames.Leases(rows=[[1, 1, 2, "", 4, 5]], reasons=[[1, "why"]]),
        {"rows": [[1, 1, 2, "", 4, 5]], "reasons": [[1, "why"]]},
    ),
    (frames.Leases(set_back=(9, 4)), {"set_back": [9, 4]}),
    (frames.RoutersChanged(LANE), {"lane": LANE}),
    (
        frames.Pin(5, 4, 9, 1, True, False),
        {"pin": 5, "head": 4, "ts": 9, "version": 1, "exact": True, "stopped": False},
    ),
    (frames.WatchSessions(made=SESSION), {"made": SESSION}),
    (frames.WatchSessions(moved={"w": [1, {"t": [1, 2, 3]}]}), {"moved": {"w": [1, {"t": [1, 2, 3]}]}}),
    (frames.WatchSessions(ended=["w"]), {"ended": ["w"]}),
    (frames.WatchSessions(taken={"w": 2}), {"taken": {"w": 2}}),
    (frames.RogLog("l", 3), {"name": "l", "partitions": 3}),
    (Rescued(2), {"given_up": 2}),
]
"""A body of each form, and the map that a frame had before there were Structs."""
OLDER: list[tuple[Kind, dict[str, Any], MapBody]] = [
    (Kind.CEILING, {"seq": 1000}, frames.Ceiling(1000)),
    (Kind.TOPIC_CONFIG, {"config": CONFIG, "now": 2, "next_seq": 6}, frames.TopicConfigured(CONFIG, 2, 6)),
    (Kind.ROUTER, {"pin": 5, "head": 4, "ts": 9, "version": 1, "exact": True}, frames.Pin(5, 4, 9, 1, True)),
]
"""Maps that releases before wrote, and that must be read."""


def decoded(kind: Kind, fields: dict[str, Any]) -> MapBody:
    raw = _raw(encode_map(kind, 1, fields, 0))
    return (shard_frame if kind in SHARD_FORMS else topic_frame)(raw, Header(raw))


def _found(frame: Frame) -> tuple[Header, bytes]:
    raw = _raw(frame)
    return Header(raw), raw


def _raw(frame: Frame) -> bytes:
    return frame.head + frame.tail


def test_every_kind_has_its_forms() -> None:
    """A batch is no map, and RESCUED says nothing of topics."""
    assert SHARD_FORMS.keys() | FORMS.keys() == set(Kind) - {Kind.BATCH, Kind.RESCUED}
    assert not SHARD_FORMS.keys() & FORMS.keys()
    assert {type(body) for body, _ in BYTES} == {
        *SHARD_FORMS.values(),
        *(f for each in FORMS.values() for f in each),
        Rescued,
    }


@pytest.mark.parametrize("kind", [*SHARD_FORMS, *FORMS])
def test_every_form_says_its_kind_and_what_it_does(kind: int) -> None:
    for form in FORMS.get(kind, ()):
        assert (form.kind, form.apply is TopicFrame.apply) == (kind, False)
    if kind in SHARD_FORMS:
        assert (SHARD_FORMS[kind].kind, SHARD_FORMS[kind].apply is ShardFrame.apply) == (kind, False)


@pytest.mark.parametrize("kind", FORMS)
def test_the_last_form_of_a_kind_takes_what_no_other_has(kind: int) -> None:
    assert FORMS[kind][-1].has({"seq": 1})


@pytest.mark.parametrize(("body", "fields"), BYTES, ids=lambda value: type(value).__name__)
def test_a_body_writes_the_bytes_of_its_map(body: MapBody, fields: dict[str, Any]) -> None:
    assert _raw(body.encode(7, 8, frame_no=9, synced_no=6)) == _raw(
        encode_map(body.kind, 7, fields, 8, frame_no=9, synced_no=6)
    )


@pytest.mark.parametrize(("body", "fields"), BYTES[:-1], ids=lambda value: type(value).__name__)
def test_a_body_is_read_back_whatever_else_the_map_has(body: MapBody, fields: dict[str, Any]) -> None:
    assert decoded(body.kind, fields) == body
    assert decoded(body.kind, {**fields, "of_a_later_release": [1]}) == body


@pytest.mark.parametrize(("kind", "fields", "body"), OLDER, ids=lambda value: type(value).__name__)
def test_maps_of_older_releases_are_read(kind: Kind, fields: dict[str, Any], body: MapBody) -> None:
    assert decoded(kind, fields) == body


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.TOPIC_CONFIG, {"now": 2}),
        (Kind.CURSOR, {"name": "c"}),
        (Kind.CURSOR, {"name": "c", "seq": 1, "ts": "noon", "force": False}),
        (UNKNOWN, {}),
    ],
)
def test_a_map_that_is_none_of_its_kind_ends_the_start(kind: Kind, fields: dict[str, Any]) -> None:
    harness = Harness()
    harness.append("t", 1)
    frame = encode_map(kind, harness.shard.directory.visible["t"].id, fields, 0, frame_no=99)
    with pytest.raises(RecoveryError, match="frame 99"):
        replay(harness.shard.directory, *_found(frame))


def test_an_unknown_kind_of_no_topic_ends_the_start() -> None:
    with pytest.raises(
        RecoveryError, match=f"frame 1 of the log is of kind {UNKNOWN}, which this release does not know"
    ):
        replay(Directory(), *_found(encode_map(UNKNOWN, 0, {}, 0, frame_no=1)))


def test_a_frame_of_a_deleted_topic_changes_nothing() -> None:
    directory = Directory()
    directory.used_id(4)
    replay(directory, *_found(frames.Ceiling(9).encode(3, 0, frame_no=1)))
    assert not directory.by_id


def test_only_the_structs_write_and_read_maps() -> None:
    users: dict[str, set[str]] = {"encode_map": set(), "decode_map": set()}
    for package in ("proto", "gateway", "shardd", "supervisor"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                called = node.func if isinstance(node, ast.Call) else None
                name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                if name in users:
                    users[name].add(str(path.relative_to(ROOT)))
    assert users == {"encode_map": {"proto/format/map_body.py"}, "decode_map": {"shardd/frames.py"}}
