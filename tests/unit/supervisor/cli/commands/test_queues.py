"""`topics queues`: depths, jobs and dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.client.python_client import Forbidden, TopicNotFound
from tests.support.fake_client import Commands, FakeClient


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(monkeypatch)


COUNTS = {"ready": 1, "in_flight": 2, "delayed": 0, "dead_lettering": 0, "dead_lettered": 4}


def queue(letters: str | None) -> dict[str, Any]:
    return {"type": "queue", "queue": COUNTS, "config": {"dead_letter": letters}}


@pytest.mark.parametrize(
    ("letters", "answer", "present"),
    [
        (None, None, None),
        ("dead", {"count": 7}, 7),
        ("dead", TopicNotFound("none"), 0),
        ("dead", Forbidden("not yours"), None),
    ],
)
def test_the_dead_letters_that_are_there_now_are_counted_where_the_key_may_look(
    commands: Commands, letters: str | None, answer: Any, present: int | None
) -> None:
    client = FakeClient(
        topics=[{"topic": "q"}, {"topic": "log"}],
        state=lambda topic, touch: {"q": queue(letters), "log": {"type": "log"}, "dead": answer}[topic],
    )
    (row,) = commands.lines(client, "queues", "ls")
    assert row == {"topic": "q", "waits_for": None, **COUNTS, "dead_letters": present, "dead_letter": letters}


def test_a_topic_of_letters_is_counted_once_for_all_its_queues(commands: Commands) -> None:
    client = FakeClient(
        topics=[{"topic": "q"}, {"topic": "r"}],
        state=lambda topic, touch: {"count": 7} if topic == "dead" else queue("dead"),
    )
    assert [row["dead_letters"] for row in commands.lines(client, "queues", "ls")] == [7, 7]
    assert [call[1] for call in client.calls if call[0] == "state"].count("dead") == 1


def redriven(*answers: tuple[int, int, bool]) -> FakeClient:
    left = [{"redriven": moved, "next_seq": seq, "more": more} for moved, seq, more in answers]
    return FakeClient(redrive=lambda *_, **__: left.pop(0))


def test_letters_are_sent_back_until_none_is_left(commands: Commands) -> None:
    client = redriven((1000, 1001, True), (5, 2001, True), (0, 2006, False))
    (row,) = commands.lines(client, "queues", "redrive", "dead", "q", "--from", "1", "--tag", "x:*")
    assert row == {"topic": "dead", "queue": "q", "redriven": 1005}
    assert [call[-1]["first_seq"] for call in client.calls] == [1, 1001, 2001]
    assert client.calls[0][-1]["match"] == ("tag", "Glob", "x:*")


def test_no_more_letters_are_sent_back_than_asked_for(commands: Commands) -> None:
    client = redriven((3, 4, True), (2, 9, True))
    (row,) = commands.lines(client, "queues", "redrive", "dead", "q", "-n", "5")
    assert row["redriven"] == 5
    assert [call[-1]["max"] for call in client.calls] == [5, 2]


@pytest.mark.parametrize(("moved", "said"), [(1, "1 dead letter is a job again"), (2, "2 dead letters are jobs again")])
def test_how_many_letters_went_back_is_a_sentence(commands: Commands, moved: int, said: str) -> None:
    done = commands.run(redriven((moved, 9, False)), "queues", "redrive", "dead", "q")
    assert done.stdout.strip() == f"q: {said}"


def test_a_look_at_jobs_shows_their_states_and_takes_none(commands: Commands) -> None:
    jobs = [
        {"$seq": 1, "state": "ready", "deliveries": 0, "data": {"a": 1}},
        {"$seq": 2, "state": "leased", "deliveries": 1, "data": 2, "deadline": 1, "node": "w", "reason": "late"},
    ]
    client = FakeClient(peek=jobs)
    assert list(commands.lines(client, "queues", "peek", "q", "--from", "1")) == jobs
    assert client.calls == [("peek", "q", {"first_seq": 1, "max": 20})]
    shown = [line.split() for line in commands.run(FakeClient(peek=jobs), "queues", "peek", "q").stdout.splitlines()]
    assert shown[1] == ["1", "ready", "0", '{"a":1}']
    assert shown[2] == ["2", "leased", "1", "0.0", "s", "w", "late", "2"]
