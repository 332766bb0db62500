"""Samples of a service under load: what its processes, its disk and its answers take, one JSON object in each line.

    at_s                        seconds since the first sample
    "<process>, MB"             proportional memory of gateway, shard-00, …, fork server and supervisor
    "<process>, descriptors"    its open files and sockets
    "<process>, threads"
    "disk, MB"                  blocks of the data directory
    "topics_…"                  metrics of the service: what it holds for clients, and what never happens
    "appends p50, ms" …         of the answers since the sample before, as its clients saw them
    "health p99, ms"

    "silent beats"              requests for health without an answer since the sample before, or with a refusal

A sample lacks what nothing was measured of.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.inside import descriptors, memory
from tests.support.looped import Looped
from tests.support.pulse import Pulse, p99, waits_ms
from tests.support.service import Service

GAUGES = (
    "topics_topics",
    "topics_records_live",
    "topics_http_requests_in_flight",
    "topics_sse_connections",
    "topics_watch_sessions",
    "topics_cursors",
    "topics_queue_leases_in_flight",
    "topics_letters_waiting",
)
SILENT = "silent beats"
NEVER = (
    SILENT,
    "topics_internal_errors_total",
    "topics_shard_restarts_total",
    "topics_shard_hangs_total",
    "topics_quarantined",
    "topics_files_set_apart",
    "topics_records_missing",
    "topics_disk_refused_total",
)
"""Series that stay 0 under a steady load."""
PANELS: dict[str, Callable[[str], bool]] = {
    "memory, MB": lambda name: name.endswith(", MB") and name != "disk, MB",
    "descriptors": lambda name: name.endswith(", descriptors"),
    "threads": lambda name: name.endswith(", threads"),
    "disk, MB": lambda name: name == "disk, MB",
    "held for clients, as shares of the most": lambda name: name in GAUGES,
    "latency, ms": lambda name: name.endswith(", ms"),
    "what never happens": lambda name: name in NEVER,
}
"""The panels of an image, and the series of each."""
MB = 1 << 20
OF_PROCESS: dict[str, Callable[[int], float]] = {
    "MB": lambda pid: round(memory(pid) / MB, 2),
    "descriptors": descriptors,
    "threads": lambda pid: len(os.listdir(f"/proc/{pid}/task")),
}
if os.geteuid():
    del OF_PROCESS["descriptors"]  # which the service hides from others than root
Series = dict[str, list[tuple[float, float]]]


class Latencies:
    """Milliseconds of answers, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: list[float] = []

    def add(self, ms: float) -> None:
        with self._lock:
            self._taken.append(ms)

    def take(self) -> list[float]:
        """All since the last call."""
        with self._lock:
            found, self._taken = self._taken, []
        return found


class Sampler(Looped):
    """Writes a sample each `every_s` until it is stopped. `finish` raises what kept it from that."""

    def __init__(self, service: Service, pulse: Pulse, latencies: Latencies, path: Path, every_s: float) -> None:
        super().__init__("sampler")
        self._service, self._pulse, self._latencies = service, pulse, latencies
        self._file, self._every_s = path.open("w"), every_s
        self._began = time.monotonic()
        self.pids: dict[str, set[int]] = {}
        """Of each process by name: one, unless it was replaced."""

    def turn(self) -> None:
        if not self.stopping.wait(self._every_s):
            sample = {"at_s": round(time.monotonic() - self._began, 1)} | self.sample()
            self._file.write(json.dumps(sample) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def sample(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, pid in processes(self._service).items():
            self.pids.setdefault(name, set()).add(pid)
            found |= _of_process(name, pid)
        found["disk, MB"] = _used_bytes(self._service.data_dir) / MB
        found |= self._gauges()
        appends = self._latencies.take()
        beats = self._pulse.news()
        for name, value in (
            ("appends p50, ms", median(appends) if appends else None),
            ("appends p99, ms", p99(appends) if appends else None),
            ("health p99, ms", p99(waits_ms(beats)) if beats else None),
            (SILENT, sum(beat.status != 200 for beat in beats) if beats else None),
        ):
            if value is not None:
                found[name] = round(value, 3)
        return found

    def _gauges(self) -> dict[str, float]:
        connection = self._service.connect()
        try:
            connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
            told = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return {name: _sum(told[name]) for name in (*GAUGES, *NEVER) if name in told}


def expected(names: Iterable[str]) -> set[str]:
    """The series that a run has, of processes with these names."""
    of_processes = {f"{name}, {what}" for name in names for what in OF_PROCESS}
    return {*of_processes, *GAUGES, *NEVER, "disk, MB", "appends p50, ms", "appends p99, ms", "health p99, ms"}


def processes(service: Service) -> dict[str, int]:
    """The pids of the service's processes, by their names."""
    told = service.status()
    found = {name: int(child["pid"]) for name, child in told["children"].items() if child["pid"]}
    assert service.process is not None
    found["supervisor"] = service.process.pid
    if told.get("fork_server"):
        found["fork server"] = int(told["fork_server"])
    return found


def _sum(told: Any) -> float:
    """A metric, over all its labels if it has any."""
    return float(sum(each["value"] for each in told) if isinstance(told, list) else told)


def _of_process(name: str, pid: int) -> dict[str, float]:
    """Nothing of a process that has ended."""
    try:
        return {f"{name}, {what}": measured(pid) for what, measured in OF_PROCESS.items()}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _used_bytes(directory: Path) -> int:
    used = 0
    for folder, folders, files in os.walk(directory):  # passes over folders that are removed meanwhile
        for name in (*folders, *files):
            try:
                used += 512 * os.lstat(Path(folder, name)).st_blocks
            except FileNotFoundError:
                continue
    return used


def read(path: Path) -> Series:
    """The series of a file of samples, by name."""
    series: Series = {}
    for line in path.read_text().splitlines():
        sample = json.loads(line)
        at_s = sample.pop("at_s")
        for name, value in sample.items():
            series.setdefault(name, []).append((at_s, value))
    return series


def draw(series: Series, path: Path) -> None:
    """Write an image with a panel for each kind of series. Raises `ModuleNotFoundError` without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(24, 9))
    axes.flat[-1].set_axis_off()
    for axis, (title, belongs) in zip(axes.flat, PANELS.items(), strict=False):
        for name in filter(belongs, series):
            seconds, values = zip(*series[name], strict=True)
            label = name.rpartition(", ")[0] or name
            if name in GAUGES:
                most = max(*values, 1)
                values, label = [value / most for value in values], f"{label}, at most {most:g}"
            axis.plot(seconds, values, label=label, linewidth=1)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("seconds")
        if title == "latency, ms":  # one slow answer would make all others a line at the bottom
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
