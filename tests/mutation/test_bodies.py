"""Claims about the bodies of requests: whatever a client sends, it gets an answer that is no 5xx, and no shard ends.

The seed is printed; `TOPICS_TEST_SEED` sets it."""

from __future__ import annotations

import os
from random import Random

from tests.mutation import sweeps, values
from tests.mutation.judge import Judge
from tests.mutation.scene import scene

SEED = int(os.environ.get("TOPICS_TEST_SEED", "7"))
EDITS = 25
"""Of each example, beside the mutations that are the same each time."""


async def test_every_body_cut_bent_and_edited_gets_an_honest_answer() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        for operation, example in sweeps.examples():
            if operation.request is not None:
                made = values.bodies(example.body, random, EDITS)
                await sweeps.bodies(there, operation, example, made)
    assert judge.tried > 15_000


async def test_compressed_and_chunked_bodies_cut_and_edited_get_an_honest_answer() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        await sweeps.framings(there, random, EDITS)
    assert judge.tried > 200
