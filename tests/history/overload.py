"""An overload: ten times what the service can do arrives for a while, from many connections.

    1  sustainable    a few connections send as fast as they get answers: the most that the service takes
    2  overload       ten times as many requests a second arrive, whatever becomes of them
    3  recovery       one client appends again and again, until the service is as quick as before

Health is answered meanwhile, every request that was sent has an answer, those that are refused have it soon and with
`Retry-After`, and the recovery is short.
"""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.arrivals import TOPICS, arrive
from tests.support.pulse import Beat, Pulse, answered, bound_ms, p99
from tests.support.service import Service, ask

TIMES = 10
FEW, MANY = 8, 1500
"""Connections."""
HEALTH_MS, REFUSED_MS, RECOVERED_S = 100.0, 1000.0, 5.0
QUICK_MS = 100.0
IN_A_ROW = 10
"""Quick appends after which the service has recovered."""
PATIENCE_S = 60.0
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

    def broken(self) -> list[str]:
        """The bounds that were not kept."""
        found, answers = self.arrivals, self.arrivals["answers"]
        took_ms, most_ms = p99(beat.took_ms for beat in self.beats), bound_ms(self.beats, HEALTH_MS)
        refused_ms = max((answers[status]["p99"] for status in REFUSED if status in answers), default=0.0)
        checks = {
            f"health took {took_ms:.0f} ms (p99), and may take {most_ms:.0f}": took_ms > most_ms,
            f"{found['unanswered']} requests had no answer": found["unanswered"] > 0,
            f"{found['broken']} connections ended with a request under way": found["broken"] > 0,
            f"{found['rushed']} refusals had no Retry-After": found["rushed"] > 0,
            f"statuses {sorted(answers)}": not set(answers) <= {*ACCEPTED, *REFUSED},
            "no request was accepted": not any(status in answers for status in ACCEPTED),
            f"refusals took {refused_ms:.0f} ms (p99)": refused_ms > REFUSED_MS,
            f"the recovery took {self.recovered_s:.1f} s": self.recovered_s > RECOVERED_S,
        }
        return [text for text, wrong in checks.items() if wrong]

    def __str__(self) -> str:
        found = self.arrivals
        times = (found["sent"] + found["not_sent"]) / self.seconds / self.sustainable
        answers = "; ".join(
            f"{each['count']} got {status} in {each['p50']:.0f} ms, p99 {each['p99']:.0f}, at most {each['most']:.0f}"
            for status, each in found["answers"].items()
        )
        health = f"health {p99(beat.took_ms for beat in self.beats):.1f} ms (p99)"
        return (
            f"overload: {self.sustainable:.0f} requests a second are sustainable, {times:.1f} times as many arrived "
            f"for {self.seconds:.0f} s; {found['sent']} were sent, {found['not_sent']} found all connections waiting; "
            f"{answers}; {health}; recovered in {self.recovered_s:.1f} s"
        )


def run(service: Service, directory: Path, seconds: float, many: int = MANY) -> Overloaded:
    for topic, config in TOPICS.items():
        assert service.request("PUT", f"/v0/topics/{topic}", config)[0] in (200, 201), topic
    measured_s = min(seconds, 5.0)
    answers = arrive(service.port, 0, measured_s, FEW)["answers"]
    sustainable = sum(answers[status]["count"] for status in ACCEPTED if status in answers) / measured_s
    assert sustainable, f"the service takes nothing: {answers}"
    pulse = Pulse(directory / "pulse-overload", service.port)
    try:
        arrivals = arrive(service.port, TIMES * sustainable, seconds, many)
        recovered_s = _recovery(service)
    finally:
        beats = pulse.stop()
    return Overloaded(sustainable, seconds, arrivals, answered(beats), recovered_s)


def _recovery(service: Service) -> float:
    """Seconds until appends are accepted, and quick, several in a row."""
    began, row = time.monotonic(), 0
    connection = service.connect()
    first = began
    while row < IN_A_ROW and time.monotonic() < began + PATIENCE_S:
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
    return first - began if row else PATIENCE_S
