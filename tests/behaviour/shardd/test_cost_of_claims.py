"""Cost: claims about how much work a claim is, counted and not timed."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from proto.format.columns import Column
from tests.support.harness import Harness

LEFT = 64
JOBS = 64_000


def queue(jobs: int) -> Harness:
    shard = Harness()
    shard.call("configure", "q", {"type": "queue", "lease_ms": 86_400_000})
    for _ in range(0, jobs, min(jobs, 8000)):
        shard.append("q", *range(min(jobs, 8000)), return_seqs=False)
    return shard


def claim(shard: Harness, most: int) -> list[int]:
    return [job["$seq"] for job in shard.call("claim", "q", {"node": "w", "max": most})["claimed"]]


def worn(seed: int) -> Harness:
    """A queue whose jobs were all acknowledged in random order, but for few, which were given back."""
    shard = queue(JOBS)
    held = [seq for _ in range(0, JOBS, 1000) for seq in claim(shard, 1000)]
    random.Random(seed).shuffle(held)
    for at in range(LEFT, JOBS, 1000):
        shard.call("ack", "q", {"node": "w", "seqs": held[at : at + 1000]})
    shard.call("nack", "q", {"node": "w", "seqs": held[:LEFT]})
    return shard


def restarted(shard: Harness) -> Harness:
    shard.shard.close()
    return shard.restarted()


def work(shard: Harness, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Calls of functions in a claim of 8 jobs, and the cells that it read."""
    counted: Counter[str] = Counter()
    cells, cells_at = Column.cells, Column.cells_at

    def read(self: Column, start: int, stop: int) -> Iterable[Any]:
        counted["cells"] += stop - start
        return cells(self, start, stop)

    def read_at(self: Column, places: Sequence[int]) -> Iterable[Any]:
        counted["cells"] += len(places)
        return cells_at(self, places)

    def called(frame: Any, event: str, argument: Any) -> None:
        counted["calls"] += event in ("call", "c_call")

    claim(shard, 8)
    shard.shard.commits.sync_now()
    with monkeypatch.context() as patch:
        patch.setattr(Column, "cells", read)
        patch.setattr(Column, "cells_at", read_at)
        sys.setprofile(called)
        try:
            found = claim(shard, 8)
        finally:
            sys.setprofile(None)
    assert len(found) == 8
    return counted["calls"], counted["cells"]


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["given back", "restarted"])
def test_a_claim_costs_what_it_hands_out_however_many_jobs_were_acked(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 32)
    small, large = queue(LEFT), worn(seed)
    if again:
        small, large = restarted(small), restarted(large)
    else:
        small.call("nack", "q", {"node": "w", "seqs": claim(small, LEFT)})
    assert len(large.everything("q")) == LEFT
    few, many = work(small, monkeypatch), work(large, monkeypatch)
    assert many[0] <= 1.5 * few[0], seed
    assert many[1] <= few[1] + 8, seed


@pytest.mark.parametrize("stopped", [True, False], ids=["after a stop", "after a crash"])
def test_claims_and_acks_after_a_start_read_no_file_again(stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = queue(4000)
    held = [seq for _ in range(4) for seq in claim(shard, 1000)]
    left = [seq for seq in held if not seq % 50]
    shard.call("ack", "q", {"node": "w", "seqs": [seq for seq in held if seq <= 1000 and seq not in left]})
    for at in range(1000, 4000, 1000):
        seqs = [seq for seq in held if at < seq <= at + 1000 and seq not in left]
        shard.call("ack", "q", {"node": "w", "seqs": seqs})
    shard = restarted(shard)
    if not stopped:
        shard.shard.commits.sync_now()
        shard = shard.restarted()
    shard.call("nack", "q", {"node": "w", "seqs": left})
    taken = claim(shard, 1)
    reads: list[int] = []
    whole = shard.disk.read_part

    def read_part(path: Path, offset: int, size: int) -> bytes:
        reads.append(offset)
        return whole(path, offset, size)

    monkeypatch.setattr(shard.disk, "read_part", read_part)
    while seqs := claim(shard, 7):
        taken += seqs
        shard.call("ack", "q", {"node": "w", "seqs": seqs})
    assert sorted(taken) == left
    assert not reads


def test_jobs_that_are_given_back_cost_no_more_than_fresh_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, given_back = queue(LEFT), queue(LEFT)
    given_back.call("nack", "q", {"node": "w", "seqs": claim(given_back, LEFT)})
    assert work(given_back, monkeypatch)[0] <= 1.5 * work(fresh, monkeypatch)[0]
