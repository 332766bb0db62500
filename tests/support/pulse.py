"""A pulse: a process that asks a service for its health every 20 ms, and writes down how long each answer took.

It is a process of its own, so that the threads of a test do not delay it. It also writes down how late it woke: on a
machine that is busy, both grow, and the machine is not the service's fault (`bound_ms`).

A line of its file has the moment of `time.monotonic`, milliseconds of the answer, milliseconds of the lateness, and the
status, 0 if there was no answer.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

EVERY_S = 0.02
PATIENCE_S = 10.0
ROOT = Path(__file__).parents[2]


class Beat(NamedTuple):
    at_s: float
    took_ms: float
    late_ms: float
    status: int


class Pulse:
    """The pulse of the service at a port, which may come and go. `stop` ends it, and returns all beats."""

    def __init__(self, path: Path, port: int) -> None:
        self._path = path
        self._read = 0
        command = [sys.executable, "-m", "tests.support.pulse", str(port), str(path)]
        self._process = subprocess.Popen(command, cwd=ROOT)

    def news(self) -> list[Beat]:
        """The beats since the last call."""
        text = self._path.read_bytes()[self._read :] if self._path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return _parsed(whole.decode())

    def stop(self) -> list[Beat]:
        self._process.terminate()
        self._process.wait()
        return beats(self._path)


def beats(path: Path) -> list[Beat]:
    """The beats of a file. Its last line may not be whole."""
    return _parsed(path.read_text()) if path.exists() else []


def _parsed(text: str) -> list[Beat]:
    words = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [Beat(float(at), float(took), float(late), int(status)) for at, took, late, status in words]


def outside(down: Sequence[tuple[float, float]], found: Iterable[Beat]) -> list[Beat]:
    """The beats that do not overlap one of the times `down`."""
    return [
        beat
        for beat in found
        if not any(since < beat.at_s + beat.took_ms / 1000 and beat.at_s < until for since, until in down)
    ]


def unwell(found: Sequence[Beat], quiet_ms: float) -> str:
    """What is wrong with beats; empty if each was answered, and 99 of 100 within `bound_ms`."""
    if not found:
        return "health was not asked"
    if refused := [beat.status for beat in found if beat.status != 200]:
        return f"health had no answer, or a refusal, {len(refused)} times: statuses {sorted(set(refused))}"
    took_ms, most_ms = p99(waits_ms(found)), bound_ms(found, quiet_ms)
    return f"health took {took_ms:.0f} ms (p99), and may take {most_ms:.0f}" if took_ms > most_ms else ""


def waits_ms(found: Iterable[Beat]) -> Iterator[float]:
    """What a client that asks at any moment would have waited. A beat keeps those back that were due while it had no
    answer: without them, a silence of ten seconds would count as one slow answer."""
    for beat in found:
        due_ms = beat.took_ms
        yield due_ms
        while (due_ms := due_ms - 1000 * EVERY_S) > 0:
            yield due_ms


def p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else 0.0


def bound_ms(found: Sequence[Beat], quiet_ms: float) -> float:
    """What `quiet_ms` on a quiet machine is on this one."""
    return quiet_ms + 10 * p99(beat.late_ms for beat in found)


def _ask(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/v0/health")
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0


def main() -> None:
    port, path, parent = int(sys.argv[1]), sys.argv[2], os.getppid()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    due = time.monotonic()
    with open(path, "ab", buffering=0) as file:
        while os.getppid() == parent:
            due = max(due + EVERY_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            woke = time.monotonic()
            status = _ask(connection)
            took = time.monotonic() - woke
            file.write(f"{woke:.6f} {1000 * took:.3f} {1000 * (woke - due):.3f} {status}\n".encode())


if __name__ == "__main__":
    main()
