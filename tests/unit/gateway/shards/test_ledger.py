"""Claims about the ledger: in any order of events, all shards together stay within the caps."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from gateway.shards.ledger import Growth, Ledger

CAP = 100


@dataclass
class Model:
    """The model of a shard: accepts requests that fit the room they bring, and sends what it answered as packets with
    what it holds then. Unread requests are lost when it dies."""

    held: int = 0
    inbox: deque[tuple[int, int, int]] = field(default_factory=deque)
    answered: list[int] = field(default_factory=list)
    outbox: deque[tuple[list[int], int]] = field(default_factory=deque)

    def work(self) -> None:
        request, need, room = self.inbox.popleft()
        if need < 0:
            self.held = max(self.held + need, 0)
        elif self.held + need <= room:
            self.held += need
        self.answered.append(request)

    def leave(self) -> None:
        self.outbox.append((self.answered, self.held))
        self.answered = []


@pytest.mark.parametrize("seed", range(200))
def test_no_order_of_events_exceeds_the_cap(seed: int) -> None:
    rng = random.Random(seed)
    shards = [Model() for _ in range(rng.randint(1, 4))]
    ledger = Ledger(len(shards))
    reborn: dict[int, int] = {}
    number = 0
    for index in range(len(shards)):
        ledger.heard(index, [], 0, 0)
    for _ in range(400):
        index = rng.randrange(len(shards))
        shard = shards[index]
        event = rng.choices(("send", "free", "work", "leave", "hear", "die"), (5, 1, 5, 3, 4, 0.2))[0]
        if event == "send":
            number += 1
            need = rng.randint(1, 30)
            _, room = ledger.room(index, 0, CAP)
            assert room is not None
            ledger.book(index, number, Growth(0, need + rng.randint(0, 50)))
            shard.inbox.append((number, need, room))
        elif event == "free":
            number += 1
            shard.inbox.append((number, -rng.randint(1, 30), 0))
        elif event == "work" and shard.inbox:
            shard.work()
        elif event == "leave":
            shard.leave()
        elif event == "hear" and shard.outbox:
            if index in reborn:
                ledger.on_restart(index, reborn.pop(index))
            requests, held = shard.outbox.popleft()
            ledger.heard(index, requests, 0, held)
        elif event == "die":
            shard.inbox.clear()
            shard.answered.clear()
            shard.outbox.clear()
            number += 1
            reborn[index] = number
            shard.inbox.append((number, 0, 0))
        assert sum(each.held for each in shards) <= CAP, f"seed {seed}"
    for index, shard in enumerate(shards):
        while shard.inbox:
            shard.work()
        shard.leave()
        while shard.outbox:
            if index in reborn:
                ledger.on_restart(index, reborn.pop(index))
            requests, held = shard.outbox.popleft()
            ledger.heard(index, requests, 0, held)
    assert ledger.booked(list(range(len(shards)))) == 0, "nothing stays booked"
    assert ledger.totals() == (0, sum(each.held for each in shards))


def test_before_every_shard_has_spoken_there_is_no_room() -> None:
    ledger = Ledger(2)
    ledger.heard(0, [], 1, 1)
    assert not ledger.complete
    assert ledger.room(0, 10, 10) == (0, 0)
    assert ledger.room(0, 10, 0) == (0, None)
    ledger.heard(1, [], 2, 3)
    assert ledger.room(0, 10, 10) == (8, 7)
    assert ledger.room(0, 0, 0) == (None, None)


def test_a_shard_that_cannot_start_is_taken_to_hold_its_share() -> None:
    ledger = Ledger(2)
    ledger.heard(0, [0], 10, 0)
    assert ledger.room(0, 100, 0) == (0, None), "nothing is known of the other"
    ledger.absent.add(1)
    assert ledger.complete
    assert ledger.room(0, 100, 0) == (50, None)
    ledger.heard(1, [0], 70, 0)
    assert ledger.room(0, 100, 0) == (30, None), "it came back, and said what it holds"
