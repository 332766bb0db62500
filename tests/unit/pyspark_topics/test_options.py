"""Valid options, and the errors for invalid ones, which name the option."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from pyspark_topics.columns import EVERYTHING, spark_schema
from pyspark_topics.datasource import DefaultSource
from pyspark_topics.options import EARLIEST, LATEST, BadOption, parse


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "no path"),
        ({"path": "/d", "url": "http://x"}, "path and url exclude each other"),
        ({"path": "hdfs://host/d"}, "neither a local nor a mounted directory, or a bucket"),
        (
            {"path": "/d", "coldPath": "s3://bucket/d"},
            "option coldPath = .*: it is neither a local nor a mounted directory",
        ),
        ({"path": "[1]"}, "must hold strings"),
        ({"path": '["/d"'}, "not JSON"),
        ({"path": "/d", "subscribe": "a", "subscribePattern": "a.*"}, "subscribe and subscribePattern exclude"),
        ({"path": "/d", "subscribePattern": "a("}, r"subscribePattern = 'a\(': not a regular expression"),
        ({"path": "/d", "assign": "orders"}, "assign = 'orders': not JSON"),
        ({"path": "/d", "assign": '{"orders": 0}'}, "it looks like"),
        ({"path": "/d", "startingOffsets": "late"}, "startingOffsets = 'late': not JSON"),
        ({"path": "/d", "startingOffsets": "latest"}, "Only a stream"),
        ({"path": "/d", "startingOffsets": '{"a": "x"}'}, "startingOffsets, topic \"a\" = 'x': it is a seq"),
        ({"path": "/d", "startingOffsets": '{"a": -3}'}, "-2 for the earliest"),
        ({"path": "/d", "endingOffsets": "earliest"}, "nothing would be left"),
        ({"path": "/d", "endingOffsets": '{"a": -2}'}, "-1 for the latest"),
        ({"path": "/d", "subscribe": "b", "startingOffsets": '{"a": 3}'}, 'names the topic "a", which is not one'),
        ({"path": "/d", "startingOffsets": "earliest", "startingTimestamp": "5"}, "exclude each other"),
        ({"path": "/d", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"path": "/d", "startingOffsetsByTimestamp": '{"a": true}'}, 'topic "a" = True: it is a time'),
        ({"path": "/d", "failOnDataLoss": "maybe"}, "failOnDataLoss = 'maybe': it is true or false"),
        ({"path": "/d", "minPartitions": "0"}, "minPartitions = '0': it is a whole number"),
        ({"path": "/d", "maxOffsetsPerTrigger": "5"}, "only a stream has triggers"),
        ({"path": "/d", "token": "secret"}, "option token: files need no token"),
        ({"path": "/d", "consumerGroup": "g"}, "it goes with url"),
        ({"path": "/d", "subscribePatern": "a"}, "did you mean subscribePattern"),
        ({"path": "/d", "columns": "offset,,value"}, "columns = 'offset,,value': it names columns, each once"),
        ({"path": "/d", "columns": "offset, value, offset"}, "columns = .*: it names columns, each once"),
        ({"path": "/d", "column": "offset"}, "did you mean columns"),
    ],
)
def test_wrong_and_contradictory_options_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence) as caught:
        parse(options)
    assert "secret" not in str(caught.value)


def test_what_is_wrong_is_told_before_spark_says_whether_it_reads_or_streams() -> None:
    for given, sentence in (
        ({"path": "/d", "endingOffsets": "earliest"}, "nothing would be left"),
        ({"path": "/d", "maxOffsetsPerTrigger": "many"}, "it is a whole number"),
        ({"path": "/d", "failOnDataLoss": "x"}, "true or false"),
    ):
        with pytest.raises(BadOption, match=sentence):
            DefaultSource(given).schema()
    assert DefaultSource({"path": "/d", "maxOffsetsPerTrigger": "7"}).schema().fieldNames()[0] == "key"


def test_a_stream_has_no_end_but_triggers() -> None:
    options = parse({"path": "/d", "maxoffsetspertrigger": "10", "maxBytesPerTrigger": "1000"}, streaming=True)
    assert (options.max_offsets, options.max_bytes, options.starting.default) == (10, 1000, LATEST)
    for option, value in (("endingOffsets", "latest"), ("endingTimestamp", "1")):
        with pytest.raises(BadOption, match="a stream has no end"):
            parse({"path": "/d", option: value}, streaming=True)


def test_both_forms_of_offsets_say_the_same() -> None:
    flat = parse({"path": "/d", "startingOffsets": '{"a": 23, "b": -2}'}).starting
    nested = parse({"path": "/d", "startingOffsets": '{"a": {"0": 23}, "b": {"1": -2}}'}).starting
    assert flat == nested
    assert [flat.seq_of(topic, 50) for topic in ("a", "b", "c")] == [23, EARLIEST, EARLIEST]
    ending = parse({"path": "/d", "endingOffsets": '{"a": 30}'}).ending
    assert [ending.seq_of(topic, 50) for topic in ("a", "b")] == [30, LATEST]


def test_topics_are_chosen_by_name_by_pattern_or_by_shard() -> None:
    named = parse({"path": "/d", "subscribe": " a, b ,"}).topics
    assert [name in named for name in ("a", "b", "c")] == [True, True, False]
    matched = parse({"path": "/d", "subscribePattern": "a[0-9]+"}).topics
    assert [name in matched for name in ("a1", "a", "a1b")] == [True, False, False]
    assigned = parse({"path": "/d", "assign": '{"a": [0], "b": [1]}'}).topics
    assert [(name, n) for name in "ab" for n in (0, 1) if name in assigned.in_shard(n)] == [("a", 0), ("b", 1)]
    assert "a" not in assigned.in_shard(7)
    listed = parse({"path": "/d", "assign": '["a"]'}).topics
    assert ["a" in listed.in_shard(5), "b" in listed] == [True, False]
    assert "x" not in parse({"path": "/d", "subscribe": ","}).topics


def test_paths_come_one_or_many() -> None:
    assert parse({"path": "file:///data"}).paths == ("/data",)
    assert parse({"paths": '["/a", "file:/b"]'}).paths == ("/a", "/b")


def test_columns_depend_on_the_options() -> None:
    plain = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "node", "tag"]
    assert spark_schema(parse({"path": "/d"})).fieldNames() == plain
    more = {"path": "/d", "includeHeaders": "true", "includeTombstones": "true"}
    assert spark_schema(parse(more)).fieldNames() == [*plain, "headers", "gap_to", "gap_reason"]
    chosen = spark_schema(parse(more | {"Columns": " value,meta , offset"}))
    assert chosen == StructType([EVERYTHING[name] for name in ("value", "meta", "offset")])


def test_a_column_that_is_not_there_is_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(BadOption, match="option columns names 'colour'; topics has key, value, topic"):
        DefaultSource({"path": "/d", "columns": "offset, colour"}).schema()
    with pytest.raises(BadOption, match="option columns names 'Offset'"):
        DefaultSource({"path": "/d", "columns": "Offset", "maxOffsetsPerTrigger": "7"}).schema()


def test_a_schema_names_no_column_besides_those_of_the_option() -> None:
    given = {"path": "/d", "columns": "offset, value"}
    for made in (DefaultSource(given).reader, DefaultSource(given).streamReader):
        with pytest.raises(BadOption, match=r"columns = 'offset, value': \.schema\(…\) names tag besides"):
            made(StructType([EVERYTHING["offset"], EVERYTHING["tag"]]))
    DefaultSource(given).reader(StructType([EVERYTHING["value"]]))


@pytest.mark.parametrize(
    ("given", "loss", "damage"),
    [
        ({}, True, True),
        ({"failOnDataLoss": "false"}, False, False),
        ({"failOnDataLoss": "false", "failOnDamage": "true"}, False, True),
        ({"failOnDamage": "false"}, True, False),
    ],
)
def test_damage_is_an_error_where_loss_is_unless_told_otherwise(
    given: dict[str, str], loss: bool, damage: bool
) -> None:
    options = parse({"path": "/d", **given})
    assert (options.fail_on_data_loss, options.fail_on_damage) == (loss, damage)
