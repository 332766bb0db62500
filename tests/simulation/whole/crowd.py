"""Clients: each sends the requests of its steps, one after the other, and writes them into the history.

The requests and their accounts are those of `tests.history.recording`; here they wait on the simulation's clock.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import trio

from tests.history.recording import Answer, Recording, Requests, answered
from tests.simulation.whole.machine import Call, Machine
from tests.simulation.whole.seams import now_ns
from topics_history import format as f

PATIENCE_S = 15.0
LEAVES = 0.1
"""Of the requests to several machines, those before which a client takes another one; after a failure it is half."""
LOSES_ANSWER = 0.02
"""Of the answers, those that do not reach their client."""


class Unserved(Exception):
    """The service does not serve again."""


class _File(BytesIO):
    """The history in memory, as its writer's path."""

    def open(self, mode: str) -> _File:
        self.seek(0)
        return self

    def close(self) -> None:
        pass


class Account(Recording):
    """A history in memory."""

    def __init__(self, topics: dict[str, f.Topic], routers: list[f.Router]) -> None:
        self.file = _File()
        super().__init__(self.file, topics, routers)  # type: ignore[arg-type]

    @property
    def path(self) -> Path:
        """What opens as a file does."""
        return self.file  # type: ignore[return-value]

    def now_ns(self) -> int:
        return now_ns()


class Client(Requests):
    """`tests.history.recording.Requests`, whose methods are to be awaited here."""

    longest_body = 12

    def __init__(self, machines: Sequence[Machine], recording: Account, name: str, seed: int) -> None:
        super().__init__(recording, name, seed)
        self.machines = machines
        self.machine = machines[0]
        """Which it uses at the moment."""
        self._choice = Random(f"{seed} {name} machines")
        self.seed = seed
        self.rng = Random(f"{seed} {name}")
        self.jobs: dict[str, list[tuple[int, str, str]]] = {}
        """Those it holds, by queue."""
        self.positions: dict[str, int] = {}
        self.keyed: list[Any] = []
        """The appends that it sent with a key."""
        self.loses = LOSES_ANSWER
        self.failed: list[str] = []
        """Its requests that had no answer, or an error of the service."""

    async def _recorded(
        self,
        kind: type[f.Operation],
        request: tuple[str, str, Any],
        result: Callable[[Any], Any],
        waited_ms: int = 0,
        **more: Any,
    ) -> Any:
        start_ns = self.recording.now_ns()
        answer = await self.send(*request)
        found = result(answer.body) if answer.outcome == "ok" else None
        self.outcome = answer.outcome
        self.machine.network.tell(f"{self.name}: {kind.__name__} {more.get('topic')}: {answer.outcome} {_brief(found)}")
        self.recording.write(kind, self.name, start_ns, answer.outcome, waited_ms * 1_000_000, result=found, **more)
        return found

    async def send(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request to the gateway. Returns its answer, or what is known without one."""
        answer = await self._answer_to(method, path, body)
        if answer.status >= 500 or not answer.status:
            self.failed.append(f"{self.name}: {method} {path}: {answer.status} {answer.body}")
        return answer

    async def _answer_to(self, method: str, path: str, body: Any) -> Answer:
        network = self.machine.network
        if len(self.machines) > 1 and self._choice.random() < (LEAVES if self.outcome == "ok" else 0.5):
            self.machine = self._choice.choice(self.machines)
        await trio.sleep(network.delay())
        front = self.machine.front
        if front is None:
            return Answer("failed", 0, None)
        content = b"" if body is None else json.dumps(body).encode()
        call = Call(method, path, content, front.budget)
        front.take(call)
        lost = self.rng.random() < self.loses
        with trio.move_on_after(self.rng.random() * 0.01 if lost else PATIENCE_S):
            await call.answered.wait()
        if lost or call.response is None:
            call.gone.set()
            return Answer("unknown", 0, None)
        await trio.sleep(network.delay())
        return answered(call.response.status, json.loads(call.response.body))

    async def settled(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a request until it succeeds, for a while."""
        with trio.move_on_after(PATIENCE_S):
            while True:
                found = await request()
                if self.outcome == "ok":
                    return found
                await trio.sleep(0.1)
        raise Unserved(f"{self.name} has no success long after the last fault: {self.outcome}")


def _brief(found: Any) -> str:
    if isinstance(found, f.ReadResult):
        return f"{[seq for seq, _ in found.records]} to {found.next_from_seq} of {found.head_seq}"
    return "" if found is None else str(found)
