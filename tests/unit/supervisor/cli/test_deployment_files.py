"""Deployment files: written as they are, and over no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.deployment_files import DeploymentError, files, write


def test_each_folder_has_files_and_tests_of_alerts_are_none() -> None:
    names = list(files())
    assert {path.parts[0] for path in names} == {"systemd", "proxy", "prometheus", "grafana"}
    assert not [path for path in names if path.name.endswith(".test.yml")]


def test_files_are_written_once_and_then_left_alone(tmp_path: Path) -> None:
    written = write(tmp_path / "new" / "folder", force=False)
    assert {path.relative_to(tmp_path / "new" / "folder"): path.read_bytes() for path in written} == files()
    assert write(tmp_path / "new" / "folder", force=False) == []


def test_a_file_with_other_content_stops_everything_unless_forced(tmp_path: Path) -> None:
    first, *others = files()
    (tmp_path / first).parent.mkdir(parents=True)
    (tmp_path / first).write_text("mine")
    with pytest.raises(DeploymentError, match=r"has other content.*--force"):
        write(tmp_path, force=False)
    assert (tmp_path / first).read_text() == "mine"
    assert not any((tmp_path / each).exists() for each in others)
    assert len(write(tmp_path, force=True)) == len(files())
    assert (tmp_path / first).read_bytes() == files()[first]


def test_a_link_that_leads_nowhere_is_another_file_too(tmp_path: Path) -> None:
    first = next(iter(files()))
    (tmp_path / first).parent.mkdir(parents=True)
    (tmp_path / first).symlink_to(tmp_path / "nowhere")
    with pytest.raises(DeploymentError):
        write(tmp_path, force=False)
