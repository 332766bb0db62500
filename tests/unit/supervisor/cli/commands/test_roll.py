"""What `topics roll` says of the service on its machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.cli.commands import roll
from supervisor.cli.main import app


def told(number: int, state: str, reason: str = "") -> dict[str, Any]:
    return {"pid": 1, "roll": {"number": number, "state": state, "reason": reason}}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ([None], 1, "no service runs here"),
        ([{"ready": True}], 1, "of a release without this command"),
        ([told(3, "done"), told(3, "done"), told(4, "rolling"), told(4, "done")], 0, "all gateways are new"),
        ([told(3, "done"), told(4, "failed", "no spare")], 1, "not all gateways were replaced: no spare"),
        ([told(0, "done"), None], 1, "the service has ended"),
        ([told(3, "done"), {**told(0, "done"), "pid": 2}], 1, "the service has ended"),
        ([told(3, "rolling"), told(3, "done"), told(4, "rolling"), told(4, "done")], 0, "all gateways are new"),
        ([told(0, "done")] * 10_000, 1, "not done within 0.2 s"),
    ],
)
def test_it_waits_for_the_roll_that_it_has_asked_for(
    found: list[dict[str, Any] | None], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: Iterator[dict[str, Any] | None] = iter(found)
    monkeypatch.setattr(roll.rundir, "status", lambda *_: next(states))
    monkeypatch.setattr(roll.rundir, "process", lambda _: 99)
    monkeypatch.setattr(roll.signal, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(roll, "POLL_S", 0.001)
    within = "0.2" if "not done" in said else "60"
    done = CliRunner().invoke(app, ["roll", "--data-dir", str(tmp_path), "--within", within])
    assert (done.exit_code, said in done.output) == (status, True), done.output


def test_a_service_that_ends_before_the_signal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(roll.rundir, "status", lambda *_: told(0, "done"))
    monkeypatch.setattr(roll.rundir, "process", lambda _: 99)
    monkeypatch.setattr(roll.signal, "pidfd_send_signal", gone)
    done = CliRunner().invoke(app, ["roll", "--data-dir", str(tmp_path)])
    assert (done.exit_code, "the service has ended" in done.output) == (1, True), done.output
