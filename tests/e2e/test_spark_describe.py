"""Claim about `topics-spark describe` in Spark: types, nulls and examples are those of the records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.service import Service
from tests.support.spark import Spark

pytestmark = pytest.mark.spark
VALUES = [
    {"n": 1, "x": 1.5, "s": "a", "deep": {"k": [1]}},
    {"n": None, "x": 2, "s": "b", "mixed": True},
    {"n": 3, "mixed": "yes"},
    "no object",
]


def test_a_topic_is_described_as_its_records_are(service: Service, tmp_path: Path) -> None:
    records = [{"data": value} for value in VALUES]
    assert service.request("POST", "/v0/topics/things", {"records": records})[0] == 201
    session = Spark()
    try:
        said = session.run(f"""
            import contextlib, io
            from pyspark_topics.jobs.cli import parser
            given = parser().parse_args(["describe", "things", "--path", {str(service.data_dir)!r}, "--json"])
            with contextlib.redirect_stdout(io.StringIO()) as out:
                given.run(spark, given)
            answer = out.getvalue()
        """)
    finally:
        session.close()
    done = json.loads(said)
    assert (done["records"], done["other"]) == (4, 1)
    assert done["ddl"] == "`deep` string, `mixed` string, `n` bigint, `s` string, `x` double"
    by_name = {each["name"]: each for each in done["fields"]}
    assert by_name["n"] | {"example": ""} == {
        "name": "n",
        "ddl": "bigint",
        "missing": 0,
        "nulls": 1,
        "types": {"bigint": 2, "null": 1},
        "example": "",
    }
    assert by_name["x"]["missing"] == 1
    assert by_name["mixed"]["types"] == {"boolean": 1, "string": 1}
    assert by_name["deep"]["example"] == '{"k":[1]}'
