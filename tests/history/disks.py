"""Bar 9: a bad disk. The device of the service fails in real calls of its processes, and heals again:

    sync     one sync fails
    lost     one sync fails, or some do, and a power cut follows at once or soon
    syncs    all syncs fail for a while; then a shard may be read-only, and an operator restarts it
    write    all writes and new files fail with EIO for a while
    full     another program fills the volume, a small tmpfs, and frees it again
    slow     each sync takes 50 ms for a while

What a failed sync was to cover is on the device in part, and no later sync brings the rest (`tests.support.power`): so
an append that was acknowledged although its sync failed is gone after the power cut. If frames were synced behind it,
the log has a hole that they prove, and the shard refuses to start. All topics are of class `fsync`.

Five promises are the bar's own: no shard refuses to start after a power cut, a shard takes writes again without hands
within `HEALS_S` after each fault but `syncs`, every request has an answer within `LONGEST_ANSWER_S`, health is answered
within `HEALTH_MS`, and a write that was refused with `write_failed` is nowhere.
"""

from __future__ import annotations

import errno
import http.client
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from proto.model.names import shard_of
from tests.history.bar import BACK_S, Bar, Violation, await_ready, claim
from tests.history.clients import Crowd, Mixed, Paced, Watcher, Worker
from tests.history.cuts import PowerCuts
from tests.history.recording import Client, Recording
from tests.support.power import Power
from tests.support.programs import leave_out
from tests.support.pulse import Beat, Pulse, outside, p99, unwell, waits_ms
from tests.support.service import Service, until
from tests.support.volume import VolumeError, volume
from topics_history import format as f

SHARDS = 2
PROBES = [next(name for n in range(100) if shard_of(name := f"probe:{n}", SHARDS) == shard) for shard in range(SHARDS)]
"""A topic of each shard."""
VOLUME_BYTES, LEFT_FREE_BYTES = 256 << 20, 8 << 20
SLOW_S = 0.05
"""A hundred times as long as a sync of a good device."""
BETWEEN_S = 0.1
"""Between failed syncs, so that clients hear of the first one, and frames are synced behind what it was to cover."""
HEALS_S = 15.0
LONGEST_ANSWER_S = 12.0
HEALTH_MS = 100.0
WITHOUT_ANSWER = (f.Open, f.Frame, f.Fault, f.Settled)


class Frugal(Paced, Mixed):
    """Writes so little that a small volume holds the records of a run."""

    turns_a_second = 200.0

    def __init__(self, service: Service, recording: Recording, name: str, seed: int) -> None:
        super().__init__(service, recording, name, seed)
        self.client.longest_body = 200


