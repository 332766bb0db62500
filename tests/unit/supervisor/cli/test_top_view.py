"""The topics that grow fastest, from two samples."""

from __future__ import annotations

from supervisor.cli.top_view import Sample, _Topic, rates


def sample(at: float, **heads: int) -> Sample:
    topics = {name: _Topic(name, head, 1, head, 10 * head) for name, head in heads.items()}
    return Sample(at, topics, {"a": 7}, {"b": 3})


def test_topics_come_by_growth_then_by_size_then_by_name() -> None:
    rows = rates(sample(0.0, a=10, b=10, c=5, d=5), sample(2.0, a=12, b=20, c=5, d=5), 10)
    assert [(row["topic"], row["records_per_s"]) for row in rows] == [("b", 5.0), ("a", 1.0), ("c", 0.0), ("d", 0.0)]
    assert [row["topic"] for row in rates(sample(0.0), sample(1.0, a=1, b=2, c=3), 2)] == ["c", "b"]


def test_a_topic_that_is_new_or_was_made_again_has_grown_by_all_that_it_has() -> None:
    rows = {row["topic"]: row["records_per_s"] for row in rates(sample(0.0, a=100), sample(1.0, a=4, b=6), 10)}
    assert rows == {"a": 4.0, "b": 6.0}


def test_a_topic_that_is_gone_has_no_row() -> None:
    assert rates(sample(0.0, a=1), sample(1.0), 10) == []


def test_samples_at_one_moment_are_no_division_by_zero() -> None:
    assert rates(sample(0.0, a=1), sample(0.0, a=1), 10)[0]["records_per_s"] == 0.0


def test_what_is_not_known_of_a_topic_is_none() -> None:
    rows = {row["topic"]: row for row in rates(sample(0.0), sample(1.0, a=1, b=1), 10)}
    assert (rows["a"]["lag"], rows["a"]["queue_ready"]) == (7, None)
    assert (rows["b"]["lag"], rows["b"]["queue_ready"]) == (None, 3)
