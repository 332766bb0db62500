"""Claims about the history of the last hour."""

from __future__ import annotations

import sys
from math import isnan
from typing import Any

import msgspec
import pytest
import trio

from gateway.observe import history
from gateway.observe.history import EVERY_S, MOST, Recorder, quantile
from proto.ipc.message import Message, Reply, Request
from proto.model.keys import Scope
from tests.support.gateway_stage import key, stage

BOUNDS = [100, 500]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """The script of a shard that has the figures it is told."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {"records": 0, "copies": 0, "bytes": 0, "waiting": 0, "bounds": BOUNDS}
        self.figures["syncs"] = [0, 0, 0]

    def __call__(self, request: Request) -> list[Message]:
        return [Reply(request.id, extra=dict(self.figures))] if request.op == "sample" else []


def shown(recorder: Recorder) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(recorder.answer()))
    return found


async def nothing() -> dict[tuple[str, int], int]:
    """There are no other gateways."""
    return {}


async def sampled(recorder: Recorder, clock: Clock, seconds: float = 10) -> dict[str, Any]:
    clock.now += seconds
    await recorder.sample()
    return shown(recorder)


async def test_a_sample_has_what_the_counters_grew_by_a_second() -> None:
    shard, clock, served = Counting(), Clock(), {("diff", 200): 40, ("append", 201): 3}
    async with stage(shard) as there:
        recorder = Recorder(there.gateway.shards, served, nothing, clock)
        shard.figures |= {"records": 5000, "bytes": 10**6, "syncs": [9, 9, 9]}
        first = await sampled(recorder, clock)
        assert (first["reads"], first["writes"], first["records"], first["bytes"]) == ([4.0], [0.3], [0.0], [0.0])
        assert first["sync_median_us"] == [None], "what was counted before the first look is not of these seconds"
        served |= {("diff", 200): 60, ("diff", 404): 10, ("append", 201): 13, ("metrics", 200): 500, ("none", 404): 9}
        shard.figures |= {"records": 5300, "copies": 20, "bytes": 10**6 + 640, "waiting": 7, "syncs": [11, 9, 9]}
        found = await sampled(recorder, clock)
        last = {name: column[-1] for name, column in found.items() if isinstance(column, list)}
        assert last.pop("answer_us") >= 0
        assert last == {
            "ago_ms": 0,
            "reads": 3.0,
            "writes": 1.0,
            "errors": 1.0,
            "records": 30.0,
            "copies": 2.0,
            "bytes": 64.0,
            "waiting": 7.0,
            "sync_median_us": 50.0,
            "sync_p99_us": 99.0,
        }
        assert (found["ago_ms"], found["since_ms"], found["every_ms"]) == ([10_000, 0], 20_000, 10_000)


async def test_a_shard_that_was_started_again_counts_from_there() -> None:
    shard, clock = Counting(), Clock()
    async with stage(shard) as there:
        recorder = Recorder(there.gateway.shards, {}, nothing, clock)
        shard.figures |= {"records": 100, "bytes": 100}
        await sampled(recorder, clock)
        there.lose_shard(0)
        away = await sampled(recorder, clock)
        assert (away["records"][-1], away["answer_us"][-1]) == (0.0, None)
        again = Counting()
        again.figures |= {"records": 1_000_000, "bytes": 50}  # its log was replayed
        await there.start_shard(0, again, 2)
        assert (await sampled(recorder, clock))["records"] == [0.0, 0.0, 0.0]
        again.figures["records"] += 20
        assert (await sampled(recorder, clock))["records"][-1] == 2.0


async def test_a_shard_that_does_not_answer_holds_up_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PATIENCE_S", 0.05)
    clock = Clock()
    async with stage(lambda request: []) as there:
        recorder = Recorder(there.gateway.shards, {("append", 200): 10}, nothing, clock)
        found = await sampled(recorder, clock)
        assert (found["writes"], found["answer_us"]) == ([1.0], [None])


async def test_the_ring_holds_an_hour_in_less_than_is_promised() -> None:
    shard, clock = Counting(), Clock()
    async with stage(shard) as there:
        recorder = Recorder(there.gateway.shards, {}, nothing, clock)
        for _ in range(MOST + 40):
            clock.now += EVERY_S
            await recorder.sample()
        found = shown(recorder)
        assert {len(column) for column in found.values() if isinstance(column, list)} == {MOST}
        assert (found["ago_ms"][0], found["since_ms"]) == (3_590_000, 4_000_000)
        size = sys.getsizeof(recorder._rows) + sum(map(sys.getsizeof, recorder._rows))
        assert size <= 65_536
        assert len(msgspec.json.encode(recorder.answer())) < 32_768


async def test_an_exception_in_a_sample_ends_no_gateway(autojump_clock: trio.testing.MockClock) -> None:
    tried = 0

    class Broken:
        async def ask_serving(self, *_: Any, **__: Any) -> None:
            nonlocal tried
            tried += 1
            raise ZeroDivisionError

    recorder = Recorder(Broken(), {}, nothing, trio.current_time)  # type: ignore[arg-type]
    with trio.move_on_after(35):
        await recorder.run()
    assert tried == 3


async def test_the_history_needs_the_scope_of_metrics_and_has_no_names() -> None:
    keys = [key("r", Scope.READ, "mine:"), key("w", Scope.WRITE)]
    async with stage(Counting(), keys=keys) as there, there.client() as client:
        await there.gateway.api.service.history.sample()
        asked = [
            await client.ask("GET", "/v0/metrics/history", headers=bearer) for bearer in ({}, told("w"), told("r"))
        ]
        assert [answer.status for answer in asked] == [401, 403, 200]
        assert asked[2].json["reads"] == [0.0]


def told(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_quantile_is_linear_between_the_bounds() -> None:
    assert isnan(quantile(BOUNDS, [0, 0, 0], 0.5))
    assert isnan(quantile((), (), 0.5))
    assert quantile(BOUNDS, [10, 0, 0], 0.5) == 50
    assert quantile(BOUNDS, [10, 10, 0], 0.75) == 300
    assert quantile(BOUNDS, [0, 0, 10], 0.99) == 500
