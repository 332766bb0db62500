"""Claims about the rest of a request: its query, path and headers, and what the service gave out and gets back forged.

The seed is printed; `TOPICS_TEST_SEED` sets it."""

from __future__ import annotations

import os
from random import Random

from tests.mutation import sweeps, talks
from tests.mutation.judge import Judge
from tests.mutation.scene import scene
from tests.support.gateway_stage import key

SEED = int(os.environ.get("TOPICS_TEST_SEED", "7"))
EDITS = 15


async def test_every_query_path_and_header_bent_gets_an_honest_answer() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        for operation, example in sweeps.examples():
            await sweeps.heads(there, operation, example, random, EDITS)
    assert judge.tried > 3_000


async def test_forged_cursors_event_ids_and_sessions_get_an_honest_answer() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        await sweeps.tokens(there, random, EDITS)
    assert judge.tried > 1_000


async def test_forged_tickets_and_keys_get_an_honest_answer() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge, secret="the-secret", keys=[key("the-secret")]) as there:
        await sweeps.tickets(there, random, EDITS)
        first = sweeps.some(talks.first_messages(random, EDITS), random, 6 * EDITS)
        await talks.in_frames(there, first, keyed=False)
    assert judge.statuses[401] > 20
