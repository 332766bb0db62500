"""The logic of the comparison with other systems and of the guard. Nothing here measures time."""

from __future__ import annotations

import socket
from collections.abc import Collection

import compare
import guard
import pytest
from compare import CAUSES, Results, Row


def row(unit: str, **values: float) -> Row:
    names = {"one": "Topics, 1 shard", "two": "Topics, 2 shards", "redis": "Redis", "jet": "JetStream"}
    return Row("append", "a", unit, {names[name]: [value] for name, value in values.items()})


def test_the_ratio_takes_the_best_of_both_sides() -> None:
    assert row("records/s", one=100, two=300, redis=150, jet=50).ratio() == 2.0
    assert row("ms", one=4, two=2, redis=1, jet=9).ratio() == 0.5


def test_there_is_no_ratio_without_others_or_to_nothing() -> None:
    assert row("records/s", one=100).ratio() is None
    assert row("‰", one=3, redis=0).ratio() is None


def test_medians_are_those_of_the_rounds() -> None:
    results = Results()
    for value in (5.0, 1.0, 3.0):
        results.add("read", "all", "records/s", "Redis", value)
    assert results.rows["read", "all"].medians() == {"Redis": 3.0}


def test_a_loss_is_told_with_its_cause() -> None:
    results = Results()
    for section, ours, theirs in (("append", 10.0, 20.0), ("read", 20.0, 10.0)):
        results.add(section, "a", "records/s", "Topics, 1 shard", ours)
        results.add(section, "a", "records/s", "Redis", theirs)
    text = compare.tables(results)
    assert "| a | records/s | 10 | 20 | 0.50 |" in text
    assert f"- append: {CAUSES['append']}." in text
    assert CAUSES["read"] not in text


def test_a_system_without_a_value_has_a_dash() -> None:
    results = Results()
    results.add("queue", "a", "jobs/s", "Topics, 1 shard", 10.0)
    results.add("queue", "b", "jobs/s", "Topics, 1 shard", 10.0)
    results.add("queue", "b", "jobs/s", "beanstalkd", 5.0)
    assert "| a | jobs/s | 10 | – |  |" in compare.tables(results)


def test_only_the_text_between_the_marks_changes() -> None:
    page = f"before\n{compare.BEGIN}old\n{compare.END}after\n"
    assert compare.inserted(page, "new\n") == f"before\n{compare.BEGIN}new\n{compare.END}after\n"
    with pytest.raises(ValueError, match="substring"):
        compare.inserted("no marks", "new\n")


def test_the_page_has_the_marks() -> None:
    page = (compare.HERE / "docs/benchmarks.md").read_text()
    assert compare.inserted(page, "x") != page


def test_what_is_stored_gives_the_same_tables() -> None:
    results = Results()
    results.add("queue", "a", "jobs/s", "Topics, 1 shard", 10.0)
    results.add("queue", "a", "jobs/s", "beanstalkd", 20.0)
    results.miss("queue", "a", "jobs/s", "Redis", "> 30 s")
    about, again = compare.loaded(compare.stored("today", results))
    assert about == "today"
    assert compare.tables(again) == compare.tables(results)


def test_what_takes_too_long_is_told_and_left_out_of_the_ratio() -> None:
    results = Results()
    results.add("queue", "a", "jobs/s", "Topics, 1 shard", 10.0)
    results.add("queue", "a", "jobs/s", "Redis", 99.0)
    results.miss("queue", "a", "jobs/s", "Redis", "7 records, > 30 s")
    assert "| a | jobs/s | 10 | 7 records, > 30 s |  |" in compare.tables(results)
    assert results.misses("queue", "a", "Redis")
    assert not results.misses("queue", "a", "Topics, 1 shard")


def test_a_step_that_waits_is_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as silent:
        done = 7
        with (
            pytest.raises(compare.Unfinished, match=r"7 records, > 0 s"),
            compare.limited(0.01, lambda: f"{done} records, "),
        ):
            silent.recv(1)


def test_work_is_done_at_least_once_and_counted() -> None:
    assert compare.rate(iter([5]), 0.0) > 0


def test_the_guard_names_what_got_slower() -> None:
    found = guard.slower({"a": 10.0, "b": 10.0, "gone": 1.0}, {"a": 12.0, "b": 15.0, "new": 9.0}, tolerance=1.3)
    assert found == {"b": 15.0}


def test_the_guard_names_only_what_is_slower_each_time() -> None:
    asked = []

    def again(paths: Collection[str]) -> dict[str, float]:
        asked.append(sorted(paths))
        return {name: 99.0 if name == "slow" else 10.0 for name in paths}

    stored = {"slow": 10.0, "noisy": 10.0, "well": 10.0}
    assert guard.confirmed(stored, {"slow": 99.0, "noisy": 99.0, "well": 10.0}, again) == {"slow": 99.0}
    assert asked == [["noisy", "slow"], ["slow"]]
    assert guard.confirmed(stored, {"noisy": 99.0}, again) == {}
    assert guard.confirmed(stored, {"well": 10.0}, again) == {}
    assert len(asked) == 3


def test_the_guard_stores_medians() -> None:
    assert guard.medians([{"a": 1.0}, {"a": 9.0}, {"a": 2.0}]) == {"a": 2.0}


def test_the_guard_s_paths_are_loads() -> None:
    assert set(guard.PATHS) <= {load.name for load in guard.LOADS}


def test_a_cost_is_the_service_s_processor_time_in_turns() -> None:
    used = {"gateway user": 0.02, "shards system": 0.01, "load": 5.0}
    assert guard.cost(guard.Sample({}, 100, used), 1e-4) == pytest.approx(3.0)


def test_the_reference_loop_does_its_work() -> None:
    assert guard.reference_s(200) > 0
