"""An overload: ten times what the service can do arrives for a while, from many connections.

    1  sustainable    a few connections send as fast as they get answers: the most that the service takes
    2  overload       ten times as many requests a second arrive, whatever becomes of them
    3  recovery       one client appends again and again, until the service is as quick as before

Health is answered meanwhile, every request that was sent has an answer, those that are refused have it soon and with
`Retry-After`, the service still does a good part of what it can, the recovery is short, and in the end no process has
more descriptors than before.
"""

from __future__ import annotations

import http.client
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.history.samples import processes
from tests.support.arrivals import TOPICS, arrive
from tests.support.inside import descriptors
from tests.support.pulse import Beat, Pulse, bound_ms, p99, unwell, waits_ms
from tests.support.service import Service, ask, until

TIMES = 10
FEW, MANY = 8, 1500
"""Connections."""
HEALTH_MS, REFUSED_MS, RECOVERED_S = 100.0, 1000.0, 5.0
ACCEPTS = 0.25
"""The share of the sustainable requests that are accepted in an overload, at least: refusals take time, too."""
LEFT = 4
"""Descriptors that a process may have more after an overload than before."""
QUICK_MS = 100.0
IN_A_ROW = 10
"""Quick appends after which the service has recovered."""
PATIENCE_S = 60.0
CLOSED_S = 10.0
ACCEPTED, REFUSED = ("200", "201"), ("429", "503")


@dataclass(frozen=True, slots=True)
class Overloaded:
    sustainable: float
    """Requests a second."""
    seconds: float
    arrivals: dict[str, Any]
    """As of `tests.support.arrivals.arrive`."""
    beats: list[Beat]
    recovered_s: float
    """From the last arrival until appends are quick again."""
    left: dict[str, int]
    """How many more descriptors each process has than before."""

    @property
    def accepted(self) -> float:
        """Requests a second."""
        answers = self.arrivals["answers"]
        return float(sum(answers[status]["count"] for status in ACCEPTED if status in answers) / self.seconds)

    def broken(self) -> list[str]:
        """The bounds that were not kept."""
        found, answers = self.arrivals, self.arrivals["answers"]
        health = unwell(self.beats, HEALTH_MS)
        refused_ms = max((answers[status]["p99"] for status in REFUSED if status in answers), default=0.0)
        checks = {
            health: health != "",
            f"{found['unanswered']} requests had no answer": found["unanswered"] > 0,
            f"{found['broken']} connections ended with a request under way": found["broken"] > 0,
            f"{found['rushed']} refusals had no Retry-After": found["rushed"] > 0,
            f"statuses {sorted(answers)}": not set(answers) <= {*ACCEPTED, *REFUSED},
            f"{self.accepted:.0f} requests a second were accepted": self.accepted < ACCEPTS * self.sustainable,
            "nothing was refused or had to wait: it was no overload": not found["not_sent"] and refused_ms == 0,
            f"refusals took {refused_ms:.0f} ms (p99)": refused_ms > REFUSED_MS,
            f"the recovery took {self.recovered_s:.1f} s": self.recovered_s > RECOVERED_S,
            f"descriptors more than before: {self.left}": any(count > LEFT for count in self.left.values()),
        }
        return [text for text, wrong in checks.items() if wrong]

    def __str__(self) -> str:
        found = self.arrivals
        times = (found["sent"] + found["not_sent"]) / self.seconds / self.sustainable
        answers = "; ".join(
            f"{each['count']} got {status} in {each['p50']:.0f} ms, p99 {each['p99']:.0f}, at most {each['most']:.0f}"
            for status, each in found["answers"].items()
        )
        health = f"health {p99(waits_ms(self.beats)):.1f} of {bound_ms(self.beats, HEALTH_MS):.0f} ms (p99)"
        return (
            f"overload: {self.sustainable:.0f} requests a second are sustainable, {times:.1f} times as many arrived "
            f"for {self.seconds:.0f} s; {found['sent']} were sent, {found['not_sent']} found all connections waiting; "
            f"{self.accepted:.0f} a second were accepted; {answers}; {health}; recovered in {self.recovered_s:.1f} s"
        )


def run(service: Service, directory: Path, seconds: float, many: int = MANY) -> Overloaded:
    for topic, config in TOPICS.items():
        assert service.request("PUT", f"/v0/topics/{topic}", config)[0] in (200, 201), topic
    measured_s = min(seconds, 5.0)
    answers = arrive(service.port, 0, measured_s, FEW)["answers"]
    sustainable = sum(answers[status]["count"] for status in ACCEPTED if status in answers) / measured_s
    assert sustainable, f"the service takes nothing: {answers}"
    before = _descriptors(service)
    pulse = Pulse(directory / "pulse-overload", service.port)
    try:
        arrivals = arrive(service.port, TIMES * sustainable, seconds, many)
        recovered_s = _recovery(service, arrivals["ended"])
    finally:
        beats = pulse.stop()
    with suppress(AssertionError):  # what is left is told by the verdict
        until(
            lambda: not any(count > LEFT for count in _more(service, before).values()), "closed connections", CLOSED_S
        )
    return Overloaded(sustainable, seconds, arrivals, beats, recovered_s, _more(service, before))


def _descriptors(service: Service) -> dict[str, int]:
    """None for others than root, from whom the service hides them."""
    return {name: descriptors(pid) for name, pid in processes(service).items() if not os.geteuid()}


def _more(service: Service, before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in _descriptors(service).items()}


def _recovery(service: Service, began: float) -> float:
    """Seconds since `began` until appends are accepted, and quick, several in a row."""
    row = 0
    connection = service.connect()
    first = time.monotonic()
    until_s = first + PATIENCE_S
    while row < IN_A_ROW and time.monotonic() < until_s:
        asked = time.monotonic()
        try:
            status, _ = ask(connection, "POST", f"/v0/topics/{next(iter(TOPICS))}", {"records": [{"data": 1}]})
        except (OSError, http.client.HTTPException):
            connection.close()
            status = 0
        quick = status in (200, 201) and 1000 * (time.monotonic() - asked) < QUICK_MS
        first = first if quick and row else asked
        row = row + 1 if quick else 0
    connection.close()
    return first - began if row == IN_A_ROW else max(PATIENCE_S, first - began)
