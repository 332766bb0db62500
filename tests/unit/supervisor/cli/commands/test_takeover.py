"""What `topics takeover` finds on its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.cli.commands import takeover
from supervisor.cli.main import app

STANDBY = {"children": {"shard-00": {"holder": "http://10.0.0.1:4000"}}}


@pytest.mark.parametrize(
    ("phases", "status", "said"),
    [(["ready", "ready"], 0, "holds the shards already"), (["ready", "standby"], 1, "no service runs here")],
)
def test_a_machine_that_is_ready_may_hold_some_of_the_shards_only(
    phases: list[str], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_BUCKET", "file:///bucket")
    children = {f"shard-{index:02d}": {"phase": phase} for index, phase in enumerate(phases)}
    monkeypatch.setattr(takeover.rundir, "status", lambda *_: {"ready": True, "children": children})
    monkeypatch.setattr(takeover.rundir, "process", lambda _: None)
    done = CliRunner().invoke(app, ["takeover", "--data-dir", str(tmp_path)])
    assert (done.exit_code, said in done.output) == (status, True), done.output


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (STANDBY, 1, "no service runs here"),  # it has ended since
        ({"ready": True, "children": {"shard-00": {}}}, 2, "no standby runs here for"),
        (None, 2, "no standby runs here for"),
    ],
)
def test_a_standby_is_known_by_its_status_without_its_settings(
    found: dict[str, Any] | None, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOPICS_BUCKET", raising=False)
    monkeypatch.setattr(takeover.rundir, "status", lambda *_: found)
    monkeypatch.setattr(takeover.rundir, "process", lambda _: None)
    done = CliRunner().invoke(app, ["takeover", "--data-dir", str(tmp_path)])
    assert (done.exit_code, said in done.stderr) == (status, True), done.stderr
