"""A child: started again after its death, killed when it hangs or does not stop, ended where it is not wanted."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from proto.ipc.control import EXIT_DEPOSED, Holder, Progress, Start
from supervisor.process.child import Child
from supervisor.process.forks import ROSTER, Forked
from supervisor.process.incarnation import Incarnation
from supervisor.process.launch import Launch, Recipe, StartProcess
from supervisor.process.states import ChildEvent, ChildState
from tests.support import fake_child
from tests.unit.supervisor.process.test_service import CLUSTER, DEADLINE_S, Stage, eventually, run, signal_self


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


async def test_a_shard_that_another_machine_holds_now_has_not_died(stage: Stage) -> None:
    def told() -> tuple[int, int]:
        states = [entry[1]["states"][1] for entry in stage.received("gateway-0") if entry[0] == "Shards"]
        return states[-1]["incarnation"], states[-1]["deaths"]

    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="deposed:1"), statuses)
            await stage.ready.wait()
            await eventually(lambda: shard(stage)["incarnation"] == 2 and shard(stage)["state"] == "serving")
            await eventually(lambda: told() == (2, 0))
            os.kill(shard(stage)["pid"], signal.SIGKILL)
            await eventually(lambda: told() == (3, 1))
            signal_self(signal.SIGTERM)
    assert statuses == [0]


def alone(start: StartProcess, restart_limit: int) -> tuple[Child, list[tuple[float, str]]]:
    """A child that is not vital, and its states with their times."""
    seen: list[tuple[float, str]] = []

    def changed(child: Child) -> None:
        seen.append((round(trio.current_time() - began, 2), child.state.value))

    def start_message() -> Start:
        raise AssertionError("no process is there")

    began = trio.current_time()
    launch = Launch(start_message)
    log = structlog.get_logger()
    recipe = Recipe("shard-00", start, {}, lambda _: launch, restart_limit, lambda: False)
    return Child(recipe, changed, log), seen


async def no_process(*_: object) -> Forked:
    raise OSError("no memory")


async def test_a_shard_that_another_machine_takes_over_soon_after_a_hold_is_not_held(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [9, EXIT_DEPOSED, 0]
    child, seen = alone(no_process, 0)

    async def live() -> int:
        child._apply(ChildEvent.SPAWN)
        child.living = Incarnation(structlog.get_logger())
        if len(ends) < 3:
            child.living.ready_at = trio.current_time()
            child._apply(ChildEvent.READY)
        if len(ends) == 1:
            child.request_stop()
        return ends.pop(0)

    monkeypatch.setattr(child, "_live", live)
    await child.run()
    assert [at for at, state in seen if state == "starting"] == [0, 10, 10.02]
    assert [at for at, state in seen if state == "held"] == [0]


async def test_a_death_over_a_request_excuses_no_start_that_fails_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    child, seen = alone(no_process, 2)
    child.in_hand = [[1, 2]]
    with trio.move_on_after(15):
        await child.run()
    assert [at for at, state in seen if state == "starting"] == [0, 0.02, 0.06, 10.06]
    assert [at for at, state in seen if state == "held"] == [0.06, 10.06]
    assert child.in_hand == [[1, 2]], "the next process is told what the last one died over"


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
    monkeypatch.setattr("supervisor.process.incarnation.HANGUP_GRACE_S", 0.05)
    with trio.fail_after(DEADLINE_S):
        assert await stage.service(gateway="hang-up", restart_limit=0).run() == 1
    stage.assert_nobody_left()


def shard(stage: Stage, index: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = stage.status()["children"][f"shard-{index:02d}"]
    return found


def decides(stage: Stage, behaviour: str) -> None:
    """The next roster decides something else."""
    stage.forks.behaviours[ROSTER] = behaviour
    os.kill(stage.status()["children"]["roster"]["pid"], signal.SIGKILL)


OLD = Holder("http://b", "tcp://b:1", "the old key", 8)
NEW = Holder("http://c", "tcp://c:1", "the new key", 9)


@pytest.fixture
def absent(stage: Stage) -> tuple[Child, list[str]]:
    """A shard that has no process here, and the keys that are reported of its holder."""
    child, told = stage.service()._shards[1], []
    child._changed = lambda each: told.append(each.holder_link[1])
    child.unwant()
    return child, told


def test_what_the_roster_saw_before_the_holder_that_is_known_is_no_news(absent: tuple[Child, list[str]]) -> None:
    """A link to the holder that is known would be cut, with requests on their way."""
    child, told = absent
    for found in (OLD, NEW, OLD, Holder(), NEW):
        child.held_by(found)
    assert told == [OLD.key, NEW.key]
    child.held_by(Holder("", NEW.at, NEW.key, NEW.term))
    assert (child.holder, child.holder_link) == ("", (NEW.at, NEW.key)), "it gives no sign of life"


async def test_a_process_that_begins_to_follow_may_have_seen_less_than_the_roster(
    absent: tuple[Child, list[str]],
) -> None:
    child, told = absent
    child.held_by(NEW)
    child.state = ChildState.STARTING
    child._handle(Progress("standby", 0, 0, OLD.holder, 0, "", OLD.at, OLD.key, OLD.term))
    assert told == [NEW.key] * 2
    child._handle(Progress("standby", 0, 0))
    assert (child.holder, child.holder_link) == ("", ("", "")), "no machine holds it"
    child._handle(Progress("standby", 0, 0, NEW.holder, 0, "", NEW.at, NEW.key, NEW.term))
    assert (child.holder, told[-1]) == (NEW.holder, NEW.key)


async def test_the_roster_may_have_seen_less_than_a_process_that_followed(absent: tuple[Child, list[str]]) -> None:
    child, _ = absent
    child.state = ChildState.STARTING
    child._handle(Progress("standby", 0, 0, NEW.holder, 0, "", NEW.at, NEW.key, NEW.term))
    child.phase = "elsewhere"
    assert not child.learn(OLD)
    assert (child.holder, child.holder_link) == (NEW.holder, (NEW.at, NEW.key))


async def test_a_shard_that_is_followed_and_not_wanted_has_no_process_until_it_is(stage: Stage) -> None:
    def told() -> list[tuple[str, str]]:
        states = [entry[1]["states"][1] for entry in stage.received("gateway-0") if entry[1].get("states")]
        return [(each["phase"], each["holder_key"]) for each in states]

    statuses: list[int] = []
    seen: list[tuple[str, str]] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            service = stage.service(shard="follows:1", roster="wants-0", cluster=CLUSTER)
            child = service._shards[1]
            changed = child._changed

            def change(each: Child) -> None:
                seen.append((each.phase, each.holder_link[1]))  # reports to a gateway may be combined
                changed(each)

            child._changed = change
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            await eventually(lambda: shard(stage)["state"] == "elsewhere")
            found = shard(stage)
            assert (found["phase"], found["pid"], found["holder"]) == ("elsewhere", None, fake_child.HELD.holder)
            assert shard(stage, 0)["state"] == "serving"
            assert stage.status()["ready"], "its holder is known"
            await eventually(lambda: told()[-1] == ("elsewhere", fake_child.HELD.key))
            (stage.path / "mended").touch()
            decides(stage, "wants-0-1")
            await eventually(lambda: shard(stage)["state"] == "serving")
            assert shard(stage)["incarnation"] == 2
            await eventually(lambda: told()[-1] == ("ready", ""))
            assert ("open", fake_child.HELD.key) in seen, "the holder is known while a process is started"
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    phases = [phase for phase, _ in told()]
    assert "stopping" not in phases[: phases.index("elsewhere")], "its link to the holder stays"
    assert [entry[0] for entry in stage.received("shard-1")].count("Stop") == 2
    stage.assert_nobody_left()


async def test_shards_without_files_wait_for_the_roster_and_a_stop_ends_the_wait(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            service = stage.service(roster="members", cluster=CLUSTER, filled=False)
            nursery.start_soon(run, service, statuses)
            await eventually((stage.path / "roster-0.log").exists)
            await eventually(lambda: [shard(stage, index)["state"] for index in (0, 1)] == ["elsewhere"] * 2)
            assert not stage.status()["ready"]
            start = stage.received("roster-0")[0][1]
            assert [state["phase"] for state in start["states"]] == ["elsewhere"] * 2, "they are not taken to run"
            decides(stage, "wants-1")
            await eventually(lambda: shard(stage)["state"] == "serving")
            await stage.ready.wait()
            assert shard(stage, 0)["state"] == "elsewhere"
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert not (stage.path / "shard-0.log").exists(), "it had no process"
    stage.assert_nobody_left()


async def test_a_shard_that_cannot_start_and_is_not_wanted_is_no_fault(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.process.restart.FIRST_HOLD_S", 0.1)
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="fail:1", roster="wants-0", cluster=CLUSTER), statuses)
            await eventually((stage.path / "roster-0.log").exists)
            await eventually(lambda: shard(stage)["state"] == "elsewhere")
            await eventually(lambda: stage.status()["ready"])
            signal_self(signal.SIGTERM)
    assert statuses == [0]


async def test_a_process_that_is_not_wanted_and_does_not_stop_is_killed(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            service = stage.service(shard="follows-on:1", roster="wants-0", cluster=CLUSTER, stop_timeout_ms=100)
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            await eventually(lambda: shard(stage)["state"] == "elsewhere")
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    stage.assert_nobody_left()


async def test_a_takeover_starts_a_shard_that_has_no_process(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            service = stage.service(shard="follows:1", roster="wants-0", cluster=CLUSTER)
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            await eventually(lambda: shard(stage)["state"] == "elsewhere")
            signal_self(signal.SIGUSR1)
            await eventually(lambda: shard(stage)["phase"] == "standby")
            await eventually(lambda: "TakeOver" in [entry[0] for entry in stage.received("shard-1")])
            signal_self(signal.SIGTERM)
    assert statuses == [0]
