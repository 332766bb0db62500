"""Claims about which members of a value become columns, and how columns are added."""

from __future__ import annotations

import pytest

from pyspark_topics.lake import typed
from pyspark_topics.lake.layout import About, LakeError


def test_members_become_columns_and_those_that_are_taken_get_another_name() -> None:
    about = typed.evolved(About(), [("n", "bigint"), ("Date", "string")], strict=True)
    assert about.columns == {"n": "bigint", "data_Date": "string"}
    assert about.members == {"data_Date": "Date"}
    assert typed.struct(about) == "`n` bigint, `Date` string"
    assert typed.added(About(), about) == "`n` bigint, `data_Date` string"
    assert typed.added(about, about) == ""


def test_columns_are_added_and_never_changed() -> None:
    about = typed.evolved(About(), [("n", "bigint")], strict=True)
    more = typed.evolved(about, [("n", "bigint"), ("m", "double")], strict=True)
    assert more.columns == {"n": "bigint", "m": "double"}
    for fields in ([("n", "string")], [("N", "bigint")]):
        with pytest.raises(LakeError, match="column n is bigint in this lake"):
            typed.evolved(more, fields, strict=True)
        assert typed.evolved(more, fields, strict=False) == more


def test_a_name_that_delta_refuses_is_an_error_of_a_schema_and_left_out_of_what_is_inferred() -> None:
    assert typed.evolved(About(), [("a b", "int"), ("", "int")], strict=False).columns == {}
    with pytest.raises(LakeError, match="'a b' cannot be a column"):
        typed.evolved(About(), [("a b", "int")], strict=True)


def test_what_does_not_fit_is_rescued() -> None:
    about = typed.evolved(About(), [("it's", "int"), ("value", "int")], strict=True)
    assert typed.expressions(about) == {
        "it's": "_topics_parsed.`it's`",
        "data_value": "_topics_parsed.`value`",
        "_rescued": (
            "nullif(to_json(map_filter(map('it\\'s', if(_topics_parsed.`it's` is null, _topics_raw['it\\'s'], null), "
            "'data_value', if(_topics_parsed.`value` is null, _topics_raw['value'], null)), "
            "(k, v) -> v is not null)), '{}')"
        ),
    }
    assert typed.expressions(About())["_rescued"] == "cast(null as string)"
