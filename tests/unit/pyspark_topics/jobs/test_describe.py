"""Claims about `topics-spark describe` without Spark: how the types of a field are joined, and what is printed."""

from __future__ import annotations

import json

import pytest

from pyspark_topics.jobs import describe
from pyspark_topics.jobs.describe import Seen
from pyspark_topics.lake.layout import ddl


@pytest.mark.parametrize(
    ("types", "kind"),
    [
        (["bigint"], "bigint"),
        (["bigint", "null"], "bigint"),
        (["bigint", "double"], "double"),
        (["boolean"], "boolean"),
        (["bigint", "string"], "string"),
        (["bigint", "boolean"], "string"),
        (["object"], "string"),
        (["array", "null"], "string"),
        (["null"], "string"),
    ],
)
def test_a_field_has_the_type_that_all_its_values_fit(types: list[str], kind: str) -> None:
    assert describe.joined(types) == kind


@pytest.mark.parametrize(
    ("variant", "simple"),
    [
        ("BIGINT", "bigint"),
        ("DECIMAL(3,2)", "double"),
        ("OBJECT<a: BIGINT>", "object"),
        ("ARRAY<STRING>", "array"),
        ("VOID", "null"),
    ],
)
def test_types_of_variants_have_short_names(variant: str, simple: str) -> None:
    assert describe.simple(variant) == simple


def test_missing_and_null_are_counted_apart_and_all_forms_say_the_same() -> None:
    seen = [Seen("n", "bigint", 3, "1"), Seen("n", "null", 2, "null"), Seen("a b`", "string", 1, '"x"')]
    found = describe.fields(seen, 10)
    assert [(each.name, each.ddl, each.missing, each.nulls, each.example) for each in found] == [
        ("a b`", "string", 9, 0, '"x"'),
        ("n", "bigint", 5, 2, "1"),
    ]
    done = {
        "records": 12,
        "other": 2,
        "ddl": ddl({each.name: each.ddl for each in found}),
        "fields": [describe.asdict(each) for each in found],
    }
    assert describe.printed(done, "ddl") == "`a b``` string, `n` bigint\n"
    assert json.loads(describe.printed(done, "json")) == done
    assert describe.printed(done, "table").splitlines() == [
        "field  type    missing  null  types met         example",
        'a b`   string  9        0     string 1          "x"',
        "n      bigint  5        2     bigint 3, null 2  1",
        "",
        "12 records, 2 of them no objects",
        "",
        "`a b``` string, `n` bigint",
    ]


def test_a_name_or_an_example_forges_no_line_and_moves_no_cursor() -> None:
    bad = "x\x1b[2J\r\nforged\u2028\x7f"
    found = describe.fields([Seen(bad, "string", 1, bad)], 1)
    done = {
        "records": 1,
        "other": 0,
        "ddl": ddl({each.name: each.ddl for each in found}),
        "fields": [describe.asdict(each) for each in found],
    }
    for form in ("table", "ddl", "json"):
        told = describe.printed(done, form)
        assert not {"\x1b", "\r", "\u2028", "\x7f"} & set(told)
        assert told.count("\n") == {"table": 6, "ddl": 1, "json": 1}[form]
    assert json.loads(describe.printed(done, "json")) == done