class BadDisks(Bar):
    fault = "other"
    rest_s = (0.5, 3.0)
    configs: ClassVar = PowerCuts.configs

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        with ExitStack() as stack:
            try:
                self._volume = stack.enter_context(volume(directory / "volume", VOLUME_BYTES))
            except VolumeError as error:
                leave_out(f"the right to mount a file system ({error})")
            seen = self._volume.inside / "data"
            self._power = Power(directory, Random(f"{seed} power"), self._volume.outside / "data", seen)
            self._stack = stack.pop_all()
        self.enter = self._volume.enter
        self.environment = self._power.environment | {
            "TOPICS_DATA_DIR": str(seen),
            "TOPICS_MIN_FREE_BYTES": str(LEFT_FREE_BYTES),
        }
        self._faults = self._power.faults
        self._kinds = {
            "sync": self._sync,
            "lost": self._lost,
            "syncs": self._syncs,
            "write": self._write,
            "full": self._full,
            "slow": self._slow,
        }
        self._struck = dict.fromkeys(self._kinds, 0)
        self._by_hand = 0
        self._down: list[tuple[float, float]] = []
        """When all processes were dead or starting."""
        self._pulse: Pulse | None = None
        self._beats: list[Beat] = []
        self._longest_s = 0.0

    def begin(self, service: Service) -> None:
        super().begin(service)
        for topic in PROBES:
            assert service.request("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})[0] == 201
        self._pulse = Pulse(self.directory / "pulse", service.port)

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        kinds: list[type[Crowd]] = [Frugal, Frugal, Worker, Watcher]
        return [kinds[n % len(kinds)](service, recording, f"c{n}", self.seed) for n in range(clients)]

    def strike(self, service: Service) -> tuple[str, float]:
        kind = self.rng.choices(list(self._kinds), (1, 6, 1, 1, 1, 1))[0]
        self._struck[kind] += 1
        self._kinds[kind](service)
        lifted = time.monotonic()
        self._heal(service, by_hand=kind == "syncs")
        return kind, lifted

    # -- faults

    def _sync(self, service: Service) -> None:
        before = self._faults.failed
        self._faults.set(syncs=1)
        until(lambda: self._faults.failed > before, "a sync that fails", BACK_S)

    def _lost(self, service: Service) -> None:
        self._sync(service)
        for _ in range(self.rng.choice((1, 2, 4))):
            time.sleep(BETWEEN_S)
            self._faults.set(syncs=1)
        self._rest(0, self.rng.choice((0, 0.2, 1)))
        began = time.monotonic()
        self._power.cut(service)
        self._faults.set()
        await_ready(service.start(wait=False))
        self._down.append((began, time.monotonic()))

    def _syncs(self, service: Service) -> None:
        self._faults.set(syncs=-1)
        self._rest(0.1, 1)
        self._faults.set()

    def _write(self, service: Service) -> None:
        self._faults.set(write_errno=errno.EIO)
        self._rest(0.1, 2)
        self._faults.set()

    def _full(self, service: Service) -> None:
        self._volume.fill()
        self._rest(0.1, 2)
        self._volume.relieve()

    def _slow(self, service: Service) -> None:
        self._faults.set(sync_s=SLOW_S)
        self._rest(1, 5)
        self._faults.set()

    def _rest(self, least_s: float, most_s: float) -> None:
        time.sleep(self.rng.uniform(least_s, most_s) * self.scale)

    def _heal(self, service: Service, *, by_hand: bool) -> None:
        """Wait until each shard takes writes. Raises `Violation` if one does not, or is read-only and should not
        be."""
        for number, topic in enumerate(PROBES):
            if by_hand and _probe(service, topic) == "read_only":
                _replace(service, f"shard-{number:02d}")
                self._by_hand += 1
            _await_writes(service, topic)

    # -- the end

    def finish(self, client: Client, path: Path) -> None:
        assert self._pulse is not None
        self._beats = outside(self._down, self._pulse.stop())
        super().finish(client, path)

    def judge(self, path: Path) -> None:
        self._longest_s = longest_answer_s(path)
        text = f"a request had no answer for {self._longest_s:.1f} s"
        claim(self._longest_s < LONGEST_ANSWER_S, "SlowAnswer", text)
        wrong = unwell(self._beats, HEALTH_MS)
        claim(not wrong, "Health", wrong)

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
        self._stack.close()

    def happened(self, recording: Recording) -> dict[str, int]:
        return {"power cuts after failed syncs": self._struck["lost"]}

    def figures(self) -> str:
        struck = ", ".join(f"{count} {kind}" for kind, count in self._struck.items())
        health = f"{p99(waits_ms(self._beats)):.1f} ms (p99), at most {_most(self._beats):.1f} ms"
        return (
            f"disk: {struck}; {self._faults.failed} syncs failed, {self._by_hand} shards restarted by hand; "
            f"power cuts: {self._power.figures()}; longest answer {self._longest_s:.1f} s; health within {health}"
        )


def _replace(service: Service, shard: str) -> None:
    incarnation = service.kill_child(shard)
    until(lambda: service.child(shard)["incarnation"] > incarnation, f"another {shard}", BACK_S)


def _await_writes(service: Service, topic: str) -> None:
    told: list[str] = []

    def taken() -> bool:
        told.append(_probe(service, topic))
        return not told[-1]

    try:
        until(taken, f"{topic} to take writes again", HEALS_S)
    except AssertionError as error:
        raise Violation("NotHealed", f"{error}; the last answer: {told[-1]}{service.log_tail()}") from None
    claim("read_only" not in told, "ReadOnly", f"the shard of {topic} was read-only")


def _most(beats: list[Beat]) -> float:
    return max((beat.took_ms for beat in beats), default=0.0)


def _probe(service: Service, topic: str) -> str:
    """Write a record. Returns why that was refused, or an empty text."""
    answer: Any
    try:
        status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    if status < 300:
        return ""
    detail = answer["error"].get("detail") or {}
    return str(detail.get("reason") or detail.get("limit") or answer)


def longest_answer_s(path: Path) -> float:
    """The longest that an operation of a history took, with or without an answer."""
    with path.open("rb") as file:
        asked = (line for line in f.Reader(file) if not isinstance(line, WITHOUT_ANSWER))
        return max((line.end_ns - line.start_ns for line in asked), default=0) / 1e9
