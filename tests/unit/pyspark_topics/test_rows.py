"""Rows of a read: only the columns that are wanted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    In,
    IsNotNull,
    IsNull,
    Not,
    StringStartsWith,
)

from pyspark_topics import files
from pyspark_topics.columns import EVERYTHING
from pyspark_topics.datasource import Reader
from tests.behaviour.pyspark_topics.test_pruning import ARROW, read, seqs
from tests.support.scene import Scene


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Two topics of 500 records, in segments of 100 in batches of 20, a second between batches, and some in the log."""
    scene = Scene(tmp_path_factory.mktemp("grown"), segment_max_events=100, cold_dir="")
    for n in range(0, 500, 20):
        for topic in ("a", "b"):
            records = [{"data": n + i, "tag": f"t{n // 100}.{i % 3}", "node": f"n{i % 2}"} for i in range(20)]
            scene.shard.call("append", topic, {"records": records})
        scene.shard.clock.advance(1000)
        if n % 100 == 80 and n < 480:
            scene.checkpoint()
    return scene


def test_records_whose_tag_or_node_does_not_fit_are_not_given_to_spark(grown: Scene) -> None:
    everything, _, _ = read(grown)
    for filters, fits in (
        ([StringStartsWith(("tag",), "t3.")], lambda row: row["tag"].startswith("t3.")),
        ([EqualTo(("key",), b"t3.1")], lambda row: row["tag"] == "t3.1"),
        (
            [EqualTo(("node",), "n1"), In(("tag",), ("t0.0", "t1.0"))],
            lambda r: r["node"] == "n1" and r["tag"][1:] in ("0.0", "1.0"),
        ),
        ([IsNull(("tag",))], lambda row: False),
        ([Not(IsNull(("tag",))), IsNotNull(("node",))], lambda row: True),
    ):
        rows, _, _ = read(grown, *filters)
        assert seqs(rows) == seqs([row for row in everything if fits(row)])


def test_columns_that_are_not_wanted_are_left_in_the_file(grown: Scene) -> None:
    reader = Reader({"path": str(grown.path)}, EVERYTHING)
    narrow = pa.schema([ARROW.field("offset")])
    sizes = {
        schema: sum(batch.nbytes for part in reader.partitions() for batch in files.read(part, schema))
        for schema in (narrow, ARROW)
    }
    assert sizes[narrow] == 8 * 1000
    assert sizes[ARROW] > 5 * sizes[narrow]
