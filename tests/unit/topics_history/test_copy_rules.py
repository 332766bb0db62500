"""Claims about the rules of routers."""

from __future__ import annotations

import pytest

from tests.support.histories import Story
from topics_history.format import Router, Topic

ROUTER = Router("t", "d")


def routed(copies: str, router: Router = ROUTER, *more: Router) -> Story:
    told = Story((router, *more), t=Topic(), d=Topic(), e=Topic())
    told.append("a b c", 1)
    told.settled()
    told.read("1:a 2:b 3:c", caught_up=True)
    told.read(copies, topic="d", caught_up=True)
    return told


@pytest.mark.parametrize(
    ("copies", "kinds"),
    [
        ("1:a 2:b 3:c", []),
        ("1:a 2:b 3:a 4:b 5:c", []),
        ("1:a 2:c", ["CopyMissing"]),
        ("1:a 2:c 3:b", ["CopyOrder"]),
        ("1:a 2:b 3:c 4:z", ["Invented"]),
    ],
)
def test_a_router_copies_each_record_at_least_once_and_in_order(copies: str, kinds: list[str]) -> None:
    assert routed(copies).kinds() == kinds


def test_a_router_with_exactly_once_copies_no_record_twice() -> None:
    assert routed("1:a 2:b 3:b 4:c", Router("t", "d", "exactly_once")).kinds() == ["CopyTwice"]


def test_a_failed_append_is_not_copied() -> None:
    told = routed("1:a 2:b 3:c 4:x")
    told.append("x", outcome="failed")
    assert told.kinds() == ["FailedPresent"]


def test_copies_may_come_over_a_chain_and_from_no_other_topic() -> None:
    told = routed("1:a 2:b 3:c", ROUTER, Router("d", "e"))
    told.read("1:a 2:b 3:c", topic="e", caught_up=True)
    assert told.kinds() == []
    told = routed("1:a 2:b 3:c")
    told.read("1:a", topic="e", caught_up=True)
    assert told.kinds() == ["Invented"]


def test_a_topic_that_was_not_read_in_the_end_is_named_and_not_judged() -> None:
    told = routed("")
    told.operations[-1].result.caught_up = False
    report = told.check()
    assert (report.counts, report.unread) == ({}, ["d", "e"])


TAGS = ["x", "y", "x"]


def test_a_deletion_by_tag_removes_copies_that_no_read_showed() -> None:
    for deleted, copies, kinds in (("x", "2:b", []), ("x", "1:a 2:b", []), ("z", "2:b", ["Hole"])):
        told = Story((ROUTER,), t=Topic(), d=Topic())
        told.append("a b c", 1, tags=[*TAGS])
        told.delete(None, deleted, topic="d", head=3)
        told.settled()
        told.read("1:a 2:b 3:c", caught_up=True)
        told.read(copies, topic="d", to=3, caught_up=True)
        assert told.kinds() == kinds, (deleted, copies)


def test_a_deletion_by_tag_removes_copies_that_a_read_had_showed() -> None:
    for after, kinds in (("2:b", []), ("", ["Hole"]), ("1:a 2:b", ["Undeleted"]), ("2:b 3:c", ["Undeleted"])):
        told = Story((ROUTER,), t=Topic(), d=Topic())
        told.append("a b c", 1, tags=[*TAGS])
        told.read("1:a 2:b 3:c", topic="d", head=3)
        told.delete(None, "x", topic="d", head=3)
        told.read(after, topic="d", to=3, head=3)
        assert told.kinds() == kinds, after


def test_a_copy_without_its_tag_is_not_deleted_with_it() -> None:
    told = Story((Router("t", "d", preserve_tag=False),), t=Topic(), d=Topic())
    told.append("a b", 1, tags=["x", "x"])
    told.read("1:a 2:b", topic="d", head=2)
    told.delete(None, "x", topic="d", head=2)
    told.read("1:a 2:b", topic="d", head=2)
    assert told.kinds() == []


ONCE = "exactly_once"


@pytest.mark.parametrize(
    ("routers", "kinds"),
    [
        ((Router("t", "d"), Router("d", "e", ONCE)), []),
        ((Router("t", "d", ONCE), Router("d", "e")), []),
        ((Router("t", "d", ONCE), Router("d", "e", ONCE)), ["CopyTwice"]),
        ((Router("t", "e", ONCE), Router("t", "e", ONCE)), []),
        ((Router("t", "e", ONCE), Router("t", "d", ONCE), Router("d", "e", ONCE)), []),
        ((Router("t", "e", ONCE), Router("d", "e")), ["CopyTwice"]),
    ],
)
def test_a_copy_is_there_once_if_its_one_way_copies_exactly_once(routers: tuple[Router, ...], kinds: list[str]) -> None:
    told = Story(routers, t=Topic(), d=Topic(), e=Topic())
    told.append("a b", 1)
    told.read("1:a 2:a 3:b", topic="e", head=3)
    assert told.kinds() == kinds
