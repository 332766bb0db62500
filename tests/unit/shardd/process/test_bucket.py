"""The copy of a shard in a bucket: when a shard that is held takes requests."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from shardd.process.bucket import renewed
from shardd.replication import role
from shardd.replication.names import ShardNames
from shardd.replication.store import StoreError, Unreachable
from tests.support.roles import Pair


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)


async def test_a_shard_takes_no_request_before_its_term_was_renewed(tmp_path: Path) -> None:
    """Or else what was asked for would be done, and the answer be withheld."""
    alive = ShardNames(0).alive(1)

    def away(operation: str, name: str) -> StoreError | None:
        return Unreachable(name) if (operation, name) == ("put", alive) else None

    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        pair.store.fault = away
        one = pair.machine("one")
        await one.open()
        assert not one.role.serving()
        with trio.move_on_after(0.1) as waited:
            await renewed(one.role)
        assert waited.cancelled_caught
        pair.store.fault = lambda operation, name: None
        pair.time.now += 1  # it is tried again after a pause
        with trio.fail_after(60):
            await renewed(one.role)
        assert one.role.serving()
        nursery.cancel_scope.cancel()


async def test_a_shard_whose_term_is_over_waits_for_no_renewal(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        one = Pair(nursery, tmp_path).machine("one")
        await one.open()
        one.role.over.set()
        with trio.fail_after(60):
            await renewed(one.role)
        nursery.cancel_scope.cancel()
