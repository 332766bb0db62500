"""Several gateways: one that dies is replaced, all are told the same, the service ends when none can run."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import trio

from proto.ipc.control import FiguresWanted, Suspected
from proto.ipc.figures import ShardFigures
from proto.ipc.gateway_figures import GatewayFigures
from proto.ipc.gateway_page import Column, Row
from supervisor.config.keys import Keys, read_file
from tests.unit.supervisor.process.test_service import DEADLINE_S, Stage, eventually, run, signal_self

NAMES = ["gateway-0", "gateway-1", "gateway-2"]


def children(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.status()["children"]
    return found


def told(stage: Stage, name: str, kind: str) -> list[dict[str, Any]]:
    return [entry[1] for entry in stage.received(name) if entry[0] == kind]


async def test_all_get_the_same_sockets_and_a_page_and_end_together(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(gateways=3), statuses)
            await stage.ready.wait()
            assert [name for name in children(stage) if name.startswith("gateway")] == NAMES
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    starts = [told(stage, name, "Start")[0] for name in NAMES]
    assert [start["index"] for start in starts] == [0, 1, 2]
    assert {start["gateways"] for start in starts} == {3}
    assert len({(start["listen_fd"], start["page_fd"]) for start in starts}) == 1
    assert starts[0]["page_fd"] >= 0
    for name in NAMES:
        orders = [entry[0] for entry in stage.received(name) if entry[0] not in ("Shards", "Ping")]
        assert orders == ["Start", "Drain", "Stop"]
    assert told(stage, "shard-0", "Start")[0]["askers"] == {"g0": 1, "g1": 1, "g2": 1, "s0": 1, "s1": 1}
    stage.assert_nobody_left()


async def test_one_gateway_has_its_old_name_and_no_page(stage: Stage) -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(gateways=1), [])
            await stage.ready.wait()
            assert "gateway" in children(stage)
            signal_self(signal.SIGTERM)
    start = told(stage, "gateway-0", "Start")[0]
    assert (start["page_fd"], start["places"], start["gateways"]) == (-1, [], 1)


async def test_one_that_dies_is_replaced_and_its_row_is_empty(stage: Stage) -> None:
    statuses: list[int] = []
    service = stage.service(gateways=3)
    assert service._gateways.page is not None
    row = Row(service._gateways.page.descriptor, 4, 1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            row.put(Column.STREAMS, 7)
            before = children(stage)
            os.kill(before["gateway-1"]["pid"], signal.SIGKILL)
            await eventually(lambda: row.sum(Column.STREAMS) == 0)
            await eventually(lambda: children(stage)["gateway-1"]["incarnation"] == 2)
            await eventually(lambda: children(stage)["gateway-1"]["state"] == "serving")
            assert stage.status()["ready"] is True
            after = children(stage)
            await eventually(lambda: told(stage, "shard-1", "Askers")[-1]["first"]["g1"] == 2)
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert [after[name] == before[name] for name in NAMES] == [True, False, True]
    assert len(stage.announced) == 1


async def test_the_service_is_ready_while_one_gateway_serves(stage: Stage) -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(gateways=3), [])
            await stage.ready.wait()
            stage.forks.behaviours = dict.fromkeys(stage.forks.behaviours, "silent")
            for name in NAMES[:2]:
                os.kill(children(stage)[name]["pid"], signal.SIGKILL)
            await eventually(lambda: [children(stage)[name]["state"] for name in NAMES[:2]] == ["starting"] * 2)
            assert stage.status()["ready"] is True
            os.kill(children(stage)["gateway-2"]["pid"], signal.SIGKILL)
            await eventually(lambda: stage.status()["ready"] is False)
            signal_self(signal.SIGTERM)
    assert "without gateway-0, gateway-1" in stage.notifications()


async def test_a_start_waits_for_each_gateway_unless_it_is_troubled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.process.restart.FIRST_HOLD_S", 0.2)
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(gateway="fail:gateway-1", gateways=3), statuses)
            await stage.ready.wait()
            assert stage.announced[0].count("without gateway-1") == 1
            await eventually(lambda: children(stage)["gateway-1"]["incarnation"] > 2)
            assert children(stage)["gateway-0"]["incarnation"] == 1
            (stage.path / "mended").touch()
            await eventually(lambda: children(stage)["gateway-1"]["state"] == "serving")
            signal_self(signal.SIGTERM)
    assert statuses == [0]


@pytest.mark.parametrize(("behaviour", "status"), [("die", 1), ("fail", 3)])
async def test_the_service_ends_when_none_can_be_started(stage: Stage, behaviour: str, status: int) -> None:
    with trio.fail_after(DEADLINE_S):
        assert await stage.service(gateway=behaviour, gateways=2, restart_limit=1).run() == status
    assert "gateway-0: " in stage.notifications()
    stage.assert_nobody_left()


async def test_a_reload_ends_when_all_gateways_have_confirmed_their_keys(stage: Stage) -> None:
    """One that hangs is killed meanwhile; its successor starts with the new keys."""
    path = stage.path / "keys"
    path.write_text("before")
    service = stage.service(gateways=3, keys=Keys(read_file(path), path), hang_timeout_ms=0)
    ended: list[int] = []

    async def reload() -> None:
        path.write_text("after\nanother")
        await service._reload.read_keys()
        ended.append(1)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, service, [])
            await stage.ready.wait()
            victim = children(stage)["gateway-2"]["pid"]
            os.kill(victim, signal.SIGSTOP)
            nursery.start_soon(reload)
            await eventually(lambda: [told(stage, name, "Keys") != [] for name in NAMES] == [True, True, False])
            await eventually(lambda: len(service._gateways._confirmed) == 2)
            assert not ended
            os.kill(victim, signal.SIGKILL)
            await eventually(lambda: ended)
            await eventually(lambda: len(told(stage, "gateway-2", "Start")) == 2)
            signal_self(signal.SIGTERM)
    assert [told(stage, name, "Keys")[0]["places"] for name in NAMES[:2]] == [[1, 2]] * 2
    first, second = told(stage, "gateway-2", "Start")
    assert (first["places"], second["places"]) == ([0], [1, 2])


async def test_what_a_shard_answered_one_gateway_is_told_to_another_that_misses_it(stage: Stage) -> None:
    service = stage.service(gateways=2)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, service, [])
            await stage.ready.wait()
            one, two = service._gateways.lasting
            service._gateways.heard(one, FiguresWanted(1, GatewayFigures(), {1: ShardFigures(records_written=5)}))
            service._gateways.heard(two, FiguresWanted(1, GatewayFigures(), {}, [0, 1]))
            service._gateways.heard(two, FiguresWanted(2, GatewayFigures()))
            await eventually(lambda: told(stage, NAMES[1], "OtherFigures"))
            signal_self(signal.SIGTERM)
    (answer,) = told(stage, NAMES[1], "OtherFigures")
    assert answer["number"] == 2
    assert {index: each["records_written"] for index, each in answer["shards"].items()} == {"1": 5}
    assert told(stage, NAMES[0], "OtherFigures")[0]["shards"] == {}
    assert answer["counted"]["records_written"] == 5


async def test_what_a_shard_died_over_is_passed_on_to_the_other_gateways(stage: Stage) -> None:
    service = stage.service(gateways=3)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, service, [])
            await stage.ready.wait()
            first = service._gateways.lasting[0]
            for incarnation in (1, 2):
                service._gateways.heard(first, Suspected(1, incarnation, ["print"]))
            await eventually(lambda: [len(told(stage, name, "Suspected")) for name in NAMES] == [0, 2, 2])
            signal_self(signal.SIGTERM)
    found = [
        {key: each[key] for key in ("shard", "incarnation", "prints")} for each in told(stage, NAMES[1], "Suspected")
    ]
    assert found == [{"shard": 1, "incarnation": number, "prints": ["print"]} for number in (1, 2)]
