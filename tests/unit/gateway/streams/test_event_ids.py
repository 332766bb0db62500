"""Claims about event ids: they hold the position of every topic, and only ever move a session back."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.streams.event_ids import (
    GONE,
    MAX_MAP_TOPICS,
    MAX_POSITION,
    TOLD,
    Ids,
    Position,
    decode,
    mark,
    rewound,
)
from gateway.streams.sse import LAST_EVENT_ID
from proto.model.errors import ErrorCode, TopicsError

SEQS = st.integers(0, MAX_POSITION)
NAMES = st.from_regex("[abc09][abc:09-]{0,11}", fullmatch=True)


def test_the_id_is_the_map_of_all_positions() -> None:
    text = Ids({"jobs": 5210, "events": 88130}, 0).current().decode()
    assert "=" not in text
    assert json.loads(base64.urlsafe_b64decode(text + "==")) == {"jobs": 5210, "events": 88130}


@given(st.dictionaries(NAMES, SEQS, min_size=1, max_size=2 * MAX_MAP_TOPICS), st.integers(0, 9))
def test_every_id_says_what_went_into_it(seqs: dict[str, int], generation: int) -> None:
    assert decode(Ids(seqs, generation).current().decode(), seqs) == (generation, seqs, frozenset())


def test_ids_of_many_topics_fit_into_a_header() -> None:
    seqs = {f"{'x' * 240}:{n}": n * 10**9 for n in range(256)}
    ident = Ids(seqs, 3).current()
    assert ident.startswith(b"p.")
    assert len(ident) < 6000


def test_a_new_watch_of_other_topics_gives_each_topic_its_own_position() -> None:
    seqs = {f"t{n:02}": 100 + n for n in range(70)}
    cursor = Ids(seqs, 2).current().decode()
    others = [*(name for name in seqs if name != "t00"), "t70"]
    assert decode(cursor, others) == (2, {name: seqs[name] for name in others[:-1]}, frozenset([mark("t00")]))
    fewer = {name: seq for name, seq in seqs.items() if name != "t69"}
    assert decode(Ids(fewer, 0).current().decode(), seqs) == (0, fewer, frozenset())


def test_a_token_without_names_is_read_for_its_own_session_only() -> None:
    token = list_of(0, 1, 2)
    assert decode(token, {"a", "b"}, field=LAST_EVENT_ID) == (0, {"a": 1, "b": 2}, frozenset())
    with pytest.raises(TopicsError, match="cursor is not"):
        decode(token, {"a", "b"})


def test_positions_that_move_are_beside_their_own_topics() -> None:
    seqs = {f"t{n:02}": n for n in reversed(range(70))}
    ids = Ids(seqs, 0)
    for name in ("t33", "t05", "t69"):
        ids.seqs[name] += 1000
    assert decode(ids.current().decode(), seqs).seqs == ids.seqs


@given(st.text())
def test_anything_may_come_as_an_id(text: str) -> None:
    with pytest.raises(TopicsError) as caught:
        decode(text, {"a"})
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def id_of(raw: bytes, form: str = "") -> str:
    return form + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def list_of(*content: object) -> str:
    return id_of(msgspec.msgpack.encode(content), "c.")


def marked_of(*content: object) -> str:
    return id_of(msgspec.msgpack.encode(content), "p.")


MAP = id_of(b'{"a":1}')
MARKED = (0, mark("a"), [1])
assert decode(MAP, {"a"}) == decode(MAP + "=" * (-len(MAP) % 4), {"a"}) == (0, {"a": 1}, frozenset())
assert decode(marked_of(*MARKED), {"a"}) == (0, {"a": 1}, frozenset())


@pytest.mark.parametrize(
    "text",
    [
        *map(id_of, (b"", b"[]", b"1", b"{}", b'{"a":-1}', b'{"a":1.0}', b'{"a":true}', b'{"a":"1"}', b'{"a":null}')),
        *map(id_of, (b'{"a":9223372036854775808}', b'{"a":18446744073709551616}', b'{"a":1e3}', b'{"a":-0}')),
        *map(id_of, (b'{"a":1,"a":2}', b'{"a":1,"\\u0061":1}', b'{"a":1,"../b":1}', b'{"a":1,"":1}', b'{"other":1}')),
        *map(id_of, (b'{"a":1,"$generation":-1}', b'{"a":1,"$generation":9223372036854775808}', b'{"a":1}}')),
        id_of(b'{"a":' + b"[" * 100_000),
        MAP + "===",
        MAP[:-1] + chr(ord(MAP[-1]) + 1),
        MAP + "\n",
        " " + MAP,
        list_of(),
        *(list_of(*each) for each in ([0], [0, 1, 2], [-1, 1], [2**63, 1], [0, -1], [0, 2**63], [0, 1.0], [0, True])),
        id_of(msgspec.msgpack.encode([0, 1]) + b"x", "c."),
        id_of(b"\x92\x00\xcc\x01", "c."),
        *(marked_of(*each) for each in ([-1, mark("a"), [1]], [2**63, mark("a"), [1]], [0, mark("a"), [-1]])),
        *(marked_of(*each) for each in ([0, mark("a"), [2**63]], [0, mark("a"), [1, 2]], [0, mark("a")[:5], [1]])),
        *(marked_of(*each) for each in ([0, mark("a") * 2, [1, 2]], [0, mark("b"), [1]], [0, mark("a"), [True]], [0])),
        "c.",
        "p.",
        "x." + MAP,
    ],
)
def test_an_id_that_no_stream_could_have_made_is_400(text: str) -> None:
    for field in ("cursor", LAST_EVENT_ID):
        with pytest.raises(TopicsError, match=f"{field} is not the id of a frame") as caught:
            decode(text, {"a"}, field=field)
        assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_an_id_of_topics_outside_of_the_prefix_is_400() -> None:
    assert decode(id_of(b'{"a:deleted":1}'), (), "a:").unknown == {mark("a:deleted")}
    assert decode(id_of(b"{}"), (), "a:") == (0, {}, frozenset())
    assert decode(id_of(b'{"named":1}'), {"named"}, "a:").seqs == {"named": 1}
    with pytest.raises(TopicsError):
        decode(id_of(b'{"b:1":1}'), {"named", "a:1"}, "a:")


def rewound_by(positions: dict[str, Position], text: str, *, growing: bool = False) -> dict[str, Position]:
    return rewound(positions, decode(text, positions, "" if growing else None), growing=growing)


def test_an_id_takes_back_and_never_forward() -> None:
    positions = {"a": Position(1, 5, 0), "b": Position(2, 5, 0), "c": Position(3, 5, 0)}
    ident = Ids({"a": 3, "b": 9, "other": 1}, 0).current().decode()
    assert rewound_by(positions, ident) == {**positions, "a": Position(1, 3, 0)}


def test_an_id_from_before_a_topic_was_made_anew_means_its_beginning() -> None:
    positions = {"a": Position(9, 5, 1), "b": Position(2, 5, 0)}
    for seq in (3, 5, 700):
        before = Ids({"a": seq, "b": 4}, 0).current().decode()
        assert rewound_by(positions, before) == {"a": Position(GONE, 0, 1), "b": Position(2, 4, 0)}
    after = Ids({"a": 3, "b": 5}, 1).current().decode()
    assert rewound_by(positions, after) == {"a": Position(9, 3, 1), "b": Position(2, 5, 0)}


def test_a_token_of_another_number_of_topics_is_400() -> None:
    many = {f"t{n}": n for n in range(MAX_MAP_TOPICS + 1)}
    with pytest.raises(TopicsError):
        decode(Ids(many, 0).current().decode(), {"a": 1})


@given(st.dictionaries(NAMES, SEQS, max_size=2 * MAX_MAP_TOPICS), st.integers(0, 9), st.sets(NAMES, max_size=3))
def test_an_id_of_a_prefix_says_which_topics_it_holds(seqs: dict[str, int], generation: int, later: set[str]) -> None:
    text = Ids(seqs, generation, growing=True).current().decode()
    gone = set(sorted(seqs)[:1])
    found = decode(text, (seqs.keys() | later) - gone, "")
    assert found.generation == generation
    assert {name: found.seqs[name] for name in seqs.keys() - gone} == {n: s for n, s in seqs.items() if n not in gone}
    assert not found.seqs.keys() & (later - seqs.keys())
    assert found.unknown == frozenset(map(mark, gone))


def test_a_topic_that_an_id_of_a_prefix_does_not_hold_goes_back_to_its_beginning() -> None:
    positions = {"old": Position(1, 9, 0), "later": Position(2, 9, 1), "told": Position(TOLD, 9, 1)}
    positions["told early"] = Position(TOLD, 9, 2)
    text = Ids({"old": 5}, 1, growing=True).current().decode()
    assert rewound_by(positions, text, growing=True) == {
        "old": Position(1, 5, 0),
        "later": Position(2, 0, 1),
        "told": Position(TOLD, 9, 1),
        "told early": Position(GONE, 0, 2),
    }
    assert rewound_by(positions, text)["later"] == positions["later"]


def test_an_id_of_a_prefix_from_before_a_topic_was_made_again_means_its_beginning() -> None:
    text = Ids({"a": 500}, 0, growing=True).current().decode()
    assert rewound_by({"a": Position(7, 900, 1)}, text, growing=True) == {"a": Position(GONE, 0, 1)}


def test_marked_ids_of_many_topics_fit_into_a_header() -> None:
    seqs = {f"{'x' * 240}:{n}": n * 10**9 for n in range(256)}
    ident = Ids(seqs, 3, growing=True).current()
    assert ident.startswith(b"p.")
    assert len(ident) < 6000
