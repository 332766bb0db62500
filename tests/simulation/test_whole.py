"""Claims about the whole system, in one process with a seeded order of events and faults: whatever fails, clients get
what they are promised; and a broken product is noticed.

A failing schedule is run again with `TOPICS_TEST_SEED=<number>`, more of them with `--seeds N`.
"""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import trio
from trio._core import _run

from tests.simulation.test_machines import first_seed
from tests.simulation.whole import cluster_schedule, inner_trio
from tests.simulation.whole.broken import BROKEN, BROKEN_MACHINES, BROKEN_MOVES, RARE, broken
from tests.simulation.whole.runs import Run
from tests.simulation.whole.schedule import Schedule, schedule
from tests.simulation.whole.story import run, shrunk, told

FEW = 30
FEW_OF_MACHINES = 5
ENOUGH = 300
"""Schedules of which at least one notices a broken product."""
MANY = 10 * ENOUGH
TIDY = 25
"""Runs after which their garbage is collected: a run makes much, and a search takes as long as half a run."""
MAKERS: dict[str, Callable[[int], Schedule]] = {"one machine": schedule, "machines": cluster_schedule.schedule}


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def failing(first: int, count: int, made: Callable[[int], Schedule] = schedule) -> Iterator[Run]:
    """The runs that find something, of these seeds."""
    for seed in range(first, first + count):
        found = run(made(seed))
        if seed % TIDY == 0:
            gc.collect()
        if found.found:
            yield found


def digest(seed: int, of: str = "one machine") -> str:
    made = run(MAKERS[of](seed))
    return hashlib.sha256("\n".join(made.trace).encode() + made.history).hexdigest()


def test_clients_get_what_they_are_promised(pytestconfig: pytest.Config) -> None:
    for found in failing(first_seed(), pytestconfig.getoption("seeds") or FEW):
        pytest.fail(told(found), pytrace=False)


def test_clients_of_several_machines_get_what_they_are_promised(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("seeds") or FEW_OF_MACHINES
    for found in failing(first_seed(), count, cluster_schedule.schedule):
        pytest.fail(told(found), pytrace=False)


def test_a_machine_that_leaves_and_joins_fails_no_request(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("seeds") or FEW_OF_MACHINES
    for found in failing(first_seed(), count, cluster_schedule.calm):
        pytest.fail(told(found), pytrace=False)


def notices(name: str, count: int) -> bool:
    made = cluster_schedule.schedule if name in BROKEN_MACHINES else schedule
    made = cluster_schedule.calm if name in BROKEN_MOVES else made
    with broken(name):
        return bool(list(islice(failing(0, count, made), 1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in [*BROKEN, *BROKEN_MACHINES, *BROKEN_MOVES] if name not in RARE])
def test_a_broken_product_is_noticed(name: str) -> None:
    assert notices(name, ENOUGH)


@pytest.mark.long
@pytest.mark.parametrize("name", RARE)
def test_an_error_that_shows_seldom_is_noticed(name: str) -> None:
    assert notices(name, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("of", MAKERS)
def test_a_seed_is_one_story_whatever_the_hash_seed(of: str) -> None:
    """Also in another process."""
    seeds = (1, 4, 6)
    here = [digest(seed, of) for seed in seeds]
    assert here == [digest(seed, of) for seed in seeds]
    assert len(set(here)) == len(seeds)
    program = f"from tests.simulation.test_whole import digest; print(*(digest(seed, {of!r}) for seed in {seeds}))"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": f"{root}:{root}/packages/topics-history"}
    told = subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, capture_output=True, check=True)
    assert told.stdout.decode().split() == here


@pytest.mark.slow
def test_schedules_do_what_they_are_to_do() -> None:
    """Each kind of fault and of request happens, and most requests succeed."""
    counts = sum((run(schedule(seed)).counts for seed in range(FEW)), start=run(schedule(FEW)).counts)
    for fault in ("kill", "dies", "sync fails", "write fails", "pause", "all", "power"):
        assert counts[fault], fault
    for what in ("append", "again", "read", "state", "delete", "put cursor", "get cursor", "claim", "ack", "nack"):
        assert counts[f"{what} ok"], what
    assert counts["dead"], "dead letters"
    assert counts["outcome ok"] > 4 * counts["outcome failed"]
    assert counts["outcome unknown"]


@pytest.mark.slow
def test_schedules_of_machines_do_what_they_are_to_do() -> None:
    """Each kind of fault happens, of the bucket too; shards are taken over and moved, and retention removes parts."""
    runs = [run(cluster_schedule.schedule(seed)) for seed in range(FEW)]
    counts = sum((each.counts for each in runs), start=Counter[str]())
    for fault in (*cluster_schedule.PARTS, *cluster_schedule.WHOLE, "409", "412", "503", "lost", "not sent"):
        assert counts[fault], fault
    for what in ("append", "again", "read", "state", "delete", "put cursor", "get cursor", "claim", "ack", "nack"):
        assert counts[f"{what} ok"], what
    assert counts["create terms"] > 2 * 2 * FEW
    assert counts["create moves"] > FEW
    assert counts["delete log"]
    assert counts["outcome ok"] > counts["outcome failed"] + counts["outcome unknown"]


@pytest.mark.slow
def test_a_story_is_short() -> None:
    """Steps that a failure does not need are left out."""
    with broken("idempotency keys are forgotten at a restart"):
        found = next(failing(0, ENOUGH))
        text = told(found)
    assert f"TOPICS_TEST_SEED={found.schedule.seed}: Doubled" in text
    assert "append" in text
    assert text.count(" c0 ") + text.count(" c1 ") + text.count(" c2 ") <= 6


def test_a_schedule_is_shrunk_to_what_fails() -> None:
    whole = schedule(0)
    needed = {whole.steps[at].number for at in (3, 17, 40)}
    least = shrunk(whole, lambda each: needed <= {step.number for step in each.steps})
    assert {step.number for step in least.steps} == needed


def test_trio_has_the_inner_parts() -> None:
    """Which `inner_trio` uses. Their order of tasks follows from a seed."""
    assert hasattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING")

    async def order() -> list[int]:
        found: list[int] = []

        async def note(number: int) -> None:
            found.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(note, number)
        return found

    assert inner_trio.run(1, order) == inner_trio.run(1, order) != inner_trio.run(2, order)


def test_held_tasks_wait_while_others_run() -> None:
    async def main() -> list[str]:
        found: list[str] = []

        async def note(name: str) -> None:
            await trio.sleep(1)
            found.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "held", name="held")
            nursery.start_soon(note, "other", name="other")
            inner_trio.hold(lambda task: task.name == "held")
            await trio.sleep(5)
            found.append("released")
            inner_trio.hold(None)
        return found

    assert inner_trio.run(0, main) == ["other", "released", "held"]
