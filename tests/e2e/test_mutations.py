"""Claims about mutated requests in the real service: each gets an honest answer, and no process is lost over them.

`tests/mutation` has the same with many more of them, in one process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import trio

from tests.mutation import sweeps, talks, values
from tests.mutation.examples import LOG, Example
from tests.mutation.judge import Judge
from tests.mutation.scene import Scene
from tests.support.gateway_stage import Client
from tests.support.protocols import ports
from tests.support.service import Service

SEED = int(os.environ.get("TOPICS_TEST_SEED", "7"))
EDITS = 6
OF_EACH = 60


@dataclass
class Remote:
    """A service in other processes."""

    service: Service

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.service.port) as stream:
            yield Client(stream)


def _at_once(example: Example) -> Example:
    """The example without a wait, which a mutation makes as long as it may be."""
    if example.body is None:
        return example
    return replace(example, body={name: value for name, value in example.body.items() if name != "wait_ms"})


async def _requests(scene: Scene, random: Random) -> None:
    for operation, found in sweeps.examples():
        example = _at_once(found)
        if operation.request is not None:
            made = sweeps.some(values.bodies(example.body, random, EDITS), random, OF_EACH)
            await sweeps.bodies(scene, operation, example, made)
        await sweeps.heads(scene, operation, example, random, EDITS)
    await sweeps.framings(scene, random, EDITS)
    await sweeps.tokens(scene, random, EDITS)


def _over_tcp(port: int) -> talks.Exchange:
    async def exchange(raw: bytes) -> bytes | None:
        return await talks.said(await trio.open_tcp_stream("127.0.0.1", port), raw)

    return exchange


async def test_mutations_of_every_kind_cost_no_process_and_leave_no_traceback(
    new_service: Callable[..., Service],
) -> None:
    service = new_service(TOPICS_WALRUS_LISTEN="127.0.0.1:0", TOPICS_ROG_LISTEN="127.0.0.1:0").start()
    [walrus], [rog] = ports(service, "walrus"), ports(service, "rog")
    before: Any = service.pids()
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    scene = Scene(Remote(service), judge)
    await _requests(scene, random)
    await scene.prepare(Example(before=LOG))
    await talks.in_commands(scene, sweeps.some(talks.commands(random, EDITS), random, 500))
    await talks.in_frames(scene, sweeps.some(talks.streams_of_frames(random, EDITS), random, 100))
    await talks.protocols(scene, _over_tcp(walrus), _over_tcp(rog), random, EDITS)
    judge.log += [line for line in service.log_text().splitlines() if "level=error" in line or "Traceback" in line]
    judge.end()
    assert service.pids() == before
    assert judge.tried > 3_000
