"""Claims about what is read from a table's log, and about which checkpoint belongs to a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_topics import offsets
from pyspark_topics.lake import checkpoint, history, layout
from pyspark_topics.lake.layout import LakeError, Mark
from pyspark_topics.offsets import Position


class Disk:
    """A `Store` on a local directory."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.reads: list[str] = []

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def list(self, name: str) -> list[str]:
        place = Path(self.path(name))
        return sorted(each.name for each in place.iterdir()) if place.is_dir() else []

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        return Path(self.path(name)).read_bytes()

    def exists(self, name: str) -> bool:
        return Path(self.path(name)).exists()

    def create(self, name: str, content: bytes, unique: str) -> None:
        place = Path(self.path(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            file.write(content)

    def remove(self, name: str) -> None:
        place = Path(self.path(name))
        for each in [*place.rglob("*")] if place.is_dir() else []:
            if each.is_file():
                each.unlink()
        if place.is_file():
            place.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def commit(disk: Disk, number: int, operation: str, mark: Mark | None = None, **more: Any) -> None:
    about = {"operation": operation, **more} | ({"userMetadata": mark.dump()} if mark else {})
    lines = [{"add": {"path": "x"}}, {"commitInfo": about}]
    disk.create(f"t/_delta_log/{number:020d}.json", "\n".join(map(json.dumps, lines)).encode(), "")


ONE, TWO = Mark(1, {"a": Position(5, 1)}), Mark(2, {"a": Position(9, 1)})


def test_no_table_has_no_commit(disk: Disk) -> None:
    assert history.table(disk, "t") == history.Table(-1, Mark())


def test_the_newest_mark_counts_and_what_is_known_is_not_read_again(disk: Disk) -> None:
    commit(disk, 0, "CREATE TABLE", Mark())
    commit(disk, 1, "WRITE", ONE)
    known = history.table(disk, "t")
    assert known == history.Table(1, ONE)
    commit(disk, 2, "WRITE", TWO, operationMetrics={"numOutputRows": "4"})
    disk.reads.clear()
    assert history.table(disk, "t", known) == history.Table(2, TWO)
    assert history.table(disk, "t", history.Table(2, TWO)) == history.Table(2, TWO)
    assert len(disk.reads) == 1
    assert history.rows(disk, "t", 2) == 4


def test_a_commit_that_repeats_an_older_mark_moves_nothing_back(disk: Disk) -> None:
    again = Mark(1, ONE.positions, repeated=True)
    commit(disk, 0, "WRITE", ONE)
    commit(disk, 1, "WRITE", TWO)
    commit(disk, 2, "MERGE", again)  # it began before commit 1
    assert history.table(disk, "t") == history.Table(2, TWO)
    assert history.table(disk, "t", history.Table(1, TWO)) == history.Table(2, TWO)
    for number in (0, 1):
        disk.remove(f"t/_delta_log/{number:020d}.json")
    assert history.table(disk, "t") == history.Table(2, ONE)


@pytest.mark.parametrize("operation", ["OPTIMIZE", "VACUUM START", "VACUUM END", "DELETE", "SET TBLPROPERTIES"])
def test_commits_of_others_that_add_no_rows_are_passed_over(disk: Disk, operation: str) -> None:
    commit(disk, 0, "WRITE", ONE)
    commit(disk, 1, operation)
    assert history.table(disk, "t") == history.Table(1, ONE)


@pytest.mark.parametrize("operation", ["WRITE", "MERGE", "RESTORE", "STREAMING UPDATE", "CREATE TABLE AS SELECT"])
def test_commits_of_others_that_add_rows_are_refused(disk: Disk, operation: str) -> None:
    commit(disk, 0, "WRITE", ONE)
    commit(disk, 1, operation)
    with pytest.raises(LakeError, match=rf"/t: commit 1 \({operation}\) was not made by this lake.*version 0"):
        history.table(disk, "t")


def test_a_table_made_here_is_an_empty_one(disk: Disk) -> None:
    content = layout.creation("events", layout.ONE)
    disk.create(f"t/_delta_log/{0:020d}.json", content, "")
    assert history.table(disk, "t") == history.Table(0, Mark())
    about = [json.loads(line) for line in content.splitlines()][2]["metaData"]
    kinds = {field["name"]: field["type"] for field in json.loads(about["schemaString"])["fields"]}
    assert (kinds["epoch"], kinds["partition"], kinds["date"]) == ("long", "integer", "date")
    assert about["partitionColumns"] == ["topic", "date"]


def planned(disk: Disk, made: checkpoint.Checkpoint, *ends: offsets.Offsets) -> None:
    for batch, end in enumerate(ends):
        text = "\n".join(["v1", "{}", json.dumps(offsets.dump(end))])
        disk.create(f"{made.name}/offsets/{batch}", text.encode(), "")
