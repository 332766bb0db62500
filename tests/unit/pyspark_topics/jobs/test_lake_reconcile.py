"""Reconciling a lake with what a service still has."""

from __future__ import annotations

from typing import Any

from pyspark_topics.jobs import lake_reconcile
from pyspark_topics.offsets import Gap, Offsets, Position


class Gone:
    """The source of topics of which one lost records, one was deleted, and one made again; also a store's root."""

    root = "/lake"

    def gaps(self, start: Offsets, end: Offsets) -> list[Gap]:
        assert start == {}
        return [Gap("capped", 1, 20, "cap"), Gap("gone", 1, 9, "deleted"), Gap("again", 1, 9, "recreated"), INNER]

    def earliest(self) -> Offsets:
        return {"capped": Position(15, 1), "again": Position(1, 2), "whole": Position(8, 1)}


INNER = Gap("whole", 5, 6, "source_trim")


def test_what_a_service_does_not_cover_is_not_taken_for_deleted() -> None:
    source: Any = Gone()
    end = {topic: Position(10, 1) for topic in ("gone", "again", "whole")} | {"capped": Position(40, 1)}
    assert lake_reconcile.floors(source, end) == {"gone": 10, "again": 10, "whole": 1, "capped": 15}
