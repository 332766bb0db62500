"""Bar 7: lost answers. A proxy breaks connections after the service has answered, processes are killed, and clients
repeat requests with their idempotency keys: at once, and again much later.

The history has each attempt, and attempts under one key are one append. So the checker finds an append that is there
twice, and an answer that differs from the first one.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

from tests.history.bar import Bar, kill
from tests.history.clients import CAPPED, LOGS, QUEUES, Crowd, Watcher, Worker
from tests.history.recording import Client, Recording
from tests.support.answer_thief import AnswerThief
from tests.support.service import Service

SHARE = 0.05
"""Of the pieces that pass the proxy, those that end their connection."""
REMEMBERED = 200
REPEATED_FOR_S = 60.0
"""Topics remember a key for twice as long."""


class Repeater(Crowd):
    """Appends with keys. It repeats one that it is not sure of at once, and any of the last ones now and then."""

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self._sent: deque[tuple[float, Any]] = deque(maxlen=REMEMBERED)
        self.repeated = 0

    def turn(self) -> None:
        if self._sent and self.rng.random() < 0.3:
            at, sent = self.rng.choice(self._sent)
            if time.monotonic() < at + REPEATED_FOR_S:
                self.client.append_again(*sent)
                self.repeated += 1
        else:
            topic, began = self.rng.choice([*LOGS, CAPPED, *QUEUES]), time.monotonic()
            self.client.append(topic, self.rng.choice((1, 1, 2, 8)), keyed=True)
            self._sent.append((began, self.client.last_append))
        self.pause_after_failure()


class LostAnswers(Bar):
    fault = "kill"

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._thief: AnswerThief | None = None
        self._repeaters: list[Repeater] = []

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        self._thief = AnswerThief(service, Random(f"{self.seed} thief"), SHARE)
        self._thief.start()
        kinds: list[type[Crowd]] = [Repeater, Repeater, Worker, Watcher]
        crowd = [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]
        for each in crowd:
            each.client.port = self._thief.port
        self._repeaters = [each for each in crowd if isinstance(each, Repeater)]
        return crowd

    def strike(self, service: Service) -> tuple[str, float]:
        return kill(service, self.rng)

    def finish(self, client: Client, path: Path) -> None:
        assert self._thief is not None
        self._thief.close()
        super().finish(client, path)

    def happened(self, recording: Recording) -> dict[str, int]:
        assert self._thief is not None
        repeated = {"appends repeated later": sum(each.repeated for each in self._repeaters)}
        return repeated | {f"answers {fault}": count for fault, count in self._thief.counts.items()}

    def figures(self) -> str:
        assert self._thief is not None
        told = ", ".join(f"{count} {fault}" for fault, count in self._thief.counts.items())
        return f"answers: {told}; {sum(each.repeated for each in self._repeaters)} appends repeated later"
