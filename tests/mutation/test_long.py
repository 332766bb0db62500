"""A million mutations by seeds that change. The seed is printed; `TOPICS_TEST_SEED` sets it."""

from __future__ import annotations

import os
import secrets
from random import Random

import pytest

from tests.mutation import sweeps, talks
from tests.mutation.judge import Judge
from tests.mutation.scene import scene
from tests.support.gateway_stage import key

INPUTS = 1_000_000
SWEEP_S = 1800.0
EDITS = 500


@pytest.mark.long
async def test_a_million_mutations_get_honest_answers() -> None:
    seed = int(os.environ.get("TOPICS_TEST_SEED", secrets.randbelow(2**32)))
    print(f"TOPICS_TEST_SEED={seed}")  # noqa: T201 - for the run that fails
    random, tried = Random(seed), 0
    while tried < INPUTS:
        judge = Judge(f"TOPICS_TEST_SEED={seed}, after {tried} inputs")
        async with scene(judge, within_s=SWEEP_S) as there:
            for operation, example in sweeps.examples():
                await sweeps.requests(there, operation, example, random, EDITS)
            await sweeps.framings(there, random, EDITS)
            await sweeps.tokens(there, random, EDITS)
            await talks.in_commands(there, talks.commands(random, EDITS))
            await talks.in_frames(there, talks.streams_of_frames(random, EDITS))
            await talks.protocols(there, *talks.exchanges(there.place.gateway), random, EDITS)
        async with scene(judge, secret="the-secret", keys=[key("the-secret")]) as there:
            await sweeps.tickets(there, random, EDITS)
            await talks.in_frames(there, talks.first_messages(random, EDITS), keyed=False)
        tried += judge.tried
        print(f"{tried} inputs")  # noqa: T201 - of how far it has come
