"""A child: started again after its death, killed when it hangs or does not stop."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from tests.unit.supervisor.process.test_service import DEADLINE_S, Stage, eventually, run, signal_self


async def test_a_child_that_dies_is_started_again_with_a_new_endpoint(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(), statuses)
            await stage.ready.wait()
            before = stage.status()["children"]
            os.kill(before["shard-01"]["pid"], signal.SIGKILL)
            await eventually(lambda: stage.status()["children"]["shard-01"]["incarnation"] == 2)
            await eventually(lambda: stage.status()["ready"])
            after = stage.status()["children"]
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert after["shard-00"] == before["shard-00"]
    assert after["gateway"] == before["gateway"]
    states = [entry[1]["states"][1] for entry in stage.received("gateway-0") if entry[0] == "Shards"]
    assert states[-1]["endpoint"].endswith("shard-01.2.sock")
    assert "down" in [state["phase"] for state in states]
    assert len(stage.announced) == 1
    stage.assert_nobody_left()


@pytest.mark.slow
async def test_a_child_that_hangs_is_killed_and_started_again(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """This needs no service manager with a watchdog."""
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="mute:1", hang_timeout_ms=2000), statuses)
            await stage.ready.wait()
            await eventually(lambda: stage.status()["children"]["shard-01"]["incarnation"] == 2)
            (stage.path / "mended").touch()
            await eventually(lambda: stage.status()["ready"])
            assert stage.status()["children"]["shard-00"]["incarnation"] == 1
            assert stage.status()["children"]["gateway"]["incarnation"] == 1
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert "child_hung" in capsys.readouterr().out
    assert 1 in [each["states"][1]["hangs"] for _, each, *_ in stage.received("gateway-0") if each.get("states")]


async def test_a_child_that_ignores_stop_is_killed_in_time(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="stubborn", stop_timeout_ms=100), statuses)
            await stage.ready.wait()
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    stage.assert_nobody_left()


@pytest.mark.parametrize("behaviour", ["nonsense"])
async def test_a_child_that_speaks_nonsense_is_an_accident(stage: Stage, behaviour: str) -> None:
    with trio.fail_after(DEADLINE_S):
        assert await stage.service(gateway=behaviour, restart_limit=1).run() == 1
    stage.assert_nobody_left()


async def test_a_child_that_hangs_up_but_lives_on_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.process.child.HANGUP_GRACE_S", 0.05)
    with trio.fail_after(DEADLINE_S):
        assert await stage.service(gateway="hang-up", restart_limit=0).run() == 1
    stage.assert_nobody_left()
