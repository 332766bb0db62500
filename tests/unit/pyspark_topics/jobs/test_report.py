"""What a report prints."""

from __future__ import annotations

from typing import Any

from pyspark_topics.jobs import report


class _Row(dict[str, Any]):
    asDict = dict.copy


def test_nor_does_a_tag_in_a_report_or_its_picture() -> None:
    rows = [_Row(tag="x\x1b[2J\nforged", records=1)]
    assert report.table(rows) == "tag                     records\nx\\u001b[2J\\u000aforged        1\n"
    assert "\x1b" not in report.svg(rows, ["tag"], "t")
