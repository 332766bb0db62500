"""Claims about the indexes of evidence, against the same questions answered slowly."""

from __future__ import annotations

import random

from topics_history.evidence import Cut, Highs


def test_the_maximum_before_a_moment_is_that_of_all_before_it() -> None:
    rng = random.Random(1)
    for _ in range(200):
        highs, told, now = Highs(), [], 0
        for line in range(30):
            now += rng.randrange(3)
            told.append((now, rng.randrange(1, 50), line))
            highs.add(*told[-1])
        for start in range(now + 2):
            assert highs.before(start)[0] == max((value for end, value, _ in told if end < start), default=0)
        assert highs.last == max(value for _, value, _ in told)


def test_deletions_are_found_by_their_starts_in_whatever_order_they_ended() -> None:
    rng = random.Random(2)
    for _ in range(200):
        cut = Cut()
        told = [(rng.randrange(20), rng.randrange(1, 50)) for _ in range(15)]
        for start, before in told:
            cut.add(start, before)
        for end in range(22):
            assert cut.before(end) == max((before for start, before in told if start < end), default=0)
