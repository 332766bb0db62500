"""What `topics leave` says of the service on its machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.cli.commands import leave
from supervisor.cli.main import app


def told(*phases: str, pid: int = 1) -> dict[str, Any]:
    children = {f"shard-{index:02d}": {"phase": phase} for index, phase in enumerate(phases)}
    return {"pid": pid, "leaving": True, "children": children}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ([None], 1, "no service runs here"),
        ([{"ready": True}], 1, "has no other machines"),
        ([told("ready", "ready"), told("standby", "ready"), told("standby", "standby"), None], 0, "has left"),
        ([told("ready"), told("ready", pid=2)], 0, "has left"),
        ([told("ready", "standby", "ready")] * 10_000, 1, "2 shards are still here"),
    ],
)
def test_it_waits_until_the_service_has_ended(
    found: list[dict[str, Any] | None], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: Iterator[dict[str, Any] | None] = iter(found)
    sent: list[int] = []
    monkeypatch.setattr(leave.rundir, "status", lambda *_: next(states))
    monkeypatch.setattr(leave.rundir, "process", lambda _: 99)
    monkeypatch.setattr(leave.signal, "pidfd_send_signal", lambda _, number: sent.append(number))
    monkeypatch.setattr(leave, "POLL_S", 0.001)
    within = "0.2" if "still" in said else "60"
    done = CliRunner().invoke(app, ["leave", "--data-dir", str(tmp_path), "--within", within])
    assert (done.exit_code, said in done.output) == (status, True), done.output
    assert sent == ([leave.signal.SIGRTMIN] if len(found) > 1 else [])


def test_a_service_that_ends_before_the_signal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(leave.rundir, "status", lambda *_: told("ready"))
    monkeypatch.setattr(leave.rundir, "process", lambda _: 99)
    monkeypatch.setattr(leave.signal, "pidfd_send_signal", gone)
    done = CliRunner().invoke(app, ["leave", "--data-dir", str(tmp_path)])
    assert (done.exit_code, "the service has ended" in done.output) == (1, True), done.output
