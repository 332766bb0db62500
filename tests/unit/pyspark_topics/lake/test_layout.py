"""Claims about the layout that every writer of a lake shares."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys

import pyarrow as pa
import pytest

from pyspark_topics.lake import layout
from pyspark_topics.lake.layout import About, LakeError, Mark
from pyspark_topics.offsets import Gap, Position


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("orders:a.b", "orders%3Aa%2Eb"),
        ("a..", "a%2E%2E"),
        ("100%", "100%25"),
        ("Ä/ö", "%C3%84%2F%C3%B6"),
        ("UPPER_and-low", "UPPER_and-low"),
    ],
)
def test_a_topics_table_has_a_name_that_is_no_path(topic: str, name: str) -> None:
    assert layout.escaped(topic) == name
    assert layout.table(layout.PER_TOPIC, topic) == f"topics/{name}"
    assert layout.table(layout.ONE, topic) == "events"


def test_long_names_stay_apart_and_within_what_file_systems_take() -> None:
    names = {layout.escaped(f"{'a.' * 120}{n}") for n in range(3)} | {layout.escaped("b" * 200)}
    assert len(names) == 4
    assert max(map(len, names)) == 200


def test_about_is_read_as_it_was_written() -> None:
    one = About(layout.PER_TOPIC, source="/data", columns={"n": "bigint"}, members={}, infer=True, variant=True)
    assert layout.about(one.dump(), "lake.json") == one
    assert About().lake != About().lake
    assert json.loads(one.dump())["format"] == 1


def test_a_later_member_is_passed_over_and_a_later_format_is_refused() -> None:
    said = json.loads(About().dump()) | {"later": 1}
    assert layout.about(json.dumps(said).encode(), "x").form == layout.ONE
    with pytest.raises(LakeError, match=r"/l/lake\.json: format 2, known here: 1; update topics"):
        layout.about(json.dumps(said | {"format": 2}).encode(), "/l/lake.json")
    with pytest.raises(LakeError, match="does not describe a lake"):
        layout.about(b"[]", "/l/lake.json")


def test_typed_columns_come_behind_the_fixed_ones_with_the_rescued_one_last() -> None:
    assert list(About().all_columns) == list(layout.COLUMNS)
    typed = About(columns={"n": "bigint"}, variant=True).all_columns
    assert list(typed)[len(layout.COLUMNS) :] == ["n", "_rescued", "value_variant"]
    assert list(About(infer=True).all_columns)[-1] == "_rescued"


def test_a_mark_is_read_as_it_was_written_and_others_are_no_marks() -> None:
    one = Mark(7, {"a": Position(5, 2), "b": Position(9, 3, gone=True)})
    assert layout.mark(one.dump()) == one
    for text in (None, "", "etl", "{}", "[1]", '{"topics": 1}', '{"topics": {"version": 1}}'):
        assert layout.mark(text) is None


def test_columns_as_ddl_and_as_arrow() -> None:
    assert layout.ddl(layout.GAP_COLUMNS).startswith("`topic` string, `epoch` bigint, `first` bigint")
    assert layout.ddl({"a`b": "int"}) == "`a``b` int"
    schema = layout.arrow(layout.COLUMNS)
    assert schema.names == list(layout.COLUMNS)
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert set(layout.PARTITIONED[layout.ONE]) <= set(layout.COLUMNS)


@pytest.mark.parametrize(
    ("gap", "seen", "left"),
    [
        (Gap("a", 1, 9, "cap"), None, Gap("a", 1, 9, "cap")),
        (Gap("a", 1, 9, "cap"), (4, 9), Gap("a", 1, 3, "cap")),
        (Gap("a", 1, 9, "ttl"), (1, 9), None),
        (Gap("a", 3, 9, "ttl"), (3, 9), None),
        (Gap("a", 1, 9, "deleted"), None, Gap("a", 1, 9, "deleted")),
        (Gap("a", 1, 9, "deleted"), (1, 9), None),
        (Gap("a", 1, 9, "recreated"), (2, 6), Gap("a", 7, 9, "recreated")),
        (Gap("a", 10, 9, "cap"), None, None),
    ],
)
def test_what_was_read_of_a_gap_is_not_in_it(gap: Gap, seen: tuple[int, int] | None, left: Gap | None) -> None:
    assert layout.unseen(gap, seen) == left


def test_gap_rows_have_the_columns_of_the_table() -> None:
    lost = [Gap("a", 3, 9, "cap"), Gap("b", 1, 0, "deleted"), Gap("c", 1, 0, "deleted"), Gap("a", 1, 2, "cap")]
    start, end = {"b": Position(1), "c": Position(1, 7)}, {"a": Position(10, 4)}
    rows = layout.missed(lost, start, end, {("a", 4): (2, False), ("c", 7): (0, True)}, lambda gap, epoch: None)
    assert [list(row) for row in rows] == [list(layout.GAP_COLUMNS)] * 2
    now = rows[0]["noticed"]
    assert datetime.timedelta() <= datetime.datetime.now(datetime.UTC) - now < datetime.timedelta(minutes=1)
    assert [list(row.values()) for row in rows] == [["a", 4, 3, 9, "cap", now], ["b", 0, 1, None, "deleted", now]]


def test_application_ids_tell_lakes_and_tables_apart() -> None:
    assert layout.app_id("1f", layout.ROWS) == "topics-lake/1f/rows"
    assert layout.app_id("1f", layout.GAPS) == "topics-lake/1f/gaps"


def test_the_definitions_need_no_engine() -> None:
    code = "import sys, pyspark_topics.lake.layout; print({'pyspark', 'deltalake', 'pyarrow'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_source_may_lack_topics_of_a_lake_and_have_other_instances_but_not_less_of_one() -> None:
    known = {"a": Position(50, 1), "old": Position(9), "again": Position(9, 2), "gone": Position(4, 3, gone=True)}
    layout.not_behind("/l", known, {"a": Position(50, 1), "old": Position(2, 4), "again": Position(2, 5)})
    for topic in ("a", "gone"):
        with pytest.raises(LakeError, match=f'/l: topic "{topic}" ends at offset 2 in this source'):
            layout.not_behind("/l", known, {topic: Position(3, known[topic].epoch)})
