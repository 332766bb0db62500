"""Which checkpoint of a query belongs to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_topics.lake import checkpoint, layout
from pyspark_topics.lake.layout import Mark
from pyspark_topics.offsets import Position
from tests.unit.pyspark_topics.lake.test_history import ONE, TWO, Disk, planned


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_a_checkpoint_belongs_to_tables_that_are_where_its_batches_end(disk: Disk) -> None:
    store: Any = disk
    assert checkpoint.find(store, Mark()) is None
    made = checkpoint.begin(store, ONE, ONE.positions)
    assert checkpoint.find(store, ONE) == made
    planned(disk, made, {"a": Position(9, 1)}, {"a": Position(12, 1)})
    assert made.planned() == 1
    disk.create(f"{made.name}/commits/0", b"v1\n{}", "")
    assert made.unfinished()
    disk.create(f"{made.name}/commits/1", b"v1\n{}", "")
    assert not made.unfinished()
    # Batch 0 is version 2, batch 1 version 3, which the tables may have or not.
    assert checkpoint.find(store, TWO) == made
    assert checkpoint.find(store, Mark(3, {"a": Position(12, 1)})) == made
    # Another writer went on from version 2, or the tables were put back.
    assert checkpoint.find(store, Mark(3, {"a": Position(11, 1)})) is None
    assert checkpoint.find(store, Mark(4, {"a": Position(15, 1)})) is None
    assert checkpoint.find(store, ONE) is None
    # Tables of other topics may lack the batch that is being written.
    assert checkpoint.belongs(made, Mark(3, {"a": Position(9, 1)}))


def test_a_new_query_leaves_no_older_checkpoint(disk: Disk) -> None:
    store: Any = disk
    planned(disk, checkpoint.begin(store, ONE, ONE.positions), {"a": Position(9, 1)})
    made = checkpoint.begin(store, Mark(7, {"a": Position(20, 1)}), {"a": Position(20, 1)})
    assert checkpoint.find(store, Mark(7, {"a": Position(20, 1)})) == made
    assert made.planned() == -1
    assert disk.list(layout.CHECKPOINTS) != []


def test_topics_that_a_query_does_not_read_keep_their_position(disk: Disk) -> None:
    store: Any = disk
    start = {"a": Position(5, 1), "b": Position(3, 1)}
    made = checkpoint.begin(store, Mark(1, start), start)
    planned(disk, made, {"a": Position(9, 1)})
    assert made.end(-1) == start
    assert made.end(0) == {"a": Position(9, 1), "b": Position(3, 1)}


def test_topics_that_went_before_a_restart_are_gone_where_the_query_had_read_to(disk: Disk) -> None:
    """Spark before 4.2 leaves them out of the batch that is the first after a restart."""
    store: Any = disk
    start = {"a": Position(5, 1), "b": Position(3, 1), "unread": Position(7, 1)}
    made = checkpoint.begin(store, Mark(1, start), start)
    gone = {"b": Position(8, 1, gone=True)}
    first, last = {"a": Position(9, 1), "b": Position(8, 1)}, {"a": Position(11, 1), **gone}
    planned(disk, made, first, {"a": Position(10, 1)}, last)
    unread = {"unread": Position(7, 1)}
    assert [made.end(batch) for batch in range(3)] == [
        {**first, **unread},
        {"a": Position(10, 1), **gone, **unread},
        {**last, **unread},
    ]
