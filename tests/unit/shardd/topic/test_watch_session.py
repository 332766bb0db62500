"""Watch sessions in memory: frames that are applied twice change nothing, and what is idle is found."""

from __future__ import annotations

from typing import Any

from shardd.topic.watch_session import MOST_TOLD, TOLD, Session, Sessions, as_map


def session(wid: str = "w1", owner: bytes = b"k", **options: Any) -> Session:
    return Session(wid, owner, options, {"a": (1, 5, 0)}, used_ms=100)


def test_sessions_are_counted_by_their_owner() -> None:
    sessions = Sessions()
    sessions.add(session("w1"))
    sessions.add(session("w2"))
    sessions.add(session("w2"))
    sessions.add(session("w3", b"other"))
    assert (len(sessions), sessions.owned_by(b"k"), sessions.owned_by(b"other")) == (3, 2, 1)
    sessions.remove("w2")
    sessions.remove("w2")
    sessions.remove("none")
    assert (sessions.owned_by(b"k"), sessions.owned_by(b"nobody")) == (1, 0)


def test_each_frame_applied_twice_changes_nothing() -> None:
    frames: list[dict[str, Any]] = [
        {"made": as_map(session("w1"))},
        {"made": as_map(session("w2"))},
        {"moved": {"w1": [2, {"a": [1, 9, 0], "b": [4, 0, 2]}], "gone": [1, {}]}},
        {"ended": ["w2", "gone"]},
    ]
    once, twice = Sessions(), Sessions()
    for frame in frames:
        once.apply(frame)
        twice.apply(frame)
        twice.apply(frame)
    assert once.dump() == twice.dump()
    assert once.by_wid["w1"].topics == {"a": (1, 9, 0), "b": (4, 0, 2)}
    assert once.by_wid["w1"].generation == 2


def test_a_catalog_brings_back_what_it_was_given() -> None:
    sessions = Sessions()
    sessions.apply({"made": as_map(session("w1", prefix="a:"))})
    again = Sessions()
    again.load(sessions.dump())
    assert again.dump() == sessions.dump()
    assert again.owned_by(b"k") == 1


def test_only_a_session_of_a_prefix_forgets_deleted_topics() -> None:
    gone = {f"t{n}": [TOLD, 0, 0] for n in range(MOST_TOLD + 10)}
    sessions = Sessions()
    sessions.add(session("names"))
    sessions.add(session("prefix", prefix="t"))
    for wid in ("names", "prefix"):
        sessions.apply({"moved": {wid: [1, gone]}})
    assert len(sessions.by_wid["names"].topics) == MOST_TOLD + 11
    kept = sessions.by_wid["prefix"].topics
    assert len(kept) == MOST_TOLD + 1
    assert "a" in kept
    assert "t9" not in kept
    assert "t10" in kept


def test_a_session_of_a_prefix_forgets_no_deleted_topic_that_its_client_named() -> None:
    sessions = Sessions()
    sessions.add(session("w1", prefix="t"))
    sessions.apply({"moved": {"w1": [1, {"a": [TOLD, 0, 1]}]}})
    sessions.apply({"moved": {"w1": [2, {f"t{n}": [TOLD, 0, 2] for n in range(MOST_TOLD + 10)}]}})
    kept = sessions.by_wid["w1"].topics
    assert len(kept) == MOST_TOLD + 1
    assert kept["a"] == (TOLD, 0, 1)


def test_sessions_without_a_report_are_idle() -> None:
    sessions = Sessions()
    sessions.add(session("old"))
    new = session("new")
    new.used_ms = 500
    sessions.add(new)
    assert sessions.idle(100) == []
    assert sessions.idle(101) == ["old"]
    sessions.shift(1000)
    assert sessions.idle(1101) == ["old"]
    sessions.woken(9000)
    assert sessions.idle(9000) == []
