"""`topics ls`, `show`, `create` and `rm`: what is asked of the service, and what is said of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.client.python_client import TopicNotFound
from tests.support.fake_client import Commands, FakeClient

LISTED = [{"topic": "a:1", "count": 3}, {"topic": "a:22", "count": 0, "quarantined": True}, {"topic": "b", "count": 1}]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(monkeypatch)


def missing(*_: object, **__: object) -> Exception:
    return TopicNotFound("there is no such topic")


@pytest.mark.parametrize(
    ("pattern", "prefix", "shown"),
    [
        ([], None, ["a:1", "a:22", "b"]),
        (["a:"], "a:", ["a:1", "a:22", "b"]),
        (["a:?"], "a:", ["a:1"]),
        (["*2*"], None, ["a:22"]),
        (["[ab]"], None, ["b"]),
    ],
)
def test_a_pattern_asks_for_its_prefix_and_chooses(
    commands: Commands, pattern: list[str], prefix: str | None, shown: list[str]
) -> None:
    client = FakeClient(topics=LISTED)
    assert [row["topic"] for row in commands.lines(client, "ls", *pattern)] == shown
    assert client.calls == [("topics", prefix)]


def test_a_damaged_topic_is_marked_for_people_only(commands: Commands) -> None:
    done = commands.run(FakeClient(topics=LISTED), "ls")
    assert [line.split()[0] for line in done.stdout.splitlines() if "damaged" in line] == ["a:22"]
    assert all("note" not in row for row in commands.lines(FakeClient(topics=LISTED), "ls"))


def made(before: Any, after: dict[str, Any]) -> FakeClient:
    return FakeClient(state=before, configure=after)


def test_only_the_fields_that_are_named_are_asked_for(commands: Commands) -> None:
    client = made(missing, {"type": "queue"})
    options = ["--queue", "--ttl", "2 h", "--cap-bytes", "1 MB", "--set", "priority=5", "--set", "discard=old"]
    (row,) = commands.lines(client, "create", "q", *options)
    assert client.calls[-1] == (
        "configure",
        "q",
        {"ttl_ms": 7_200_000, "cap_bytes": 1_000_000, "type": "queue", "priority": 5, "discard": "old"},
    )
    assert row == {"topic": "q", "created": True, "config": {"type": "queue"}}


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (missing, "q: created"),
        ({"config": {"ttl_ms": 1, "priority": 2}}, "q: changed: ttl_ms"),
        ({"config": {"ttl_ms": 5, "priority": 2}}, "q: is there already, nothing changed"),
    ],
)
def test_a_topic_is_made_changed_or_left(commands: Commands, before: Any, said: str) -> None:
    done = commands.run(made(before, {"ttl_ms": 5, "priority": 2}), "create", "q", "--ttl", "5ms")
    assert (done.exit_code, done.stdout.strip()) == (0, said)


@pytest.mark.parametrize("wrong", ["priority", "=5", "a b=5"])
def test_a_field_without_a_name_or_a_value_is_a_usage_error(commands: Commands, wrong: str) -> None:
    client = made(missing, {})
    assert commands.run(client, "create", "q", "--set", wrong).exit_code == 2
    assert client.calls == []


@pytest.mark.parametrize(("options", "deleted"), [([], False), (["--yes"], True)])
def test_where_nobody_can_be_asked_a_topic_is_deleted_only_with_yes(
    commands: Commands, options: list[str], deleted: bool
) -> None:
    client = FakeClient(delete_topic=True)
    commands.run(client, "rm", "a", *options)
    assert (len(client.calls) == 1) is deleted


def test_several_topics_are_deleted_and_one_that_is_not_there_is_said_to_be(commands: Commands) -> None:
    client = FakeClient(delete_topic=lambda topic, if_empty: topic == "a")
    done = commands.run(client, "rm", "a", "b", "--if-empty")
    assert done.stdout.splitlines() == ["a: deleted", "b: is not there"]
    assert client.calls == [("delete_topic", "a", {"if_empty": True}), ("delete_topic", "b", {"if_empty": True})]


@pytest.mark.parametrize(("tag", "match"), [("x", "x"), ("x:*", ("tag", "Glob", "x:*"))])
def test_records_are_deleted_by_seq_and_tag(commands: Commands, tag: str, match: object) -> None:
    client = FakeClient(delete_records=2)
    done = commands.run(client, "rm", "a", "--before", "9", "--tag", tag, "--yes")
    assert client.calls == [("delete_records", "a", {"before_seq": 9, "match": match})]
    assert done.stdout.strip() == "a: 2 records deleted"


@pytest.mark.parametrize("more", [["b"], ["--if-empty"]])
def test_records_of_several_topics_are_not_deleted_at_once(commands: Commands, more: list[str]) -> None:
    client = FakeClient(delete_records=2)
    assert commands.run(client, "rm", "a", *more, "--before", "9", "--yes").exit_code == 2
    assert client.calls == []
