"""Claims about event ids: they hold the position of every topic, and only ever move a session back."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.streams.event_ids import (
    GONE,
    MAX_MAP_TOPICS,
    TOLD,
    GrowingIds,
    Ids,
    Position,
    decode,
    mark,
    rewound,
)

SEQS = st.integers(0, 2**63)
NAMES = st.text("abc:-09", min_size=1, max_size=12)


def test_the_id_is_the_map_of_all_positions() -> None:
    text = Ids({"jobs": 5210, "events": 88130}, 0).current().decode()
    assert "=" not in text
    assert json.loads(base64.urlsafe_b64decode(text + "==")) == {"jobs": 5210, "events": 88130}


@given(st.dictionaries(NAMES, SEQS, min_size=1, max_size=2 * MAX_MAP_TOPICS), st.integers(0, 9))
def test_every_id_says_what_went_into_it(seqs: dict[str, int], generation: int) -> None:
    assert decode(Ids(seqs, generation).current().decode(), seqs) == (generation, seqs, frozenset())


def test_ids_of_many_topics_fit_into_a_header() -> None:
    seqs = {f"{'x' * 240}:{n}": n * 10**9 for n in range(256)}
    assert len(Ids(seqs, 3).current()) < 4096


@given(st.text())
def test_anything_may_come_as_an_id(text: str) -> None:
    positions = {"a": Position(1, 5, 0)}
    assert rewound(positions, text)["a"].seq <= 5


def test_an_id_takes_back_and_never_forward() -> None:
    positions = {"a": Position(1, 5, 0), "b": Position(2, 5, 0), "c": Position(3, 5, 0)}
    ident = Ids({"a": 3, "b": 9, "other": 1}, 0).current().decode()
    assert rewound(positions, ident) == {**positions, "a": Position(1, 3, 0)}


def test_an_id_from_before_a_topic_was_made_anew_means_its_beginning() -> None:
    positions = {"a": Position(9, 5, 1), "b": Position(2, 5, 0)}
    for seq in (3, 5, 700):
        before = Ids({"a": seq, "b": 4}, 0).current().decode()
        assert rewound(positions, before) == {"a": Position(GONE, 0, 1), "b": Position(2, 4, 0)}
    after = Ids({"a": 3, "b": 5}, 1).current().decode()
    assert rewound(positions, after) == {"a": Position(9, 3, 1), "b": Position(2, 5, 0)}


def test_a_token_of_another_number_of_topics_says_nothing() -> None:
    many = {f"t{n}": n for n in range(MAX_MAP_TOPICS + 1)}
    assert decode(Ids(many, 0).current().decode(), {"a": 1}) is None


@given(st.dictionaries(NAMES, SEQS, max_size=2 * MAX_MAP_TOPICS), st.integers(0, 9), st.sets(NAMES, max_size=3))
def test_an_id_of_a_prefix_says_which_topics_it_holds(seqs: dict[str, int], generation: int, later: set[str]) -> None:
    text = GrowingIds(seqs, generation).current().decode()
    gone = set(sorted(seqs)[:1])
    found = decode(text, (seqs.keys() | later) - gone)
    assert found is not None
    assert found.generation == generation
    assert {name: found.seqs[name] for name in seqs.keys() - gone} == {n: s for n, s in seqs.items() if n not in gone}
    assert not found.seqs.keys() & (later - seqs.keys())
    assert found.unknown == frozenset(map(mark, gone))


def test_a_topic_that_an_id_of_a_prefix_does_not_hold_goes_back_to_its_beginning() -> None:
    positions = {"old": Position(1, 9, 0), "later": Position(2, 9, 1), "told": Position(TOLD, 9, 1)}
    positions["told early"] = Position(TOLD, 9, 2)
    text = GrowingIds({"old": 5}, 1).current().decode()
    assert rewound(positions, text, growing=True) == {
        "old": Position(1, 5, 0),
        "later": Position(2, 0, 1),
        "told": Position(TOLD, 9, 1),
        "told early": Position(GONE, 0, 2),
    }
    assert rewound(positions, text)["later"] == positions["later"]


def test_an_id_of_a_prefix_from_before_a_topic_was_made_again_means_its_beginning() -> None:
    text = GrowingIds({"a": 500}, 0).current().decode()
    assert rewound({"a": Position(7, 900, 1)}, text, growing=True) == {"a": Position(GONE, 0, 1)}


def test_marked_ids_of_many_topics_fit_into_a_header() -> None:
    seqs = {f"{'x' * 240}:{n}": n * 10**9 for n in range(256)}
    ident = GrowingIds(seqs, 3).current()
    assert ident.startswith(b"p.")
    assert len(ident) < 6000
