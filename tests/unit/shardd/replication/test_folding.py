"""Folding: when a shard that is followed makes a checkpoint before TOPICS_CHECKPOINT_BYTES."""

from __future__ import annotations

from typing import Any

from shardd.replication.folding import FOLD_BYTES, NEAR_S, PART, Folding
from tests.support.roles import Time


class Files:
    """A log of `foldable` bytes, whose checkpoint takes `takes_s`."""

    def __init__(self, time: Time) -> None:
        self.foldable = 0
        self.takes_s = 0.5
        self.makes = True
        self.folds: list[bool] = []
        self._time = time

    def fold(self, *, soon: bool = False) -> bool:
        self.folds.append(soon)
        if not soon:
            return False
        self._time.now += self.takes_s
        self.foldable = 0
        return self.makes


def made() -> tuple[Folding, Files, Time]:
    time = Time()
    files: Any = Files(time)
    return Folding(files, time), files, time


async def test_a_log_that_is_long_is_folded_when_its_end_is_near() -> None:
    folding, files, _ = made()
    files.foldable = FOLD_BYTES - 1
    assert not folding.due
    await folding.fold(0)
    files.foldable = FOLD_BYTES
    assert folding.due
    await folding.fold(NEAR_S)
    assert folding.due, "one that is far behind reads on first"
    await folding.fold(0)
    assert files.folds == [False, False, True]
    assert not folding.due


async def test_checkpoints_take_a_part_of_the_time() -> None:
    folding, files, time = made()
    files.foldable = FOLD_BYTES
    await folding.fold(0)
    files.foldable = 100 * FOLD_BYTES
    assert not folding.due, "or else a shard would never be given to a machine that is slow to open it"
    await folding.fold(0)
    time.now += PART * files.takes_s
    assert folding.due
    await folding.fold(0)
    assert files.folds == [True, False, True]


async def test_a_shard_that_is_moved_is_not_held_up_by_a_log_that_is_a_little_longer() -> None:
    folding, files, _ = made()
    folding.moved = True
    files.foldable = 2 * FOLD_BYTES - 1
    await folding.fold(0)
    files.foldable = 2 * FOLD_BYTES
    await folding.fold(0)
    assert files.folds == [False, True]


async def test_a_shard_that_makes_no_checkpoint_is_not_opened_in_vain_again() -> None:
    folding, files, time = made()
    files.makes, files.foldable = False, FOLD_BYTES
    await folding.fold(0)
    files.foldable = FOLD_BYTES
    time.now += 1e9
    assert not folding.due, "and is given to this machine as it is"
    await folding.fold(0)
    assert files.folds == [True, False]
