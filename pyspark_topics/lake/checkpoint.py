"""Checkpoint: Spark's record of the ranges that a query has planned, and whether it still belongs to the tables.

    _topics/checkpoint/<base>.json       where the query begins: positions as of `offsets.dump`; created before it
    _topics/checkpoint/<base>/           what Spark keeps: offsets/<b> is written before batch b runs

Batch b of the query is version `base + 1 + b` of the lake. The tables decide:

    the tables' version               the query
    one that this query planned last  continues: Spark repeats the batch, and the tables skip the rows that they have
    the one before, same positions    continues
    any other, or other positions     is left, as another writer continued the lake. A new one begins at their version

So a checkpoint may be lost or removed at any time. `topics lake` has none.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_topics import offsets
from pyspark_topics.lake.layout import CHECKPOINTS, LakeError, Mark
from pyspark_topics.offsets import Offsets

if TYPE_CHECKING:
    from pyspark_topics.jobs.store import Store


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A query's checkpoint. `start` is where its batch 0 begins."""

    store: Store
    base: int
    start: Offsets

    @property
    def name(self) -> str:
        return f"{CHECKPOINTS}/{self.base:020d}"

    def planned(self) -> int:
        """Number of the batch that was planned last, -1 if there is none."""
        return max((int(name) for name in self.store.list(f"{self.name}/offsets") if name.isdecimal()), default=-1)

    def unfinished(self) -> bool:
        """Whether Spark will repeat the batch that was planned last."""
        last = self.planned()
        return last >= 0 and str(last) not in self.store.list(f"{self.name}/commits")

    def end(self, batch: int) -> Offsets:
        """Where a planned batch ends, with topics that the query does not read. -1: where batch 0 begins.

        Before Spark 4.2, the first batch after a restart is planned without the topics that went meanwhile; later ones
        have them as gone."""
        if batch < 0:
            return self.start
        found = self._planned_end(batch)
        if batch and self.store.exists(f"{self.name}/offsets/{batch - 1}"):
            found = offsets.onward(self._planned_end(batch - 1), found)
        return dict(sorted({**self.start, **found}.items()))

    def _planned_end(self, batch: int) -> Offsets:
        name = f"{self.name}/offsets/{batch}"
        lines = self.store.read(name).decode().splitlines()
        if len(lines) < 3 or not lines[0].startswith("v1"):
            raise LakeError(f"{self.store.path(name)}: not the offsets of a query as Spark 4 writes them")
        return offsets.load(json.loads(lines[2]))


def find(store: Store, at: Mark) -> Checkpoint | None:
    """The checkpoint that belongs to tables at `at`."""
    bases = [name.removesuffix(".json") for name in store.list(CHECKPOINTS) if name.endswith(".json")]
    if not bases:
        return None
    start = offsets.load(json.loads(store.read(f"{CHECKPOINTS}/{bases[-1]}.json")))
    found = Checkpoint(store, int(bases[-1]), start)
    return found if belongs(found, at) else None


def belongs(checkpoint: Checkpoint, at: Mark) -> bool:
    done, last = at.version - checkpoint.base, checkpoint.planned()
    if done == 0:
        return last <= 0
    if done not in (last, last + 1):
        return False
    # With a table for each topic, those that the batch did not reach yet are still at the end of the one before.
    ends = checkpoint.end(done - 1), checkpoint.end(done - 2)
    return all(any(end.get(topic) == position for end in ends) for topic, position in at.positions.items())


def begin(store: Store, at: Mark, start: Offsets) -> Checkpoint:
    """A new query at the tables' version. Removes the checkpoints of earlier ones."""
    for name in store.list(CHECKPOINTS):
        store.remove(f"{CHECKPOINTS}/{name}")
    made = Checkpoint(store, at.version, start)
    store.create(f"{made.name}.json", json.dumps(offsets.dump(start)).encode(), uuid.uuid4().hex)
    return made
