"""Claims about what `topics-spark lake` refuses and says, without Spark."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_topics.jobs import lake
from pyspark_topics.jobs.cli import parser
from pyspark_topics.lake import layout
from pyspark_topics.lake.history import Table
from pyspark_topics.lake.layout import About, LakeError, Mark
from pyspark_topics.offsets import Gap, Offsets, Position
from tests.unit.pyspark_topics.jobs.test_lake_reconcile import Gone


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Caused by: java.io.IOException: No space left on device",
            "no space left on the device. Nothing of the batch",
        ),
        ("[DELTA_CONCURRENT_TRANSACTION] x", "another run wrote to the same table"),
        ("org.apache.iceberg.exceptions.CommitFailedException: x", "another run wrote to the same table"),
        ("io.delta.exceptions.ConcurrentAppendException: x", "another run wrote to the same table"),
    ],
)
def test_known_causes_are_a_sentence(text: str, said: str) -> None:
    found = lake.explained("/lake", RuntimeError(text))
    assert isinstance(found, LakeError)
    assert str(found).startswith(f"/lake: {said}")
    other = RuntimeError("else")
    assert lake.explained("/lake", other) is other


def test_a_lake_of_the_other_format_is_refused() -> None:
    layout.same_format("/l", About(), "delta")
    with pytest.raises(LakeError, match="/l has Iceberg tables: take topics-spark lake --format iceberg"):
        layout.same_format("/l", About(tables="iceberg"), "delta")


def test_a_lake_is_not_fed_from_another_service() -> None:
    known = {"a": Position(50, 1), "b": Position(9, 1), "gone": Position(4, 1, gone=True)}
    layout.same_service("/lake", known, {"a": Position(60, 1), "b": Position(2, 1)})  # one was made again
    layout.same_service("/lake", known, {"c": Position(5, 1)})
    with pytest.raises(LakeError, match=r'/lake: its 2 topics \("a" first\) are other ones'):
        layout.same_service("/lake", known, {"a": Position(3, 1), "b": Position(9, 2)})


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("64M", 64 << 20), ("1g", 1 << 30), ("0", 0)])
def test_sizes_are_bytes_or_have_a_letter(text: str, size: int) -> None:
    assert parser().parse_args(["lake", "--path", "d", "--to", "l", "--compact-to", text]).compact_to == size


@pytest.mark.parametrize("wrong", [["--compact-to", "1T"], ["--max-records", "0"], ["--url", "http://x"], ["stop"]])
def test_wrong_options_end_with_what_is_wrong(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["lake", "--path", "d", "--to", "l", *wrong])
    assert ended.value.code == 2
    assert "topics-spark lake: error:" in capsys.readouterr().err


class Tables:
    """A sink of one table. `other` is what another run commits when this one does."""

    def __init__(self, mark: Mark, other: Mark | None = None) -> None:
        self.mark = mark
        self.other = other
        self.appends = 0

    def at(self, name: str) -> Table:
        return Table(self.mark.version, self.mark)

    def create(self, name: str) -> None: ...

    def append(self, rows: Any, name: str, mark: Mark) -> None:
        self.appends += 1
        self.mark = self.other or mark

    def appended(self, name: str) -> int:
        return 5


def batches(tables: Tables) -> lake.Batches:
    unused: Any = None
    store: Any = Gone()
    sink: Any = tables
    return lake.Batches(unused, store, About(), sink, unused, lake.Settings())


ONE, TWO, OTHER = Mark(1, {"a": Position(5, 1)}), Mark(2, {"a": Position(9, 1)}), Mark(2, {"a": Position(7, 1)})


def test_a_batch_is_appended_once() -> None:
    tables = Tables(ONE)
    made = batches(tables)
    assert made._append(None, "events", TWO)
    assert not made._append(None, "events", TWO)
    assert (tables.appends, made.records) == (1, 5)


@pytest.mark.parametrize("tables", [Tables(OTHER), Tables(ONE, OTHER), Tables(Mark(3, TWO.positions))])
def test_a_version_of_another_run_is_not_taken_for_the_batch(tables: Tables) -> None:
    with pytest.raises(LakeError, match="another run wrote to the same table"):
        batches(tables)._append(None, "events", TWO)


class Lossy:
    """A source that lost a range."""

    def __init__(self, gap: Gap) -> None:
        self.gap = gap

    def gaps(self, start: Offsets, end: Offsets) -> list[Gap]:
        return [self.gap]


@pytest.mark.parametrize(
    ("gap", "seen", "told"),
    [
        (Gap("a", 1, 9, "cap"), (1, 9), []),
        (Gap("a", 1, 9, "cap"), (4, 9), [(2, 1, 3)]),
        (Gap("a", 1, 9, "deleted"), (1, 9), []),
        (Gap("a", 1, 9, "deleted"), (1, 5), [(2, 6, 9)]),
        (Gap("a", 1, 9, "deleted"), None, [(2, 1, 9)]),
        (Gap("a", 5, 0, "recreated"), None, [(1, 5, None)]),
    ],
)
def test_a_gap_has_no_offset_of_a_row(
    gap: Gap, seen: Any, told: list[tuple[int, int, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was created again before the batch; a gap with an end is of the instance that was read."""
    made = batches(Tables(ONE))
    made.source = cast(Any, Lossy(gap))
    monkeypatch.setattr(made, "_noticed", lambda *_: {})
    monkeypatch.setattr(made, "_seen", lambda spark, gap, epoch: seen if epoch == 2 else None)
    found = made._gaps(None, {"a": Position(5, 1)}, {"a": Position(10, 2)})
    assert [(row["epoch"], row["first"], row["last"]) for row in found] == told
