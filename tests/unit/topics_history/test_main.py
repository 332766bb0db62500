"""Claims about the command: its exit statuses and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.histories import Story
from topics_history.__main__ import main


def story(tmp_path: Path, *, lost: bool) -> str:
    told = Story()
    told.append("a b", 1)
    told.fault()
    told.settled()
    told.read("1:a" if lost else "1:a 2:b", to=2, caught_up=not lost)
    path = tmp_path / "history"
    path.write_bytes(told.written())
    return str(path)


def test_a_history_without_violations_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", story(tmp_path, lost=False)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4 operations (4 ok, 0 failed, 0 unknown), 1 faults",
        "2 records acknowledged, 2 read",
        "0 violations",
    ]


def test_a_violation_ends_with_1_and_names_the_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", story(tmp_path, lost=True)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Lost: t: seq 2, b, is not shown (lines 2, 5)"
    assert shown[2:] == ["2 records acknowledged, 1 read; not read in the end: t", "1 violations: Lost 1"]


def test_a_file_that_is_no_whole_history_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(story(tmp_path, lost=True))
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["check", str(path)]) == 2
    assert "line 6: the line does not end: the file is truncated" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none")]) == 2
    assert main(["check"]) == 2
