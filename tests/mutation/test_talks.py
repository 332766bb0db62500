"""Claims about connections that are no HTTP: every command of a WebSocket, of Walrus and of Rog is answered, and bytes
that are none end the connection and nothing else.

The seed is printed; `TOPICS_TEST_SEED` sets it."""

from __future__ import annotations

import os
from random import Random

from tests.mutation import sweeps, talks
from tests.mutation.examples import LOG, Example
from tests.mutation.judge import Judge
from tests.mutation.scene import scene

SEED = int(os.environ.get("TOPICS_TEST_SEED", "7"))
EDITS = 20
MOST_COMMANDS = 3000


async def test_every_command_of_a_websocket_bent_is_answered() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        # Most of their fields are those of an append and a watch.
        await talks.in_commands(there, sweeps.some(talks.commands(random, EDITS), random, MOST_COMMANDS))
    assert judge.tried > 2_000


async def test_frames_of_a_websocket_bent_end_the_socket_at_most() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        await there.prepare(Example(before=LOG))
        await talks.in_frames(there, talks.streams_of_frames(random, EDITS))
    assert judge.tried > 300


async def test_commands_of_walrus_and_rog_bent_end_their_connection_at_most() -> None:
    judge, random = Judge(f"TOPICS_TEST_SEED={SEED}"), Random(SEED)
    async with scene(judge) as there:
        await talks.protocols(there, *talks.exchanges(there.place.gateway), random, EDITS)
    assert judge.tried > 3_000
