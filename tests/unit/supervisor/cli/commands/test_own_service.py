"""What `topics roll`, `topics leave` and `topics takeover` say of the service on their machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.cli.commands import own_service
from supervisor.cli.main import app


def roll_status(number: int, state: str, reason: str = "") -> dict[str, Any]:
    return {"pid": 1, "roll": {"number": number, "state": state, "reason": reason}}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ([None], 1, "no service runs here"),
        ([{"ready": True}], 1, "of a release without this command"),
        (
            [roll_status(3, "done"), roll_status(3, "done"), roll_status(4, "rolling"), roll_status(4, "done")],
            0,
            "all gateways are new",
        ),
        ([roll_status(3, "done"), roll_status(4, "failed", "no spare")], 1, "not all gateways were replaced: no spare"),
        ([roll_status(0, "done"), None], 1, "the service has ended"),
        ([roll_status(3, "done"), {**roll_status(0, "done"), "pid": 2}], 1, "the service has ended"),
        (
            [roll_status(3, "rolling"), roll_status(3, "done"), roll_status(4, "rolling"), roll_status(4, "done")],
            0,
            "all gateways are new",
        ),
        ([roll_status(0, "done")] * 10_000, 1, "not done within 0.2 s"),
    ],
)
def test_it_waits_for_the_roll_that_it_has_asked_for(
    found: list[dict[str, Any] | None], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: Iterator[dict[str, Any] | None] = iter(found)
    monkeypatch.setattr(own_service.rundir, "status", lambda *_: next(states))
    monkeypatch.setattr(own_service.rundir, "process", lambda _: 99)
    monkeypatch.setattr(own_service.signal, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(own_service, "POLL_S", 0.001)
    within = "0.2" if "not done" in said else "60"
    done = CliRunner().invoke(app, ["roll", "--data-dir", str(tmp_path), "--within", within])
    assert (done.exit_code, said in done.output) == (status, True), done.output


def test_a_service_that_ends_before_the_signal_to_roll_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(own_service.rundir, "status", lambda *_: roll_status(0, "done"))
    monkeypatch.setattr(own_service.rundir, "process", lambda _: 99)
    monkeypatch.setattr(own_service.signal, "pidfd_send_signal", gone)
    done = CliRunner().invoke(app, ["roll", "--data-dir", str(tmp_path)])
    assert (done.exit_code, "the service has ended" in done.output) == (1, True), done.output


def leave_status(*phases: str, pid: int = 1) -> dict[str, Any]:
    children = {f"shard-{index:02d}": {"phase": phase} for index, phase in enumerate(phases)}
    return {"pid": pid, "leaving": True, "children": children}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ([None], 1, "no service runs here"),
        ([{"ready": True}], 1, "has no other machines"),
        (
            [
                leave_status("ready", "ready"),
                leave_status("standby", "ready"),
                leave_status("standby", "standby"),
                None,
            ],
            0,
            "has left",
        ),
        ([leave_status("ready"), leave_status("ready", pid=2)], 0, "has left"),
        ([leave_status("ready", "standby", "ready")] * 10_000, 1, "2 shards are still here"),
    ],
)
def test_it_waits_until_the_service_has_ended(
    found: list[dict[str, Any] | None], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: Iterator[dict[str, Any] | None] = iter(found)
    sent: list[int] = []
    monkeypatch.setattr(own_service.rundir, "status", lambda *_: next(states))
    monkeypatch.setattr(own_service.rundir, "process", lambda _: 99)
    monkeypatch.setattr(own_service.signal, "pidfd_send_signal", lambda _, number: sent.append(number))
    monkeypatch.setattr(own_service, "POLL_S", 0.001)
    within = "0.2" if "still" in said else "60"
    done = CliRunner().invoke(app, ["leave", "--data-dir", str(tmp_path), "--within", within])
    assert (done.exit_code, said in done.output) == (status, True), done.output
    assert sent == ([own_service.signal.SIGRTMIN] if len(found) > 1 else [])


def test_a_service_that_ends_before_the_signal_to_leave_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(own_service.rundir, "status", lambda *_: leave_status("ready"))
    monkeypatch.setattr(own_service.rundir, "process", lambda _: 99)
    monkeypatch.setattr(own_service.signal, "pidfd_send_signal", gone)
    done = CliRunner().invoke(app, ["leave", "--data-dir", str(tmp_path)])
    assert (done.exit_code, "the service has ended" in done.output) == (1, True), done.output


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
    monkeypatch.setattr(own_service.rundir, "status", lambda *_: {"ready": True, "children": children})
    monkeypatch.setattr(own_service.rundir, "process", lambda _: None)
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
    monkeypatch.setattr(own_service.rundir, "status", lambda *_: found)
    monkeypatch.setattr(own_service.rundir, "process", lambda _: None)
    done = CliRunner().invoke(app, ["takeover", "--data-dir", str(tmp_path)])
    assert (done.exit_code, said in done.stderr) == (status, True), done.stderr
