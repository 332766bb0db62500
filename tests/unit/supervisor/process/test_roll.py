"""Roll: every gateway is replaced while a spare serves, and nothing is left of it whatever fails."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from supervisor.process.forks import GATEWAY
from supervisor.process.service import Service
from tests.unit.supervisor.process.test_service import DEADLINE_S, Stage, eventually, run, signal_self


def gateways(stage: Stage) -> dict[str, Any]:
    return {name: each for name, each in stage.status()["children"].items() if name.startswith("gateway")}


def state(stage: Stage) -> list[Any]:
    return list(stage.status()["roll"].values())


def orders(stage: Stage, name: str) -> list[str]:
    return [entry[0] for entry in stage.received(name) if entry[0] not in ("Shards", "Ping")]


@asynccontextmanager
async def running(stage: Stage, service: Service) -> AsyncIterator[list[int]]:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            yield statuses
            if not statuses:
                signal_self(signal.SIGTERM)
    stage.assert_nobody_left()


@pytest.mark.parametrize("number", [1, 3])
async def test_every_gateway_is_replaced_and_the_spare_goes(stage: Stage, number: int) -> None:
    async with running(stage, stage.service(gateways=number)) as statuses:
        before = gateways(stage)
        signal_self(signal.SIGUSR2)
        await eventually(lambda: state(stage) == [1, "done", ""])
        after = gateways(stage)
        assert after.keys() == before.keys()
        assert {each["incarnation"] for each in after.values()} == {2}
        assert not {each["pid"] for each in after.values()} & {each["pid"] for each in before.values()}
        assert stage.status()["ready"] is True
        signal_self(signal.SIGUSR2)
        await eventually(lambda: state(stage) == [2, "done", ""])
        await eventually(
            lambda: [a for a in stage.received("shard-1") if a[0] == "Askers"][-1][1]["first"]["spare"] == 3
        )
    assert statuses == [0]
    for index in range(number):
        assert orders(stage, f"gateway-{index}") == ["Start", "Retire", "Stop"] * 2 + ["Start", "Drain", "Stop"]
    assert orders(stage, f"gateway-{number}") == ["Start", "Retire", "Stop"] * 2, "the spare"
    starts = [entry[1] for entry in stage.received(f"gateway-{number}") if entry[0] == "Start"]
    assert [(start["incarnation"], start["index"], start["gateways"]) for start in starts] == [
        (1, number, number),
        (2, number, number),
    ]
    assert [start["others_serve"] for start in starts] == [True, True]
    starts = [entry[1] for entry in stage.received("gateway-0") if entry[0] == "Start"]
    assert [start["others_serve"] for start in starts[1:]] == [True, True], "the spare serves"
    assert "not ready" not in stage.notifications()


async def test_without_a_spare_nothing_is_replaced(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.process.roll.START_S", 0.3)
    async with running(stage, stage.service(gateways=2)):
        before = gateways(stage)
        stage.forks.behaviours[GATEWAY] = "silent"
        signal_self(signal.SIGUSR2)
        await eventually(lambda: state(stage)[1] == "failed")
        assert state(stage)[2] == "gateway-spare did not reach all shards within 0.3 s"
        assert gateways(stage) == before


async def test_the_spare_stays_until_another_gateway_serves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.process.roll.START_S", 1)
    async with running(stage, stage.service(gateways=1)):
        signal_self(signal.SIGUSR2)
        await eventually(lambda: gateways(stage).get("gateway-spare", {}).get("state") == "serving")
        stage.forks.behaviours[GATEWAY] = "silent"
        await eventually(lambda: gateways(stage)["gateway"]["incarnation"] == 2)
        with trio.move_on_after(1.5):
            await eventually(lambda: state(stage)[1] != "rolling")
        assert state(stage)[1] == "rolling"
        assert stage.status()["ready"] is True, "the spare serves"
        stage.forks.behaviours[GATEWAY] = "good"
        os.kill(gateways(stage)["gateway"]["pid"], signal.SIGKILL)
        await eventually(lambda: state(stage)[1] == "failed")
        assert list(gateways(stage)) == ["gateway"]


async def test_a_spare_that_dies_meanwhile_is_started_again_and_goes_at_the_end(stage: Stage) -> None:
    async with running(stage, stage.service(gateway="keeps:gateway-0", gateways=1)):
        signal_self(signal.SIGUSR2)
        await eventually(lambda: gateways(stage)["gateway"]["state"] == "leaving")
        os.kill(gateways(stage)["gateway-spare"]["pid"], signal.SIGKILL)
        await eventually(lambda: gateways(stage)["gateway-spare"]["incarnation"] == 2)
        await eventually(lambda: gateways(stage)["gateway-spare"]["state"] == "serving")
        os.kill(gateways(stage)["gateway"]["pid"], signal.SIGKILL)
        await eventually(lambda: state(stage) == [1, "done", ""])
        assert list(gateways(stage)) == ["gateway"]
        await eventually(
            lambda: [a for a in stage.received("shard-1") if a[0] == "Askers"][-1][1]["first"]["spare"] == 3
        )


@pytest.mark.parametrize("spare_dies", [False, True])
async def test_a_single_gateway_that_cannot_start_again_is_retried_while_the_spare_serves(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, spare_dies: bool
) -> None:
    monkeypatch.setattr("supervisor.process.restart.FIRST_HOLD_S", 0.2)
    async with running(stage, stage.service(gateway="keeps:gateway-0", gateways=1)) as statuses:
        signal_self(signal.SIGUSR2)
        await eventually(lambda: gateways(stage)["gateway"]["state"] == "leaving")
        stage.forks.behaviours[GATEWAY] = "fail"
        os.kill(gateways(stage)["gateway"]["pid"], signal.SIGKILL)
        await eventually(lambda: gateways(stage)["gateway"]["incarnation"] > 2)
        assert (stage.status()["ready"], state(stage)[1]) == (True, "rolling")
        if spare_dies:
            os.kill(gateways(stage)["gateway-spare"]["pid"], signal.SIGKILL)
            await eventually(lambda: statuses)
        else:
            stage.forks.behaviours[GATEWAY] = "good"
            await eventually(lambda: state(stage) == [1, "done", ""])
            assert not statuses
    assert statuses == [3 if spare_dies else 0]


async def test_a_gateway_that_dies_while_it_retires_is_simply_replaced(stage: Stage) -> None:
    async with running(stage, stage.service(gateway="keeps:gateway-1", gateways=2)):
        pid = gateways(stage)["gateway-1"]["pid"]
        signal_self(signal.SIGUSR2)
        await eventually(lambda: gateways(stage)["gateway-1"]["state"] == "leaving")
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: gateways(stage)["gateway-1"]["state"] == "serving")
        await eventually(lambda: state(stage) == [1, "done", ""])


async def test_a_gateway_that_hangs_while_it_retires_is_killed_as_any_other(stage: Stage) -> None:
    async with running(stage, stage.service(gateway="keeps:gateway-1", gateways=2, hang_timeout_ms=2000)):
        pid = gateways(stage)["gateway-1"]["pid"]
        signal_self(signal.SIGUSR2)
        await eventually(lambda: gateways(stage)["gateway-1"]["state"] == "leaving")
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: gateways(stage)["gateway-1"]["incarnation"] == 2)
        await eventually(lambda: state(stage) == [1, "done", ""])


@pytest.mark.parametrize("order", ["gateway-1", "gateway-spare"])
async def test_a_stop_meanwhile_drains_all_and_leaves_no_process(stage: Stage, order: str) -> None:
    behaviour = "keeps:gateway-1" if order == "gateway-1" else "keeps:gateway-2"
    async with running(stage, stage.service(gateway=behaviour, gateways=2, drain_timeout_ms=100)) as statuses:
        signal_self(signal.SIGUSR2)
        await eventually(lambda: gateways(stage).get(order, {}).get("state") in ("leaving", "stopping"))
    assert statuses == [0]
    assert orders(stage, "gateway-0")[-2:] == ["Drain", "Stop"]


async def test_a_service_that_does_not_serve_yet_refuses(stage: Stage) -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="silent"), [])
            await eventually((stage.path / "gateway-0.log").exists)
            signal_self(signal.SIGUSR2)
            await eventually(lambda: state(stage) == [1, "failed", "the service does not serve"])
            signal_self(signal.SIGTERM)
