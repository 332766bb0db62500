"""Claims about ten SIGKILLs of the whole service while eight writers write with `durability: "fsync"`."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.support.service import Service, until
from tests.support.writers import Writer, verify

KILLS = 10
TOPICS = [f"kill:{n:02d}" for n in range(32)]


def test_no_acked_record_is_lost_or_doubled_by_ten_kills(new_service: Callable[..., Service]) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    service = new_service(shards=2).start()
    writers = [Writer(service, f"w{n}", TOPICS, seed + n, "fsync") for n in range(8)]
    for writer in writers:
        writer.start()
    try:
        for kill in range(KILLS):
            # The moment is a random number of acks from now, so always in the middle of the work.
            goal = sum(writer.acks for writer in writers) + rng.randrange(1, 1500)
            until(lambda goal=goal: sum(w.acks for w in writers) >= goal, f"acks before kill {kill + 1} (seed {seed})")
            service.kill_group()
            service.start()
    finally:
        for writer in writers:
            writer.stop()
    for writer in writers:
        writer.finish()
    assert verify(service, writers) > KILLS
    statuses = {answer.status for writer in writers for answer in writer.answers}
    assert statuses <= {200, 201, 503}, statuses
    # And once more from the files alone.
    service.restart()
    verify(service, writers)
